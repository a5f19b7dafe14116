"""The contracts between the engine and its adapters: `Clock`, `Store`, `Launcher`, `Notifier`.

Instants are whole milliseconds since 1970 in UTC, except `run_at`, which is in seconds.
"""
