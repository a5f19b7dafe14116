"""The use cases behind the command line, the HTTP API and the Python API."""
