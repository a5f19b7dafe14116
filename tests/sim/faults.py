"""Where a node can die, and where its store can fail."""

import apsw

RARE = [
    f"{side} of {call}"
    for side in ("call", "answer")
    for call in (
        "register", "plan_due", "claim", "announce", "hand_back", "finish", "skip_condition", "expire",
        "to_end",
    )
] + [
    "launch", "launched", "outcome", "commit", "probe", "answer of a probe", "reattach", "reattached",
    "recall", "start outside", "end outside", "request", "answer of a request",
]  # fmt: skip

PASSES = [1, 1, 2, 2, 3, 4, 6, 8, 10, 12]


class Crash(BaseException):
    """The process is gone. Nothing may catch this and go on."""


class Faults:
    """Decides, point by point, whether this is where it happens."""

    def __init__(self, rng, seen):
        self._rng, self.seen = rng, seen
        self.dead = False
        self.quiet = False  # no more faults: everything has to come right now
        self.countdown = self._draw()
        # Most points are statements: now and then one of the rare ones is aimed at.
        self._aim, self._passes = rng.choice([None, *RARE]), rng.choice(PASSES)
        self._failing = rng.choice([0, 0.0004, 0.003])  # how likely a statement is to fail

    def _draw(self):
        """Draw how many points pass before the next crash."""
        return int(self._rng.expovariate(1 / 2500)) + 1

    def reach(self, point):
        """Pass a point, or die at it."""
        if self.dead:
            raise Crash(point)
        if self.quiet:
            return
        self.countdown -= 1
        self._passes -= point == self._aim
        if self.countdown <= 0 or not self._passes:
            self.die(point)

    def die(self, point):
        self.dead = True
        self.seen[f"crash at {point}"] += 1
        raise Crash(point)

    def trace(self, connection):
        """Have every statement of a connection be such a point."""

        def before(cursor, statement, bindings):
            word = statement.split(None, 1)[0].upper()
            if word in ("ROLLBACK", "PRAGMA"):
                return True
            self.reach("commit" if word == "COMMIT" else "statement")
            if not self.quiet and self._rng.random() < self._failing:
                self.seen[f"store failed at {word.lower()}"] += 1
                raise self._rng.choice([apsw.FullError, apsw.IOError, apsw.BusyError])("simulated")
            return True

        connection.exec_trace = before
