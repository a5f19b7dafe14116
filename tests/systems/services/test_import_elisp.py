"""`onbeat import elisp`: services, timers and their state from Emacs Lisp, without evaluating it."""

import json
import os
import time

import pytest
import yaml
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from onbeat.cli.command import main
from onbeat.errors import InvalidFile
from onbeat.systems.services.import_elisp import import_elisp, import_state, split_command
from onbeat.systems.services.lisp import DEEPEST, MOST, LispNode, read_lisp
from onbeat.systems.services.timers import Services

CONFIGURATION = r"""
;;; init.el --- mine  -*- lexical-binding: t; -*-
(require 'supervisor)
(setq inhibit-startup-screen t  ; not ours
      supervisor-timer-retry-intervals '(30 120 600)
      supervisor-timer-catch-up-limit 86400)
(setq supervisor-programs
      '(("tar -cf \"back up.tar\" /srv" :type oneshot :id "backup"
         :oneshot-timeout 90 :working-directory "/srv"
         :environment (("LEVEL" . "full")))
        ("/usr/bin/rsync -a a b" :type oneshot :disabled t)
        ("nm-applet" :type simple :id "nm" :restart t)
        "pasystray"))
(setq supervisor-timers
      '((:id "nightly" :target "backup" :persistent nil
         :on-calendar (:minute 0 :hour (3 15) :day-of-week *))
        (:id "boot" :target "rsync" :enabled nil :on-startup-sec 30 :on-unit-active-sec 3600)))
(supervisor-mode 1)
(supervisor-timer-subsystem-mode 1)
"""
STATE = """;; Supervisor timer state - do not edit manually
;; Schema version: 1
((version . 1)
 (timers
  ("nightly" :last-run-at 1767236400.25 :last-success-at 1767236401.5 :last-exit 0
   :last-missed-at nil)
  ("boot" :last-failure-at 1767236400 :last-exit -9 :last-miss-reason overlap)))
"""


def imported(text):
    return import_elisp(text, "init.el")


def reported(text):
    return [f"{each.line}: {each}" for each in imported(text).left_out]


@pytest.mark.parametrize(
    ("command", "argv"),
    [
        ('find . -name "*.bak" -delete)', ["find", ".", "-name", "*.bak", "-delete)"]),
        ('echo "a b" [', ["echo", "a b", "["]),
        ('echo "one" # "two"', ["echo", "one", "#", "two"]),
        (r'echo "a \"b\"" c', ["echo", 'a "b"', "c"]),
    ],
)
def test_command_after_a_quoted_word_is_split_at_spaces_and_not_read_as_lisp(command, argv):
    lisp = command.replace("\\", "\\\\").replace('"', '\\"')
    found = imported(f'(setq supervisor-programs \'(("{lisp}" :type oneshot :id "it")))')
    assert found.left_out == []
    assert found.fields["services"] == {"it": {"argv": argv}}


@pytest.mark.req("S43", "S44", "S45", "S46", "S47", "S48", "S49")
def test_configuration_in_elisp_becomes_a_valid_services_file():
    found = imported(CONFIGURATION)
    assert found.fields == {
        "retry": ["30s", "120s", "600s"],
        "catchup_window": "86400s",
        "enabled": True,
        "timers_enabled": True,
        "services": {
            "backup": {
                "argv": ["tar", "-cf", "back up.tar", "/srv"],
                "cwd": "/srv",
                "env": {"LEVEL": "full"},
                "timeout": "90s",
            },
            "rsync": {"argv": ["/usr/bin/rsync", "-a", "a", "b"], "enabled": False},
        },
        "timers": [
            {
                "id": "nightly",
                "target": "backup",
                "persistent": False,
                "on_calendar": {"minute": 0, "hour": [3, 15], "day_of_week": "*"},
            },
            {
                "id": "boot",
                "target": "rsync",
                "enabled": False,
                "on_startup_sec": 30,
                "on_unit_active_sec": 3600,
            },
        ],
    }
    services = Services(found.fields)
    assert services.are_timers_on
    assert list(services.timers().valid) == ["nightly", "boot"]
    assert reported(CONFIGURATION) == [
        "12: service 'nm' is simple; timers start oneshots only",
        "13: 'pasystray' is a simple service; only oneshots are translated",
    ]


@pytest.mark.parametrize(
    "form",
    [
        "(setq elinit-timers {})",
        "(setopt elinit-timers {})",
        "(customize-set-variable 'elinit-timers {})",
        "(custom-set-variables '(x 1) '(elinit-timers {} nil))",
        "(progn (setq elinit-timers {}))",
        "(with-eval-after-load 'elinit (setq a 1 elinit-timers {}))",
        "(use-package elinit :ensure t :custom (elinit-timers {}) (b 2) :hook (c . d))",
        "(use-package elinit :config (setq elinit-timers {}))",
    ],
)
@pytest.mark.parametrize(
    "value",
    [
        """'((:id "t" :target "s" :on-startup-sec 5))""",
        """`((:id "t" :target "s" :on-startup-sec 5))""",
        """(list '(:id "t" :target "s" :on-startup-sec 5))""",
        """(list (list :id "t" :target "s" :on-startup-sec 5))""",
    ],
)
def test_variables_are_found_with_any_setter(form, value):
    text = (
        """(setq elinit-programs '(("true" :id "s" :type oneshot)) elinit-timer-subsystem-mode t)"""
    )
    found = imported(f"{text}\n{form.format(value)}")
    assert found.fields["timers"] == [{"id": "t", "target": "s", "on_startup_sec": 5}]
    assert found.left_out == []


def test_unit_file_is_a_service():
    found = imported("""(:id "s" :command "echo 'a b'" :type oneshot :enabled t)""")
    assert found.fields["services"] == {"s": {"argv": ["echo", "'a", "b'"]}}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("(setq supervisor-timers (mapcar #'f x))", "1: supervisor-timers: not a quoted list"),
        ("\n\n(setq supervisor-timers my-timers)", "3: supervisor-timers: not a quoted list"),
        ("(when t\n (supervisor-mode 1))", "1: (when ...) is code and is not translated"),
        ("(add-hook 'a #'supervisor-start)", "1: (add-hook ...) is code"),
        ('(setq supervisor-log-directory "~")', "1: supervisor-log-directory has no equivalent"),
        ("(supervisor-mode (if x 1 0))", "1: it is computed by Emacs"),
        ("(supervisor-mode 'toggle)", "1: it is computed by Emacs"),
        ("(setq supervisor-mode 'maybe)", "1: supervisor-mode: (quote ...) is neither t nor nil"),
        ("(setq supervisor-timer-retry-intervals '(30 soon))", "1: supervisor-timer-retry-intervals: soon"),
        ("(setq supervisor-timers)", "1: setq has a variable without a value"),
        ("(setq supervisor-programs '((\"a\" :type oneshot :stage\n stage1)))", "2: service 'a': :stage is not"),
        ("(setq supervisor-programs '((\"a \\\"b\" :type oneshot)))", "1: 'a \"b' has an unclosed quote"),
        ("(setq supervisor-programs '((\"a\" :type oneshot)\n(\"a\" :type oneshot)))", "2: service 'a' appears twice"),
        ("(setq supervisor-programs `((,cmd :type oneshot)))", "1: (unquote ...) is not a keyword"),
        ("(setq supervisor-timers '((:id \"t\" :on-cal 1)))", "1: unknown keyword :on-cal, the timer"),
        ("(setq supervisor-timers '((:id \"t\"\n:target)))", "2: ':target' has no value"),
        ("(setq supervisor-timers '(\n(:id \"t\" :target \"none\" :on-startup-sec 1)))", "2: timer 't': target 'none' not found"),
        ('(setq supervisor-timer-state-file "x.eld")', "1: timer-state-file: not used: Onbeat has its own"),
    ],
)  # fmt: skip
def test_code_is_omitted_and_reported_with_its_line(text, problem):
    (*_, last) = [each for each in reported(text) if "the old file does not enable" not in each]
    assert last.startswith(problem)
    assert imported(text).fields["timers"] == []


def test_duplicate_and_nameless_timers_are_omitted_and_the_first_stays():
    text = """(:id "s" :command "true" :type oneshot)
    (supervisor-timer-subsystem-mode)
    (setq supervisor-timers '((:id "t" :target "s" :on-startup-sec 5)
      (:id "t" :target "s" :on-startup-sec 6)
      (:target "s" :on-startup-sec 7)
      (:id 5 :target "s" :on-startup-sec 7)))"""
    found = imported(text)
    assert found.fields["timers"] == [{"id": "t", "target": "s", "on_startup_sec": 5}]
    assert reported(text) == [
        "4: timer 't': duplicate timer ID",
        "5: timer 'timers[2]': id must be a non-empty string",
        "6: timer 'timers[3]': id must be a non-empty string",
    ]


@pytest.mark.parametrize("first", [True, False], ids=["before", "after"])
def test_default_timeout_applies_to_oneshots_without_one_wherever_it_is_set(first):
    services = """(setq supervisor-programs '(("a" :type oneshot) ("b" :type oneshot
      :oneshot-timeout nil) ("c" :type oneshot :oneshot-timeout 1.5)))"""
    forms = ["(setq supervisor-oneshot-timeout 45)", services]
    found = imported("\n".join(forms if first else forms[::-1])).fields["services"]
    told = {name: each.get("timeout") for name, each in found.items()}
    assert told == {"a": "45s", "b": None, "c": "1500ms"}


def test_unset_gate_is_reported_and_stays_closed():
    text = """(:id "s" :command "true" :type oneshot)
    (setq supervisor-timers '((:id "t" :target "s" :on-startup-sec 5)))"""
    found = imported(text)
    assert "timers_enabled" not in found.fields
    assert str(found.left_out[0]) == (
        "timers_enabled: the old file does not enable timers, so they stay off"
        " (write timers_enabled: true into the new file)"
    )


@pytest.mark.parametrize(
    ("mode", "is_on"),
    [("", True), ("1", True), ("t", True), ("nil", True), ("0", False), ("-1", False)],
)
def test_mode_call_is_read_as_emacs_does(mode, is_on):
    assert imported(f"(supervisor-mode {mode})").fields["enabled"] is is_on


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (r'"a\nb\t\"c\\"', 'a\nb\t"c\\'),
        (r'"\x41\u00e9\101\e"', "A\u00e9A\x1b"),
        ('"a\\\nb"', "ab"),
        ("-12", -12),
        ("5.", 5),
        ("1.5e3", 1500.0),
        (".5", 0.5),
        ("+1", 1),
        ("a\\ b", "a b"),
        ("1+", "1+"),
    ],
)
def test_atoms_are_read_as_emacs_reads_them(text, value):
    (node,) = read_lisp(text, "x")
    assert node.value == value
    assert type(node.value) is type(value)


def test_dotted_lists_are_lists():
    (node,) = read_lisp('(a . (b . ("c" . nil)))', "x")
    assert ([each.value for each in node.items], node.tail) == (["a", "b", "c"], None)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("(a\n(b", "x:2: the list of line 2 is not closed"),
        ("a)", "x:1: unmatched ')'"),
        ('\n"abc', "x:2: the string of line 2 is not closed"),
        ('"a\\', "x:1: the string of line 1 is not closed"),
        ("(a . b c)", "x:1: more than one form after a dot"),
        ("'", "x:1: the file ends within a form"),
        ("#", "x:1: '' is not supported"),
        (r'"\C-a"', r"x:1: the escape '\\C' is not supported"),
        (r'"\ud800"', "x:1: 'ud800' is not a character"),
        ("(" * (DEEPEST + 2), "x:1: lists are nested too deeply"),
        ("'" * (DEEPEST + 2) + "a", "x:1: lists are nested too deeply"),
        ("a " * (MOST + 1), "x:1: the file has too many forms"),
        ("a" * (2**20 + 1), "x: the file is too long"),
        ("1" * 31, "x:1: '1111"),
    ],
)
def test_text_that_is_not_lisp_is_refused_with_its_line(text, problem):
    with pytest.raises(InvalidFile) as refused:
        read_lisp(text, "x")
    assert str(refused.value).startswith(problem)


@given(st.text(alphabet="()[]'`,@#?\\\";.: \n-ab1e+", max_size=60))
def test_any_text_is_read_or_refused(text):
    for read in (import_elisp, import_state):
        try:
            read(text, "x")
        except InvalidFile as refused:
            assert refused.mistakes


@pytest.mark.req("S65", "S66", "S68", "S69", "S77")
def test_state_becomes_a_state_file():
    content, left_out = import_state(STATE, "timer-state.eld")
    assert json.loads(content) == {
        "version": 1,
        "timers": {
            "boot": {
                "last_exit": -9,
                "last_failure_at": "2026-01-01T03:00:00.000Z",
                "last_miss_reason": "overlap",
            },
            "nightly": {
                "last_exit": 0,
                "last_run_at": "2026-01-01T03:00:00.250Z",
                "last_success_at": "2026-01-01T03:00:01.500Z",
            },
        },
    }
    assert left_out == []


def test_unknown_state_is_reported_and_a_newer_version_is_refused():
    newer = STATE.replace("(version . 1)", "(version . 2)").replace(
        ":last-exit 0", ":last-result success"
    )
    _, left_out = import_state(newer, "s.eld")
    assert [f"{each.line}: {each}" for each in left_out] == [
        "5: nightly: :last-result is not translated"
    ]
    for wrong in ("()", "(version . 1)", STATE.replace("(version . 1)", "(version . 3)")):
        with pytest.raises(InvalidFile):
            import_state(wrong, "s.eld")


class TestCommands:
    """Commands are split as Emacs splits them, and only quoted words are read as Lisp."""

    @pytest.mark.parametrize(
        ("command", "words"),
        [
            ('sh "a b" | grep )', ["sh", "a b", "|", "grep", ")"]),
            ('echo "a" [b', ["echo", "a", "[b"]),
            ('echo "a" # "b"', ["echo", "a", "#", "b"]),
            (r'echo "a \"b\"" c', ["echo", 'a "b"', "c"]),
            ('a"b"c', ["a", "b", "c"]),
        ],
    )
    def test_text_after_a_quoted_word_is_plain_text(self, command, words):
        assert split_command(command, LispNode(1, "string")) == words

    def test_many_quoted_words_take_linear_time(self):
        begin = time.process_time()
        assert split_command('"" ' * 100_000, LispNode(1, "string")) == [""] * 100_000
        assert time.process_time() - begin < 20, "quadratic work takes hours"


class TestCli:
    @pytest.fixture(autouse=True)
    def folder(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        (tmp_path / "init.el").write_text(CONFIGURATION)
        (tmp_path / "timer-state.eld").write_text(STATE)
        return tmp_path

    def call(self, *arguments, code):
        done = CliRunner().invoke(main, ["import", "elisp", *arguments], catch_exceptions=False)
        assert done.exit_code == code, done.output
        return done

    def test_both_files_are_written_and_omissions_are_reported(self, folder):
        done = self.call("init.el", "--state", "timer-state.eld", "-o", "services.yaml", code=4)
        assert done.stderr.splitlines() == [
            "wrote services.yaml",
            "wrote timer-state.json",
            "init.el:12: service 'nm' is simple; timers start oneshots only",
            "init.el:13: 'pasystray' is a simple service; only oneshots are translated",
        ]
        found = yaml.safe_load((folder / "services.yaml").read_text())
        assert found == imported(CONFIGURATION).fields
        assert (folder / "timer-state.json").read_bytes() == import_state(STATE, "x")[0]

    def test_existing_file_is_replaced_only_with_force(self, folder):
        (folder / "services.yaml").write_text("mine")
        done = self.call("init.el", "-o", "services.yaml", code=2)
        assert done.stderr == "onbeat: output: services.yaml already exists (--force replaces it)\n"
        assert (folder / "services.yaml").read_text() == "mine"
        self.call("init.el", "-o", "services.yaml", "--force", code=4)

    def test_without_output_it_is_written_to_stdout(self):
        assert yaml.safe_load(self.call("init.el", code=4).stdout)["timers_enabled"] is True
        found = json.loads(
            self.call("init.el", "--state", "timer-state.eld", "--json", code=4).stdout
        )
        assert found["services"]["timers_enabled"] is True
        assert found["state"]["timers"]["nightly"]["last_exit"] == 0
        assert [each["line"] for each in found["left_out"]] == [12, 13]

    def test_unreadable_configuration_is_refused(self, folder):
        os.mkfifo(folder / "pipe")
        (folder / "latin.el").write_bytes(b"\xff")
        (folder / "open.el").write_text("(a")
        assert (
            "pipe: it cannot be read: this is not a regular file"
            in self.call("pipe", code=4).stderr
        )
        assert "latin.el: it is not UTF-8" in self.call("latin.el", code=4).stderr
        assert "open.el:1: the list of line 1 is not closed" in self.call("open.el", code=4).stderr
        assert "none.el: it cannot be read" in self.call("none.el", code=4).stderr
