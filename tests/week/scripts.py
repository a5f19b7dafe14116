"""The scripts: a messy week, and shorter ones of the nights in which the clocks change.

The week is the one whose Sunday has 02:30 twice. It has a graceful outage and a crash, edits of
triggers and of policies, a deletion, pauses of every kind, a closed gate, a group that is full, runs
that overlap, fail, are tried again, are slow, are canceled, or never report their outcome.
"""

from datetime import date

from tests.week.script import DAYS, Script, takes

COMMAND = {"command": ["work"]}
IN_BERLIN = {"timezone": "Europe/Berlin"}


def defined(**fields):
    return {"run": COMMAND} | IN_BERLIN | fields


POLL = defined(every="15m", catchup_window="3h")
TIDY = defined(cron="45 */6 * * *")
FLAKY = defined(cron="50 */4 * * *", pause_after=3)
NEWS = defined(
    cron="*/20 * * * MON-FRI", within="09:00-17:00", exclude=["2026-10-22"], catchup="none"
)
DRIFT = defined(cron="10,40 * * * *", retry=["5m"])
STEADY = defined(cron="25 * * * *")
KEEPS = defined(cron="3 */8 * * *", retry=["90m", "3h"], timeout="20m")
AUTUMN = {
    "poll": POLL,
    "load": defined(cron="0 * * * *", overlap="queue", queue_limit=2),
    "nightly": defined(cron="30 2 * * *"),
    "wild": defined(cron="*/30 1-3 * * *", overlap="allow", max_active=2, catchup="all"),
    "report": defined(daily="06:15", retry=["5m", "20m"], timeout="30m"),
    "sync": defined(cron="0 */2 * * *", retry=["3h"], catchup="none", on_lost="retry"),
    "press-a": defined(cron="5 */3 * * *", group="press", start_deadline="20m30s"),
    "press-b": defined(cron="5 */3 * * *", group="press", start_deadline="20m30s"),
    "chain": defined(cron="0 6-12 * * *", overlap="queue", start_deadline="30m15s"),
    "mail": defined(every="100m", rate="10/day"),
    "probe": defined(daily="07:00", when={"command": ["ask"]}),
    "tidy": TIDY,
    "feed": defined(every="1h", catchup="spread", overlap="allow"),
    "deploy": defined(cron="0 */4 * * *", overlap="replace"),
    "remote": defined(cron="20,50 8-14/2 * * *"),
    "chat": defined(cron="10 */3 * * *"),
    "news": NEWS,
    "temp": defined(every="2h", overlap="queue"),
    "moved": defined(cron="0 */4 * * *"),
    "once": defined(at=["2026-10-20T10:00", "2026-10-25T02:30", "2026-10-28T09:00"]),
    "flaky": FLAKY,
    "drift": DRIFT,
    "steady": STEADY,
    "keeps": KEEPS,
}

WEEK = Script(
    first_day=date(2026, 10, 19),
    begins="Mon 00:00:00",
    ends="+Mon 00:10:30",
    acts=(
        ("Mon 00:00:00", "group", "press", {"places": 1}),
        *(("Mon 00:00:00", "define", name, fields) for name, fields in AUTUMN.items()),
        # A run awaiting a retry keeps its retries and its timeout.
        ("Mon 09:00:20", "define", "keeps", KEEPS | {"retry": [], "timeout": "1h"}),
        ("Mon 09:07:30", "start", "poll"),
        ("Mon 12:10:10", "define", "tidy", TIDY | {"enabled": False}),
        ("Mon 15:20:10", "cancel", "load", {"tick": "Mon 14:00"}),
        ("Mon 17:21:10", "cancel", "deploy", {"tick": "Mon 16:00"}),
        ("Tue 12:10:10", "define", "tidy", TIDY),
        ("Tue 15:10:30", "pause", "mail", {"until": "Tue 19:10:10"}),
        # The scheduler is stopped gracefully, and none is up for seven hours.
        ("Tue 20:00:40", "stop"),
        # Edits meanwhile: of the timing, just after a tick; and of something else.
        ("Wed 01:10:30", "define", "drift", DRIFT | {"cron": "55 */2 * * *", "retry": []}),
        ("Wed 01:30:15", "define", "steady", STEADY | {"overlap": "queue"}),
        ("Wed 03:00:20", "open"),
        ("Wed 09:00:30", "delete", "temp"),
        ("Wed 10:10:10", "define", "moved", defined(cron="30 */6 * * *")),
        ("Wed 13:20:30", "pause", "load"),
        ("Wed 14:30:45", "resume", "load"),
        ("Wed 15:15:15", "define", "flaky", FLAKY | {"cron": "40 */6 * * *"}),
        ("Thu 00:10:10", "define", "tidy", TIDY | {"run": COMMAND | {"enabled": False}}),
        ("Thu 10:10:30", "resume", "flaky"),
        ("Thu 11:30:30", "pause", "feed"),
        ("Thu 13:10:30", "gate", "", {"is_open": False}),
        ("Thu 14:20:40", "gate", "", {"is_open": True}),
        ("Thu 15:07:30", "define", "poll", POLL | {"overlap": "queue"}),
        ("Thu 15:30:30", "resume", "feed"),
        ("Fri 00:10:10", "define", "tidy", TIDY),
        ("Fri 09:30:30", "define", "temp", defined(every="3h", overlap="queue")),
        # The node is killed: its started runs are lost. Another node takes over.
        ("Fri 13:40:50", "crash"),
        ("Fri 15:10:15", "open"),
        ("Sat 00:07:30", "define", "poll", POLL),
        ("Sat 08:20:30", "pause", "poll"),
        ("Sat 11:35:40", "resume", "poll", {"catchup": True}),
        ("Sat 12:20:20", "backfill", "news", {"first": "Fri 14:00", "last": "Fri 14:20"}),
        ("Sat 14:30:30", "pause", "sync"),
        ("Sat 17:30:45", "resume", "sync"),
        ("Sun 01:50:30", "pause", "feed"),
        ("Sun 03:10:30", "resume", "feed"),
        ("Sun 20:20:30", "pause", "mail"),
    ),
    usually={
        "poll": takes("0s"),
        "load": takes("50m11s"),
        "nightly": takes("25m07s"),
        "wild": takes("65m07s"),
        "report": takes("4m07s"),
        "sync": takes("0s"),
        "press-a": takes("12m07s"),
        "press-b": takes("12m07s"),
        "chain": takes("0s"),
        "mail": takes("0s"),
        "probe": takes("2m07s"),
        "tidy": takes("0s"),
        "feed": takes("0s"),
        "deploy": takes("85m07s"),
        "remote": takes("0s", "accepts", tells="15m"),
        "chat": takes("0s"),
        "news": takes("0s"),
        "temp": takes("0s"),
        "moved": takes("0s"),
        "once": takes("0s"),
        "flaky": takes("0s"),
        "drift": takes("0s"),
        "steady": takes("0s"),
        "keeps": takes("1m07s"),
    },
    but={
        "drift Wed 01:10 #1": takes("1m07s", "exit"),
        "keeps Mon 08:03 #1": takes("1m07s", "exit"),
        "keeps Mon 08:03 #2": takes("45m07s"),  # longer than its timeout
        **{
            f"poll {day} {hour}:00": takes("40m07s")
            for day in DAYS
            for hour in ("00", "05", "10", "15", "20")
        },
        "poll Fri 13:30": takes("40m07s"),
        "poll +Mon 00:00": takes("40m07s"),
        **{f"load {day} 06:00": takes("2h20m11s") for day in DAYS},
        **{f"load {day} 12:00": takes("3h50m11s") for day in ("Mon", "Wed", "Fri")},
        "report Tue 06:15 #1": takes("4m07s", "exit"),
        "report Wed 06:15": takes("4m07s", "exit"),
        "report Thu 06:15": takes("4m07s", "signal"),
        "report Fri 06:15 #1": takes("4m07s", "error"),
        "report Fri 06:15 #2": takes("45m07s"),
        "report Fri 06:15 #3": takes("4m07s", "error"),
        "report Sat 06:15": takes("45m07s"),
        "sync Mon 10:00": takes("1m07s", "exit"),
        "sync Wed 10:00": takes("1m07s", "exit"),
        "sync Fri 12:00 #1": takes("5h07s"),
        "sync Sat 14:00": takes("1m07s", "error"),
        "press-a Mon 09:05": takes("30m07s"),
        "press-a Tue 12:05": takes("4h07s"),
        "press-b Wed 12:05": takes("4h07s"),
        "press-a Sat 18:05": takes("22m07s"),
        "chain Tue 07:00": takes("2h50m07s"),
        "chain Sat 08:00": takes("75m07s"),
        "deploy Wed 08:00": takes("5h07s"),
        "deploy Sat 00:00": takes("5h07s"),
        "deploy Sat 04:00": takes("5h07s"),
        "remote Mon 10:20": takes("0s", "accepts"),
        "remote Tue 12:50": takes("0s", "accepts"),
        "remote Thu 10:20": takes("0s", "accepts", tells="25m"),
        "remote Sat 08:20": takes("0s", "launch_failed"),
        "chat Tue 09:10 #1": takes("0s", "busy", again="1h"),
        "chat Tue 09:10 #2": takes("0s", "busy", again="1h"),
        "chat Wed 09:10": takes("0s", "busy", again="1h"),
        "temp Wed 06:00": takes("3h30m07s"),
        **{f"flaky Mon {hour}:50": takes("1m07s", "exit") for hour in ("08", "12")},
        **{f"flaky Tue {hour}:50": takes("1m07s", "exit") for hour in ("08", "12", "16")},
    },
    not_when=frozenset({"probe Wed 07:00", "probe Sun 07:00"}),
)

# -- the nights

NIGHTLY = {
    "nightly": defined(cron="30 2 * * *"),
    "daily": defined(daily="02:15", retry=["10m"]),
    "fixed": defined(cron="0,30 2-3 * * *"),
    "only-real": defined(cron="30 2 * * *", dst="skip"),
    "wild": defined(cron="*/30 1-3 * * *", overlap="allow", max_active=2, catchup="all"),
    "hourly": defined(cron="0 * * * *", overlap="queue", queue_limit=2),
    "every": defined(every="30m", catchup="none"),
    "spread": defined(cron="*/20 * * * *", catchup="spread", overlap="allow"),
    "held": defined(every="1h"),
}


def a_night(first_day, *acts):
    """Return a script from Saturday evening to Sunday noon."""
    return Script(
        first_day=first_day,
        begins="Sat 21:00:00",
        ends="Sun 12:10:30",
        acts=(*(("Sat 21:00:00", "define", name, NIGHTLY[name]) for name in NIGHTLY), *acts),
        usually={
            "nightly": takes("25m07s"),
            "daily": takes("5m07s"),
            "fixed": takes("40m07s"),
            "only-real": takes("0s"),
            "wild": takes("65m07s"),
            "hourly": takes("70m07s"),
            "every": takes("0s"),
            "spread": takes("0s"),
            "held": takes("0s"),
        },
        but={f"daily Sun {time} #1": takes("5m07s", "exit") for time in ("02:15", "03:00")},
    )


SPRING, AUTUMN_NIGHT = date(2027, 3, 27), date(2026, 10, 24)
PAUSE = ("Sun 00:30:30", "pause", "held"), ("Sun 05:30:30", "resume", "held")

SCRIPTS = {
    "week": WEEK,
    "spring": a_night(SPRING, *PAUSE),
    "spring, down": a_night(SPRING, ("Sun 01:20:40", "stop"), ("Sun 04:10:20", "open")),
    "spring, crash": a_night(SPRING, ("Sun 01:50:40", "crash"), ("Sun 04:00:20", "open")),
    "autumn": a_night(AUTUMN_NIGHT, *PAUSE),
    "autumn, down": a_night(AUTUMN_NIGHT, ("Sun 02:10:40", "stop"), ("Sun 02:50:20 again", "open")),
}

# A pause that ends automatically, at a time at which nothing could resume.
OUTLASTED = Script(
    first_day=date(2026, 10, 20),
    begins="Tue 12:00:00",
    ends="Wed 12:00:30",
    acts=(
        ("Tue 12:00:00", "define", "mail", defined(every="1h")),
        ("Tue 15:10:30", "pause", "mail", {"until": "Wed 01:10:10"}),
        ("Tue 20:00:40", "stop"),
        ("Wed 03:10:20", "open"),
    ),
    usually={"mail": takes("0s")},
    but={},
)
