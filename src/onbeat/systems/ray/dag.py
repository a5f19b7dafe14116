"""The DAG of a workflow on a Ray cluster: a task for each node, once those before it are done.

Like the runner, it is sent to the cluster as it stands, and uses the standard library alone.
"""

import asyncio
import graphlib
import importlib
import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field


class NotCallable(Exception):  # noqa: N818 - it is told by its text alone
    """What is asked for cannot be called: no further attempt could help."""


@dataclass(slots=True)
class DagNode:
    """A node: the function that it calls, and which nodes it is after."""

    name: str
    python: str
    inputs: Mapping[str, object] = field(default_factory=dict)
    after: list[str] = field(default_factory=list)
    cpus: float = 1


def read_dag(dag: Mapping[str, object]) -> list[DagNode]:
    """Return the nodes of a DAG in an order in which none comes before those that it is after.

    What no cluster could run raises ValueError, with where it stands and what would be right.
    """
    listed = dag.get("nodes")
    if not isinstance(listed, list) or not listed:
        raise ValueError('nodes: there are none ([{"id": "fetch", "python": "reports:fetch"}])')
    nodes: dict[str, DagNode] = {}
    for n, given in enumerate(listed):
        node = _read_node(f"nodes[{n}]", given)
        if node.name in nodes:
            raise ValueError(f"nodes[{n}].id: two nodes are called {node.name!r}")
        nodes[node.name] = node
    edges = dag.get("edges") or []
    for n, edge in enumerate(edges if isinstance(edges, list) else [edges]):
        if not isinstance(edge, dict) or not {"from", "to"} <= edge.keys():
            raise ValueError(f'edges[{n}]: {edge!r} is none ({{"from": "fetch", "to": "send"}})')
        if edge["to"] not in nodes:
            raise ValueError(f"edges[{n}].to: no node is called {edge['to']!r}")
        nodes[edge["to"]].after.append(edge["from"])
    for node in nodes.values():
        for before in node.after:
            if before not in nodes:
                raise ValueError(f"nodes.{node.name}.after: no node is called {before!r}")
    try:
        graph = {node.name: node.after for node in nodes.values()}
        return [nodes[name] for name in graphlib.TopologicalSorter(graph).static_order()]
    except graphlib.CycleError as cycle:
        round_trip = " -> ".join(map(str, cycle.args[1]))
        raise ValueError(f"nodes: they wait for each other: {round_trip}") from None


def _read_node(where: str, given: object) -> DagNode:
    if not isinstance(given, dict):
        raise ValueError(f"{where}: {given!r} is no node")  # noqa: TRY004 - one error for all
    name, python, after = given.get("id"), given.get("python"), given.get("after") or []
    if not isinstance(name, str) or not name:
        raise ValueError(f'{where}.id: it is missing ({{"id": "fetch", "python": ...}})')
    if not isinstance(python, str) or ":" not in python:
        raise ValueError(f"{where}.python: {python!r} names no function (module:function)")
    inputs, cpus = given.get("inputs") or {}, given.get("cpus", 1)
    if not isinstance(inputs, dict):
        raise ValueError(f"{where}.inputs: {inputs!r} is no set of names")  # noqa: TRY004
    if not isinstance(cpus, (int, float)) or cpus < 0:
        raise ValueError(f"{where}.cpus: {cpus!r} is no number (such as 1 or 0.5)")
    return DagNode(name, python, inputs, list(after) if isinstance(after, list) else [after], cpus)


def run_dag(dag: Mapping[str, object], meta: Mapping[str, object]) -> dict[str, object]:
    """Run all nodes, side by side where they may be; return what each returned, by its id."""
    import ray  # noqa: PLC0415 - it is there wherever this runs

    task = ray.remote(run_node)
    handles: dict[str, object] = {}
    for node in read_dag(dag):
        asked = json.dumps({"python": node.python, "inputs": node.inputs, "after": node.after})
        # Handles are passed one by one, so that Ray waits for them, and sends what they stand for.
        before = [handles[name] for name in node.after]
        options = task.options(max_retries=0, num_cpus=node.cpus, name=node.name)
        handles[node.name] = options.remote(asked, json.dumps(dict(meta)), *before)
    found: dict[str, object] = {}
    for name, handle in handles.items():  # all of them end, one way or the other
        told = json.loads(ray.get(handle))
        if "error" in told:
            raise RuntimeError(f"{name}: {told['error']}")
        found[name] = told["result"]
    return found


def run_node(asked: str, meta: str, *before: str) -> str:
    """Call the function of a node; a parameter `after` gets what those before it returned."""
    given = json.loads(asked)
    came = {name: json.loads(text) for name, text in zip(given["after"], before, strict=True)}
    failed = [name for name, told in came.items() if "error" in told]
    if failed:
        return json.dumps({"error": f"not begun, as {failed[0]} failed"})
    try:
        function, inputs = function_of(given["python"]), given["inputs"]
        parameters = inspect.signature(function).parameters
        if "after" in parameters:
            inputs["after"] = {name: told["result"] for name, told in came.items()}
        if "meta" in parameters:
            inputs["meta"] = json.loads(meta)
        found = function(**inputs)
        found = asyncio.run(found) if inspect.iscoroutine(found) else found
        return json.dumps({"result": json.loads(as_json(found))})
    except Exception as broken:  # noqa: BLE001 - what a node may raise is its own business
        return json.dumps({"error": f"{type(broken).__name__}: {broken}"})


def function_of(name: str) -> Callable[..., object]:
    """Return the function that `module:function` names, on this machine."""
    module, _, path = name.partition(":")
    try:
        found: object = importlib.import_module(module)
        for part in path.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as missing:
        raise NotCallable(f"{name} cannot be imported on the cluster: {missing}") from missing
    if not callable(found):
        raise NotCallable(f"{name} is no function")
    return found


def as_json(found: object, longest: int | None = None) -> str:
    """Return what a function returned as JSON, or refuse what is none, or longer than that."""
    try:
        text = json.dumps(found, allow_nan=False)
        json.dumps(found, ensure_ascii=False, allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as unfit:  # ValueError: half a character, too
        raise NotCallable(f"it returned {repr(found)[:80]}: that is no JSON ({unfit})") from None
    if longest is not None and len(text) > longest:
        raise NotCallable(f"it returned {len(text)} bytes: {longest} at most are kept of a result")
    return text
