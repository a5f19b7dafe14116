"""Bodies are unambiguous JSON, checked in linear time."""

import asyncio
import json
import threading
import time
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onbeat.web.security import bodies
from onbeat.web.security.bodies import check_json
from onbeat.web.security.responses import RequestRefused

MOST = 2**63 - 1


def refusal(body):
    with pytest.raises(RequestRefused) as refused:
        check_json(body)
    assert refused.value.problem.status == 400
    assert refused.value.problem.field == "body"
    return refused.value.problem.problem


@pytest.mark.parametrize(
    "body",
    [
        b"", b"null", b"[]", b"{}", b'{"a": {"a": 1}, "b": "a"}', b'"\\\\u0000"', b'"\\ud83d\\ude00"', b'":[{,"', b'"\\""',
        b"%d" % MOST, b"-9223372036854775808", b"0.1234567890123456789012", b"12345678901234567890.0", b"1e30", b'"12345678901234567890"',
        b'{"12345678901234567890": 1}', b"[" * 32 + b"]" * 32, b'{"a":' * 32 + b"1" + b"}" * 32, b'["[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[["]',
        b'[{"a":1},{"a":1}]', b'{"a:b":":"}',
    ],
)  # fmt: skip
def test_unambiguous_json_is_accepted(body):
    check_json(body)


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b"{", "this is not JSON: Input data was truncated"), (b"{'a': 1}", "this is not JSON: "), (b"NaN", "this is not JSON: "),
        (b"[Infinity]", "this is not JSON: "), (b"-Infinity", "this is not JSON: "), (b"1e999", "this is not JSON: Number out of range"),
        (b"[1,]", "this is not JSON: "), (b"{}{}", "this is not JSON: "), (b"// x\n1", "this is not JSON: "), (b"\xef\xbb\xbf{}", "this is not JSON: "),
        (b'"\xff"', "this is not JSON: "), (b'"\\ud800"', "this is not JSON: "), (b'"\\ud800x"', "this is not JSON: "), (b'"\xed\xa0\x80"', "this is not JSON: "),
        (b'"\\udc00\\ud800"', "this is not JSON: "), (b"\x00", "this is not JSON: "), (b'"\x01"', "this is not JSON: "), (b"01", "this is not JSON: "),
        (b'"\\u0000"', "a string contains NUL"), (b'{"\\u0000": 1}', "a string contains NUL"), (b'"\\\\\\u0000"', "a string contains NUL"),
        (b"%d" % (MOST + 1), "9223372036854775808 has more than 64 bits"), (b"[-9223372036854775809]", "-9223372036854775809 has more than 64 bits"),
        (b'{"a":18446744073709551616}', "18446744073709551616 has more than 64 bits"), (b"9" * 5000, "this is not JSON: Integer value out of range"),
        (b'{"a":1,"a":2}', "the name 'a' is repeated"), (b'{"a":1,"\\u0061":2}', "the name 'a' is repeated"), (b'[{"x":{"b":1,"c":2,"b":1}}]', "the name 'b' is repeated"),
        (b"[" * 33 + b"]" * 33, "it is nested too deeply"), (b"[" * 100_000, "it is nested too deeply"), (b'{"a":[' * 17 + b"]}" * 17, "it is nested too deeply"),
        (b"[" * 100_000 + b"]" * 100_000, "it is nested too deeply"),
    ],
)  # fmt: skip
def test_ambiguous_json_is_refused(body, told):
    assert refusal(body).startswith(told)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), MOST) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(blacklist_categories=("Cs",), blacklist_characters="\0")),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(st.characters(blacklist_categories=("Cs",), blacklist_characters="\0")), inner, max_size=4),
    max_leaves=20,
)  # fmt: skip


@given(value=json_values, is_ascii=st.booleans())
def test_any_json_within_the_limits_is_accepted(value, is_ascii):
    check_json(json.dumps(value, ensure_ascii=is_ascii).encode())


@given(body=st.binary(max_size=100))
def test_any_bytes_are_accepted_or_refused_with_a_reason(body):
    try:
        check_json(body)
    except RequestRefused as refused:
        assert refused.problem.problem


@pytest.mark.parametrize(
    "body",
    [
        b'["' + b'\\"' * 4_000_000 + b'"]', b'["' + b'\\"' * 4_000_000, b"[" + b"[]," * 2_700_000 + b"[]]", b"[" + b"1," * 4_000_000 + b"1]",
        b'"' + b"\\\\" * 4_000_000 + b'"', b"{" + b",".join(b'"%d":1' % i for i in range(500_000)) + b"}",
        b"{" + b",".join(b'"%d":1' % (i % 400_000) for i in range(500_000)) + b"}", b"[" * 8_000_000,
    ],
    ids=["quotes", "open quotes", "brackets", "numbers", "backslashes", "names", "names twice", "deep"],
)  # fmt: skip
def test_eight_megabytes_of_hostile_json_are_checked_fast(body):
    before = time.perf_counter()
    with suppress(RequestRefused):
        check_json(body)
    assert time.perf_counter() - before < 2


@pytest.mark.parametrize(
    "body", [b"[" + b"[]," * 500_001 + b"1]", b"[" + b"1," * 1_000_000 + b"1]"]
)
def test_too_many_values_are_refused(body):
    with pytest.raises(RequestRefused) as refused:
        check_json(body)
    assert refused.value.problem.status == 413
    assert refused.value.problem.hint == "1000000 values at most"


@pytest.mark.parametrize("before", range(6))
def test_escaped_backslash_begins_no_nul(before):
    body = b'"a' + b"\\" * before + b'\\u0000"'
    if before % 2:
        check_json(body)
    else:
        assert refusal(body) == "a string contains NUL"


def test_large_body_is_checked_without_blocking_the_event_loop(monkeypatch):
    looked = []
    monkeypatch.setattr(bodies, "check_json", lambda _: looked.append(threading.current_thread()))

    async def check_both():
        await bodies.check_body(b"1")
        await bodies.check_body(b" " * 2**20 + b"1")

    asyncio.run(check_both())
    small, large = looked
    assert small is threading.main_thread()
    assert large is not small
