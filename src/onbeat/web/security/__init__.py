"""What every request passes before it reaches a route: hosts, bodies, credentials, limits."""
