"""The runner of examples detects wrong output, and leaves no process behind."""

import subprocess
from pathlib import Path

import pytest

from tests.docs import examples
from tests.docs.examples import Command, Differs, is_same, run_page, with_placeholders
from tests.docs.forks import BIN


def page_of(folder, text):
    page = folder / "page.md"
    page.write_text(text)
    return page


@pytest.fixture(autouse=True)
def pages_are_anywhere(monkeypatch, tmp_path):
    monkeypatch.setattr(examples, "ROOT", tmp_path)


@pytest.mark.parametrize(
    ("shown", "told"),
    [
        ("one line\n...\nlast", "one line\nmuch\nmore\nlast\n"),
        ("NAME  AT\na     <time>", "NAME     AT\na        2026-01-01 12:00:00Z\n"),
        ("run <n> of a: SUCCESS", "run 17 of a: SUCCESS\n"),
        ("it says ... here", "it says anything at all here\n"),
        ('{\n  "a": <n>,\n  ...\n}', '{"a":1,"b":2}'),
        ('[{"a": "<time>", ...}, ...]', '[{"a":"2026-01-01T12:00:00Z"},{"b":1}]'),
        ("", ""),
    ],
)
def test_output_that_matches_the_shown_text_is_accepted(shown, told):
    assert is_same(shown, told)


@pytest.mark.parametrize(
    ("shown", "told"),
    [
        ("one line", "one line\nand another\n"),
        ("", "something\n"),
        ("run <n> of a: SUCCESS", "run x of a: SUCCESS\n"),
        ("a  b", "a b\n"),
        ("...\nlast", "first\nlast\nafter it\n"),
        ('{"a": 1}', '{"a":1,"b":2}'),
        ('{"a": 1}', '{"a":true}'),
        ('{"a": "1"}', '{"a":1}'),
        ('[{"a": 1}]', '[{"a":1},{"a":1}]'),
        ('{"a": 1, ...}', '[{"a":1}]'),
    ],
)
def test_output_that_differs_from_the_shown_text_is_rejected(shown, told):
    assert not is_same(shown, told)


@pytest.mark.parametrize(
    ("text", "shown", "wanted"),
    [
        (
            "onbeat list",
            "a  2026-11-18 20:16:40Z (in 1s)  ok 8s ago",
            "a  <time> (<away>)  ok <away>",
        ),
        ("onbeat runs", "17  hello  SUCCESS  1  8ms", "<n>  hello  SUCCESS  1  <took>"),
        ("onbeat down", "stopped web1:4711", "stopped <node>"),
        ("onbeat why a 2030-01-05", "at 2030-01-05T09:00:00Z", "at 2030-01-05T09:00:00Z"),
    ],
)
def test_varying_values_of_the_readme_become_placeholders(text, shown, wanted):
    assert with_placeholders(Command(text, 1, [shown])).shown == [wanted]


def test_page_with_wrong_output_is_reported_with_its_line(tmp_path, program):
    page = page_of(tmp_path, "Text.\n\n```console\n$ echo one\none\n$ echo two\n2\n```\n")
    with pytest.raises(Differs, match=r"page.md:6: \$ echo two\n(.|\n)*it prints:\ntwo"):
        run_page(page, program)


def test_command_with_another_exit_code_is_reported(tmp_path, program):
    with pytest.raises(Differs, match="it ends with 1, not with 0"):
        run_page(page_of(tmp_path, "```console\n$ onbeat init nowhere/a.yaml\n...\n```\n"), program)


def test_files_and_shell_variables_last_for_the_whole_page(tmp_path, program):
    text = "```yaml title=a/b.yaml\nx: 1\n```\n```console\n$ WHO=you\n```\n```console\n$ cat a/b.yaml; echo $WHO; onbeat --version\nx: 1\nyou\nonbeat <version>\n```\n"
    assert run_page(page_of(tmp_path, text), program) == 2


def test_only_console_blocks_are_executed(tmp_path, program):
    assert run_page(page_of(tmp_path, "```text\n$ rm -rf /\n```\n"), program) == 0


def test_node_is_stopped_when_its_page_fails(tmp_path, program):
    page = page_of(tmp_path, "```console\n$ onbeat up -d\nonbeat is up, and says so\n```\n")
    with pytest.raises(Differs) as found:
        run_page(page, program)
    pid = int(examples.BACKGROUND.search(str(found.value))[1])
    with pytest.raises(OSError, match=str(pid)):  # the dead have no folder, also before they go
        Path(f"/proc/{pid}/cwd").readlink()


def test_program_of_the_pages_behaves_like_the_installed_one(program, tmp_path):
    def told(path):
        asked = [path, "list", "--database", "sqlite:///nowhere.db"]
        done = subprocess.run(asked, cwd=tmp_path, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout, done.stderr

    assert told(program) == told(BIN / "onbeat")
    assert told(program)[0] == 69
