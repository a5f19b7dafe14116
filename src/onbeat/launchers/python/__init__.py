"""The launcher of Python functions in this process."""
