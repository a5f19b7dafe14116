"""Artifacts over HTTP: `POST /api/v1/artifacts`, with or without the program of the agents."""

import asyncio
from contextlib import asynccontextmanager

import httpx
import pytest
from pydantic import BaseModel, model_validator

from onbeat import Onbeat
from onbeat.agents import Orchestrator
from onbeat.app.settings import Settings
from onbeat.systems.agents.offers import OFFER, TAKEN, forget_taken
from onbeat.web.api_server import ApiServer
from tests.systems.agents.conftest import Alert, LogEntry

SOON = 30  # seconds


class Odd(BaseModel):
    """A model whose validator is broken."""

    @model_validator(mode="before")
    @classmethod
    def look(cls, given):
        return given["missing"]


class Grows(BaseModel):
    """A model that is larger than its input."""

    filled: str = "x" * 2**20


class Program:
    """A program with an agent triggered by log entries, and an API in another client of its file."""

    def __init__(self, folder):
        self.database, self.seen = f"sqlite:///{folder}/agents.db", []
        self.consumes = LogEntry

    @asynccontextmanager
    async def running(self):
        its = Orchestrator(self.database)
        self.ran = ran = asyncio.Event()

        async def warn(ctx):
            self.seen += [each.payload for each in ctx.artifacts]
            ran.set()
            return Alert(text="!")

        its.agent("warner").consumes(LogEntry).publishes(Alert).with_engines(warn)
        its.agent("odd").consumes(Odd).consumes(Grows).with_engines(warn)
        async with its:
            yield its

    @asynccontextmanager
    async def api(self):
        """Serve the API as `onbeat up --roles api` does: as a client of the file."""
        settings = Settings(database=self.database, listen="127.0.0.1:0", roles=frozenset({"api"}))
        front = ApiServer(settings)
        beat = Onbeat(settings=front.settings)
        await beat.open()
        try:
            await front.start(beat)
            _, secret = await beat.service.tokens.create(f"t{id(beat)}", "operate", "")
            headers = {"Authorization": f"Bearer {secret}"}
            url = f"{front.settings.api_url}/api/v1"
            async with httpx.AsyncClient(base_url=url, headers=headers) as client:
                yield client
        finally:
            await front.stop()
            await beat.close()


@pytest.fixture
def program(tmp_path):
    return Program(tmp_path)


def play(story):
    return asyncio.run(asyncio.wait_for(story(), SOON))


ENTRY = {"type": "LogEntry", "payload": {"level": "ERROR", "text": "disk full"}}


def test_an_artifact_over_http_triggers_its_agent_once_for_each_key(program):
    async def story():
        async with program.running() as its, program.api() as api:
            key = {"Idempotency-Key": "disk-1"}
            answers = [await api.post("/artifacts", json=ENTRY, headers=key) for _ in range(2)]
            assert await its.run_until_idle(10)
            (run,) = await its.history("warner")
            why = await its.why("warner")
            runs = (await api.get("/runs", params={"triggered_by": "artifact"})).json()["runs"]
            return answers, run, why, runs

    answers, run, why, runs = play(story)
    assert [each.status_code for each in answers] == [201, 201]
    assert answers[0].json() == {"id": "external:disk-1", "type": "LogEntry", "state": "published"}
    assert program.seen == [LogEntry(level="ERROR", text="disk full")]
    assert (run.triggered_by, run.request_id, run.status) == (
        "artifact",
        "external:disk-1",
        "SUCCESS",
    )
    assert any(
        s.startswith("artifact external:disk-1 (LogEntry) triggered it at") for s in why.sentences
    )
    assert [each["triggered_by"] for each in runs] == ["artifact"]


@pytest.mark.parametrize(
    ("body", "field", "problem"),
    [
        ({"type": "LogEntry", "payload": {"level": 7}}, "payload", "level has the value 7"),
        ({"type": "Nothing", "payload": {}}, "type", "no program has an artifact 'Nothing'"),
        ({"type": "LogEntry", "payload": [1]}, "payload", ""),
        ({"type": "LogEntry", "payload": {}, "tag": []}, "tag", ""),
    ],
)
def test_payload_refused_by_its_model_is_refused_with_the_field(program, body, field, problem):
    async def story():
        async with program.running(), program.api() as api:
            return await api.post("/artifacts", json=body)

    answer = play(story)
    assert answer.status_code in (400, 422)
    assert field in answer.text
    assert problem in answer.text
    assert program.seen == []


def test_idempotency_key_publishes_one_artifact_unless_refused(program):
    async def story():
        async with program.running(), program.api() as api:
            key = {"Idempotency-Key": "one"}
            bodies = [{"level": 7}, {"level": "INFO"}, {"level": "ERROR"}]
            return [
                await api.post("/artifacts", json=ENTRY | {"payload": body}, headers=key)
                for body in bodies
            ]

    assert [each.status_code for each in play(story)] == [422, 201, 422]


def test_offer_without_a_program_is_published_by_the_next_program(program):
    async def story():
        async with program.running():
            pass  # its types are known from now on
        async with program.api() as api:
            answer = await api.post("/artifacts", json=ENTRY)
        async with program.running() as its:
            await program.ran.wait()
            await its.run_until_idle(10)
        return answer

    answer = play(story)
    assert (answer.status_code, answer.json()["state"]) == (202, "offered")
    assert [each.text for each in program.seen] == ["disk full"]


@pytest.mark.parametrize("name", ["Odd", "Grows"])
def test_artifact_that_cannot_be_published_is_refused_without_delaying_others(program, name):
    async def story():
        async with program.running(), program.api() as api:
            odd = await api.post("/artifacts", json={"type": name, "payload": {}})
            return odd, await api.post("/artifacts", json=ENTRY)

    odd, other = play(story)
    assert (odd.status_code, other.status_code) == (422, 201)
    assert {"Odd": "its model raised KeyError", "Grows": "bytes; the limit is"}[name] in odd.text


def test_result_of_an_offer_is_kept_for_a_day_without_its_payload(program):
    async def story():
        async with program.running() as its, program.api() as api:
            await api.post("/artifacts", json=ENTRY)
            service = its.beat.service
            left, (taken,) = (
                await service.list_documents(OFFER),
                await service.list_documents(TAKEN),
            )
            await forget_taken(service)
            (still,) = await service.list_documents(TAKEN)
            tomorrow = f"UPDATE documents SET updated_at = updated_at - {86_400_001}"
            await service._all._write(lambda tx: tx.run(tomorrow))
            await forget_taken(service)
            return left, taken.body, still.body, await service.list_documents(TAKEN)

    left, taken, still, gone = play(story)
    assert (left, gone) == ([], [])
    assert taken == still
    assert (taken["state"], taken["payload"]) == ("published", {})
