"""Rendered targets: the templates of a run, rendered once for all attempts and stored with it.

The text of a definition may refer to secrets; the output of its templates may not.
"""

from collections.abc import Mapping
from functools import partial
from operator import add

import msgspec

from onbeat.core.notify.channels import REFERENCE
from onbeat.core.runs.run import run_key
from onbeat.core.schedule import Schedule
from onbeat.core.target import Target, read_inputs
from onbeat.core.templates import Expression, PreviousRun, Template, Values, render_all, values_of
from onbeat.host.secrets import without_references
from onbeat.stores.sql.taken_rows import WaitingRow
from onbeat.stores.sql.transaction import Transaction

LAST_ENDED = """
SELECT phase, run_at, finished_at, result, error FROM (
    SELECT phase, run_at, finished_at, result, error FROM schedule_runs
     WHERE schedule_id = ?1 AND phase IN ('SUCCESS', 'FAILED', 'CANCELED') AND attempt > 0
     ORDER BY run_id DESC LIMIT 100) AS latest
 ORDER BY finished_at DESC LIMIT 1
"""


def rendered(tx: Transaction, row: WaitingRow, schedule: Schedule) -> Target:
    """Return the rendered target of a run. Manual inputs are used as they are."""
    run = row.stored
    last = _previous_run(tx, run.schedule_id)
    values = values_of(
        schedule_id=run.schedule_id,
        timezone=schedule.timezone,
        run_at=run.run_at,
        due_at=run.due_at,
        first_run_at=row.first_run_at,
        key=run_key(run.schedule_id, run.run_at, run.request_id),
        iteration=row.iteration,
        tick_count=row.tick_count,
        triggered_by=run.triggered_by,
        last=last,
        ran_before=_last_run_at(tx, run.schedule_id) if last is None else None,
    )
    inputs = read_inputs(row.inputs)
    return render_target(schedule.target, values, inputs)


def render_target(target: Target, values: Values, inputs: Mapping[str, object]) -> Target:
    """Return a target with the templates of its fields rendered, and these inputs of its run.

    The results of templates are inert, except in the plain fields of its kind.
    """
    plain, own = target.facts.plain_fields, target.inputs
    fields = {
        name: render_all(value, values) if name in plain else _render_inert(value, values)
        for name, value in target.fields.items()
        if name != "inputs"
    }
    render = partial(render_all, native=True) if "inputs" in plain else _render_inert_native
    if inputs:
        fields["inputs"] = {
            name: render(value, values) if own.get(name) == value else value
            for name, value in inputs.items()
        }
    return Target(target.kind, fields)


def _render_inert(value: object, values: Values) -> object:
    """Return a JSON value with every text rendered; only its literal text may refer to secrets."""
    if isinstance(value, str) and "{{" in value:
        return _render_text(Template.parse(value), values)
    if isinstance(value, (list, tuple)):
        return [_render_inert(item, values) for item in value]
    if isinstance(value, Mapping):
        return {name: _render_inert(item, values) for name, item in value.items()}
    return value


def _render_inert_native(value: object, values: Values) -> object:
    """Return the same, with the value of an expression in place of a text that is only that."""
    if isinstance(value, str) and "{{" in value:
        template = Template.parse(value)
        found = template.value(values)
        return _render_text(template, values) if isinstance(found, str) else _inert(found)
    if isinstance(value, (list, tuple)):
        return [_render_inert_native(item, values) for item in value]
    if isinstance(value, Mapping):
        return {name: _render_inert_native(item, values) for name, item in value.items()}
    return value


def _inert(value: object) -> object:
    """Return a JSON value in which no text refers to a secret."""
    match value:
        case str():
            return without_references(value)
        case list() | tuple():
            return [_inert(item) for item in value]
        case Mapping():
            return {without_references(str(name)): _inert(item) for name, item in value.items()}
        case _:
            return value


def _render_text(template: Template, values: Values) -> str:
    """Render the parts of a text before, between and after its secret references separately."""
    segments: list[list[str | Expression]] = [[]]
    references: list[str] = []
    for part in template.parts:
        if isinstance(part, Expression):
            segments[-1].append(part)
            continue
        at = 0
        for reference in REFERENCE.finditer(part):
            segments[-1].append(part[at : reference.start()])
            references.append(reference.group())
            segments.append([])
            at = reference.end()
        segments[-1].append(part[at:])
    texts = (Template(template.text, tuple(parts)).render(values) for parts in segments)
    whole = "".join(map(add, map(without_references, texts), (*references, "")))
    return Template(template.text, (whole,)).render(values)  # truncated like any other


def _last_run_at(tx: Transaction, schedule_id: str) -> int | None:
    """Return when a schedule without stored runs last ran: elsewhere, or before a prune."""
    sql = "SELECT last_run_at FROM schedule_state WHERE schedule_id = ?1"
    found: int | None = tx.value(sql, (schedule_id,))
    return found


def _previous_run(tx: Transaction, schedule_id: str) -> PreviousRun | None:
    found = tx.one(LAST_ENDED, (schedule_id,))
    if found is None:
        return None
    status, run_at, finished_at, result, error = found
    value = None if result is None else msgspec.json.decode(result)
    return PreviousRun(status, run_at, finished_at, value, error)
