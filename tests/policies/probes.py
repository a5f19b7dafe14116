"""Conditions that a schedule may ask, as `when: {python: "tests.policies.probes:holds"}`."""


def holds(run):
    return {"schedule": run.schedule_id}


def is_empty():
    return []


async def says_no():
    return False


def breaks():
    raise RuntimeError("nobody knows")


def is_more_than(count, limit):
    return count > limit
