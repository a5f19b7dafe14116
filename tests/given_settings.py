"""Settings of tests, by the names that a file has."""

from onbeat.app.settings import Settings


def given_settings(**values):
    """Return settings with these values, those of systems included: `sessions_url="..."`."""
    return Settings.of_values(values)
