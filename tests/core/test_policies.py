"""Policies as fields: round trips, and errors with their field and reason."""

from dataclasses import fields, replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onbeat import InvalidSchedule
from onbeat.core.fields import length_text
from onbeat.core.policy import POLICIES, Policy, read_policy, write_policy
from onbeat.core.policy_values import MAX_RETRY_DELAYS, Rate, Retries
from onbeat.testing import a_schedule
from tests.core.plans import DAY, HOUR, MINUTE, SECOND
from tests.profiles import examples

GIVEN = [known.name for known in fields(Policy) if known.init]  # others follow from these


class TestDefaults:
    def test_default_policy_is_as_designed(self):
        assert Policy() == Policy(
            enabled=True,
            grace=60 * SECOND,
            catchup="once",
            catchup_window=24 * HOUR,
            overlap="skip",
            queue_limit=100,
            queue_keep="first",
            max_active=None,
            jitter=0,
            jitter_around=False,
            retry=Retries((), 0),
            timeout=None,
            start_deadline=None,
            cancel_grace=10 * SECOND,
            on_lost="fail",
            group=None,
            priority=0,
            rate=None,
            pause_after=None,
        )

    def test_schedule_without_policies_has_the_defaults(self):
        assert read_policy({}) == a_schedule().policy == Policy()

    def test_defaults_are_not_written(self):
        assert write_policy(Policy()) == {}

    def test_every_policy_field_has_a_reader(self):
        assert list(POLICIES) == GIVEN


ASKED = [  # fields, the policy that they ask for, and how they are written
    ({"enabled": False}, Policy(enabled=False), {"enabled": False}),
    ({"grace": "300s"}, Policy(grace=5 * MINUTE), {"grace": "5m"}),
    ({"catchup": "none"}, Policy(catchup="none"), {"catchup": "none"}),
    ({"catchup": "all"}, Policy(catchup="all"), {"catchup": "all"}),
    ({"catchup": "spread"}, Policy(catchup="spread"), {"catchup": "spread"}),
    ({"catchup_window": "2d"}, Policy(catchup_window=2 * DAY), {"catchup_window": "48h"}),
    ({"catchup_window": "0s"}, Policy(catchup_window=0), {"catchup_window": "0s"}),
    ({"overlap": "queue"}, Policy(overlap="queue"), {"overlap": "queue"}),
    ({"overlap": "allow"}, Policy(overlap="allow"), {"overlap": "allow"}),
    ({"overlap": "replace"}, Policy(overlap="replace"), {"overlap": "replace"}),
    (
        {"overlap": "queue", "queue_limit": 5, "queue_keep": "latest"},
        Policy(overlap="queue", queue_limit=5, queue_keep="latest"),
        {"overlap": "queue", "queue_limit": 5, "queue_keep": "latest"},
    ),
    (
        {"overlap": "allow", "max_active": 3},
        Policy(overlap="allow", max_active=3),
        {"overlap": "allow", "max_active": 3},
    ),
    ({"jitter": "30s"}, Policy(jitter=30 * SECOND), {"jitter": "30s"}),
    (
        {"jitter": "90s", "jitter_around": True},
        Policy(jitter=90 * SECOND, jitter_around=True),
        {"jitter": "90s", "jitter_around": True},
    ),
    ({"retry": ["30s", "120s"]}, Policy(retry=Retries((30_000, 120_000))), {"retry": ["30s", "2m"]}),
    ({"timeout": "30m"}, Policy(timeout=30 * MINUTE), {"timeout": "30m"}),
    ({"start_deadline": "1h"}, Policy(start_deadline=HOUR), {"start_deadline": "1h"}),
    ({"cancel_grace": "0s"}, Policy(cancel_grace=0), {"cancel_grace": "0s"}),
    ({"on_lost": "retry"}, Policy(on_lost="retry"), {"on_lost": "retry"}),
    ({"group": "team/gpu-1"}, Policy(group="team/gpu-1"), {"group": "team/gpu-1"}),
    ({"priority": -100}, Policy(priority=-100), {"priority": -100}),
    ({"rate": "10 / h"}, Policy(rate=Rate(10, "hour")), {"rate": "10/hour"}),
    ({"pause_after": 3}, Policy(pause_after=3), {"pause_after": 3}),
    ({"warn_after": "90m"}, Policy(warn_after=5_400_000), {"warn_after": "90m"}),
]  # fmt: skip


class TestReading:
    @pytest.mark.parametrize(("given", "policy", "written"), ASKED, ids=str)
    def test_policy_field_survives_reading_and_writing(self, given, policy, written):
        assert read_policy(given) == policy
        assert write_policy(policy) == written
        assert read_policy(written) == policy

    def test_every_policy_has_a_case_for_reading(self):
        assert {name for given, _, _ in ASKED for name in given} == POLICIES.keys()

    def test_policies_are_fields_of_a_schedule(self):
        given = {name: value for asked, _, _ in ASKED[-6:] for name, value in asked.items()}
        assert a_schedule(**given).policy == read_policy(given)

    def test_durations_are_read_in_any_notation(self):
        ways = ["90s", "1m30s", "PT90S", timedelta(seconds=90), "90000ms", " 90000ms "]
        assert {read_policy({"grace": way}).grace for way in ways} == {90 * SECOND}

    @pytest.mark.parametrize(
        ("ms", "text"),
        [(0, "0s"), (1, "1ms"), (999, "999ms"), (1000, "1s"), (1500, "1500ms"), (90_000, "90s"), (5_400_000, "90m"), (172_800_000, "48h")],
    )  # fmt: skip
    def test_durations_are_written_in_the_largest_exact_unit(self, ms, text):
        assert length_text(ms) == text

    @pytest.mark.parametrize(
        ("name", "first", "last", "beside"),
        [
            ("priority", -100, 100, {}),
            ("pause_after", 1, 1000, {}),
            ("queue_limit", 1, 10_000, {"overlap": "queue"}),
            ("max_active", 1, 10_000, {"overlap": "allow"}),
        ],
    )
    def test_bounds_of_a_number_are_included(self, name, first, last, beside):
        for number in (first, last):
            assert getattr(read_policy({name: number} | beside), name) == number

    def test_explicit_default_is_not_written(self):
        at_default = {
            "enabled": True, "grace": "1m", "catchup": "once", "catchup_window": "1d",
            "overlap": "skip", "queue_limit": 100, "queue_keep": "first", "jitter": "0s",
            "jitter_around": False, "retry": [], "cancel_grace": "10s", "on_lost": "fail",
            "priority": 0,
        }  # fmt: skip
        assert write_policy(read_policy(at_default)) == {}


class TestRetries:
    def of(self, value):
        return read_policy({"retry": value}).retry

    def test_retry_list_has_the_delay_after_each_failure(self):
        assert self.of(["30s", "2m", "10m"]) == Retries((30 * SECOND, 2 * MINUTE, 10 * MINUTE))

    def test_retry_delays_may_be_zero_or_have_milliseconds(self):
        assert self.of(["0s", "250ms", "2000ms"]) == Retries((0, 250, 2000))
        assert write_policy(Policy(retry=Retries((0, 250, 2000)))) == {
            "retry": ["0s", "250ms", "2s"]
        }

    def test_retry_list_of_the_maximum_length_is_read(self):
        assert len(self.of(["1s"] * MAX_RETRY_DELAYS).delays) == 100

    @pytest.mark.parametrize(("attempts", "delays"), [(1, ()), (2, (30,)), (4, (30, 60, 120))])
    def test_retry_attempts_include_the_first(self, attempts, delays):
        assert self.of({"attempts": attempts, "backoff": "30s"}) == Retries(
            tuple(seconds * SECOND for seconds in delays)
        )

    def test_backoff_doubles_up_to_its_maximum(self):
        found = self.of({"attempts": 5, "backoff": "3m", "max": "10m"})
        assert found.delays == (3 * MINUTE, 6 * MINUTE, 10 * MINUTE, 10 * MINUTE)

    def test_maximum_backoff_is_a_day_by_default(self):
        assert max(self.of({"attempts": 101, "backoff": "1ms"}).delays) == 24 * HOUR
        assert len(self.of({"attempts": 101, "backoff": "1ms"}).delays) == MAX_RETRY_DELAYS

    def test_first_delay_is_limited_by_the_maximum(self):
        assert self.of({"attempts": 3, "backoff": "10m", "max": "1m"}) == Retries((MINUTE, MINUTE))

    def test_retry_jitter_is_stored_beside_the_delays(self):
        given = {"attempts": 3, "backoff": "30s", "max": "10m", "jitter": "5s"}
        assert self.of(given) == Retries((30 * SECOND, 60 * SECOND), 5 * SECOND)
        written = {"delays": ["30s", "1m"], "jitter": "5s"}
        assert write_policy(read_policy({"retry": given})) == {"retry": written}
        assert self.of(written) == self.of(given)

    def test_equal_retries_have_one_canonical_form(self):
        one = read_policy({"retry": {"attempts": 4, "backoff": "30s"}})
        assert write_policy(one) == {"retry": ["30s", "1m", "2m"]}
        assert read_policy({"retry": {"delays": ["30s", "60s", "120s"]}}) == one

    def test_single_attempt_without_jitter_is_not_written(self):
        assert write_policy(read_policy({"retry": {"attempts": 1, "backoff": "30s"}})) == {}

    def test_retries_may_be_limited_to_reasons_in_any_notation(self):
        delays = (30 * SECOND, 60 * SECOND)
        given = {"attempts": 3, "backoff": "30s", "on": ["timeout", "exit", "exit"]}
        assert self.of(given) == Retries(delays, 0, ("exit", "timeout"))
        written = {"delays": ["30s", "1m"], "on": ["exit", "timeout"]}
        assert write_policy(read_policy({"retry": given})) == {"retry": written}
        assert self.of(written) == self.of(given)
        assert self.of({"delays": ["30s", "1m"]}).on is None

    @given(st.integers(1, 101), st.integers(1, 10**6), st.integers(1, 10**8))
    def test_every_backoff_delay_doubles_the_last_or_is_the_maximum(
        self, attempts, backoff, longest
    ):
        given = {"attempts": attempts, "backoff": f"{backoff}ms", "max": f"{longest}ms"}
        delays = self.of(given).delays
        assert len(delays) == attempts - 1
        assert list(delays[:1]) == [min(backoff, longest)][: attempts - 1]
        for n in range(1, len(delays)):
            assert delays[n] == min(2 * delays[n - 1], longest)

    def test_backoff_delays_are_read_back(self):
        policy = read_policy({"retry": {"attempts": 25, "backoff": "300ms", "max": "30d"}})
        assert read_policy(write_policy(policy)) == policy


class TestRate:
    @pytest.mark.parametrize(
        ("text", "rate"),
        [
            ("10/hour", Rate(10, "hour")), ("3/day", Rate(3, "day")), ("5/minute", Rate(5, "minute")),
            ("10/h", Rate(10, "hour")), ("3/d", Rate(3, "day")), ("5/m", Rate(5, "minute")),
            ("5/min", Rate(5, "minute")), ("1000/day", Rate(1000, "day")), ("001/day", Rate(1, "day")),
            (" 10 / hour ", Rate(10, "hour")),
        ],
    )  # fmt: skip
    def test_rate_is_a_number_per_unit_of_time(self, text, rate):
        assert read_policy({"rate": text}).rate == rate

    @pytest.mark.parametrize(
        ("text", "written", "length"),
        [("5/m", "5/minute", MINUTE), ("10/h", "10/hour", HOUR), ("3/d", "3/day", DAY)],
    )
    def test_rate_is_written_with_its_full_unit(self, text, written, length):
        policy = read_policy({"rate": text})
        assert (str(policy.rate), policy.rate.length) == (written, length)
        assert write_policy(policy) == {"rate": written}


NO_DURATION = "(such as 45s, 90m, 1h30m, 1d or PT90M, the largest unit first)"
NO_RATE = "(such as 10/hour or 3/day, 1000 at most)"
NO_RETRY = "([30s, 2m, 10m] or {attempts: 5, backoff: 30s, max: 10m})"
NO_GROUP = "is not a valid group name (letters, digits and . _ / -, at most 100)"
REFUSED = [  # fields, and what is said of them
    # names
    ({"overlp": "skip"}, "overlp: no field has this name (did you mean 'overlap'?)"),
    ({"retries": []}, "retries: no field has this name (did you mean 'retry'?)"),
    # flags
    ({"enabled": "yes"}, "enabled: 'yes' is neither true nor false (true or false)"),
    ({"enabled": 1}, "enabled: 1 is neither true nor false (true or false)"),
    ({"enabled": None}, "enabled: None is neither true nor false (true or false)"),
    ({"jitter": "5s", "jitter_around": "no"}, "jitter_around: 'no' is neither true nor false (true or false)"),
    # lengths
    ({"grace": "0s"}, "grace: '0s' is too short (1s or more)"),
    ({"grace": "999ms"}, "grace: '999ms' is too short (1s or more)"),
    ({"grace": 60}, "grace: the number 60 has no unit (60s, 60m, 60h or 60d)"),
    ({"grace": "soon"}, f"grace: 'soon' is not a duration {NO_DURATION}"),
    ({"grace": "1mo"}, "grace: '1mo' has no fixed length (days, hours, minutes or seconds)"),
    ({"grace": None}, f"grace: None is not a duration {NO_DURATION}"),
    ({"grace": True}, f"grace: True is not a duration {NO_DURATION}"),
    ({"catchup_window": -1}, "catchup_window: the number -1 has no unit (-1s, -1m, -1h or -1d)"),
    ({"jitter": "1234567890123ms"}, f"jitter: '1234567890123ms' is not a duration {NO_DURATION}"),
    ({"jitter": "-5s"}, f"jitter: '-5s' is not a duration {NO_DURATION}"),
    ({"jitter": "1.5ms"}, f"jitter: '1.5ms' is not a duration {NO_DURATION}"),
    ({"jitter": timedelta(seconds=-5)}, "jitter: '-1 day, 23:59:55' is not a length in whole seconds (such as 90m)"),
    ({"timeout": "0s"}, "timeout: '0s' is too short (1s or more)"),
    ({"start_deadline": "999ms"}, "start_deadline: '999ms' is too short (1s or more)"),
    ({"cancel_grace": 5}, "cancel_grace: the number 5 has no unit (5s, 5m, 5h or 5d)"),
    # ways
    ({"catchup": "late"}, "catchup: 'late' is not a valid value (known: all, none, once, spread)"),
    ({"catchup": "onec"}, "catchup: 'onec' is not a valid value (did you mean 'once'?)"),
    ({"catchup": True}, "catchup: True is not a valid value (known: all, none, once, spread)"),
    ({"overlap": "queued"}, "overlap: 'queued' is not a valid value (did you mean 'queue'?)"),
    ({"overlap": ["skip"]}, "overlap: ['skip'] is not a valid value (did you mean 'skip'?)"),
    ({"overlap": "cancel"}, "overlap: 'cancel' is not a valid value (known: allow, queue, replace, skip)"),
    ({"queue_keep": "newest"}, "queue_keep: 'newest' is not a valid value (known: first, latest)"),
    ({"queue_keep": "last"}, "queue_keep: 'last' is not a valid value (did you mean 'latest'?)"),
    ({"on_lost": "ignore"}, "on_lost: 'ignore' is not a valid value (known: fail, retry)"),
    # numbers
    ({"queue_limit": 0}, "queue_limit: 0 is out of bounds (1 to 10000)"),
    ({"queue_limit": 10_001}, "queue_limit: 10001 is out of bounds (1 to 10000)"),
    ({"queue_limit": "5"}, "queue_limit: '5' is not a whole number (1 to 10000)"),
    ({"max_active": 0}, "max_active: 0 is out of bounds (1 to 10000)"),
    ({"max_active": 2.0}, "max_active: 2.0 is not a whole number (1 to 10000)"),
    ({"priority": 101}, "priority: 101 is out of bounds (-100 to 100)"),
    ({"priority": "high"}, "priority: 'high' is not a whole number (-100 to 100)"),
    ({"pause_after": 1001}, "pause_after: 1001 is out of bounds (1 to 1000)"),
    ({"pause_after": True}, "pause_after: True is not a whole number (1 to 1000)"),
    # names of groups
    ({"group": ""}, f"group: '' {NO_GROUP}"),
    ({"group": "a b"}, f"group: 'a b' {NO_GROUP}"),
    ({"group": "a\n"}, rf"group: 'a\n' {NO_GROUP}"),
    ({"group": 5}, f"group: 5 {NO_GROUP}"),
    # rates
    ({"rate": 10}, f"rate: 10 is not a rate {NO_RATE}"),
    ({"rate": "10"}, f"rate: '10' is not a rate {NO_RATE}"),
    ({"rate": "0/hour"}, f"rate: '0/hour' is not a rate {NO_RATE}"),
    ({"rate": "1001/hour"}, f"rate: '1001/hour' is not a rate {NO_RATE}"),
    ({"rate": "10/week"}, f"rate: '10/week' is not a rate {NO_RATE}"),
    ({"rate": "1.5/h"}, f"rate: '1.5/h' is not a rate {NO_RATE}"),
    ({"rate": "\u0663/h"}, f"rate: '\u0663/h' is not a rate {NO_RATE}"),
    # retries
    ({"retry": "30s"}, f"retry: '30s' is not a list of delays {NO_RETRY}"),
    ({"retry": None}, f"retry: None is not a list of delays {NO_RETRY}"),
    ({"retry": ["30s", 5]}, "retry[1]: the number 5 has no unit (5s, 5m, 5h or 5d)"),
    ({"retry": ["1s"] * (MAX_RETRY_DELAYS + 1)}, "retry: 101 delays (100 at most)"),
    ({"retry": {}}, f"retry.attempts: it is missing {NO_RETRY}"),
    ({"retry": {"attempts": 5}}, f"retry.backoff: it is missing {NO_RETRY}"),
    ({"retry": {"delays": ["1s"], "on": []}}, "retry.on: [] is not a list of reasons ([exit])"),
    ({"retry": {"delays": ["1s"], "on": "exit"}}, "retry.on: 'exit' is not a list of reasons ([exit])"),
    ({"retry": {"delays": ["1s"], "on": ["exti"]}}, "retry.on[0]: 'exti' is not a valid reason (did you mean 'exit'?)"),
    ({"retry": {"delays": ["1s"], "on": ["exit", 5]}}, "retry.on[1]: 5 is not a valid reason (known: exit, timeout, error, launch_failed)"),
    ({"retry": {"attempts": 5, "backof": "30s"}}, "retry.backof: no field has this name (did you mean 'backoff'?)"),
    ({"retry": {"attempts": 0, "backoff": "30s"}}, "retry.attempts: 0 is out of bounds (1 to 101)"),
    ({"retry": {"attempts": 102, "backoff": "30s"}}, "retry.attempts: 102 is out of bounds (1 to 101)"),
    ({"retry": {"attempts": 5, "backoff": "0s"}}, "retry.backoff: '0s' is too short (1ms or more)"),
    ({"retry": {"attempts": 5, "backoff": "30s", "max": "0s"}}, "retry.max: '0s' is too short (1ms or more)"),
    ({"retry": {"attempts": 5, "backoff": "30s", "jitter": 5}}, "retry.jitter: the number 5 has no unit (5s, 5m, 5h or 5d)"),
    ({"retry": {"delays": "30s"}}, "retry.delays: '30s' is not a list of delays ([30s, 2m, 10m])"),
    ({"retry": {"delays": ["30s", "x"]}}, f"retry.delays[1]: 'x' is not a duration {NO_DURATION}"),
    ({"retry": {"delays": ["30s"], "attempts": 3}}, "retry.attempts: no field has this name (known: delays, jitter, on)"),
    # fields without effect
    ({"max_active": 3}, "max_active: it has no effect with overlap: skip (overlap: allow)"),
    ({"max_active": 3, "overlap": "queue"}, "max_active: it has no effect with overlap: queue (overlap: allow)"),
    ({"queue_limit": 5}, "queue_limit: it has no effect with overlap: skip (overlap: queue)"),
    ({"queue_limit": 5, "overlap": "allow"}, "queue_limit: it has no effect with overlap: allow (overlap: queue)"),
    ({"queue_keep": "latest", "overlap": "replace"}, "queue_keep: it has no effect with overlap: replace (overlap: queue)"),
    ({"jitter_around": True}, "jitter_around: it has no effect without jitter (jitter: 30s)"),
    ({"jitter_around": True, "jitter": "0s"}, "jitter_around: it has no effect without jitter (jitter: 30s)"),
]  # fmt: skip


@pytest.mark.parametrize(("given", "told"), REFUSED, ids=str)
def test_invalid_policy_names_field_problem_and_hint(given, told):
    with pytest.raises(InvalidSchedule) as refused:
        read_policy(given)
    assert str(refused.value) == told


@pytest.mark.parametrize("value", [2**80, "x" * 500, ["x" * 500], {"x": "y" * 500}, object()])
@pytest.mark.parametrize("name", POLICIES)
def test_policy_errors_are_one_short_line(name, value):
    with pytest.raises(InvalidSchedule) as refused:
        read_policy({name: value})
    assert refused.value.field.startswith(name)
    assert len(str(refused.value)) < 250
    assert "\n" not in str(refused.value)


LENGTHS = st.one_of(
    st.integers(0, 10**7).map(lambda seconds: seconds * SECOND), st.integers(0, 10**8)
)
FROM_A_SECOND = LENGTHS.map(lambda ms: ms + SECOND)
REASONS = [("exit",), ("exit", "timeout"), ("error", "launch_failed")]
RETRIES = st.builds(
    Retries,
    st.lists(LENGTHS, max_size=4).map(tuple),
    LENGTHS,
    st.none() | st.sampled_from(REASONS),
)
RATES = st.builds(Rate, st.integers(1, 1000), st.sampled_from(["minute", "hour", "day"]))


@st.composite
def policies(draw):
    """Return a policy with any valid value in every field."""
    overlap = draw(st.sampled_from(["skip", "queue", "allow", "replace"]))
    jitter = draw(LENGTHS)
    found = Policy(
        enabled=draw(st.booleans()),
        grace=draw(FROM_A_SECOND),
        catchup=draw(st.sampled_from(["once", "none", "all", "spread"])),
        catchup_window=draw(LENGTHS),
        overlap=overlap,
        jitter=jitter,
        jitter_around=bool(jitter) and draw(st.booleans()),
        retry=draw(RETRIES),
        timeout=draw(st.none() | FROM_A_SECOND),
        start_deadline=draw(st.none() | FROM_A_SECOND),
        cancel_grace=draw(LENGTHS),
        on_lost=draw(st.sampled_from(["fail", "retry"])),
        group=draw(st.none() | st.from_regex(r"[A-Za-z0-9._/-]{1,100}", fullmatch=True)),
        priority=draw(st.integers(-100, 100)),
        rate=draw(st.none() | RATES),
        pause_after=draw(st.none() | st.integers(1, 1000)),
    )
    if overlap == "queue":
        limit, keep = draw(st.integers(1, 10_000)), draw(st.sampled_from(["first", "latest"]))
        return replace(found, queue_limit=limit, queue_keep=keep)
    most = draw(st.none() | st.integers(1, 10_000)) if overlap == "allow" else None
    return replace(found, max_active=most)


@given(policies())
@examples(300)
def test_policy_survives_writing_and_reading(policy):
    written = write_policy(policy)
    assert read_policy(written) == policy
    assert write_policy(read_policy(written)) == written
    assert a_schedule(**written).policy == policy


@given(policies())
def test_only_values_other_than_the_default_are_written(policy):
    default = Policy()
    changed = {name for name in GIVEN if getattr(policy, name) != getattr(default, name)}
    assert write_policy(policy).keys() == changed
