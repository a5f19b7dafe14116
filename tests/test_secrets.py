"""Secrets: referenced in definitions, looked up at launch, and visible nowhere else."""

import asyncio
import json
import os
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from tempfile import mkdtemp
from typing import ClassVar

import pytest
from msgspec.structs import replace

from onbeat.app.output import output_file
from onbeat.app.settings import Settings
from onbeat.core.runs.run import Failed, Succeeded
from onbeat.core.schedule import read_schedule
from onbeat.core.target import Target
from onbeat.errors import InvalidSchedule, NotAllowed
from onbeat.host import secrets as references
from onbeat.host.secrets import LONGEST_SECRET, Redactor, SecretReferences, read_secret
from onbeat.launchers.command.launcher import ProcessLauncher
from onbeat.launchers.http.launcher import HttpLauncher
from onbeat.ports.store import Attempt
from onbeat.service.access import Caller
from onbeat.service.service import Service
from onbeat.testing import a_schedule
from tests.cli.test_verbs import a_node, as_json, folder, ok, onbeat, until  # noqa: F401
from tests.stores.conftest import Sqlite, StoreHarness

CANARY = "canary-Zb4/'7\"é-nobody-may-see-this"


@pytest.fixture
def secrets(tmp_path):
    found = tmp_path / "secrets"
    found.mkdir()
    (found / "token").write_text(f"{CANARY}\n")
    return found


# -- looking secrets up


def test_secret_is_the_text_of_its_file_without_the_final_newline(secrets):
    assert read_secret(str(secrets), "token") == CANARY
    for text, found in [("a\r\n", "a"), ("a\n\n", "a\n"), (" a ", " a "), ("a\nb", "a\nb")]:
        (secrets / "other").write_bytes(text.encode())
        assert read_secret(str(secrets), "other") == found


def test_links_within_the_folder_of_secrets_are_followed(secrets):
    (secrets / "..data").mkdir()  # as in Kubernetes
    (secrets / "..data" / "password").write_text("linked")
    (secrets / "password").symlink_to("..data/password")
    assert read_secret(str(secrets), "password") == "linked"


def test_folder_of_secrets_may_be_a_link(secrets, tmp_path):
    (tmp_path / "link").symlink_to(secrets)
    assert read_secret(str(tmp_path / "link"), "token") == CANARY


TRAVERSALS = [
    "..", ".", "../outside", "../../etc/passwd", "/etc/passwd", "//etc/passwd", "a/../../outside", "./token", "token/", "token/.", "sub/../token",
    "..\\outside", "..%2foutside", "%2e%2e/outside", "%2e%2e%2foutside", "..%c0%afoutside", "..\u2215outside", "....//outside", "..;/outside", ".hidden",
    "token\0", "token\0.txt", "token\n", "\ntoken", "tok en", "~/x", "~root", "$HOME", "${HOME}", "`id`", "token;id", "token|id", "C:\\x", "file:///etc/passwd",
    "", " ", "*", "t?ken", "[t]oken", "tökén", "x" * 101, "-/../../outside",
]  # fmt: skip


@pytest.mark.parametrize("name", TRAVERSALS)
def test_no_name_leads_out_of_the_folder_of_secrets(secrets, tmp_path, name):
    (tmp_path / "outside").write_text("not yours")
    (secrets / ".hidden").write_text("not meant")
    with pytest.raises(InvalidSchedule):
        read_secret(str(secrets), name)
    references = SecretReferences({}, str(secrets))
    text = f"secret://{name}"
    for launcher in (
        HttpLauncher(version="1", environment={}),
        ProcessLauncher(tmp_path, environment={}),
    ):
        with pytest.raises(InvalidSchedule):
            launcher.check(http(A=text) if isinstance(launcher, HttpLauncher) else command(A=text))
    assert references.fill("x", text, Redactor()) == text  # not a reference: sent unchanged


@pytest.mark.parametrize(
    "make",
    [
        lambda path, outside: path.symlink_to(outside),
        lambda path, outside: path.symlink_to("../outside"),
        lambda path, outside: path.symlink_to("/proc/self/environ"),
        lambda path, outside: path.symlink_to(path),
        lambda path, outside: path.mkdir(),
        lambda path, outside: os.mkfifo(path),
        lambda path, outside: path.symlink_to("/dev/zero"),
        lambda path, outside: path.write_bytes(b""),
        lambda path, outside: path.write_bytes(b"\n"),
        lambda path, outside: path.write_bytes(b"a\0b"),
        lambda path, outside: path.write_bytes(b"\xff\xfe"),
        lambda path, outside: path.write_bytes(b"a" * (LONGEST_SECRET + 1)),
        lambda path, outside: None,
    ],
    ids=["link out", "relative link out", "proc", "itself", "folder", "pipe", "device", "empty", "newline", "nul", "latin", "long", "nothing"],
)  # fmt: skip
def test_file_outside_the_folder_is_neither_read_nor_quoted(secrets, tmp_path, make):
    (tmp_path / "outside").write_text("not yours")
    make(secrets / "bad", tmp_path / "outside")
    with pytest.raises(InvalidSchedule) as refused:
        read_secret(str(secrets), "bad", field="env.A")
    assert str(refused.value).startswith("env.A: ")
    assert "not yours" not in str(refused.value)


def test_secret_is_refused_without_a_folder():
    with pytest.raises(InvalidSchedule, match="this node has no folder of secrets"):
        read_secret("", "token")


def test_files_of_a_run_stay_in_its_folder(tmp_path):
    given = Settings(database=f"sqlite:///{tmp_path}/onbeat.db")
    for run_id in (0, 1, -1, 10**9, 2**63 - 1, -(2**63)):
        for attempt in (0, 1, -1, 2**31):
            path = output_file(given, run_id, attempt)
            assert path.resolve().is_relative_to(tmp_path / "onbeat.db.output")


IDS = [
    "..", ".", "../../x", "/etc/passwd", "a/../../b", "./x", "//x", "x/", "a/./b", "..\\x", "a\0b", "a b", "%2e%2e/x", "a\n", "é", "", "x" * 201, "a?b", "a#b", "~", "$HOME",
    "a:b", "*",
]  # fmt: skip


@pytest.mark.parametrize("schedule_id", IDS)
def test_schedule_id_with_special_characters_is_refused(schedule_id):
    with pytest.raises(InvalidSchedule):
        read_schedule(schedule_id, {"every": "1h", "run": {"command": ["true"]}})


@pytest.mark.parametrize("schedule_id", [".ssh/authorized_keys", "-rf", "...", "a/b/c", "nul"])
def test_schedule_id_is_not_used_as_a_file_name(tmp_path, schedule_id):
    schedule = read_schedule(schedule_id, {"every": "1h", "run": {"command": ["true"]}})
    launcher = ProcessLauncher(tmp_path / "deep" / "er", environment=os.environ)
    assert launched(launcher, schedule.target, schedule_id)[0] == Succeeded()
    made = [path.relative_to(tmp_path) for path in tmp_path.rglob("*") if path.is_file()]
    assert made == [Path("deep/er/000000/1-1.log")]


def test_table_of_paths_is_complete():
    assert len(set(TRAVERSALS)) + len(IDS) >= 50


# -- where references are allowed


def http(**headers):
    return Target("http", {"http": "http://127.0.0.1/", "headers": headers})


def command(**env):
    return Target("command", {"command": ["true"], "env": env})


def a_launcher(kind, **given):
    if kind == "http":
        return HttpLauncher(version="1", environment={}, **given)
    return ProcessLauncher(Path("unused"), environment={}, **given)


def test_secret_of_a_bearer_header_is_looked_up_and_redacted(tmp_path):
    (tmp_path / "token").write_text("hush-hush\n")
    hidden = Redactor()
    filled = SecretReferences({}, str(tmp_path)).fill("A", "Bearer secret://token", hidden)
    assert filled == "Bearer hush-hush"
    assert hidden.hide(filled) == "Bearer ***"


@pytest.mark.parametrize("kind", [http, command])
def test_reference_is_the_whole_value_of_a_header_or_a_variable(kind):
    for text in ("secret://token", "Bearer secret://token"):  # a header may have the prefix Bearer
        a_launcher(kind.__name__).check(kind(A=text))
    for text in (
        "Bearer  secret://token",
        "Token secret://token",
        "secret://token ",
        "secret://a/b",
        "SECRET://token",
        "secret://",
        "secret://{{ key }}",
    ):
        with pytest.raises(
            InvalidSchedule,
            match=r"A: this is not a valid reference to a secret \(secret://name as",
        ):
            a_launcher(kind.__name__).check(kind(A=text))
    with pytest.raises(InvalidSchedule, match="no variable is named after"):
        a_launcher(kind.__name__).check(kind(A="${HOME}"))


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"command": ["curl", "secret://token"]}, r"command\[1\]"), ({"command": ["curl", "-H", "X: ${env:TOKEN}"]}, r"command\[2\]"),
        ({"command": ["secret://token"]}, r"command\[0\]"), ({"command": ["a", "--password=SECRET://token"]}, r"command\[1\]"),
        ({"command": ["true"], "cwd": "secret://token"}, "cwd"), ({"command": ["true"], "inputs": {"a": ["secret://token"]}}, r"inputs\.a\[0\]"),
        ({"command": ["true"], "inputs": {"a": "${env:TOKEN}"}}, r"inputs\.a"), ({"http": "http://a.test/?t=secret://token"}, "http"),
        ({"http": "http://a.test/", "inputs": {"a": {"b": "secret://token"}}}, r"inputs\.a\.b"),
    ],
)  # fmt: skip
def test_reference_is_refused_where_the_secret_would_be_visible(fields, field):
    kind = "http" if "http" in fields else "command"
    with pytest.raises(InvalidSchedule, match=rf"^{field}: a secret would be visible here"):
        a_launcher(kind).check(Target(kind, fields))


def test_text_about_secrets_may_be_an_input():
    fields = {"command": ["true"], "inputs": {"prompt": "what does secret://x or ${env:A} mean?"}}
    a_launcher("command").check(Target("command", fields))


# -- use and redaction


def launched(launcher, target, schedule_id="report"):
    """Launch once; return the outcome, the output, and the content of its file."""
    attempt = Attempt(1, schedule_id, 0, 0, 1, 1, target, inputs_text=target.inputs_text)

    async def main():
        try:
            return await launcher.launch(attempt)
        finally:
            await launcher.close()

    outcome, tail = asyncio.run(main())
    output = getattr(launcher, "_output", None)
    files = [path.read_text() for path in output.rglob("*.log")] if output is not None else []
    return outcome, tail, "".join(files)


TELL = "import os, json; t = os.environ['T']; print('it is', t, json.dumps(t), t[::-1]); raise SystemExit(t[0] != 'c')"


def test_command_gets_its_secret_and_its_output_is_redacted(secrets, tmp_path):
    launcher = ProcessLauncher(tmp_path / "out", environment=os.environ, secrets=str(secrets))
    fields = {"command": [sys.executable, "-c", TELL], "env": {"T": "secret://token"}}
    outcome, tail, kept = launched(launcher, Target("command", fields))
    assert outcome == Succeeded()  # the command got the secret
    assert tail == kept
    assert tail == f'it is *** "***" {CANARY[::-1]}\n'


def test_command_may_reference_only_variables_that_are_passed_on(tmp_path):
    environment = {**os.environ, "TOKEN": CANARY, "OTHER": "x"}
    passed = ("PATH", "HOME", "TOKEN")
    fields = {"command": [sys.executable, "-c", TELL], "env": {"T": "${env:TOKEN}"}}
    launcher = ProcessLauncher(tmp_path / "out", environment=environment, passed=passed)
    outcome, tail, _ = launched(launcher, Target("command", fields))
    assert (outcome, CANARY in tail) == (Succeeded(), False)
    for name in ("OTHER", "HOME", "NONE"):
        fields["env"] = {"T": f"${{env:{name}}}"}
        launcher = ProcessLauncher(tmp_path / "out", environment=environment, passed=passed)
        outcome, _, _ = launched(launcher, Target("command", fields))
        problem = f"env.T: this node does not pass on the environment variable {name} (add it to the setting pass_env)"
        assert outcome == Failed(problem, reason="invalid_target", retryable=False)


def test_missing_secret_fails_the_launch(secrets, tmp_path):
    launcher = ProcessLauncher(tmp_path / "out", environment=os.environ, secrets=str(secrets))
    outcome, _, _ = launched(launcher, command(A="secret://none"))
    assert (outcome.reason, outcome.retryable) == ("invalid_target", False)
    assert outcome.error.startswith("env.A: this node has no secret none")


class Echo(BaseHTTPRequestHandler):
    """Fails with an error that contains its whole input."""

    got: ClassVar[list] = []

    def do_POST(self):
        told = self.headers.get("Authorization", "")
        self.got.append(dict(self.headers))
        body = json.dumps({"you sent": told, "again": [told, f"x{told}x"]}).encode()
        self.send_response(500)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.fixture
def echo():
    Echo.got = []
    with HTTPServer(("127.0.0.1", 0), Echo) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


VERBS = (
    "list", "show command", "show request", "runs", "logs command", "logs request", "why command", "why request", "status", "token list",
    "export",
)  # fmt: skip
PLAIN = "canary-Zb47-nobody-may-see-this"


def test_secret_appears_only_where_it_is_needed(folder, echo):  # noqa: F811 - the folder to be in
    there = folder / "secrets"
    there.mkdir()
    (there / "canary").write_text(f"{PLAIN}\n")
    seen_it = folder / "seen"
    tell = f"import os, time; print('told', os.environ['T'], flush=True)\nwhile not os.path.exists({str(seen_it)!r}): time.sleep(0.02)\nraise SystemExit(os.environ['T'])"
    url = f"http://127.0.0.1:{echo.server_port}/"
    (folder / "onbeat.yaml").write_text(json.dumps({"schedules": {
        "command": {"every": "1h", "run": {"command": [sys.executable, "-c", tell], "env": {"T": "secret://canary"}}},
        "request": {"every": "1h", "run": {"http": url, "headers": {"Authorization": "secret://canary"}}},
    }}))  # fmt: skip
    settings = [
        "--secrets",
        str(there),
        "--log-level",
        "debug",
        "--stop-grace",
        "0s",
        "--roles",
        "plan,run",
    ]
    seen, in_child = [], []
    with a_node(folder, *settings) as node:
        seen += [ok("run", name) for name in ("command", "request")]
        until(lambda: [run["status"] for run in as_json("runs", "command")] == ["STARTED"])

        def children():
            listed = Path(f"/proc/{node.pid}/task").glob("*/children")
            return [int(pid) for path in listed for pid in path.read_text().split()]

        def has_it():  # a child that has just been started may still look like its parent
            in_child[:] = [Path(f"/proc/{pid}/environ").read_bytes().decode() for pid in children()]
            return any(f"T={PLAIN}" in each for each in in_child)

        until(has_it)
        seen += [Path(f"/proc/{pid}/cmdline").read_text() for pid in (node.pid, *children())]
        seen_it.touch()
        until(lambda: {run["status"] for run in as_json("runs")} == {"FAILED"})
        for verb in VERBS:
            seen += [onbeat(*verb.split()).output, onbeat(*verb.split(), "--json").output]
        seen.append((folder / "stderr").read_text())
    assert any(f"T={PLAIN}" in each for each in in_child)
    assert [each["Authorization"] for each in Echo.got] == [PLAIN]
    assert "told ***" in "".join(seen)
    kept = [path for path in folder.rglob("*") if path.is_file() and there not in path.parents]
    assert any(path.suffix == ".log" for path in kept)
    seen += [path.read_bytes().decode("latin-1") for path in kept]
    assert [each[:200] for each in seen if PLAIN in each] == []


# -- composed references

COMPOSED = [  # the text of a header or variable, the previous result, manual inputs
    ("{{ '$' }}{env:CANARY}", None, {}),
    ("{{ ' $' | trim }}{env:CANARY}", None, {}),
    ("{{ '$' }}{{ '{env:CANARY}' }}", None, {}),
    ("{{ '${' }}env:CANARY}", None, {}),
    ("{{ '${en' }}v:CANARY}", None, {}),
    ("{{ '${env:CANARY' }}}", None, {}),
    ("{{ '${env:CANARY}' }}", None, {}),
    ("${{ '{env:CANARY}' }}", None, {}),
    ("${{ date | truncate(0) }}{env:CANARY}", None, {}),
    ("${en{{ 'v:CANARY}' }}", None, {}),
    ("${env:{{ 'CANARY' }}}", None, {}),
    ("${env:CANARY{{ '}' }}", None, {}),
    ("{{ last.result.none | default('${env:CANARY}') }}", None, {}),
    ("{{ last.result.none | default('$') }}{env:CANARY}", None, {}),
    ("{{ date | date('$') }}{env:CANARY}", None, {}),
    ("{{ last.result }}{env:CANARY}", "$", {}),
    ("{{ last.result }}", "${env:CANARY}", {}),
    ("{{ last.result }}", "{{ '$' }}{env:CANARY}", {}),
    ("{{ last.result }}", ["${env:CANARY}"], {}),
    ("{{ last.result }}", {"${env:CANARY}": 1}, {}),
    ("{{ last.result | truncate(13) }}", "${env:CANARY}{{ 'x' }}", {}),
    ("{{ last.result.a }}{{ last.result.b }}", {"a": "${en", "b": "v:CANARY}"}, {}),
    ("${env:OTHER}{{ '$' }}{env:CANARY}", None, {}),
    ("{{ '${env:' }}${env:OTHER}{{ 'CANARY}' }}", None, {}),
    ("${env:DOLLAR}{env:CANARY}", None, {}),
    ("${env:DOLLAR}{{ '{env:CANARY}' }}", None, {}),
    ("{{ 'secret:' }}//canary", None, {}),
    ("sec{{ 'ret' }}://canary", None, {}),
    ("secret:/{{ '' }}/canary", None, {}),
    ("secret://{{ 'canary' }}", None, {}),
    ("{{ 'secret://canary' }}", None, {}),
    ("{{ 'SECRET:' | lower }}//canary", None, {}),
    ("{{ last.result | lower }}", "SECRET://CANARY", {}),
    ("{{ last.result | trim }}", " secret://canary ", {}),
    ("{{ last.result | first_line }}", "secret://canary\nx", {}),
    ("{{ last.result }}//canary", "secret:", {}),
    ("secret:{{ last.result }}", "//canary", {}),
    ("{{ date }}", None, {"T": "${env:CANARY}", "a": ["secret://canary"]}),
    ("{{ date }}", None, {"headers": {"T": "${env:CANARY}"}, "env": {"T": "secret://canary"}}),
    ({"A": "{{ '$' }}", "T": "{env:CANARY}"}, None, {}),
    ({"A": "{{ 'secret:' }}", "T": "//canary"}, None, {}),
    ({"{{ '$' }}{env:CANARY}": "{{ date }}"}, None, {}),
    ({"${env:CANARY}": "{{ date }}"}, None, {}),
]  # fmt: skip
WRITTEN = [
    ("${env:CANARY}", None, {}),
    ("secret://canary", None, {}),
    ("{{ '$' }}{{ date }} ${env:CANARY}{{ '}' }}", None, {}),
    ("{{ last.result }}${env:CANARY}{{ last.result }}", "${env:", {}),
]  # fmt: skip
ENVIRONMENT = {**os.environ, "CANARY": PLAIN, "OTHER": "other", "DOLLAR": "$"}
PASSED = ("PATH", "CANARY", "OTHER", "DOLLAR")
DUMP = "import os, sys; open(sys.argv[1], 'w').write(repr({n: v for n, v in os.environ.items() if n != 'CANARY'}))"


class Listening(BaseHTTPRequestHandler):
    """Records its whole input."""

    got: ClassVar[list] = []

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        self.got.append(f"{self.path} {dict(self.headers)} {body}")
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def listening():
    with HTTPServer(("127.0.0.1", 0), Listening) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


class TargetInput:
    """A store, its launchers, and the input of a target in the second run of a schedule."""

    def __init__(self, place, url):
        self.folder, self.url = place, url
        (place / "canary").write_text(PLAIN)
        known = {"environment": {n: ENVIRONMENT[n] for n in PASSED}, "secrets": str(place)}
        self.launchers = {
            "http": HttpLauncher(version="1", **known),
            "command": ProcessLauncher(place / "out", passed=PASSED, **known),
        }

    def run(self, scope, kind, case):
        """Return the outcome and the input that arrived. Without a scope no check was made."""
        return asyncio.run(self._run(scope, kind, *case))

    def target(self, kind, values):
        if kind == "http":  # a host name, as only an admin may define a private address
            return {"http": "http://hook.test/", "headers": values}
        argv = [sys.executable, "-c", DUMP, str(self.folder / "dump")]
        return {"command": argv, "env": values}

    async def _run(self, scope, kind, values, answer, inputs):
        Listening.got.clear()
        (self.folder / "dump").unlink(missing_ok=True)
        world = StoreHarness(Sqlite(Path(mkdtemp(dir=self.folder))))
        await world.open()
        await world.register(offers=frozenset({kind}))
        try:
            values = {"T": values} if isinstance(values, str) else values
            schedule = a_schedule("report", run=self.target(kind, values))
            if scope:
                service = Service(world.store, self.launchers, new_id=str)
                await service.of(Caller("ann", scope)).define([schedule])
            else:
                await world.store.upsert([schedule])
            await world.tick()
            await world.end(await world.start_one(), Succeeded(answer))
            await world.store.enqueue("report", request_id="by-hand", inputs=inputs)
            return await self._launch(await world.start_one())
        finally:
            for launcher in self.launchers.values():
                await launcher.close()
            await world.close()

    async def _launch(self, attempt):
        fields = {n: v for n, v in attempt.target.fields.items() if n != "public_only"}
        if attempt.target.kind == "http":
            fields["http"] = self.url
        target = Target(attempt.target.kind, fields)
        given = replace(attempt, target=target)
        outcome, _ = await self.launchers[target.kind].launch(given)
        dump = self.folder / "dump"
        return outcome, "".join(Listening.got) + (dump.read_text() if dump.exists() else "")


@pytest.fixture
def told(tmp_path, listening):
    return TargetInput(tmp_path, listening)


@pytest.mark.parametrize("kind", ["http", "command"])
@pytest.mark.parametrize("scope", ["define", "admin", None])
@pytest.mark.parametrize("case", COMPOSED, ids=lambda case: str(case[:2]))
def test_template_cannot_compose_a_reference(told, scope, kind, case):
    try:
        outcome, arrived = told.run(scope, kind, case)
    except (NotAllowed, InvalidSchedule):
        assert scope is not None
        return
    assert PLAIN not in arrived
    assert isinstance(outcome, Succeeded) == bool(arrived), outcome
    assert arrived or outcome.reason == "invalid_target"


@pytest.mark.parametrize("kind", ["http", "command"])
@pytest.mark.parametrize("case", WRITTEN, ids=lambda case: str(case[:2]))
def test_reference_of_an_admin_works_next_to_templates(told, kind, case):
    for scope in ("admin", None):  # as with definitions stored earlier
        outcome, arrived = told.run(scope, kind, case)
        assert (outcome, arrived.count(PLAIN)) == (Succeeded(), 1)
    with pytest.raises(NotAllowed):
        told.run("define", kind, case)


def test_composed_reference_of_a_definer_is_inert_text(told):
    _, arrived = told.run("define", "http", ("{{ '$' }}{env:CANARY}", None, {}))
    assert "'T': '$ {env:CANARY}'" in arrived
    _, arrived = told.run("define", "http", ("see {{ 'secret:' }}//canary", None, {}))
    assert "'T': 'see secret ://canary'" in arrived


@pytest.mark.parametrize("kind", [http, command])
@pytest.mark.parametrize(
    "text",
    [
        "{{ '${env:A}' }}", "{{ last.result | default('${env:A}') }}", "${env:A} {{ '${env:A}' }}", "${env:{{ key }}}", "${env:A{{ key }}}",
        "${{ key }}", "{{ 'secret://a' }}", "secret://{{ key }}", "{{ key }}secret://a",
    ],
)  # fmt: skip
def test_reference_in_a_template_and_template_in_a_reference_are_refused(kind, text):
    with pytest.raises(InvalidSchedule, match=r"A: "):
        a_launcher(kind.__name__).check(kind(A=text))
    a_launcher(kind.__name__).check(kind(A="{{ key }} ${env:A}{{ '}' }}${env:B}"))


def test_table_of_compositions_is_complete():
    assert len(COMPOSED) >= 40


def test_pattern_of_references_is_defined_once():
    source = Path(references.__file__).parent.parent
    spelt = [p.name for p in source.rglob("*.py") if r"\$\{env:" in p.read_text()]
    assert spelt == ["channels.py"]


# -- callback headers


def callback_headers(echo, **given):
    async def how(key):
        return {"Onbeat-Callback-Token": f"token-{key}", "Onbeat-Callback": f"https://x/{key}"}

    fields = {"http": f"http://127.0.0.1:{echo.server_port}/", **given}
    launcher = HttpLauncher(version="1", environment={}, callback=how)
    outcome, tail, _ = launched(launcher, Target("http", fields))
    return Echo.got[0], outcome, tail


def test_target_that_may_accept_a_run_gets_callback_headers(echo):
    headers, _, _ = callback_headers(echo)
    key = headers["Idempotency-Key"]
    assert headers["Onbeat-Callback-Token"] == f"token-{key}"
    assert headers["Onbeat-Callback"] == f"https://x/{key}"


def test_target_that_never_accepts_gets_no_callback_headers(echo):
    headers, _, _ = callback_headers(echo, feedback=False)
    assert not [name for name in headers if name.startswith("Onbeat-Callback")]
