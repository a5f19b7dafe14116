"""The routes of the API, by topic. Each calls a use case of `service/service.py`."""
