"""A command that reads opens a store, and imports nothing that only a node needs."""

import json
import subprocess
import sys

import pytest

DECLARED = ("plug", "kinds", "settings")  # what plugs declare
HEAVY = ("onbeat.launchers", "onbeat.systems", "onbeat.web", "onbeat.engine", "onbeat.notifiers")
PROGRAM = """
import json, sys
from onbeat.cli import main
for words in json.loads(sys.argv[1]):
    main(words, prog_name="onbeat", standalone_mode=False)
print(json.dumps(sorted(sys.modules)), file=sys.stderr)
"""
READS = [
    ["why", "nightly"], ["list"], ["show", "nightly"], ["runs"], ["audit"], ["status"], ["nodes"],
]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("reads")
    (path / "onbeat.yaml").write_text(
        'schedules: {nightly: {cron: "0 3 * * *", run: {command: [ls]}}}'
    )
    subprocess.run(
        [sys.executable, "-m", "onbeat", "apply"], cwd=path, check=True, capture_output=True
    )
    return path


@pytest.mark.parametrize("words", READS, ids=lambda words: words[0])
def test_command_that_reads_imports_no_launcher_no_system_and_no_web_server(folder, words):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps([words])],
        cwd=folder, capture_output=True, text=True, check=True,
    )  # fmt: skip
    modules = json.loads(done.stderr.splitlines()[-1])
    assert "onbeat.stores.sqlite.store" in modules
    heavy = [name for name in modules if name.startswith(HEAVY)]
    assert [name for name in heavy if not is_declaration(name, modules)] == []


def is_declaration(name, modules):
    """Return whether a module only declares a plug, or is a package that contains one."""
    return name.rpartition(".")[2] in DECLARED or any(
        each.startswith(f"{name}.") for each in modules
    )
