"""The HTTP API and the dashboard: security, routes, live streams and the server."""
