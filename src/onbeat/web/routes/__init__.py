"""The routes of the API, one module a group of them. Each is a use case of `service/service.py`."""
