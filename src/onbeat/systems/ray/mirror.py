"""The mirror of a timer on a Ray cluster: a detached actor that tells what the store says.

It is for those who look at the cluster. Nothing is ever read back from it.
"""

import json


class TimerLock:
    """Has the pid of the timer, its schedules, and what of them is running."""

    def __init__(self) -> None:
        self._meta: dict[str, object] = {}

    def __repr__(self) -> str:
        return f"TimerLock(pid={self.get_pid()})"

    def get_pid(self) -> object:
        """Return the process that keeps time."""
        return self._meta.get("pid")

    def get_meta(self) -> dict[str, object]:
        """Return all of it: pid, schedules, running."""
        return self._meta

    def update(self, meta: str) -> None:
        """Take what the store says by now, as JSON."""
        self._meta = json.loads(meta)


async def update(name: str, namespace: str, meta: str) -> None:
    """Tell the mirror of this name, which is made if it is not there."""
    import ray  # noqa: PLC0415 - it is there wherever this runs

    actor = (
        ray.remote(TimerLock)
        .options(
            name=name, namespace=namespace, lifetime="detached", get_if_exists=True, num_cpus=0
        )
        .remote()
    )
    await actor.update.remote(meta)
