"""Requests that nobody should send, made by a seed: the same number is the same request again.

python -m tests.web.fuzzing 4711   # what number 4711 sends
"""

import asyncio
import json
import random
import sys
from dataclasses import dataclass
from urllib.parse import quote

HOURLY = {"every": "1h", "run": {"command": ["true"]}}
FULL = {
    "cron": "0 9 * * MON-FRI", "timezone": "Europe/Berlin", "description": "of all kinds",
    "start_at": "2026-12-01T09:00", "end_at": "2027-12-01T09:00", "exclude": ["2026-12-25"],
    "within": {"hours": "09:00-17:00", "days": "MON-FRI", "outside": "skip"},
    "max_runs": 7, "delay": "10m", "dst": "shift",
    "run": {"http": "http://127.0.0.1:9/x", "method": "PUT", "headers": {"A": "b"}, "inputs": {"n": 1}},
    "when": {"command": ["test", "-e", "x"]}, "overlap": "queue", "queue_limit": 3, "jitter": "30s",
    "retry": {"attempts": 3, "backoff": "30s", "max": "10m"}, "timeout": "30m", "group": "g",
    "priority": 5, "rate": "10/hour", "catchup": "once", "grace": "60s", "pause_after": 3,
    "calendars": {"own": ["12-31"]},
}  # fmt: skip
BODIES = [
    ("POST", "/schedules", {"schedule_id": "made", "definition": HOURLY}),
    ("POST", "/schedules", {"definition": FULL}),
    ("PUT", "/schedules/fuzzed", HOURLY),
    ("PUT", "/schedules/fuzzed", FULL),
    ("PUT", "/schedules/other", {"any": [{"every": "1h"}, {"daily": "17:00"}], "run": {"python": "x"}}),
    ("PUT", "/schedules/other", {"calendar": {"hour": [9, 17], "day_of_week": "MON"}, "run": {"command": ["a"]}}),
    ("PUT", "/schedules/other", {"at": ["2026-12-01T09:00Z"], "run": {"command": ["a"], "env": {"A": "b"}, "cwd": "/"}}),
    ("PUT", "/schedules/other", {"after": {"schedule": "fuzzed", "outcome": "success"}, "run": {"command": ["a"]}}),
    ("PATCH", "/schedules/fuzzed", {"every": "2h", "jitter": None, "run": {"command": ["false"]}}),
    ("POST", "/preview?n=3", FULL),
    ("POST", "/schedules/fuzzed/run", {"inputs": {"a": [1, {"b": 2}]}}),
    ("POST", "/schedules/fuzzed/pause", {"note": "why", "until": "2030-01-01T00:00:00Z"}),
    ("POST", "/schedules/fuzzed/resume", {"catchup": True}),
    ("POST", "/schedules/fuzzed/backfill", {"from": "2026-01-01T00:00:00Z", "to": "2026-01-02T00:00:00Z", "dry_run": True}),
    ("POST", "/bulk", {"action": "pause", "which": {"ids": ["nobody"], "source": "s", "paused": True, "q": "x"}, "dry_run": True, "note": "n"}),
    ("POST", "/runs/1/cancel", {"note": "why"}),
    ("POST", "/runs/1/status", {"status": "SUCCESS", "result": {"a": 1}}),
    ("POST", "/runs/1/status", {"status": "FAILED", "error": "no", "final": True}),
    ("POST", "/plan", {"source": "s", "schedules": {"p/1": HOURLY}, "timezone": "UTC", "prune": True, "take_over": False}),
    ("POST", "/apply", {"source": "s", "schedules": {"p/1": FULL}, "timezone": "UTC"}),
    ("POST", "/simulate", {"until": "2h", "only": ["fuzzed"], "schedules": {"p/2": HOURLY}, "run_length": "1m"}),
    ("PUT", "/gate", {"gate": "open"}),
    ("PUT", "/groups/g", {"places": 3}),
    ("POST", "/tokens", {"name": "t", "scope": "read", "owner": "o", "expires_in": "1h"}),
    ("PUT", "//api/schedule/fuzzed-daily", {"prompt": "a", "enabled": True, "schedule": {"type": "cron", "expression": "0 9 * * 1-5"}, "sessionConfig": {"model": "m", "persistSession": False}}),
    ("PUT", "//api/schedule/fuzzed-daily", {"prompt": "{{date}}", "schedule": {"type": "interval", "intervalMinutes": 60}}),
    ("PATCH", "//api/schedule/fuzzed-daily", {"enabled": False, "prompt": "b", "sessionConfig": {"model": "n"}}),
]  # fmt: skip
READS = [
    "/schedules", "/schedules/fuzzed", "/schedules/fuzzed/next", "/schedules/fuzzed/runs",
    "/schedules/fuzzed/why", "/runs", "/runs/1", "/runs/1/log", "/overview", "/gate", "/groups",
    "/nodes", "/audit", "/tokens", "/schema", "/metrics", "/healthz", "/readyz", "/openapi.json",
    "//api/schedule", "//api/schedule/fuzzed-daily",
]  # fmt: skip
NAMES = ["limit", "cursor", "q", "source", "owner", "paused", "failing", "n", "after", "at", "status",
         "reason", "triggered_by", "since", "until", "schedule_id", "follow", "here", "zzz", ""]  # fmt: skip

TIMES = [
    "0000-01-01T00:00:00Z", "0001-01-01T00:00:00Z", "0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59Z",
    "9999-12-31T23:59:59-23:59", "10000-01-01T00:00:00Z", "2016-12-31T23:59:60Z", "2026-02-30T00:00:00Z",
    "2026-13-01T00:00Z", "2026-01-01T25:00Z", "2026-01-01", "2026-01-01T00:00:00", "-2026-01-01T00:00Z",
    "2026-01-01T00:00:00+99:99", "2026-01-01T00:00:00.5Z", "٢٠٢٦-01-01T00:00:00Z", "1e9", "now", "P1D", "",
]  # fmt: skip
NUMBERS = [
    "0", "-1", "1e400", "-1e400", "1e-400", "9223372036854775807", "9223372036854775808", "-9223372036854775809",
    "18446744073709551616", "1" + "0" * 400, "0.1", "1.0", "-0", "00", "0x10", "NaN", "Infinity", "-Infinity",
    "1_000", "\uff11\uff12", "4611686018427387905", "2147483648", "1e3", "\u0661",
]  # fmt: skip
TEXTS = [
    '"\\ud800"', '"\\udfff\\ud800"', '"\\u0000"', '"a\\u0000b"', '"\\u001b[31m"', '"\\ufeff"', '"\\u202e"', '""', '" "',
    '"\\"', '"\x01"', '"' + "a" * 3000 + '"', '"' + "ü" * 70000 + '"', '"../../etc/passwd"', '"${env:PATH}"',
    '"secret://x"', '"{{ 7*7 }}"', '"{% for x in range(9**9) %}x{% endfor %}"', '"\'; DROP TABLE schedules; --"',
    '"99999999999999999999y"', '"0 0 31 2 *"', '"* * * * * * * * *"', '"H H * * *"', '"@reboot"', '"TZ=UTC 0 0 * * *"',
    '"http://[::1"', '"http://user:pw@/"', '"file:///etc/passwd"', '"America"', '"../UTC"', '"os:system"', '"%00"', '"\\uD83D"',
]  # fmt: skip
OTHERS = [
    "null", "true", "false", "[]", "{}", "[[]]", "[null]", '{"": {}}', '{"\\u0000": 1}', '{"a": 1, "a": 2}', "",
    "[" * 40 + "]" * 40, '{"a":' * 40 + "1" + "}" * 40, "[" * 5000, "[" + "1," * 2000 + "1]", "undefined", "'x'", "/* */ 1", "[1,]",
    "{1: 2}", "\ufeff1", "tr", "nul", "01", "+1", "1.", ".5", "[1 2]", '"a" "b"', "\x00", "\x1f",
]  # fmt: skip
ODD = [*NUMBERS, *TEXTS, *OTHERS, *(json.dumps(each) for each in TIMES)]

IDS = [
    "..", "%2e%2e", "..%2f..%2fetc", "%2F", "%2f%2f", "a%2Fb", "a//b", "a%00b", "%00", "%0a", "%0d%0aX: y", "%ff", "%c0%af", "%",
    "%zz", "%25", "%252e", "a" * 201, "a" * 600, "a" * 7000, "%41" * 300, "ü", quote("ü"), "%F0%9F%92%A9", "%ED%A0%80", "*", "~", "'", '"', "{x}",
    "a b", "a%20b", "a;b=c", "a?b", "a#b", "\\", "%5c..%5c", "-1", "0", "1.5", "1e3", "99999999999999999999", "4611686018427387905", "+1", "%31", "nan",
    "true", "null", ".", "./x", "x/.", "\x01", "\x7f", "\x80", "@", ":", "con", "{{x}}", "a=b&c",
]  # fmt: skip
ETAGS = ["*", '"1"', '"0"', '"-1"', "1", 'W/"1"', '"1", "2"', '"999999999999999999999"', '""', '"a"', '"1', "", " ", '"\u0661"', "\xff", "a" * 65,
         '"1"\t', "null", "*, *"]  # fmt: skip
EVENT_IDS = [
    "x",
    "-1",
    "1.x",
    "1.2.3",
    "999999999999999999999",
    "1.9999999999",
    "",
    " ",
    "\xff",
    "1e3",
    "\u0661",
    ".",
    "1.",
    "a" * 41,
    "0x1",
]
KEYS = ["", " ", "a" * 201, "\xff", "a b", "\t", "é", "a" * 9000, '"x"', "%00", "a\x7f"]
METHODS = [
    "",
    "get",
    "GE T",
    "FOO",
    "TRACE",
    "CONNECT",
    "OPTIONS",
    "HEAD",
    "PRI",
    "QUERY",
    "PROPFIND",
    "G\x00T",
    "G\xe9T",
    "A" * 100,
    "GET/",
    "*",
    "POST\t",
]
TYPES = ["", "text/plain", "application/xml", "application/json; charset=utf-16", "application/json; charset=latin-1", "application/jsonx",
         "multipart/form-data; boundary=x", "application/x-www-form-urlencoded", "application/json, text/plain", "json", "\xff", ";", "application/msgpack",
         "application/json;q=1", "application/octet-stream"]  # fmt: skip


@dataclass(frozen=True)
class Odd:
    """A request, as bytes. `waits`: it says that more will come, so that nobody answers."""

    n: int
    kind: str
    sent: bytes
    waits: bool = False


class Fuzzer:
    """Makes requests for an API at `host`, from whoever has a token."""

    def __init__(self, host: str, token: str, seed: int = 1) -> None:
        self._host, self._token, self._seed = host, token, seed

    def make(self, n: int) -> Odd:
        """Return request number `n`."""
        some = random.Random(f"{self._seed}/{n}")
        kind = some.choices(list(KINDS), [weight for weight, _ in KINDS.values()])[0]
        return KINDS[kind][1](self, n, kind, some)

    def request(self, method="GET", path="/overview", body=None, headers=(), *, but=(), line=None):
        """Return a request that is right, but for what is given."""
        own = [("Host", self._host), ("Authorization", f"Bearer {self._token}")]
        if body is not None:
            own += [("Content-Type", "application/json"), ("Content-Length", str(len(body)))]
        said = [each for each in own if each[0] not in but] + list(headers)
        there = path[1:] if path.startswith("//") else f"/api/v1{path}"
        line = f"{method} {there} HTTP/1.1" if line is None else line
        head = "\r\n".join([line, *(f"{name}: {value}" for name, value in said)])
        return head.encode("latin-1", "replace") + b"\r\n\r\n" + (body or b"")

    # -- kinds

    def a_field(self, n, kind, some):
        """Put an oddity in the place of one value of a body that is right."""
        method, path, body = some.choice(BODIES)
        text = json.dumps(_put(body, some.choice(list(_places(body))), "@odd@"), ensure_ascii=False)
        sent = text.replace('"@odd@"', some.choice(ODD)).encode("utf-8", "surrogatepass")
        return Odd(n, kind, self.request(method, path, sent))

    def a_name(self, n, kind, some):
        """Give a body a name that it does not have, or take one away."""
        method, path, body = some.choice(BODIES)
        name = some.choice(
            [
                "zzz",
                "",
                "\u0000",
                "__proto__",
                "a" * 5000,
                "é",
                "cron",
                "run",
                "all",
                "dry_run",
                "enabled",
                "tz",
            ]
        )
        sent = dict(body) | {
            name: json.loads(json.dumps(some.choice([None, 1, "x", [], {}, True, -1.5])))
        }
        if some.random() < 0.5:
            sent.pop(some.choice(list(body)))
        return Odd(n, kind, self.request(method, path, json.dumps(sent).encode()))

    def a_broken_body(self, n, kind, some):
        method, path, body = some.choice(BODIES)
        sent = bytearray(json.dumps(body).encode())
        for _ in range(some.randint(1, 4)):
            at = some.randrange(len(sent))
            match some.randrange(5):
                case 0:
                    sent[at] = some.randrange(256)
                case 1:
                    del sent[at:]
                case 2:
                    sent[at:at] = some.choice(
                        [
                            b"\xff",
                            b"\xef\xbb\xbf",
                            b"\x00",
                            b"\xed\xa0\x80",
                            b"\xc0\x80",
                            b"}",
                            b"[",
                            b'"',
                            b"\\u",
                        ]
                    )
                case 3:
                    sent += sent[at:]
                case _:
                    sent[:0] = some.choice(
                        [b"\xef\xbb\xbf", b"\xff\xfe", b"\x00", b" ", b"//", b"null", b"\x1f\x8b"]
                    )
            if not sent:
                break
        return Odd(n, kind, self.request(method, path, bytes(sent)))

    def a_path(self, n, kind, some):
        method, path, body = some.choice(
            [*BODIES, *(("GET", each, None) for each in READS), ("DELETE", "/schedules/x", None)]
        )
        parts = path.partition("?")[0].split("/")
        parts[some.randrange(1, len(parts))] = some.choice(IDS)
        if some.random() < 0.3:
            parts.insert(some.randrange(1, len(parts)), some.choice(["", "..", ".", *IDS]))
        sent = None if body is None else json.dumps(body).encode()
        return Odd(n, kind, self.request(method, "/".join(parts), sent))

    def a_query(self, n, kind, some):
        values = [
            *NUMBERS,
            *TIMES,
            *IDS,
            "true",
            "True",
            "yes",
            "",
            "SUCCESS",
            "success",
            "timer",
            "a" * 300,
            "%",
            "_",
            "a" * 5000,
        ]
        pairs = [
            f"{some.choice(NAMES)}={some.choice([quote, lambda text: text, lambda text: text])(some.choice(values))}"
            for _ in range(some.randint(1, 3))
        ]
        query = "&".join(each for each in pairs if "follow=" not in each)
        return Odd(n, kind, self.request("GET", f"{some.choice(READS)}?{query}"))

    def a_header(self, n, kind, some):
        header, values, (method, path, body) = some.choice([
            ("If-Match", ETAGS, some.choice([each for each in BODIES if each[0] in {"PUT", "PATCH"}])),
            ("If-Match", ETAGS, ("DELETE", "/schedules/nobody", None)),
            ("Last-Event-ID", EVENT_IDS, ("GET", "/events", None)),
            ("Idempotency-Key", KEYS, some.choice([BODIES[0], BODIES[1], BODIES[10]])),
            ("Accept", ["text/html", "x", "", "*/*;q=0", "\xff"], ("GET", "/nothing", None)),
            ("Cookie", ["onbeat=x", "onbeat=\xff", "=", ";;;", "a" * 5000], ("GET", "/gate", None)),
            ("X-Forwarded-For", ["127.0.0.1", "x", "::1, ::1"], ("GET", "/gate", None)),
            ("Expect", ["100-continue", "200-ok"], some.choice(BODIES)),
            ("Range", ["bytes=0-1", "x"], ("GET", "/schema", None)),
            ("Content-Encoding", ["gzip", "br", "identity", "x"], some.choice(BODIES)),
            ("Origin", ["null", "http://evil.example", "", "\xff", "http://127.0.0.1"], some.choice(BODIES)),
            ("Sec-Fetch-Site", ["cross-site", "x"], some.choice(BODIES)),
            ("Upgrade", ["websocket", "h2c"], ("GET", "/gate", None)),
            ("Connection", ["Upgrade", "close", "x, y"], ("GET", "/gate", None)),
            ("X" * some.choice([1, 300]), ["a" * 9000, "\x80\xff", "é" * 100], ("GET", "/gate", None)),
        ])  # fmt: skip
        sent = None if body is None else json.dumps(body).encode()
        value = some.choice(values)
        # An id that can be followed would be, for ever.
        extra = [(header, value)] * some.choice([1, 1, 1, 2])
        return Odd(n, kind, self.request(method, path, sent, extra))

    def a_type(self, n, kind, some):
        method, path, body = some.choice(BODIES)
        sent, but = json.dumps(body).encode(), ("Content-Type",)
        extra = [("Content-Type", some.choice(TYPES)) for _ in range(some.choice([0, 1, 1, 1, 2]))]
        return Odd(n, kind, self.request(method, path, sent, extra, but=but))

    def a_caller(self, n, kind, some):
        """Come without a token, or with several: never with a wrong one, of which few are heard."""
        but, extra = ("Authorization",), []
        if some.random() < 0.5:
            extra = [
                ("Authorization", f"Bearer {self._token}"),
                ("Authorization", some.choice(["x", f"Bearer {self._token}"])),
            ]
        return Odd(n, kind, self.request("GET", some.choice(READS[:17]), None, extra, but=but))

    def a_host(self, n, kind, some):
        hosts = [
            "evil.example",
            "",
            "\xff",
            "127.0.0.1",
            "127.0.0.1:1",
            "localhost:99999",
            "[::1",
            "a" * 300,
            "127.0.0.1:80:80",
            "user@127.0.0.1",
            "0",
        ]
        extra = [("Host", some.choice(hosts)) for _ in range(some.choice([0, 1, 1, 2]))]
        return Odd(n, kind, self.request(headers=extra, but=("Host",)))

    def a_method(self, n, kind, some):
        path = some.choice(READS)
        return Odd(n, kind, self.request(some.choice(METHODS), path))

    def a_line(self, n, kind, some):
        line = some.choice([
            "GET /api/v1/gate", "GET /api/v1/gate HTTP/0.9", "GET /api/v1/gate HTTP/2.0", "GET /api/v1/gate HTTP/1.1 x", "GET  /api/v1/gate HTTP/1.1",
            f"GET http://{self._host}/api/v1/gate HTTP/1.1", "GET http://evil.example/api/v1/gate HTTP/1.1", "OPTIONS * HTTP/1.1", "GET * HTTP/1.1",
            "GET api/v1/gate HTTP/1.1", "GET //api//v1//gate HTTP/1.1", "GET /api/v1/gate/ HTTP/1.1", "GET /api/v1/gate#x HTTP/1.1", "CONNECT x:1 HTTP/1.1",
            f"GET /{'a' * some.choice([8000, 9000, 40000])} HTTP/1.1", "GET /api/v1/../v1/gate HTTP/1.1", "GET \\api\\v1\\gate HTTP/1.1", "GET ? HTTP/1.1",
            "GET /api/v1/gate?%s HTTP/1.1" % ("&" * 3000), "\x16\x03\x01\x02\x00\x01\x00", "PROXY TCP4 1.1.1.1 1.1.1.1 1 1", "", " ", "\x00", "GET /\x00 HTTP/1.1",
            "GET /static/..%2f..%2fsettings.py HTTP/1.1", "GET /static/../api.py HTTP/1.1", "GET /static/%00 HTTP/1.1", "GET /login?code=%ff HTTP/1.1",
            "GET /login?code=onbeat_link_x HTTP/1.1" if some.random() < 0.1 else "GET /login HTTP/1.1", "POST /login HTTP/1.1", "GET /logout HTTP/1.1", "PUT / HTTP/1.1",
            "get /api/v1/gate http/1.1", "GET /api/v1/gate HTTP/1.10", "GET /api/v1/gate HTTP/-1", "GET /api/v1/gate\tHTTP/1.1", "GET /%zz HTTP/1.1",
        ])  # fmt: skip
        return Odd(n, kind, self.request(line=line))

    def a_framing(self, n, kind, some):
        body = json.dumps(HOURLY).encode()
        there = {"method": "PUT", "path": "/schedules/framed"}
        lengths = [
            "-1",
            "+5",
            "0x10",
            "1e3",
            "",
            " ",
            "5, 5",
            "99999999999999999999",
            "\u0661",
            "1048577",
            "5.0",
        ]
        chunks = some.choice([
            b"zz\r\n" + body, b"-5\r\nabcde\r\n0\r\n\r\n", b"5\r\nabc", b"0\r\n\r\n", b"ffffffffffffffffff\r\nabc", b"5;x=y\r\n12345\r\n0\r\n\r\n", b"5\n12345\n0\n\n",
            b"%x\r\n%s\r\n0\r\nX: y\r\n\r\n" % (len(body), body), b"%x\r\n%s0\r\n\r\n" % (len(body), body), b"1\r\n{\r\n1\r\n}\r\n0\r\n\r\n", b"0" * 5000 + b"\r\n\r\n",
        ])  # fmt: skip
        match some.randrange(7):
            case 0:
                extra = [
                    ("Content-Length", some.choice(lengths)),
                    ("Content-Type", "application/json"),
                ]
                return Odd(n, kind, self.request(**there, headers=extra) + body, waits=True)
            case 1:
                extra = [
                    (
                        "Transfer-Encoding",
                        some.choice(
                            [
                                "chunked",
                                "Chunked",
                                "gzip, chunked",
                                "chunked, chunked",
                                "x",
                                "identity",
                                "",
                            ]
                        ),
                    ),
                    ("Content-Type", "application/json"),
                ]
                return Odd(n, kind, self.request(**there, headers=extra) + chunks, waits=True)
            case 2:
                extra = [
                    ("Content-Length", str(len(body))),
                    ("Content-Length", str(some.randint(0, 99))),
                    ("Content-Type", "application/json"),
                ]
                return Odd(n, kind, self.request(**there, headers=extra) + body, waits=True)
            case 3:
                extra = [
                    ("Content-Length", "5"),
                    ("Transfer-Encoding", "chunked"),
                    ("Content-Type", "application/json"),
                ]
                return Odd(n, kind, self.request(**there, headers=extra) + chunks, waits=True)
            case 4:
                whole = self.request(**there, body=body)
                return Odd(n, kind, whole[: some.randrange(len(whole))], waits=True)
            case 5:
                whole = bytearray(self.request(**there, body=body))
                for _ in range(some.randint(1, 5)):
                    whole[some.randrange(len(whole))] = some.randrange(256)
                return Odd(n, kind, bytes(whole), waits=True)
            case _:
                extra = some.choice(
                    [
                        [("A b", "c")],
                        [("", "x")],
                        [("A", "b\r\n c")],
                        [("A", "b\nC: d")],
                        [("A\x00", "b")],
                        [("A", "\x00")],
                        [("A", "b")] * 150,
                        [("A", "b" * 40_000)],
                    ]
                )
                return Odd(n, kind, self.request(headers=extra), waits=True)

    def some_bytes(self, n, kind, some):
        return Odd(
            n,
            kind,
            some.randbytes(some.randint(1, 200)) + some.choice([b"", b"\r\n\r\n"]),
            waits=True,
        )


KINDS = {
    "field": (30, Fuzzer.a_field), "name": (7, Fuzzer.a_name), "body": (12, Fuzzer.a_broken_body), "path": (12, Fuzzer.a_path),
    "query": (14, Fuzzer.a_query), "header": (7, Fuzzer.a_header), "type": (3, Fuzzer.a_type), "caller": (1, Fuzzer.a_caller), "host": (2, Fuzzer.a_host),
    "method": (2, Fuzzer.a_method), "line": (3, Fuzzer.a_line), "framing": (5, Fuzzer.a_framing), "bytes": (2, Fuzzer.some_bytes),
}  # fmt: skip


@dataclass(frozen=True)
class Answer:
    """What came back: nothing, if the connection was ended without a word."""

    status: int | None
    headers: dict
    body: bytes


async def send_all(host, port, odd, *, connections=4, patience=15.0):
    """Send requests over a few connections that are kept as long as they last; yield the answers."""
    ahead, found = iter(odd), []

    async def work():
        pair = None
        for each in ahead:
            if pair is None or each.waits:
                await _close(pair)
                pair = await asyncio.open_connection(host, port)
            answer, is_kept = await _ask(*pair, each, patience)
            found.append((each, answer))
            if not is_kept:
                await _close(pair)
                pair = None
        await _close(pair)

    await asyncio.gather(*(work() for _ in range(connections)))
    return found


async def _ask(reader, writer, odd, patience):
    nothing = Answer(None, {}, b"")
    try:
        writer.write(odd.sent)
        if odd.waits:
            writer.write_eof()
        await writer.drain()
        async with asyncio.timeout(patience):
            return await _read(reader, odd)
    except (ConnectionError, asyncio.IncompleteReadError):
        return nothing, False
    except TimeoutError:
        raise AssertionError(
            f"request {odd.n} ({odd.kind}) has no answer: {odd.sent[:300]!r}"
        ) from None


async def _read(reader, odd):
    head = b"HTTP/1.1 100 "
    while head.startswith(b"HTTP/1.1 100 "):  # it asked to be told to go on
        head = await reader.readuntil(b"\r\n\r\n")
    line, *rest = head.decode("latin-1").split("\r\n")
    headers = dict(each.lower().split(": ", 1) for each in rest if ": " in each)
    status = int(line.split(" ")[1])
    is_kept = headers.get("connection") != "close" and not odd.waits
    if headers.get("content-type", "").startswith("text/event-stream"):
        return Answer(status, headers, b""), False
    if headers.get("transfer-encoding") == "chunked":
        body = b""
        while size := int(await reader.readline(), 16):
            body += (await reader.readexactly(size + 2))[:-2]
        await reader.readexactly(2)
    elif odd.sent.startswith(b"HEAD ") or status in {204, 304}:
        body = b""
    elif "content-length" in headers:
        body = await reader.readexactly(int(headers["content-length"]))
    else:
        body, is_kept = await reader.read(), False
    return Answer(status, headers, body), is_kept


async def _close(pair):
    if pair is not None:
        pair[1].close()


def _places(value, place=()):
    """Yield where in a value another could be: the whole of it, too."""
    yield place
    if isinstance(value, dict):
        for name, each in value.items():
            yield from _places(each, (*place, name))
    elif isinstance(value, list):
        for i, each in enumerate(value):
            yield from _places(each, (*place, i))


def _put(value, place, other):
    if not place:
        return other
    found = value.copy()
    found[place[0]] = _put(value[place[0]], place[1:], other)
    return found


if __name__ == "__main__":
    print(Fuzzer("127.0.0.1:8420", "TOKEN").make(int(sys.argv[1])))
