"""The example of the origin's document, unchanged except for its import."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest
from pydantic import BaseModel

from onbeat.agents import Orchestrator
from onbeat.testing import ManualClock

# Copied; only the import in the first line is changed.
EXAMPLE = """
from onbeat.agents import AgentContext
from pydantic import BaseModel, Field
from datetime import datetime

class DailyReport(BaseModel):
    generated_at: datetime = Field(default_factory=datetime.utcnow)
    iteration: int
    count: int

async def generate_daily_report(ctx: AgentContext) -> DailyReport:
    # Timer detection & metadata (Option B)
    assert ctx.trigger_type == "timer", "Expected timer trigger"

    iter_no = ctx.timer_iteration or 0
    fired_at = ctx.fire_time  # datetime in UTC

    # No input items for timer triggers
    assert ctx.artifacts == []

    # Pull context from blackboard (filtered by your .consumes())
    logs = ctx.get_artifacts(LogEntry)  # e.g., ERROR logs only

    return DailyReport(
        generated_at=fired_at or datetime.utcnow(),
        iteration=iter_no,
        count=len(logs),
    )
"""


class LogEntry(BaseModel):
    level: str
    message: str = ""


@pytest.mark.req("F1", "F2", "F3", "F36", "F37")
def test_daily_report_example_of_the_origin_works_as_written():
    written = {"LogEntry": LogEntry, "__name__": "example"}
    exec(compile(EXAMPLE, "example", "exec", dont_inherit=True), written)
    report, clock = written["DailyReport"], ManualClock("2026-01-01T16:00:00Z")

    async def story():
        its = Orchestrator("sqlite://", clock=clock)
        (
            its.agent("daily_report")
            .description("what went wrong today")
            .schedule(cron="0 17 * * *")
            .consumes(LogEntry, where=lambda log: log.level == "ERROR")
            .publishes(report)
            .with_engines(written["generate_daily_report"])
        )
        async with its:
            for level in ("ERROR", "INFO", "ERROR"):
                await its.publish(LogEntry(level=level))
            clock.advance("1h")
            await its.beat.settle()
            await its.publish(LogEntry(level="ERROR"))
            clock.advance("24h")
            await its.beat.settle()
            return await its.get_artifacts(report)

    first = datetime(2026, 1, 1, 17, tzinfo=UTC)
    assert asyncio.run(asyncio.wait_for(story(), 20)) == [
        report(generated_at=first, iteration=0, count=2),
        report(generated_at=first + timedelta(days=1), iteration=1, count=3),
    ]
