"""What last-run.json has of runs that are not finished."""

from dataclasses import fields

import pytest

from onbeat.core.runs.phase import ENQUEUED, Phase
from onbeat.ports.rows import RunRow
from onbeat.systems.sessions import status


def an_attempted_run(phase):
    unsaid = {each.name: None for each in fields(RunRow)}
    return RunRow(**unsaid | {"run_id": 7, "phase": phase, "attempt": 1, "started_at": 5})


@pytest.mark.parametrize("phase", sorted(ENQUEUED))
def test_prompt_that_still_works_without_its_node_has_no_outcome_yet(phase):
    in_progress = {Phase.DETACHED, Phase.REATTACHING, Phase.RECALLED, Phase.RECALLING}
    assert status._was_tried(an_attempted_run(phase)) == (phase not in in_progress)
