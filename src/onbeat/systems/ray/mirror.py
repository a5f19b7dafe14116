"""The mirror of the timer on a Ray cluster: a detached actor with a copy of its state.

It serves users of the cluster. Nothing is read back from it.
"""

import json


class TimerLock:
    """Holds the pid of the timer, its schedules, and its running flows."""

    def __init__(self) -> None:
        self._meta: dict[str, object] = {}

    def __repr__(self) -> str:
        return f"TimerLock(pid={self.get_pid()})"

    def get_pid(self) -> object:
        """Return the process id of the timer."""
        return self._meta.get("pid")

    def get_meta(self) -> dict[str, object]:
        """Return the state: pid, schedules, running."""
        return self._meta

    def update(self, meta: str) -> None:
        """Replace the state, given as JSON."""
        self._meta = json.loads(meta)


async def update(name: str, namespace: str, meta: str) -> None:
    """Update the mirror of this name, creating it if need be."""
    import ray  # noqa: PLC0415 - installed wherever this runs

    actor = (
        ray.remote(TimerLock)
        .options(
            name=name, namespace=namespace, lifetime="detached", get_if_exists=True, num_cpus=0
        )
        .remote()
    )
    await actor.update.remote(meta)
