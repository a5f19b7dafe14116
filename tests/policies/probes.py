"""Conditions for schedules, used as `when: {python: "tests.policies.probes:holds"}`."""


def holds(run):
    return {"schedule": run.schedule_id}


def is_empty():
    return []


async def returns_false():
    return False


def breaks():
    raise RuntimeError("unknown")


def is_more_than(count, limit):
    return count > limit
