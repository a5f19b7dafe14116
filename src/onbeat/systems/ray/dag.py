"""Run the DAG of a workflow on a Ray cluster: one task for each node, after its dependencies.

Like the runner, this module is shipped to the cluster, so it uses only the standard library.
"""

import asyncio
import graphlib
import importlib
import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field


class NotCallable(Exception):  # noqa: N818 - only its text is shown
    """A target cannot be called or its result cannot be used: a retry cannot help."""


@dataclass(slots=True)
class DagNode:
    """A node: the function that it calls, and the nodes that it depends on."""

    name: str
    python: str
    inputs: Mapping[str, object] = field(default_factory=dict)
    after: list[str] = field(default_factory=list)
    cpus: float = 1


def read_dag(dag: Mapping[str, object]) -> list[DagNode]:
    """Return the nodes of a DAG in an order in which each comes after its dependencies.

    An invalid DAG raises ValueError, with the place and what would be right.
    """
    listed = dag.get("nodes")
    if not isinstance(listed, list) or not listed:
        raise ValueError('nodes: missing or empty ([{"id": "fetch", "python": "reports:fetch"}])')
    nodes: dict[str, DagNode] = {}
    for n, fields in enumerate(listed):
        node = _read_node(f"nodes[{n}]", fields)
        if node.name in nodes:
            raise ValueError(f"nodes[{n}].id: two nodes are called {node.name!r}")
        nodes[node.name] = node
    edges = dag.get("edges") or []
    for n, edge in enumerate(edges if isinstance(edges, list) else [edges]):
        if not isinstance(edge, dict) or not {"from", "to"} <= edge.keys():
            raise ValueError(
                f'edges[{n}]: {edge!r} is not an edge ({{"from": "fetch", "to": "send"}})'
            )
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
        raise ValueError(f"nodes: circular dependency: {round_trip}") from None


def _read_node(where: str, fields: object) -> DagNode:
    if not isinstance(fields, dict):
        raise ValueError(f"{where}: {fields!r} is not a node")  # noqa: TRY004 - one error for all
    name, python, after = fields.get("id"), fields.get("python"), fields.get("after") or []
    if not isinstance(name, str) or not name:
        raise ValueError(f'{where}.id: missing ({{"id": "fetch", "python": ...}})')
    if not isinstance(python, str) or ":" not in python:
        raise ValueError(
            f"{where}.python: {python!r} is not of the form module:function (such as reports:main)"
        )
    inputs, cpus = fields.get("inputs") or {}, fields.get("cpus", 1)
    if not isinstance(inputs, dict):
        raise ValueError(f"{where}.inputs: {inputs!r} is not a mapping of names to values")  # noqa: TRY004
    if not isinstance(cpus, (int, float)) or cpus < 0:
        raise ValueError(f"{where}.cpus: {cpus!r} is not a number (such as 1 or 0.5)")
    return DagNode(name, python, inputs, list(after) if isinstance(after, list) else [after], cpus)


def run_dag(dag: Mapping[str, object], meta: Mapping[str, object]) -> dict[str, object]:
    """Run all nodes, in parallel where possible; return the result of each, by id."""
    import ray  # noqa: PLC0415 - installed wherever this runs

    task = ray.remote(run_node)
    handles: dict[str, object] = {}
    for node in read_dag(dag):
        call = json.dumps({"python": node.python, "inputs": node.inputs, "after": node.after})
        # Handles are separate arguments, so that Ray waits for them and passes their values.
        before = [handles[name] for name in node.after]
        options = task.options(max_retries=0, num_cpus=node.cpus, name=node.name)
        handles[node.name] = options.remote(call, json.dumps(dict(meta)), *before)
    found: dict[str, object] = {}
    for name, handle in handles.items():  # every node ends, even after a failure
        answer = json.loads(ray.get(handle))
        if "error" in answer:
            raise RuntimeError(f"{name}: {answer['error']}")
        found[name] = answer["result"]
    return found


def run_node(call: str, meta: str, *before: str) -> str:
    """Call the function of a node; its parameter `after` gets the results of its dependencies."""
    fields = json.loads(call)
    answers = {name: json.loads(text) for name, text in zip(fields["after"], before, strict=True)}
    failed = [name for name, answer in answers.items() if "error" in answer]
    if failed:
        return json.dumps({"error": f"not started, because {failed[0]} failed"})
    try:
        function, inputs = function_of(fields["python"]), fields["inputs"]
        parameters = inspect.signature(function).parameters
        if "after" in parameters:
            inputs["after"] = {name: answer["result"] for name, answer in answers.items()}
        if "meta" in parameters:
            inputs["meta"] = json.loads(meta)
        found = function(**inputs)
        found = asyncio.run(found) if inspect.iscoroutine(found) else found
        return json.dumps({"result": json.loads(as_json(found))})
    except Exception as broken:  # noqa: BLE001 - a node may raise anything
        return json.dumps({"error": f"{type(broken).__name__}: {broken}"})


def function_of(name: str) -> Callable[..., object]:
    """Import the function `module:function`."""
    module, _, path = name.partition(":")
    try:
        found: object = importlib.import_module(module)
        for part in path.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as missing:
        raise NotCallable(f"{name} cannot be imported on the cluster: {missing}") from missing
    if not callable(found):
        raise NotCallable(f"{name} is not a function")
    return found


def as_json(found: object, longest: int | None = None) -> str:
    """Return a result as JSON; refuse a value that is not JSON, or longer than `longest`."""
    try:
        text = json.dumps(found, allow_nan=False)
        json.dumps(found, ensure_ascii=False, allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as unfit:  # ValueError: also a lone surrogate
        raise NotCallable(f"it returned {repr(found)[:80]}, which is not JSON ({unfit})") from None
    if longest is not None and len(text) > longest:
        raise NotCallable(f"it returned {len(text)} bytes; a result has {longest} at most")
    return text
