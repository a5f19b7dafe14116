"""The table of phases: what holds for every phase, and for every step from one to another."""

from itertools import product

import pytest

from onbeat.core.runs.phase import (
    AWAITS_REPORT,
    CLAIMABLE,
    DETACHED,
    FIRST,
    PHASES,
    STARTED,
    TO_START,
    UNANNOUNCED,
    WHEN_ANNOUNCED,
    WHEN_CANCEL_REQUESTED,
    WHEN_CLAIMED,
    Blocks,
    Phase,
    Status,
    edges,
    phases_of,
    phases_where,
)

OVER = phases_where(lambda facts: facts.is_over)
LEASED = phases_where(lambda facts: facts.is_leased)
TO_END = phases_where(lambda facts: facts.is_to_end)
HOLDING = phases_where(lambda facts: facts.holds_place)


def reached(first):
    """Return the phases that follow these, however much later."""
    found, left = set(first), list(first)
    while left:
        new = PHASES[left.pop()].follows - found
        found |= new
        left += new
    return found


def test_every_phase_has_one_row():
    assert list(PHASES) == list(Phase)
    assert len({facts.meaning for facts in PHASES.values()}) == len(Phase)


def test_every_phase_is_reached_by_a_new_run():
    assert reached(FIRST) == set(Phase)


@pytest.mark.parametrize("phase", sorted(set(Phase) - OVER))
def test_every_unfinished_phase_leads_to_an_end(phase):
    assert reached([phase]) & OVER
    assert PHASES[phase].follows & (OVER | {Phase.RECALLED, Phase.CANCELING})


def test_ended_runs_stay_ended_but_for_skipped_ones_that_are_backfilled():
    left = {(before, after) for before, after in edges() if before in OVER}
    assert left == {(Phase.SKIPPED, Phase.BACKFILL)}


def test_phases_of_ended_runs_have_the_names_of_their_status():
    assert {phase: phase.facts.status for phase in OVER} == {
        phase: Status(phase.name) for phase in OVER
    }


def test_only_waiting_phases_without_a_lease_and_a_queue_are_claimable():
    waiting = phases_of(Status.ENQUEUED) - LEASED - {Phase.QUEUED}
    assert waiting == CLAIMABLE == TO_START | {Phase.DETACHED, Phase.RECALLED}


def test_started_runs_are_held_by_a_node_unless_their_target_accepted_them():
    assert STARTED - LEASED == AWAITS_REPORT


def test_runs_that_a_node_holds_or_that_may_run_without_one_hold_a_place_and_block():
    assert LEASED | STARTED | DETACHED == HOLDING
    blocking = phases_where(lambda facts: facts.blocks is Blocks.ALWAYS)
    assert HOLDING - blocking == {Phase.ACCEPTED}


def test_place_is_taken_by_a_claim_only():
    taken = {(before, after) for before, after in edges() if after in HOLDING - {before}}
    assert {edge for edge in taken if edge[0] not in HOLDING} == {
        (phase, Phase.CLAIMED) for phase in TO_START
    }


def test_cancellation_request_stays_until_the_run_ends():
    for before, after in edges():
        if before in TO_END:
            assert after in TO_END | OVER, f"{before} to {after}"


def test_detached_run_is_never_started_again_before_it_was_reattached():
    for before, after in edges():
        if before in DETACHED:
            assert after in DETACHED | {Phase.REATTACHED, Phase.CANCELING, Phase.FAILED}


def test_only_announced_runs_succeed():
    assert {before for before, after in edges() if after is Phase.SUCCESS} == STARTED


def test_retried_run_is_never_skipped():
    assert Phase.SKIPPED not in Phase.RETRYING.facts.follows
    assert Phase.SKIPPED not in Phase.REATTACHED.facts.follows


def test_claims_announcements_and_requests_to_cancel_are_allowed_steps():
    for steps in (WHEN_CLAIMED, WHEN_ANNOUNCED, WHEN_CANCEL_REQUESTED):
        for before, after in steps.items():
            assert after in before.facts.follows, f"{before} to {after}"
    assert WHEN_CLAIMED.keys() == CLAIMABLE
    assert set(WHEN_CLAIMED.values()) == WHEN_ANNOUNCED.keys() == LEASED - STARTED
    assert set(WHEN_ANNOUNCED.values()) <= STARTED & LEASED
    unasked = HOLDING - TO_END - UNANNOUNCED
    assert WHEN_CANCEL_REQUESTED.keys() == unasked
    assert set(WHEN_CANCEL_REQUESTED.values()) <= TO_END


def test_edges_are_the_pairs_of_the_table():
    assert set(edges()) == {
        (before, after)
        for before, after in product(Phase, repeat=2)
        if after in PHASES[before].follows
    }
