"""A messy week: `why` explains each tick correctly, and each is in one row.

The expected answers are computed by `tests.week.reference`, written from the design alone.
"""

import asyncio
import re
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import pytest

from onbeat.core.runs.run import REASONS
from tests.week.play import Play
from tests.week.reference import Reference
from tests.week.script import DAY, MINUTE
from tests.week.scripts import OUTLASTED, SCRIPTS
from tests.week.ticks import ticks_between

AT_MOST = 60  # seconds of real time: it takes about eight
SAMPLE = 12  # ticks of a schedule around which is asked
RAM = Path("/dev/shm")  # what is shown here does not depend on a disk, and a disk takes its time

every_script = pytest.mark.parametrize("name", SCRIPTS)


@dataclass(frozen=True)
class Told:
    """The answers of the product after a script, and the expected ones."""

    reference: Reference
    whys: dict  # by schedule and instant
    rows: dict  # by schedule
    blockers: dict  # the ticks of runs that others name as in the way

    def when(self, instant):
        return None if instant is None else self.reference.script.told(instant)

    def ticks(self):
        """Yield each tick with the product's answer and the expected one."""
        for name, answers in self.reference.answers.items():
            for tick in sorted(answers):
                yield name, tick, self.whys[name][tick], answers[tick]

    def others(self):
        """Yield each queried instant that is not a tick, with the product's answer."""
        for name, whys in self.whys.items():
            ticks = set(self.reference.ticks(name))
            for instant in sorted(whys.keys() - ticks):
                yield name, instant, whys[instant]

    def neighbours(self, name, instant):
        """Return the ticks before and after an instant."""
        ticks = self.reference.ticks(name)
        before, after = bisect_left(ticks, instant), bisect_right(ticks, instant)
        previous = ticks[before - 1] if before else None
        return previous, ticks[after] if after < len(ticks) else None

    def is_in_range(self, name, instant):
        """Return whether a row for several ticks goes over an instant."""
        ranges = [row for row in self.rows[name] if row.first_run_at is not None]
        return any(row.first_run_at <= instant <= row.run_at for row in ranges)


@cache
def told(script):
    with TemporaryDirectory(dir=RAM if RAM.is_dir() else None) as folder:
        return asyncio.run(asyncio.wait_for(ask(script, Path(folder)), AT_MOST))


async def ask(script, folder):
    """Play a script to its end, and ask for everything."""
    reference, play = Reference(script), Play(script, folder)
    whys, rows, blockers = defaultdict(dict), {}, {}
    try:
        await play.to_the_end()
        for name in reference.lives:
            rows[name] = [row for row in await play.beat.runs(name, limit=9999) if not row.request_id]  # fmt: skip
            blockers |= {row.run_id: row.run_at for row in rows[name]}
            for instant in sorted(instants(reference, name)):
                whys[name][instant] = await play.beat.why(name, instant)
    finally:
        await play.close()
    return Told(reference, dict(whys), rows, blockers)


def instants(reference, name):
    """Return what is asked for: every tick, a few to come, and a good many that are none."""
    ticks, first, last = reference.ticks(name), reference.script.first, reference.script.last
    found = {tick for tick in ticks[:-1] if tick <= last} | set(reference.to_come[name][:2])
    some = Random(name).sample(ticks[:-1], min(SAMPLE, len(ticks) - 1))
    found |= {tick + off for tick in some for off in (-1, 1, 7 * MINUTE + 1)}
    for life in reference.lives[name]:  # when another definition held, its ticks are none
        found |= set(ticks_between(life.fields, first - DAY // 4, last)[::5])
        found |= {life.start, life.start + 1}
        found |= set() if life.end is None else {life.end - 1, life.end + 1}
    return found


def check(wrong):
    """Fail with what is wrong: each line by itself, and how many there are."""
    assert not wrong, "\n".join([f"{len(wrong)} of them:", *wrong[:40]])


# -- what is to be shown


@every_script
def test_why_agrees_with_the_reference_for_every_tick(name):
    found = told(SCRIPTS[name])
    check([
        f"{schedule} {found.when(tick)}: {why.kind} ({why.reason}), and not {right.kind} ({right.reason}): "
        f"{why.headline}; {'; '.join(why.sentences)}"
        for schedule, tick, why, right in found.ticks()
        if (why.kind, why.reason) != (right.kind, right.reason)
    ])  # fmt: skip


@every_script
def test_why_names_the_row_of_every_tick(name):
    found = told(SCRIPTS[name])
    rows = {(schedule, tick): why.run and why.run.run_at for schedule, tick, why, _ in found.ticks()}  # fmt: skip
    check([
        f"{schedule} {found.when(tick)}: in the row of {found.when(rows[schedule, tick])}, and not of {found.when(right.row)}"
        for schedule, tick, _, right in found.ticks()
        if rows[schedule, tick] != right.row
    ])  # fmt: skip


@every_script
def test_each_decided_tick_is_in_one_row_and_there_is_no_other_row(name):
    found, wrong, in_rows, decided = told(SCRIPTS[name]), [], 0, 0
    for schedule, rows in found.rows.items():
        answers = found.reference.answers[schedule]
        ticks = {tick for tick, answer in answers.items() if answer.row is not None}
        own = Counter(row.run_at for row in rows if row.first_run_at is None)
        covered = Counter(own)
        for row in rows:
            if row.first_run_at is not None:  # a tick's own row goes before a range's
                stretch = {t for t in ticks - own.keys() if row.first_run_at <= t <= row.run_at}
                covered.update(stretch)
                if row.tick_count != len(stretch):
                    wrong.append(f"{schedule}: a row for {row.tick_count} ticks and not {len(stretch)}, up to {found.when(row.run_at)}")  # fmt: skip
        wrong += [f"{schedule} {found.when(t)}: no tick has this row" for t in covered.keys() - ticks]  # fmt: skip
        wrong += [f"{schedule} {found.when(t)}: in {covered[t]} rows" for t in ticks if covered[t] != 1]  # fmt: skip
        in_rows, decided = in_rows + sum(row.tick_count for row in rows), decided + len(ticks)
    check(wrong)
    assert in_rows == decided


@every_script
def test_overlap_skip_names_a_run_in_flight(name):
    found = told(SCRIPTS[name])
    check([
        f"{schedule} {found.when(tick)}: blocked by {found.when(found.blockers.get(why.run.blocked_by))}"
        for schedule, tick, why, right in found.ticks()
        if right.blockers and found.blockers.get(why.run.blocked_by) not in right.blockers
    ])  # fmt: skip


@every_script
def test_why_names_the_start_that_a_queue_would_have_given(name):
    found, wrong = told(SCRIPTS[name]), []
    for schedule, tick, why, right in found.ticks():
        if right.instead is not None and right.latest is None:
            said = "at {}" if right.is_next else "after the ticks before it, from {} on"
            said = f"with overlap=queue it would have started {said.format(rfc3339(right.instead))}"
            if why.instead != said:
                wrong.append(f"{schedule} {found.when(tick)}: {why.instead!r}, and not {said!r}")
    check(wrong)


@every_script
def test_instant_that_is_not_a_tick_is_explained_as_such(name):
    found, wrong, asked = told(SCRIPTS[name]), [], 0
    for schedule, instant, why in found.others():
        life = found.reference.life_at(schedule, instant)
        known = {"no_tick"} if life else {"no_tick", "not_there"}
        if not found.is_in_range(schedule, instant):
            asked += 1
            if why.kind not in known:
                wrong.append(f"{schedule} {found.when(instant)}: {why.kind}, {why.headline}")
    check(wrong)
    assert asked >= 100


@every_script
def test_why_names_the_ticks_before_and_after(name):
    found, wrong, asked = told(SCRIPTS[name]), [], 0
    for schedule, whys in found.whys.items():
        for instant, why in whys.items():
            life, (before, after) = found.reference.life_at(schedule, instant), found.neighbours(schedule, instant)  # fmt: skip
            if life and before and life.start < before and (life.end is None or after <= life.end):
                asked += 1
                if (why.previous, why.following) != (before, after):
                    wrong.append(f"{schedule} {found.when(instant)}: {found.when(why.previous)} and {found.when(why.following)}, not {found.when(before)} and {found.when(after)}")  # fmt: skip
    check(wrong)
    assert asked >= 100


@every_script
def test_future_tick_is_explained_as_to_come(name):
    found = told(SCRIPTS[name])
    for schedule, ticks in found.reference.to_come.items():
        assert [found.whys[schedule][tick].kind for tick in ticks[:2]] == ["to_come"] * len(ticks[:2])  # fmt: skip


def test_week_covers_most_reasons():
    found = told(SCRIPTS["week"])
    answers = [right for *_, right in found.ticks()]
    print(*(f"{n:5} {kind} {reason or ''}" for (kind, reason), n in Counter((a.kind, a.reason) for a in answers).most_common()), sep="\n")  # fmt: skip
    reasons = {answer.reason for answer in answers} - {None}
    assert reasons <= set(REASONS)
    assert len(reasons) >= 12
    kinds = {answer.kind for answer in answers}
    assert kinds == {"ran", "failed", "canceled", "skipped", "coalesced", "running", "waiting", "undecided"}  # fmt: skip


def rfc3339(t):
    return datetime.fromtimestamp(t, UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z")


# -- what is not so yet


def test_instant_inside_a_range_that_is_not_a_tick_is_explained_as_such():
    found = told(SCRIPTS["week"])
    check([
        f"{schedule} {found.when(instant)}: {why.kind} ({why.reason}), {why.headline}"
        for schedule, instant, why in found.others()
        if found.is_in_range(schedule, instant) and why.kind not in ("no_tick", "not_there")
    ])  # fmt: skip


def test_why_names_the_ticks_before_and_after_across_edits():
    found, wrong = told(SCRIPTS["week"]), []
    for schedule, whys in found.whys.items():
        for instant, why in whys.items():
            life, (before, after) = found.reference.life_at(schedule, instant), found.neighbours(schedule, instant)  # fmt: skip
            if life and (why.previous, why.following) != (before, after):
                wrong.append(f"{schedule} {found.when(instant)}: {found.when(why.previous)} and {found.when(why.following)}, not {found.when(before)} and {found.when(after)}")  # fmt: skip
    check(wrong)


def test_why_names_no_queue_start_beyond_the_deadline():
    found = told(SCRIPTS["week"])
    late = [each for each in found.ticks() if each[-1].instead and each[-1].latest and each[-1].instead > each[-1].latest]  # fmt: skip
    assert late
    check([
        f"{schedule} {found.when(tick)}: {why.instead}, but its deadline was {found.when(right.latest)}"
        for schedule, tick, why, right in late
        if re.search("would have started at", why.instead or "")
    ])  # fmt: skip


def test_pause_ends_at_its_time_while_no_node_is_up():
    found = told(OUTLASTED)
    check([
        f"{schedule} {found.when(tick)}: {why.kind} ({why.reason}), and not {right.kind} ({right.reason})"
        for schedule, tick, why, right in found.ticks()
        if (why.kind, why.reason) != (right.kind, right.reason)
    ])  # fmt: skip
