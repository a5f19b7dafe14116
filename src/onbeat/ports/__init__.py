"""The contracts between the engine and the world: `Clock`, `Store`, `Launcher`, `Notifier`.

Instants are whole milliseconds since 1970 in UTC, but for `run_at`, which is in seconds.
"""
