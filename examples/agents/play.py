"""Three agents on a blackboard: one writes log entries, one alerts on errors, one reports."""

import logging
from datetime import timedelta

from pydantic import BaseModel

from onbeat.agents import AgentContext, Orchestrator


class LogEntry(BaseModel):
    level: str
    text: str


class Alert(BaseModel):
    text: str


class Report(BaseModel):
    number: int
    errors: int


async def write(ctx: AgentContext) -> LogEntry:
    n = ctx.timer_iteration
    return LogEntry(level="INFO" if n % 3 else "ERROR", text=f"request {n}")


async def warn(ctx: AgentContext) -> Alert:
    (log,) = ctx.artifacts  # the artifact that triggered this run
    print(f"alert: {log.payload.text} failed", flush=True)
    return Alert(text=log.payload.text)


async def report(ctx: AgentContext) -> Report:
    assert ctx.artifacts == []  # a timer gives no input
    errors = ctx.get_artifacts(LogEntry)  # only errors: the filter of .consumes()
    print(
        f"report {ctx.timer_iteration} for {ctx.fire_time:%H:%M:%S}: {len(errors)} errors",
        flush=True,
    )
    await orchestrator.discard(LogEntry, before=ctx.fire_time - timedelta(minutes=10))
    return Report(number=ctx.timer_iteration, errors=len(errors))


def is_error(log: LogEntry) -> bool:
    return log.level == "ERROR"


orchestrator = Orchestrator("sqlite:///agents.db")
(
    orchestrator.agent("traffic")
    .schedule(every=timedelta(seconds=1))
    .publishes(LogEntry)
    .with_engines(write)
)
orchestrator.agent("warner").consumes(LogEntry, where=is_error).publishes(Alert).with_engines(warn)
(
    orchestrator.agent("reporter")
    .description("counts errors every five seconds")
    .schedule(every=timedelta(seconds=5))
    .consumes(LogEntry, where=is_error)
    .publishes(Report)
    .with_engines(report)
)

if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)  # INFO would log every run
    orchestrator.run()  # until Ctrl-C
