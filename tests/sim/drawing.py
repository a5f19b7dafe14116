"""Definitions, drawn at random: every trigger and every policy, and mostly the plain ones."""

from onbeat.core.schedule import read_schedule
from onbeat.core.time.instants import rfc3339

OVERLAPS = ["skip", "queue", "allow", "replace"]
CATCHUPS = ["once", "none", "all", "spread"]
GROUPS = ["narrow", "wide"]
JITTER = ("jitter", "jitter_around")


class Drawing:
    """Draws what users write. `outside` is the share of targets that continue without their node."""

    def __init__(self, rng, names, *, outside=0.0):
        self._rng, self._names, self._outside = rng, names, outside

    def schedule(self, name, *, now):
        """Draw a definition; `now` is in seconds."""
        trigger = self._single_times(now) if name == "once" else self._trigger(now)
        fields = {"run": self._target()} | self._timing() | self.policies()
        return read_schedule(name, trigger | fields)

    def _is(self, likely):
        return self._rng.random() < likely

    def _single_times(self, now):
        when = now + self._rng.choice([-600, -20, 30, 200])
        return {"at": [rfc3339(when), rfc3339(when + self._rng.choice([5, 90]))]}

    def _trigger(self, now):
        rng = self._rng
        if self._is(0.3):
            return self._caused()
        return rng.choice(
            [
                {"every": f"{rng.choice([3, 5, 7, 15, 30])}s"},
                {"cron": rng.choice(["* * * * *", "*/20 * * * * *", "*/5 * * * *"])},
                {"cron": rng.choice(["* * * * *", "*/20 * * * * *"]), "timezone": "Asia/Tokyo"},
                {"any": [{"every": "20s"}, {"cron": "30 * * * * *"}]},
                {"every": "4s", "max_runs": rng.choice([2, 10])},
                {"every": "6s", "end_at": rfc3339(now + 300)},
            ]
        )

    def _caused(self):
        """Draw a trigger that follows events, alone or beside one of the clock."""
        rng = self._rng
        outcome, delay = rng.choice(["success", "failure", "completion"]), self._delay()
        event = rng.choice(
            [
                {"after": {outcome: delay}},
                {
                    "after": {
                        "schedule": rng.choice(self._names),
                        "outcome": outcome,
                        "delay": delay,
                    }
                },
                {"after": {"schedule": rng.choice(self._names), "outcome": outcome}},
                {"startup": delay},
            ]
        )
        other = rng.choice([{"every": "20s"}, {"cron": "30 * * * * *"}, {"startup": "1s"}])
        return event if self._is(0.4) else {"any": [event, other]}

    def _delay(self):
        return self._rng.choice(["0s", "1s", "5s", "30s"])

    def _timing(self):
        jitter = self._rng.choice(["0s", "0s", "3s", "30s"])
        around = {"jitter_around": True} if jitter != "0s" and self._is(0.4) else {}
        return {"jitter": jitter} | around

    def _target(self):
        last = self._rng.choice([*"0123456789", "{{ iteration }}", "{{ iteration }}"])
        enabled = {"enabled": False} if self._is(0.05) else {}
        kind = "outside" if self._outside and self._is(self._outside) else "command"
        return {kind: ["true", last]} | enabled

    def policies(self):
        """Draw how a schedule is treated; when it ticks is not in this."""
        rng = self._rng
        overlap = rng.choice(OVERLAPS)
        fields = {
            "overlap": overlap,
            "catchup": rng.choice(CATCHUPS),
            "grace": rng.choice(["2s", "10s", "60s"]),
            "catchup_window": rng.choice(["1m", "24h"]),
            "retry": rng.choice([[], ["1s"], ["1s", "20s"], {"delays": ["1s"], "jitter": "4s"}]),
            "on_lost": rng.choice(["fail", "retry"]),
        }
        if overlap == "queue" and self._is(0.5):
            fields["queue_limit"] = rng.choice([1, 2, 5])
            fields["queue_keep"] = rng.choice(["first", "latest"])
        if overlap == "allow" and self._is(0.5):
            fields["max_active"] = rng.choice([1, 2, 3])
        rare = {
            "rate": (0.15, ["1/minute", "3/minute", "20/hour"]),
            "group": (0.3, GROUPS),
            "priority": (0.3, [-5, 5, 50]),
            "start_deadline": (0.25, ["1s", "5s", "30s"]),
            "pause_after": (0.15, [1, 2, 4]),
            "timeout": (0.3, ["2s", "40s"]),
            "when": (0.2, [{"command": ["probe"]}]),
            "enabled": (0.05, [False]),
        }
        for name, (likely, values) in rare.items():
            if self._is(likely):
                fields[name] = rng.choice(values)
        return fields
