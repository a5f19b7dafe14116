"""The checks of every request before it reaches a route: host, body, credentials, limits."""
