"""The use cases: what every surface can request."""
