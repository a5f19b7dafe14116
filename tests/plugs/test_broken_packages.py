"""A package with a broken plug affects nothing but itself, and is reported."""

import asyncio
import subprocess
import sys

import pytest
from click.testing import CliRunner

from onbeat.app.onbeat import Onbeat
from onbeat.app.parts import checking_launchers
from onbeat.app.peers import ask_peers
from onbeat.app.settings import Settings
from onbeat.cli.command import main, sections, verbs
from onbeat.core.fields import declared
from onbeat.core.target_kinds import KINDS
from onbeat.doctor.diagnose import gather_facts, judge
from onbeat.errors import InvalidSchedule, InvalidSettings
from onbeat.host.own_names import SETTINGS
from onbeat.host.plugs import broken_plugs, find_plugs, plugs
from onbeat.ports.launcher import check_launch
from onbeat.testing import ManualClock, RecordingLauncher, a_schedule
from tests.given_settings import given_settings
from tests.plugs.chat_package import ChatPackage
from tests.web.serving import serving

BOOM = 'raise RuntimeError("boom")'


@pytest.fixture
def chat(tmp_path_factory):
    package = ChatPackage(tmp_path_factory.mktemp("packages"))
    yield package
    package.remove()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run_cli(*words):
    """Return the exit code and the output of a command."""
    done = CliRunner().invoke(main, words)
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exc_info
    return done.exit_code, done.output


def findings(settings=None):
    """Return what `onbeat doctor` finds, by check."""
    seen = gather_facts(
        settings or given_settings(database="sqlite://"),
        settings_file=None, clock=ManualClock(), quick=True,
    )  # fmt: skip
    return {each.check: each for each in judge(asyncio.run(seen))}


def test_package_works_if_nothing_is_wrong(chat, folder):
    chat.install()
    assert [each.name for each in plugs()][-1] == "chat"
    assert KINDS.find("chat") is not None
    assert run_cli("chat") == (0, "#ops\n")
    found = findings()
    assert (found["plugs"].level, found["plugs"].found) == ("ok", "from packages: chat")
    assert found["chat token"].found == "set"
    assert "line 3: no channel" in found["source files"].found


LEFT_OUT = {
    "import": ("plug.py", "PLUG =", f"{BOOM}\nPLUG =", "RuntimeError: boom"),
    "not a plug": ("plug.py", "PLUG = Plug(", "PLUG = dict(", "is a dict, not a Plug"),
    "name with capitals": ("plug.py", '"chat"', '"My Chat"', "'My Chat' is not a name of a plug"),
    "name with hyphen": ("plug.py", '"chat"', '"my-chat"', "'my-chat' is not a name of a plug"),
    "name of a plug": ("plug.py", '"chat"', '"ray"', "another plug is called 'ray'"),
    "name of settings": ("plug.py", '"chat"', '"log"', "mixed up with Onbeat's own 'log_format'"),
    "name of a table": ("plug.py", '"chat"', '"notify"', "mixed up with Onbeat's own 'notify'"),
    "verbs as list": ("plug.py", 'verbs={"chat":', 'verbs=["chat"]or{"chat":', "verbs: it is a list"),
    "verb of Onbeat": ("plug.py", '{"chat"', '{"up"', "Onbeat has the verb 'up'"),
    "verb of a plug": ("plug.py", '{"chat"', '{"timer"', "the plug flows has the verb 'timer'"),
    "reference": ("plug.py", "kinds:KINDS", "kinds", "kinds: 'onbeat_chat.kinds' is not a reference"),
    "kinds import": ("kinds.py", "KINDS =", f"{BOOM}\nKINDS =", "kinds: RuntimeError: boom"),
    "kinds name": ("plug.py", "kinds:KINDS", "kinds:KNDS", "kinds: the module onbeat_chat.kinds has no KNDS"),
    "kinds not a tuple": ("kinds.py", "(CHAT,)", "CHAT", "is a TargetKind, not a tuple"),
    "kinds as texts": ("kinds.py", "(CHAT,)", '("chat",)', "contains a str, not only TargetKind"),
    "kind of a plug": ("kinds.py", 'name="chat"', 'name="http"', "'http'"),
    "second kind of a plug": (
        "kinds.py", "(CHAT,)", '(CHAT, TargetKind(name="http", schema={}))', "'http'",
    ),
    "settings import": ("settings.py", "VARIABLES", f"{BOOM}\nVARIABLES", "settings: RuntimeError: boom"),
    "no dataclass": ("settings.py", "@dataclass(frozen=True)", "", "ChatSettings is not a dataclass"),
    "no Field": ("settings.py", 'Annotated[int, number("messages per minute", 1, 1000)]', "int",
        "most does not declare a Field"),
    "no default": ("settings.py", "= 60", "\n    last: Annotated[int, number('', 1, 2)]", "non-default argument"),
    "wrong default": ("settings.py", "= 60", '= "sixty"', "its Field refuses its default 'sixty'"),
    "capitals": ("settings.py", "most:", "mostOf:", "'mostOf' is not a name of a setting"),
    "variable": ("settings.py", '"chat_url")', '"chat_ur")', "there is no setting 'chat_ur'"),
    "variable as text": ("settings.py", 'Variable("chat_url")', '"chat_url"', "CHAT_URL is a str, not a Variable"),
}  # fmt: skip


@pytest.mark.parametrize("case", LEFT_OUT)
def test_wrong_plug_is_left_out_completely(chat, folder, case):
    *change, problem = LEFT_OUT[case]
    chat.install(*change)
    assert "chat" not in {each.name for each in plugs()}
    assert KINDS.find("chat") is None
    assert "chat" not in verbs()
    (broken,) = find_plugs().left_out
    assert problem in broken.problem
    found = findings()["plugs"]
    assert found.level == "warn"
    assert problem in found.found
    assert "onbeat-chat" in found.hint


def test_setting_without_a_default_is_refused_with_its_name(chat):
    chat.install("settings.py", "(frozen=True)\nclass ChatSettings:",
        '(frozen=True, kw_only=True)\nclass ChatSettings:\n    key: Annotated[str, text("a key")]')  # fmt: skip
    (broken,) = find_plugs().left_out
    assert broken.problem == "settings: key has no default (every setting has one)"


def test_setting_of_another_plug_is_refused(chat):
    chat.install("plug.py", '"chat"', '"flows_std"')
    (chat.folder / "onbeat_chat/settings.py").write_text(
        "from dataclasses import dataclass\nfrom typing import Annotated\n"
        "from onbeat.core.fields import Variable, text\nVARIABLES = {}\n@dataclass\n"
        "class ChatSettings:\n    level: Annotated[str, text('the level')] = ''\n"
    )
    (broken,) = find_plugs().left_out
    assert "another plug has the setting flows_std_level" in broken.problem


def test_second_package_with_the_same_kind_is_left_out(chat, tmp_path):
    chat.install()
    about = tmp_path / "other-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: other-chat\nVersion: 1\n")
    (about / "entry_points.txt").write_text("[onbeat.plugins]\nother = other_chat:PLUG\n")
    (tmp_path / "other_chat.py").write_text(
        "from onbeat.ports.plug import Plug\nfrom onbeat.core.target_kinds import TargetKind\n"
        "PLUG = Plug(name='other', kinds='other_chat:KINDS')\n"
        "KINDS = [TargetKind(name=name, schema={'properties': {name: {}}}) for name in ('bell', 'chat')]\n"
    )
    sys.path.append(str(tmp_path))
    try:
        (broken,) = find_plugs().left_out
    finally:
        sys.path.remove(str(tmp_path))
    assert str(broken).startswith("other (other_chat:PLUG) is left out: kinds: two kinds")
    assert broken.origin.package == "other-chat"
    assert [each.name for each in plugs()][-1] == "chat"
    assert KINDS.find("bell") is None


def test_reader_of_a_setting_that_fails_refuses_the_value(chat, folder):
    reader = 'Field("", lambda value: value if value == 60 else 1 // 0, {})'
    chat.install("settings.py", 'number("messages per minute", 1, 1000)', reader)
    text = (chat.folder / "onbeat_chat/settings.py").read_text()
    text = text.replace("import Option", "import Field, Option")
    (chat.folder / "onbeat_chat/settings.py").write_text(text)
    with pytest.raises(InvalidSettings) as refused:
        Settings.load(environment={"ONBEAT_CHAT_MOST": "7"}, folder=folder)
    assert "cannot be read: ZeroDivisionError" in refused.value.problem


def test_peer_whose_check_returns_something_else_is_a_finding(chat):
    chat.install("part.py", 'return PeerCheck("chat server", "ok", "it answers")', "return 3")
    (found,) = asyncio.run(ask_peers(given_settings(database="sqlite://"), {}, version="1"))
    assert (found.level, found.found) == ("fail", "the check returned a int, not a PeerCheck")


def test_names_that_no_plug_may_have_are_those_of_onbeat():
    assert declared(Settings).keys() == SETTINGS


@pytest.mark.parametrize("name", ["left out", "works"])
def test_setting_of_a_plug_that_is_left_out_is_ignored_with_a_warning(chat, folder, name):
    chat.install(*(("plug.py", "PLUG =", f"{BOOM}\nPLUG =") if name == "left out" else ()))
    (folder / "onbeat.toml").write_text('chat_most = 7\n[chat]\nurl = "http://chat"\n')
    loaded = Settings.load(environment={"ONBEAT_CHAT_MOST": "8"}, folder=folder)
    assert loaded.value("chat_most") == (8 if name == "works" else None)
    run_cli("init")
    assert run_cli("apply", "onbeat.yaml")[0] == 0
    assert run_cli("list")[0] == 0
    assert ("the setting chat_most is ignored: the plug chat" in loaded_warnings(chat)) is (
        name == "left out"
    )


def loaded_warnings(chat):
    """Return what a new process with the package prints when it lists schedules."""
    done = subprocess.run(
        [sys.executable, "-m", "onbeat", "list"], env={"PYTHONPATH": str(chat.folder)},
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    return done.stderr


@pytest.mark.parametrize(
    ("given", "hint"),
    [
        ("[slack]\nurl = 1", "no installed package has settings slack_*"),
        ("slack_url = 1", "no installed package has settings slack_*"),
        ("session_url = 1", "did you mean 'sessions_url'?"),
        ("[session]\nurl = 1", "did you mean [sessions]?"),
        ("log_levl = 1", "did you mean 'log_level'?"),
    ],
)
def test_unknown_setting_names_what_was_probably_meant(tmp_path, given, hint):
    (tmp_path / "onbeat.toml").write_text(given)
    with pytest.raises(InvalidSettings) as refused:
        Settings.load(environment={}, folder=tmp_path)
    assert refused.value.hint == hint


def test_variable_of_no_package_is_refused_with_that_reason(tmp_path):
    with pytest.raises(InvalidSettings) as refused:
        Settings.load(environment={"ONBEAT_SLACK_URL": "x"}, folder=tmp_path)
    assert refused.value.hint == "no installed package has settings slack_*"


IN_A_NODE = {
    "part import": ("part.py", "def make", f"{BOOM}\ndef make", "make: RuntimeError: boom"),
    "make": ("part.py", "    launcher =", f"    {BOOM}\n    launcher =", "make: RuntimeError: boom"),
    "make name": ("plug.py", "part:make", "part:mak", "make: the module onbeat_chat.part has no mak"),
    "make returns None": ("part.py", "    return Part(", "    Part(", "make: it returned a NoneType, not a Part"),
    "other kind": ("part.py", '{"chat": launcher}', '{"chta": launcher}', "there is no kind of target 'chta'"),
    "no launcher": ("part.py", '{"chat": launcher}', '{"chat": 3}', "int has no method check"),
    "leave": ("launcher.py", "pass", "def leave(self, run_ids): return run_ids", "the kind lacks reattaches=True"),
    "no leave": ("kinds.py", 'name="chat",', 'name="chat", reattaches=True,', "'chat' has no `leave`"),
    "background": ("part.py", "[Background()]", "[3]", "int has no method start"),
    "offers": ("launcher.py", "pass", f"def offers(self): {BOOM}", "offers of ChatLauncher: RuntimeError: boom"),
    "recover": ("launcher.py", "pass", f"async def recover(self): {BOOM}", "recover of ChatLauncher: RuntimeError"),
    "close": ("launcher.py", "pass", f"async def close(self): {BOOM}", "close of ChatLauncher: RuntimeError"),
    "start": ("background.py", "pass", BOOM, "start of its background system: RuntimeError"),
    "on_events": ("background.py", "events):\n        pass", f"events):\n        {BOOM}",
        "on_events of its background system: RuntimeError"),
    "stop": ("background.py", "stop(self):\n        pass", f"stop(self):\n        {BOOM}",
        "stop of its background system: RuntimeError"),
    "listener": ("background.py", "events):\n    pass", f"events):\n    {BOOM}", "a listener: RuntimeError"),
}  # fmt: skip


@pytest.mark.parametrize("case", IN_A_NODE)
def test_node_works_beside_a_plug_that_fails(chat, case, caplog):
    *change, problem = IN_A_NODE[case]
    chat.install(*change)

    async def live():
        launcher, clock = RecordingLauncher(), ManualClock("2026-01-01T12:30:00Z")
        settings = given_settings(database="sqlite://")
        beat = Onbeat(settings=settings, clock=clock, launchers={"command": launcher})
        async with beat:
            await beat.define(a_schedule("report"))
            clock.advance("1h")
            await beat.settle()
            runs = await beat.runs("report")
        return [run.status for run in runs]

    assert asyncio.run(asyncio.wait_for(live(), 30)) == ["SUCCESS"]
    assert [each for each in map(str, broken_plugs()) if problem in each]
    assert sum(problem in each.getMessage() for each in caplog.records) == 1
    assert "onbeat-chat" in findings()["plugs"].hint


def test_listener_of_a_program_that_fails_keeps_no_call(caplog):
    def listen(at, events):
        raise RuntimeError("boom")

    async def live():
        beat = Onbeat(settings=given_settings(database="sqlite://"), clock=ManualClock())
        async with beat:
            beat.listen(listen)
            await beat.define(a_schedule("report"))
            await beat.define(a_schedule("second"))
            return [row.schedule_id for row in await beat.schedules()]

    assert asyncio.run(asyncio.wait_for(live(), 30)) == ["report", "second"]
    assert sum("a listener of events failed" in each.getMessage() for each in caplog.records) == 1


@pytest.mark.parametrize("method", ["check", "can_cancel"])
def test_launcher_that_cannot_check_refuses_its_targets(chat, method):
    chat.install("launcher.py", "pass", f"def {method}(self, target): {BOOM}")
    schedule = a_schedule("talk", run={"chat": "#ops"}, overlap="replace")
    with pytest.raises(InvalidSchedule) as refused:
        check_launch(schedule, checking_launchers())
    assert "the kind 'chat' cannot be checked: RuntimeError: boom" in refused.value.problem
    check_launch(a_schedule("report"), checking_launchers())


def test_launcher_of_a_package_launches(chat):
    chat.install()

    async def live():
        beat = Onbeat(settings=given_settings(database="sqlite://"), clock=ManualClock())
        async with beat:
            await beat.define(a_schedule("talk", run={"chat": "#ops"}))
            await beat.start("talk")
            await beat.settle()
            return [run.status for run in await beat.runs("talk")]

    assert asyncio.run(asyncio.wait_for(live(), 30)) == ["SUCCESS"]
    assert not broken_plugs()


REPORTED = {
    "checkers": ("part.py", "def checkers(check_url):", f"def checkers(check_url):\n    {BOOM}", "checkers: RuntimeError"),
    "peers": ("part.py", "def peers(context):", f"def peers(context):\n    {BOOM}", "peers: RuntimeError"),
    "peers as texts": ("part.py", 'Peer("chat server", _check)', '"chat server"', "returned a str, not only Peer"),
    "files": ("part.py", "def source_files(settings):", f"def source_files(settings):\n    {BOOM}", "source_files: RuntimeError"),
    "checks name": ("plug.py", "checks:CHECKS", "checks:NONE", "checks: the module onbeat_chat.checks has no NONE"),
    "checks not a tuple": ("checks.py", "(chat_token,)", "chat_token", "checks: onbeat_chat.checks:CHECKS is a function, not a tuple"),
    "section name": ("plug.py", "page:section", "page:sctn", "sections: the module onbeat_chat.page has no sctn"),
    "verb name": ("plug.py", "verbs:chat", "verbs:cht", "verb chat: the module onbeat_chat.verbs has no cht"),
    "routes not a tuple": ("routes.py", "[channels]", "channels", "routes: onbeat_chat.routes:ROUTES is a "),
    "section not a function": ("plug.py", "page:section", "kinds:KINDS", "sections: onbeat_chat.kinds:KINDS is a tuple, not a function"),
    "routes name": ("plug.py", "routes:ROUTES", "routes:RTS", "routes: the module onbeat_chat.routes has no RTS"),
    "page import": ("page.py", "async def", f"{BOOM}\nasync def", "sections: RuntimeError: boom"),
}  # fmt: skip


@pytest.mark.parametrize("case", REPORTED)
def test_doctor_reports_each_part_that_cannot_be_used(chat, folder, case):
    *change, problem = REPORTED[case]
    chat.install(*change)
    (folder / "onbeat.yaml").write_text("schedules: {a: {every: 1h, run: {command: [ls]}}}")
    settings = given_settings(database="sqlite://")
    asyncio.run(ask_peers(settings, {}, version="1"))
    found = findings(settings)
    assert problem in found["plugs"].found
    assert found["source files"].level in ("ok", "warn")


@pytest.mark.parametrize(
    ("change", "problem"),
    [(f"    {BOOM}\n    return", "failed: RuntimeError"), ("    return 3 or", "returned a int")],
)
def test_check_of_a_package_that_fails_names_the_package(chat, folder, change, problem):
    chat.install("checks.py", "    return", change)
    found = findings()["chat token"]
    assert found.level == "warn"
    assert problem in found.found
    assert "plug chat" in found.hint


def test_verb_that_cannot_be_loaded_is_refused_with_the_reason(chat):
    chat.install("plug.py", "verbs:chat", "verbs:cht")
    code, output = run_cli("chat")
    assert code == 2
    assert "the module onbeat_chat.verbs has no cht" in output
    assert "chat" in sections()["Systems"]


WEB = {
    "import": ("routes.py", "ROUTES", f"{BOOM}\nROUTES", "routes: RuntimeError: boom"),
    "no docstring": ("routes.py", '"""Return the channels."""', "", "chat_channels has no docstring"),
    "second route": ("routes.py", '"/chat/channels"', '"/schedules"', "GET /api/v1/schedules is another route"),
    "parameter of another name": ("routes.py", '"/chat/channels"', '"/runs/{other:int}"', "GET /api/v1/runs/{} is another route"),
    "operation": ("routes.py", '"chat_channels"', '"list_schedules"', "list_schedules"),
    "not a list": ("routes.py", "[channels]", "channels", "not a tuple"),
    "not a route": ("routes.py", "[channels]", "[3]", "routes"),
    "bodies": ("routes.py", "BODIES = {}", "BODIES = {'chat_channels': 3}", "bodies"),
    "section": ("page.py", "    return", f"    {BOOM}\n    return", "the section of the dashboard: RuntimeError"),
    "section returns None": ("page.py", "return", "", "returned a NoneType, not a str"),
}  # fmt: skip


@pytest.mark.parametrize("case", WEB)
def test_api_and_page_work_without_the_broken_surface(chat, tmp_path, case):
    *change, problem = WEB[case]
    chat.install(*change)
    with serving(tmp_path, node=False) as api:
        assert api.get("/schedules").json()["schedules"] == []
        paths = api.get("/openapi.json").json()["paths"]
        page = api.get("//").text
    assert "/api/v1/schedules" in paths
    assert ("/api/v1/chat/channels" in paths) is (change[0] == "page.py" or case == "bodies")
    assert "<h2>Latest runs</h2>" in page
    assert ("This section failed" in page) is (change[0] == "page.py")
    assert [each for each in map(str, broken_plugs()) if problem in each]


def test_routes_and_section_of_a_package_are_served(chat, tmp_path):
    chat.install()
    with serving(tmp_path, node=False) as api:
        assert api.get("/chat/channels").json() == ["#ops"]
        assert "<h2>Channels</h2>" in api.get("//").text
    assert not broken_plugs()


def test_option_that_is_no_more_names_the_variable():
    code, output = run_cli("up", "--workflows-token=x")
    assert code == 2
    assert "workflows_token is a setting without an option" in output
    assert "ONBEAT_WORKFLOWS_TOKEN" in output
    assert "Did you mean" in run_cli("up", "--concurency=3")[1]


@pytest.mark.parametrize(
    "program",
    [
        "from onbeat.testing import a_schedule; print(a_schedule().target.kind)",
        (
            "import onbeat.host.kinds; from onbeat.core.schema import schema_of_file;"
            "print('command' in str(schema_of_file()))"
        ),
        "from onbeat.sources.yaml import read_file, Path; print(read_file(Path('onbeat.yaml'), id).schedules[0].target.kind)",
    ],
    ids=["testing", "schema", "yaml"],
)
def test_definitions_can_be_read_without_the_app(tmp_path, program):
    (tmp_path / "onbeat.yaml").write_text("schedules: {a: {every: 1h, run: {command: [ls]}}}")
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, check=True, capture_output=True, text=True,
        timeout=60,
    )  # fmt: skip
    assert done.stdout.strip() in ("command", "True")


def test_lookup_of_a_kind_without_plugs_says_what_to_import():
    program = "from onbeat.core.schema import schema_of_file; schema_of_file()"
    done = subprocess.run(
        [sys.executable, "-c", program], check=False, capture_output=True, text=True, timeout=60
    )
    assert "no kinds of target are installed: import onbeat.host.kinds" in done.stderr
