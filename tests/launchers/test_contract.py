"""Every kind of target passes the contract of launchers."""

from onbeat.core.target_kinds import KINDS
from onbeat.host.plugs import plugs
from tests.launchers.benches.agents import AgentBench
from tests.launchers.benches.command import CommandBench
from tests.launchers.benches.flows import FlowBench
from tests.launchers.benches.functions import FunctionBench, ThreadFunctionBench
from tests.launchers.benches.requests import FlockBench, HttpBench, HttpExecutorBench
from tests.launchers.benches.sessions import SessionBench
from tests.launchers.benches.workflows import AsyncExecutorBench, PlainExecutorBench
from tests.launchers.contract import LauncherContract
from tests.ray import test_contract as on_ray


class TestCommand(LauncherContract):
    bench_type = CommandBench


class TestFunction(LauncherContract):
    bench_type = FunctionBench


class TestThreadFunction(LauncherContract):
    bench_type = ThreadFunctionBench


class TestAgent(LauncherContract):
    bench_type = AgentBench


class TestHttp(LauncherContract):
    bench_type = HttpBench


class TestFlock(LauncherContract):
    bench_type = FlockBench


class TestSession(LauncherContract):
    bench_type = SessionBench


class TestFlow(LauncherContract):
    bench_type = FlowBench


class TestAsyncExecutor(LauncherContract):
    bench_type = AsyncExecutorBench


class TestPlainExecutor(LauncherContract):
    bench_type = PlainExecutorBench


class TestHttpExecutor(LauncherContract):
    bench_type = HttpExecutorBench


def classes_of(kind):
    """Return the subclasses of a class, also indirect ones."""
    for each in kind.__subclasses__():
        yield each
        yield from classes_of(each)


def test_every_installed_kind_has_a_bench():
    """A kind that a plug adds has to pass the contract: write a bench for it."""
    plugs()
    played = {each.bench_type.kind for each in classes_of(LauncherContract)}
    assert [kind.name for kind in KINDS.all() if kind.name not in played] == []
    assert on_ray.TestRay.bench_type.kind in played
