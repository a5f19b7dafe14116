"""Two hundred common cron expressions that every peer can parse."""

from itertools import cycle, islice, product

MINUTES = ("0", "30", "*/5", "*/15", "7", "*", "0,30", "10-50/10", "59", "*/20")
HOURS = ("*", "9", "3", "*/2", "9-17", "0", "8,12,18", "22", "*/6", "1-5/2")
DAYS = (
    "* * *",
    "* * MON-FRI",
    "1 * *",
    "* * SUN",
    "1,15 * *",
    "* 1-6 *",
    "* */3 MON",
    "*/2 * *",
    "28 2 *",
    "31 * *",
    "* * TUE,THU",
)
EXPRESSIONS = [
    f"{minute} {hour} {days}"
    for (minute, hour), days in zip(
        islice(cycle(product(MINUTES, HOURS)), 200), cycle(DAYS), strict=False
    )
]
assert len(set(EXPRESSIONS)) == 200, "two expressions are the same"
