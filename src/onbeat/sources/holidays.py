"""Public holidays of a country or region as items of `exclude`, from the `holidays` package."""

from onbeat.errors import InvalidSchedule, quote_value
from onbeat.host.extras import install_command

YEARS = range(2020, 2051)


def holiday_items(region: str) -> tuple[str, ...]:
    """Return the holidays of `DE`, `DE-BY` and the like as dates."""
    try:
        import holidays  # noqa: PLC0415 - an extra
    except ImportError:
        hint = install_command("holidays")
        raise InvalidSchedule(
            "holidays", "the package `holidays` is not installed", hint=hint
        ) from None
    country, _, part = region.partition("-")
    try:
        days = holidays.country_holidays(country, subdiv=part or None, years=YEARS)
    except NotImplementedError:
        hint = "a country code, optionally with a region: DE or DE-BY"
        raise InvalidSchedule(
            "holidays", f"no region is called {quote_value(region)}", hint=hint
        ) from None
    return tuple(sorted(day.isoformat() for day in days))
