"""A launcher and a system that are not part of Onbeat."""
