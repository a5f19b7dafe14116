"""Python functions and DAGs on a Ray cluster."""
