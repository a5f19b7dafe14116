"""`why` against an independent reader, for a messy week in each of the five systems."""

import asyncio
import logging
import re
from collections import Counter
from contextlib import closing
from functools import cache
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import apsw
import msgspec
import psycopg
import pytest

from onbeat.service.serialize import why_fields
from tests.postgres import shared_server
from tests.why_reader.checks import Checker
from tests.why_reader.reader import Reader
from tests.why_reader.weeks import SYSTEMS

RAM = Path("/dev/shm")  # these tests do not depend on a disk, and memory is faster
SEED = 1
MOST = 900  # explained instants of a week
AT_MOST = 60  # seconds

every_system = pytest.mark.parametrize("name", SYSTEMS)


@pytest.fixture(autouse=True)
def quiet(monkeypatch):
    """Disable logging, and set the password of the panel."""
    monkeypatch.setenv("PANEL", "sesame")
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@cache
def answers_for(name, database=None, seed=SEED):
    """Return the reader of a week, the week, and what `why` answers at many instants of it."""
    with TemporaryDirectory(dir=RAM if RAM.is_dir() else None) as folder:
        week = SYSTEMS[name](seed, Path(folder), database)
        return asyncio.run(asyncio.wait_for(_ask(week, name, seed), AT_MOST))


async def _ask(week, name, seed):
    answers = []
    try:
        await week.to_the_end()
        reader = Reader(lambda sql: _query(week, sql))
        for schedule_id in sorted(reader.definitions):
            if reader.definitions[schedule_id][-1][2] is None:
                continue  # it was deleted
            for at in _instants(reader, week, schedule_id, Random(f"{name} {seed}")):
                found = await week.beat.why(schedule_id, at)
                answers.append(msgspec.to_builtins(why_fields(found)))
    finally:
        await week.close()
    return reader, week, answers


def _query(week, sql):
    if week.database is not None:
        with psycopg.connect(week.database, options="-csearch_path=onbeat") as connection:
            return connection.execute(sql).fetchall()
    with closing(apsw.Connection(str(week.path))) as database:
        return list(database.execute(sql))


def _instants(reader, week, schedule_id, chance):
    """Return rows' own instants, some inside their ranges, and some at which nothing happened."""
    rows, first, last = reader.rows[schedule_id], week.script.first, week.script.last
    found = {row["run_at"] for row in rows}
    for row in rows:
        if row["first_run_at"] is not None:
            found |= {
                row["first_run_at"],
                *chance.sample(range(row["first_run_at"], row["run_at"]), 3),
            }
    found |= {t - t % 900 for t in chance.choices(range(first - 86_400, last + 2 * 86_400), k=40)}
    found |= set(chance.choices(range(first, last), k=30))
    for at, *_ in reader.definitions[schedule_id]:
        found |= {at // 1000 + n for n in (-1, 0, 1)}
    each = sorted(found)
    return each if len(each) <= MOST // 4 else sorted(chance.sample(each, MOST // 4))


def compared(name, answers, reader, week):
    checker = Checker()
    for why in answers:
        checker.check(reader, week, why)
    return checker


def summary(name, checker):
    kinds = Counter(kind for (kind, _), n in checker.kinds.items() for _ in range(n))
    reasons = sorted({reason for _, reason in checker.kinds if reason})
    return (
        f"{name}: {checker.instants} instants, {checker.sentences} sentences of {len(checker.used)} forms, "
        f"{len(checker.wrong)} disagreements; {dict(kinds)}; {', '.join(reasons)}"
    )


@every_system
def test_why_agrees_with_an_independent_reader_in_a_messy_week(name):
    reader, week, answers = answers_for(name)
    checker = compared(name, answers, reader, week)
    print(summary(name, checker))
    assert not checker.wrong, "\n".join([summary(name, checker), *checker.wrong[:30]])
    assert checker.instants > 150
    assert len(checker.used) >= 12


@pytest.mark.parametrize("name", ["workflows", "agents"])
def test_why_agrees_with_the_reader_on_postgresql(name):
    server = shared_server()
    url = server.new_database()
    try:
        reader, week, answers = answers_for(name, url, SEED + 1)
    finally:
        server.drop_database(url)
    checker = compared(name, answers, reader, week)
    print("on PostgreSQL,", summary(name, checker))
    assert not checker.wrong, "\n".join([summary(name, checker), *checker.wrong[:30]])
    assert checker.instants > 150


WRONG = [  # sentences that `why` once contained, replaced by wrong ones
    ("overdue", "sessions", r"it had been overdue since .+", "it was started manually by program at <at>"),
    ("artifact", "agents", r"artifact .+ triggered it at .+", "it was started manually at <at>"),
    ("missed", "agents", r"missed: the schedule was defined at .+? \(", "missed: it was decided at <at>, 3 h after it was due (catchup once, "),
    ("superseded", "flows", r"(it was ended at .+) while it waited .+", r"it was ended at <at> while it waited for a free place on a node (or so)"),
    ("dropped", "agents", r"attempt 1 ran from (\S+) to \S+: .+", r"it ran from \1 to <at>"),
]  # fmt: skip


@pytest.mark.parametrize(("what", "name", "right", "wrong"), WRONG, ids=[each[0] for each in WRONG])
def test_wrong_sentence_of_why_is_detected(what, name, right, wrong):
    reader, week, answers = answers_for(name)
    checker, changed = Checker(), 0
    for why in answers:
        sentences = []
        for sentence in why["sentences"]:
            at = "2026-01-01T00:00:00.000Z"
            other = re.sub(right, wrong.replace("<at>", at), sentence)
            changed += other != sentence
            sentences.append(other)
        checker.check(reader, week, why | {"sentences": sentences})
    assert changed, what
    assert len(checker.wrong) == changed


def test_wrong_field_of_why_is_detected():
    reader, week, answers = answers_for("workflows")
    checker = Checker()
    ran = [why for why in answers if why["kind"] == "ran"]
    checker.check(reader, week, ran[0] | {"kind": "skipped"})
    checker.check(reader, week, ran[1] | {"triggered_by": "manual"})
    checker.check(reader, week, ran[2] | {"run_id": ran[3]["run_id"]})
    late = [dict(each, ended_at="2026-01-01T00:00:00.000Z") for each in ran[4]["attempts"]]
    checker.check(reader, week, ran[4] | {"attempts": late})
    assert len(checker.wrong) == 4
