"""The stores, one for each database."""
