"""What a step makes of a run, from every phase: an allowed change, or nothing."""

from itertools import product

import pytest
from msgspec.structs import replace

from onbeat.core.runs.apply import RunChange, apply, first_phase, idle_phase
from onbeat.core.runs.decisions import (
    Announce,
    AwaitReport,
    Cancel,
    Claim,
    Detach,
    Finish,
    HandBack,
    Release,
    RequestCancel,
    Requeue,
    Retry,
    Supersede,
)
from onbeat.core.runs.phase import FIRST, Phase, Status, edges
from onbeat.core.runs.run import Run

NOW = 1_767_268_800_000
RUN = Run(1, NOW // 1000, Phase.WAITING, NOW, NOW)

# For each step, the phases from which it is taken, and where it leads. The run was due when it was
# decided, and no attempt was made.
TO_START = "WAITING SCHEDULED RETRYING DEFERRED BACKFILL"
STEPS = {
    "claim": (
        lambda run: Claim(),
        {"CLAIMED": TO_START, "REATTACHING": "DETACHED", "RECALLING": "RECALLED"},
    ),
    "announce": (
        lambda run: Announce(),
        {"RUNNING": "CLAIMED", "REATTACHED": "REATTACHING", "CANCELING": "RECALLING"},
    ),
    "request to cancel": (
        RequestCancel,
        {
            "CANCELING": "RUNNING REATTACHED",
            "REVOKED": "ACCEPTED",
            "RECALLED": "DETACHED REATTACHING",
        },
    ),
    "cancel": (lambda run: Cancel(), {"CANCELED": f"{TO_START} QUEUED CLAIMED"}),
    "supersede": (Supersede, {"SKIPPED": "WAITING SCHEDULED DEFERRED BACKFILL QUEUED CLAIMED"}),
    "requeue": (lambda run: Requeue(7), {"QUEUED": "SCHEDULED RETRYING DEFERRED BACKFILL"}),
    "release": (Release, {"WAITING": "QUEUED"}),
    "await a report": (
        lambda run: AwaitReport(NOW + 1, "job-7"),
        {"ACCEPTED": "RUNNING REATTACHED"},
    ),
    "retry": (
        lambda run: Retry(NOW + 1, "exit"),
        {"RETRYING": "RUNNING ACCEPTED REATTACHED"},
    ),
    "defer": (
        lambda run: Retry(NOW + 1, "busy", is_deferral=True),
        {"DEFERRED": "RUNNING REATTACHED"},
    ),
    "detach": (lambda run: Detach("lost"), {"DETACHED": "RUNNING REATTACHED"}),
    "hand back": (
        lambda run: HandBack(),
        {
            "WAITING": "CLAIMED RUNNING",
            "DETACHED": "REATTACHING REATTACHED",
            "RECALLED": "RECALLING",
        },
    ),
    "succeed": (
        lambda run: Finish(Status.SUCCESS),
        {"SUCCESS": "RUNNING CANCELING ACCEPTED REVOKED REATTACHED"},
    ),
    "fail": (
        lambda run: Finish(Status.FAILED),
        {
            "FAILED": f"{TO_START} QUEUED CLAIMED RUNNING CANCELING ACCEPTED REVOKED DETACHED"
            " REATTACHING REATTACHED RECALLED RECALLING"
        },
    ),
}


@pytest.mark.parametrize("name", STEPS)
def test_step_is_taken_from_these_phases_only(name):
    step, expected = STEPS[name]
    found = {}
    for phase in Phase:
        run = replace(RUN, phase=phase)
        try:
            change = apply(run, step(run), now=NOW)
        except AssertionError:
            continue
        assert change.before is run
        found.setdefault(change.after.phase, set()).add(phase)
    assert found == {after: set(before.split()) for after, before in expected.items()}


def test_change_that_the_table_does_not_have_is_refused():
    allowed = set(edges())
    for before, after in product(Phase, repeat=2):
        runs = (replace(RUN, phase=phase) for phase in (before, after))
        if (before, after) in allowed:
            assert RunChange(*runs).after.phase is after
        else:
            with pytest.raises(AssertionError, match=f"{before} to {after}"):
                RunChange(*runs)


def test_announced_attempt_keeps_its_number_when_it_is_handed_back():
    claimed = replace(RUN, phase=Phase.CLAIMED, was_busy=True, attempt=1, deferrals=1)
    announced = apply(claimed, Announce(), now=NOW).after
    assert (announced.attempt, announced.deferrals, announced.was_busy) == (2, 1, False)
    back = apply(announced, HandBack(), now=NOW).after
    assert (back.phase, back.attempt, back.deferrals) == (Phase.WAITING, 2, 2)


def test_claim_that_is_handed_back_costs_no_attempt():
    claimed = replace(RUN, phase=Phase.CLAIMED, due_at=NOW + 1)
    back = apply(claimed, HandBack(), now=NOW).after
    assert back == replace(claimed, phase=Phase.SCHEDULED)


@pytest.mark.parametrize(
    ("fields", "phase"),
    [
        ({}, Phase.WAITING),
        ({"due_at": NOW + 1}, Phase.SCHEDULED),
        ({"is_backfill": True, "due_at": NOW + 1}, Phase.BACKFILL),
        ({"attempt": 1, "is_backfill": True}, Phase.RETRYING),
        ({"attempt": 1, "deferrals": 1, "was_busy": True}, Phase.DEFERRED),
        ({"attempt": 2, "deferrals": 1, "was_busy": True}, Phase.DEFERRED),
        ({"attempt": 2, "deferrals": 2}, Phase.WAITING),
        ({"attempt": 2, "deferrals": 1}, Phase.RETRYING),
    ],
)
def test_released_run_waits_as_what_it_was(fields, phase):
    run = replace(RUN, phase=Phase.QUEUED, blocked_by=7, **fields)
    after = apply(run, Release(run), now=NOW).after
    assert (after.phase, after.blocked_by) == (phase, None)
    assert idle_phase(after) is phase


def test_waiting_run_ends_as_failed_if_an_attempt_was_made():
    ends = {
        attempt: apply(run, Supersede(run), now=NOW).after.phase
        for attempt in (0, 1, 2)
        for run in [replace(RUN, phase=Phase.QUEUED, attempt=attempt, deferrals=1)]
    }
    assert ends == {0: Phase.SKIPPED, 1: Phase.SKIPPED, 2: Phase.FAILED}


def test_accepted_run_is_awaited_no_longer_once_its_cancellation_was_requested():
    run = replace(RUN, phase=Phase.ACCEPTED, deadline_at=NOW + 9)
    after = apply(run, RequestCancel(run), now=NOW).after
    assert (after.ending, after.deadline_at) == ("superseded", NOW)


def test_detached_run_has_no_deadline_to_start():
    for fields in ({"phase": Phase.RUNNING}, {"phase": Phase.CANCELING, "ending": "canceled"}):
        run = replace(RUN, reattachable=True, attempt=1, deadline_at=NOW + 9, **fields)
        after = apply(run, Detach(fields.get("ending", "lost")), now=NOW).after
        assert (after.phase.facts.is_detached, after.deadline_at) == (True, None)


def test_run_to_be_canceled_is_handed_back_only_if_it_may_run_without_a_node():
    run = replace(RUN, phase=Phase.CANCELING, ending="canceled", attempt=2, deadline_at=NOW + 9)
    back = apply(replace(run, reattachable=True), HandBack(), now=NOW).after
    assert (back.phase, back.deferrals, back.deadline_at) == (Phase.RECALLED, 1, None)
    with pytest.raises(AssertionError, match="CANCELING is not handed back"):
        apply(run, HandBack(), now=NOW)


def test_first_phase_is_one_that_a_new_row_may_have():
    phases = [first_phase(NOW, 7, now=NOW), first_phase(NOW, None, now=NOW)]
    phases.append(first_phase(NOW + 1, None, now=NOW))
    assert phases == [Phase.QUEUED, Phase.WAITING, Phase.SCHEDULED]
    assert set(phases) <= FIRST
