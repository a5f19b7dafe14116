"""Workflows that are started by cron texts: DAGs as JSON, which an executor runs."""

from onbeat.systems.workflows.catalog import Catalog
from onbeat.systems.workflows.executors import (
    CallableExecutor,
    Executor,
    HttpExecutor,
    Meta,
    RayExecutor,
    Submit,
)
from onbeat.systems.workflows.launching import WorkflowLauncher
from onbeat.systems.workflows.registrar import Defaults, Registrar
from onbeat.systems.workflows.run_launcher import RunLauncher
from onbeat.systems.workflows.store import DatabaseStore, DirectoryStore, WorkflowStore
from onbeat.systems.workflows.system import Workflows

__all__ = [
    "CallableExecutor",
    "Catalog",
    "DatabaseStore",
    "Defaults",
    "DirectoryStore",
    "Executor",
    "HttpExecutor",
    "Meta",
    "RayExecutor",
    "Registrar",
    "RunLauncher",
    "Submit",
    "WorkflowLauncher",
    "WorkflowStore",
    "Workflows",
]
