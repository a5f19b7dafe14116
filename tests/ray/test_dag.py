"""DAGs of workflows on a real Ray cluster, as an executor of the workflows system."""

import asyncio

import pytest

from onbeat.systems.ray.dag import read_dag
from tests.inside import launcher_of

NODES = [
    {"id": "join", "python": "tests.ray.work:join", "after": ["count", "longest"]},
    {"id": "count", "python": "tests.ray.work:count", "after": "fetch"},
    {"id": "longest", "python": "tests.ray.work:longest"},
    {"id": "fetch", "python": "tests.ray.work:fetch", "inputs": {"words": "to be exact"}},
]
EDGES = [{"from": "fetch", "to": "longest"}]


def play(world, nodes, edges=()):
    dag = {
        "workflow_id": "report",
        "version": 1,
        "user_id": "ada",
        "nodes": nodes,
        "edges": list(edges),
    }
    dag["triggers"] = [
        {"id": "often", "type": "schedule_based", "schedule": {"cron_expr": "0 0 1 1 *"}}
    ]

    async def whole():
        async with world.up(workflows_executor="ray") as beat:
            await beat.systems["workflows"].deploy(dag)
            started = await beat.start("report/often")
            return await world.ended(beat, started.run_id)

    return asyncio.run(asyncio.wait_for(whole(), 100))


def test_nodes_run_in_topological_order_and_get_the_results_of_their_dependencies(world):
    run = play(world, NODES, EDGES)
    assert (run.status, run.error) == ("SUCCESS", None)
    assert run.result == {
        "fetch": ["to", "be", "exact"],
        "count": 3,
        "longest": "exact",
        "join": {"of": ["count", "longest"], "key": run.key},
    }


def test_another_attempt_at_a_dag_runs_it_again(world):
    path = world.witness_file
    nodes = [{"id": "once", "python": "tests.ray.work:fail_first", "inputs": {"path": str(path)}}]

    async def whole():
        async with world.up(workflows_executor="ray") as beat:
            launcher = launcher_of(beat, "ray")
            meta = {"user_id": "ada", "source": "schedule", "idempotency_key": "k"}
            return [await launcher.run_dag("k" * 64, {"nodes": nodes}, meta) for _ in range(2)]

    first, second = asyncio.run(asyncio.wait_for(whole(), 60))
    assert first.error == "RuntimeError: once: ValueError: the first time"
    assert second.result == {"once": "done"}


def test_independent_nodes_run_in_parallel(world):
    path = str(world.witness_file)
    both = [
        {
            "id": one,
            "python": "tests.ray.work:sleep_until_both",
            "inputs": {"path": path, "name": one, "other": other},
        }
        for one, other in (("left", "right"), ("right", "left"))
    ]
    run = play(world, both)
    assert run.result == {"left": "left", "right": "right"}


def test_failed_node_fails_the_run_and_its_dependents_do_not_start(world):
    path = world.witness_file
    nodes = [
        {"id": "fetch", "python": "tests.ray.work:fail"},
        {
            "id": "then",
            "python": "pathlib:Path.touch",
            "inputs": {"self": str(path)},
            "after": "fetch",
        },
    ]
    run = play(world, nodes)
    assert (run.status, run.reason) == ("FAILED", "error")
    assert run.error == "RuntimeError: fetch: ValueError: no luck"
    assert not path.exists()


@pytest.mark.parametrize(
    ("dag", "told"),
    [
        ({}, "nodes: missing or empty"),
        ({"nodes": ["fetch"]}, r"nodes\[0\]: 'fetch' is not a node"),
        ({"nodes": [{"python": "a:b"}]}, r"nodes\[0\].id: missing"),
        (
            {"nodes": [{"id": "a", "python": "b"}]},
            r"nodes\[0\].python: 'b' is not of the form module:function \(such as reports:main\)",
        ),
        ({"nodes": [{"id": "a", "python": "b:c"}] * 2}, r"nodes\[1\].id: two nodes are called 'a'"),
        (
            {"nodes": [{"id": "a", "python": "b:c", "after": "d"}]},
            "nodes.a.after: no node is called 'd'",
        ),
        (
            {"nodes": [{"id": "a", "python": "b:c", "inputs": 1}]},
            r"nodes\[0\].inputs: 1 is not a mapping of names to values",
        ),
        (
            {"nodes": [{"id": "a", "python": "b:c", "cpus": "x"}]},
            r"nodes\[0\].cpus: 'x' is not a number",
        ),
        (
            {"nodes": [{"id": "a", "python": "b:c", "after": "a"}]},
            "nodes: circular dependency: a -> a",
        ),
        ({"nodes": [{"id": "a", "python": "b:c"}], "edges": [1]}, r"edges\[0\]: 1 is not an edge"),
        (
            {"nodes": [{"id": "a", "python": "b:c"}], "edges": [{"from": "a", "to": "x"}]},
            r"edges\[0\].to: no node is called 'x'",
        ),
    ],
)
def test_invalid_dag_is_refused_with_place_and_reason(dag, told):
    with pytest.raises(ValueError, match=told):
        read_dag(dag)


def test_invalid_dag_fails_its_run_immediately(world):
    run = play(world, [{"id": "a", "action": "count"}])
    assert (run.status, run.reason) == ("FAILED", "invalid_target")
    assert (
        run.error
        == "nodes[0].python: None is not of the form module:function (such as reports:main)"
    )
