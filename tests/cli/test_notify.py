"""`onbeat notify`: channels are listed and tested."""

import asyncio
import json
import re
import threading

import pytest

from tests.cli.test_verbs import (
    folder,  # noqa: F401 - what every test here is in
    ok,
    onbeat,
    refused,
)
from tests.notifiers.servers import a_hook, a_post

CHANNELS = """
[notify.ops]
webhook = "https://hooks.example/s3cret?k=s3cret"
on = ["failure", "late", "failures:3"]
schedules = ["backup/*"]

[notify.boss]
smtp = "smtp://me@127.0.0.1:{port}"
password = "${{env:MAIL_PASSWORD}}"
to = ["boss@example.org"]
"""


@pytest.fixture
def settings(folder):  # noqa: F811 - pytest's way
    def write(text, **values):
        (folder / "onbeat.toml").write_text(text.format(**values))

    return write


class hooked:  # noqa: N801 - it is read as a word
    """A web server in a thread of its own, as the verb has a loop of its own."""

    def __init__(self, *answers):
        self._answers, self._ready, self._loop = (
            answers,
            threading.Event(),
            asyncio.new_event_loop(),
        )
        self._stopped = asyncio.Event()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=[self._serve()])

    async def _serve(self):
        async with a_hook(*self._answers) as self.hook:
            self._ready.set()
            await self._stopped.wait()

    def __enter__(self):
        self._thread.start()
        self._ready.wait(5)
        return self.hook

    def __exit__(self, *_):
        self._loop.call_soon_threadsafe(self._stopped.set)
        self._thread.join()
        self._loop.close()


def test_notify_list_shows_channels_without_secrets(settings):
    settings(CHANNELS, port=25)
    rows = [re.split(r" {2,}", line) for line in ok("notify", "list").splitlines()]
    assert rows == [
        ["CHANNEL", "TO", "ON", "SCHEDULES", "MESSAGES"],
        ["ops", "https://hooks.example", "failure late failures:3", "backup/*", "none"],
        [
            "boss",
            "boss@example.org by 127.0.0.1",
            "failure missed parked recovery stuck",
            "*",
            "none",
        ],
    ]
    (ops, _) = json.loads(ok("notify", "list", "--json"))
    assert (ops["on"], ops["late"], ops["every"]) == (
        ["failure", "late", "failures:3"],
        "60s",
        "10s",
    )
    assert ops["messages"] == dict.fromkeys(["waiting", "sending", "sent", "failed", "in_doubt"], 0)


def test_notify_list_without_channels_prints_how_to_add_one():
    told = "no channels (onbeat.toml: [notify.NAME], see docs/notifications.md)"
    assert ok("notify", "list").splitlines() == [told]


def test_notify_test_sends_a_webhook(settings):
    with hooked() as hook:
        settings('[notify.ops]\nwebhook = "{url}"', url=hook.url)
        assert ok("notify", "test", "ops").splitlines() == ["ops: sent"]
    ((_, body),) = hook.got
    assert body["subject"] == "[onbeat] a test: this channel works"


def test_notify_test_sends_a_mail(settings, monkeypatch):
    monkeypatch.setenv("MAIL_PASSWORD", "s3cret")
    with a_post(logs_in=True) as server:
        settings(CHANNELS, port=server.port)
        found = json.loads(ok("notify", "test", "boss", "--json"))
    assert found == {"channel": "boss", "state": "sent", "error": None}
    assert len(server.post.got) == 1


def test_notify_test_prints_why_it_was_refused(settings):
    with hooked(403) as hook:
        settings('[notify.ops]\nwebhook = "{url}"', url=hook.url)
        done = onbeat("notify", "test", "ops")
    assert (done.exit_code, done.stderr) == (1, "onbeat: ops: HTTP 403\n")


def test_notify_test_refuses_an_unknown_channel(settings):
    settings(CHANNELS, port=25)
    told = refused(2, "notify", "test", "opss")
    assert "CHANNEL: there is no channel 'opss' (did you mean 'ops'?)" in told


def test_invalid_channel_is_reported_with_its_place(settings):
    settings('[notify.ops]\nwebhook = "https://h/s3cret"\non = ["failure", "lat"]')
    told = refused(2, "notify", "list")
    assert (
        "onbeat.toml: notify.ops.on[1]: 'lat' is not a kind of notification (did you mean 'late'?)"
        in told
    )
    assert "s3cret" not in told


def test_notify_cannot_be_set_by_the_environment(monkeypatch):
    monkeypatch.setenv("ONBEAT_NOTIFY", "x")
    assert "ONBEAT_NOTIFY: unknown setting" in refused(2, "notify", "list")


def test_channel_uses_a_secret_of_the_secrets_folder(settings, tmp_path):
    with hooked() as hook:
        (tmp_path / "kept").mkdir()
        (tmp_path / "kept" / "hook").write_text(f"{hook.url}\n")
        settings('secrets = "kept"\n[notify.ops]\nwebhook = "secret://hook"')
        ok("notify", "test", "ops")
        settings('secrets = "kept"\n[notify.ops]\nwebhook = "secret://other"')
        assert "notify.ops.webhook: " in refused(2, "notify", "test", "ops")
    assert len(hook.got) == 1
