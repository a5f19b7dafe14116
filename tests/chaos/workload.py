"""What the nodes have to do: schedules of a second or a few, whose commands leave a witness.

Each command appends one line to the witness file before all else: `run attempt key schedule time`,
with the time since the machine was started. A line is one write to a file opened for appending, so it
is there whole or not at all.
"""

import json
import random
from pathlib import Path

NEVER = "2100-01-01T00:00:00Z"
GOES = "comes-and-goes"  # the one that is deleted now and then
SLOW = "while [ -e {slow} ]; do sleep 0.5; done"

SCHEDULES = {
    "plain": ({"every": "1s"}, "exit 0"),
    "fails": ({"every": "3s", "retry": ["1s"]}, "exit 3"),
    "queued": ({"every": "1s", "overlap": "queue"}, "sleep 0.3"),
    "queued-fails": ({"every": "2s", "overlap": "queue", "retry": ["1s"]}, "exit 4"),
    "flaky": (
        {"every": "1s", "overlap": "allow", "retry": ["1s", "1s"], "on_lost": "retry"},
        '[ "$ONBEAT_ATTEMPT" -gt 1 ]',
    ),
    "again": ({"every": "5s", "on_lost": "retry"}, "sleep 0.2"),
    "slow": ({"every": "2s"}, SLOW),
    "slow-again": ({"every": "4s", "overlap": "queue", "on_lost": "retry"}, SLOW),
    "late": ({"every": "1s", "grace": "1s"}, "exit 0"),
    "never-late": ({"every": "1s", "grace": "1s", "catchup": "none"}, "exit 0"),
    "each": ({"every": "1s", "grace": "1s", "catchup": "all", "overlap": "queue"}, "exit 0"),
    "spread": ({"every": "5s", "grace": "1s", "catchup": "spread"}, "exit 0"),
    "jittered": ({"every": "2s", "jitter": "1s"}, "exit 0"),
    GOES: ({"every": "1s"}, "exit 0"),
}  # fmt: skip


class Workload:
    """The file of schedules, and the marks that its commands leave."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.file, self.witness = folder, folder / "onbeat.yaml", folder / "witness"
        self._slow = folder / "slow"
        self._given = {name: dict(fields) for name, (fields, _) in SCHEDULES.items()}
        self.witness.touch()
        self._slow.touch()
        self.write()

    def write(self) -> None:
        """Write the file of schedules anew, all at once."""
        found = {}
        for name, fields in self._given.items():
            then = SCHEDULES[name][1].format(slow=self._slow)
            line = '"$ONBEAT_RUN_ID $ONBEAT_ATTEMPT $ONBEAT_KEY $ONBEAT_SCHEDULE $up"'
            script = f"read -r up idle < /proc/uptime; echo {line} >> {self.witness}; {then}"
            found[name] = {**fields, "run": {"command": ["sh", "-c", script]}}
        new = self.file.with_suffix(".new")
        new.write_text(json.dumps({"schedules": found}))  # JSON is YAML
        new.replace(self.file)

    def edit(self, chance: random.Random, token: str) -> str:
        """Change one schedule, half of the time its ticks as well; return which."""
        name = chance.choice(list(self._given))
        self._given[name]["description"] = token
        if chance.random() < 0.5:
            self._given[name]["every"] = chance.choice(["1s", "2s", "3s", "5s"])
        self.write()
        return name

    def hurry(self) -> None:
        """Let slow runs be quick from now on."""
        self._slow.unlink(missing_ok=True)

    def end(self) -> None:
        """Let no further tick come."""
        for fields in self._given.values():
            fields.pop("every")
            fields["at"] = NEVER
        self.write()
