"""Targets with their templates rendered: once for all attempts at a run, and kept with it."""

from collections.abc import Mapping, Sequence

import msgspec

from onbeat.core.runs import run_key
from onbeat.core.schedules import Schedule, Target, read_inputs
from onbeat.core.templates import Ran, render_all, values_of
from onbeat.references import SECRET
from onbeat.stores.sql.rows import WaitingRow
from onbeat.stores.sql.transaction import Transaction

LAST_ENDED = """
SELECT status, run_at, finished_at, result, error FROM (
    SELECT status, run_at, finished_at, result, error FROM schedule_runs
     WHERE schedule_id = ?1 AND status IN ('SUCCESS', 'FAILED', 'CANCELED') AND attempt > 0
     ORDER BY run_id DESC LIMIT 100) AS latest
 ORDER BY finished_at DESC LIMIT 1
"""


def rendered(tx: Transaction, row: WaitingRow, schedule: Schedule) -> Target:
    """Return what a run is to start. Inputs that were given by hand are taken as they are."""
    values = values_of(
        schedule_id=row.schedule_id,
        timezone=schedule.timezone,
        run_at=row.run_at,
        due_at=row.due_at,
        first_run_at=row.first_run_at,
        key=run_key(row.schedule_id, row.run_at, row.request_id),
        iteration=row.iteration,
        tick_count=row.tick_count,
        triggered_by=row.triggered_by,
        last=_last(tx, row.schedule_id),
    )
    target, own = schedule.target, schedule.target.inputs
    plain = _without_references(values)
    fields = {
        name: _own_references(value, render_all(value, plain))
        if target.kind == "http" or name == "env"
        else render_all(value, values)
        for name, value in target.fields.items()
        if name != "inputs"
    }
    if given := read_inputs(row.inputs):
        fields["inputs"] = {
            name: render_all(value, values, native=True) if own.get(name) == value else value
            for name, value in given.items()
        }
    return Target(target.kind, fields)


def _without_references(values: Mapping[str, object]) -> Mapping[str, object]:
    """Return values of which nothing is taken for a reference to a secret.

    Only who defines a schedule may write `${env:NAME}`; what a target has answered may hold it too.
    """
    text = msgspec.json.encode(values).replace(b"${", b"$ {")
    return msgspec.json.decode(text, type=dict[str, object])


def _own_references(written: object, found: object) -> object:
    """Return what was rendered, with no more names of files of secrets than were written."""
    match found:
        case str():
            if written != found and SECRET.fullmatch(found):
                return found.replace(":", " :")
        case dict() if isinstance(written, Mapping):
            pairs = zip(written.values(), found.items(), strict=True)
            return {name: _own_references(own, each) for own, (name, each) in pairs}
        case list() if isinstance(written, Sequence):
            return [_own_references(*pair) for pair in zip(written, found, strict=True)]
    return found


def _last(tx: Transaction, schedule_id: str) -> Ran | None:
    found = tx.one(LAST_ENDED, (schedule_id,))
    if found is None:
        return None
    status, run_at, finished_at, result, error = found
    kept = None if result is None else msgspec.json.decode(result)
    return Ran(status, run_at, finished_at, kept, error)
