"""Quotas: the file, the combination of roles, rates, counts, and refusals."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.access import quota_use
from penstock.core.access.access_control import AccessControl
from penstock.core.access.policy_file import parse_policy
from penstock.core.access.principal import NOBODY, Principal, PrincipalKind, parse_principal
from penstock.core.access.quota_use import DELAY_S_MAX, PublishQuota, QuotaUse
from penstock.core.access.quotas import (
    BURST_S,
    NO_QUOTAS,
    QUOTA_KEYS,
    Quotas,
    TokenBucket,
    smallest,
)
from penstock.core.errors import InvalidRequest, QuotaExceeded, TooLargeForQuota
from penstock.core.metrics import MetricRegistry
from penstock.testing.clock import VirtualClock

SECOND_NS = 1_000_000_000
ALICE, BOB = parse_principal("user:alice"), parse_principal("user:bob")
PAGE = Path(__file__).parents[3] / "docs" / "howto" / "limit-use.md"
FILE = """
[roles.team]
allow = ["write topic:*"]

[roles.team.quotas]
queries = 4
query_time = "30s"
query_bytes = "1.5 GiB"
messages_per_second = 1000
bytes_per_second = "64 KB"
tasks = 10
connections = 50

[roles.small.quotas]
queries = 1
tasks = 20

[roles.other]
allow = ["read *"]

[principals]
"user:alice" = ["team"]
"user:bob" = ["team", "small", "other"]
"user:carol" = ["other"]
"""
TEAM = Quotas(
    queries=4,
    query_time=30_000,
    query_bytes=3 << 29,
    messages_per_second=1000,
    bytes_per_second=1 << 16,
    tasks=10,
    connections=50,
)

# The file


def test_each_key_limits_the_principals_with_the_role() -> None:
    policy = parse_policy(FILE, "access.toml")
    assert policy.quotas_of(ALICE) == TEAM
    assert set(TEAM.shown()) == set(QUOTA_KEYS)
    assert TEAM.shown() == {
        "queries": "4",
        "query_time": "30 s",
        "query_bytes": "1.5 GiB",
        "messages_per_second": "1,000",
        "bytes_per_second": "64 KiB",
        "tasks": "10",
        "connections": "50",
    }


def test_the_page_has_each_key_and_an_example() -> None:
    page = PAGE.read_text()
    assert re.findall(r"^\| `(\w+)` \| ", page, re.MULTILINE) == list(QUOTA_KEYS)
    example = re.search(r'```toml title="access.toml"\n(.*?)```', page, re.DOTALL)
    assert example
    policy = parse_policy(example[1], "access.toml")
    shown = ", ".join(f"{key} {most}" for key, most in policy.quotas_of(BOB).shown().items())
    assert f"its quotas: {shown}\n" in page
    assert BURST_S == 10
    assert "an average over 10 seconds" in page
    assert DELAY_S_MAX == 30
    assert "longer than 30 seconds" in page


@pytest.mark.parametrize(
    ("principal", "quotas"),
    [
        (BOB, replace(TEAM, queries=1)),
        (parse_principal("user:carol"), NO_QUOTAS),
        (parse_principal("user:dave"), NO_QUOTAS),
        (replace(parse_principal("user:dave"), roles=("small",)), Quotas(queries=1, tasks=20)),
        (replace(ALICE, roles=("small",)), replace(TEAM, queries=1)),
        (replace(ALICE, roles=("admin",)), TEAM),
        (parse_principal("token:operator"), NO_QUOTAS),
        (Principal(PrincipalKind.OWNER, "alice", ("team",)), NO_QUOTAS),
        (Principal(PrincipalKind.PROCESS, "router", ("team",)), NO_QUOTAS),
        (Principal(PrincipalKind.TASK, "t", ("team",)), NO_QUOTAS),
        (NOBODY, NO_QUOTAS),
    ],
)
def test_the_smallest_value_of_all_roles_counts(principal: Principal, quotas: Quotas) -> None:
    policy = parse_policy(FILE, "access.toml")
    for _ in range(2):  # as remembered
        assert policy.quotas_of(principal) == quotas


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "quotas = 4",
            r"roles\.r\.quotas: must be a table, not '4': write \[roles\.NAME\.quotas\]",
        ),
        (
            "quotas.query = 1",
            r"access\.toml: roles\.r\.quotas: unknown key 'query': use queries or .*did you mean",
        ),
        ("quotas.queries = 0", r"roles\.r\.quotas\.queries: '0' is not valid: .* from 1 to"),
        ("quotas.queries = -1", "'-1' is not valid"),
        ("quotas.queries = true", "'True' is not valid"),
        ("quotas.queries = 1.5", r"'1\.5' is not valid"),
        ("quotas.queries = '1'", "'1' is not valid"),
        ("quotas.tasks = 1000000001", "'1000000001' is not valid"),
        ("quotas.query_time = 30", "query_time: '30' has no unit: write a text such as '30 s'"),
        ("quotas.query_time = '30'", "query_time: '30' has no unit"),
        ("quotas.query_time = '30 x'", "query_time: '30 x' is not a duration"),
        ("quotas.query_time = 'P1M'", "query_time: 'P1M' has months"),
        ("quotas.query_time = '0s'", "query_time: '0s' is zero: write more, such as '30 s'"),
        ("quotas.query_bytes = 1024", "query_bytes: '1024' has no unit: .*'1 GiB'"),
        ("quotas.bytes_per_second = '0 B'", "bytes_per_second: '0 B' is zero"),
        ("quotas.bytes_per_second = '1 XB'", "bytes_per_second: '1 XB' is not a size"),
    ],
)
def test_an_invalid_quota_has_an_error_with_place_reason_and_remedy(
    text: str, message: str
) -> None:
    with pytest.raises(InvalidRequest, match=message):
        parse_policy(f"[roles.r]\n{text}", "access.toml")


values = st.one_of(st.none(), st.integers(1, 100))
tables = st.builds(Quotas, *[values] * len(QUOTA_KEYS))


@given(st.lists(tables, max_size=5))
def test_more_roles_never_allow_more(quotas: list[Quotas]) -> None:
    found = smallest(quotas)
    for name in QUOTA_KEYS:
        stated = [value for one in quotas if (value := getattr(one, name)) is not None]
        assert getattr(found, name) == min(stated, default=None)


# Rates

rates = st.integers(1, 10**9)
gaps = st.integers(0, 20 * SECOND_NS)


def uses(rate: int, wishes: list[tuple[int, float]]) -> list[tuple[int, int]]:
    """When takers use which amounts: each second one waits for it, the others go away."""
    bucket, now_ns, used = TokenBucket(rate, 0), 0, []
    for number, (gap_ns, share) in enumerate(wishes):
        now_ns += gap_ns
        amount = round(share * bucket.burst)
        wait_ns = bucket.wait_ns(amount, now_ns)
        if not wait_ns or number % 2:
            bucket.take(amount)
            used.append((now_ns + wait_ns, amount))
    return used


def allowed(rate: int, passed_ns: int) -> int:
    # A wait ends at a whole nanosecond, up to one too late: the next time begins with its tokens.
    return rate * (passed_ns + 1 + BURST_S * SECOND_NS) // SECOND_NS


@given(rates, st.lists(st.tuples(gaps, st.floats(0, 1)), max_size=40))
def test_in_any_time_a_bucket_grants_at_most_rate_times_time_and_burst(
    rate: int, wishes: list[tuple[int, float]]
) -> None:
    used = uses(rate, wishes)
    for number, (begin_ns, _) in enumerate(used):
        total = 0
        for at_ns, amount in used[number:]:
            total += amount
            assert total <= allowed(rate, at_ns - begin_ns)


@given(rates, st.lists(st.tuples(gaps, st.floats(0, 5)), max_size=40))
def test_amounts_of_any_size_are_granted_at_the_rate_since_the_start(
    rate: int, wishes: list[tuple[int, float]]
) -> None:
    total = 0
    for at_ns, amount in uses(rate, wishes):
        total += amount
        assert total <= allowed(rate, at_ns)


@given(rates, st.lists(st.tuples(gaps, st.floats(0, 1)), max_size=40))
def test_a_steady_sender_below_the_rate_never_waits(
    rate: int, gaps_and_shares: list[tuple[int, float]]
) -> None:
    bucket, now_ns = TokenBucket(rate, 0), 0
    for gap_ns, share in gaps_and_shares:
        now_ns += gap_ns
        amount = min(int(rate * gap_ns * share / SECOND_NS), bucket.burst)
        assert bucket.wait_ns(amount, now_ns) == 0
        bucket.take(amount)


@given(rates, st.integers(0, 10**9))
def test_who_waits_as_told_is_granted_then_and_not_before(rate: int, more: int) -> None:
    bucket = TokenBucket(rate, 0)
    bucket.take(bucket.burst)
    amount = min(more, bucket.burst)
    wait_ns = bucket.wait_ns(amount, 0)
    assert bucket.wait_ns(amount, wait_ns) == 0
    if wait_ns:
        assert TokenBucket(rate, 0).wait_ns(bucket.burst + amount, wait_ns - 1) > 0


def test_time_that_goes_back_grants_nothing() -> None:
    bucket = TokenBucket(1, 5 * SECOND_NS)
    bucket.take(bucket.burst)
    assert bucket.wait_ns(1, 0) == SECOND_NS
    assert bucket.wait_ns(1, 6 * SECOND_NS) == 0


# Use


class Rig:
    def __init__(self, folder: Path, text: str = FILE) -> None:
        self.clock = VirtualClock()
        self.metrics = MetricRegistry()
        folder.mkdir(mode=0o700)
        self.file = folder / "access.toml"
        self.file.write_text(text)
        self.control = AccessControl(folder, self.clock, registry=self.metrics)

    @property
    def quotas(self) -> QuotaUse:
        return self.control.quotas

    def publishing(self, principal: Principal = ALICE) -> PublishQuota:
        found = self.quotas.publish_quota(principal)
        assert found is not None
        return found

    def rules(self, text: str) -> None:
        self.file.write_text(text)
        self.control.refresh()

    def counted(self, name: str) -> float:
        return sum(
            one.value
            for one in self.metrics.snapshot()
            if one.name == name and isinstance(one.value, float)
        )


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path / "access")


def audited(caplog: pytest.LogCaptureFixture) -> Iterable[dict[str, object]]:
    return [json.loads(one.getMessage()) for one in caplog.records if one.name == "penstock.audit"]


def test_publishes_are_allowed_up_to_the_rate(rig: Rig) -> None:
    rig.publishing().take(1000 * BURST_S, 10)
    with pytest.raises(
        QuotaExceeded,
        match="user:alice publishes more than its quota messages_per_second allows: publish again"
        " after 2 s, or ask an administrator",
    ) as refused:
        rig.publishing().take(1001, 10)
    assert refused.value.retry_after_s == 2
    rig.clock.advance(2)
    rig.publishing().take(1001, 10)
    # Each principal has its own.
    rig.publishing(BOB).take(1000, 10)


def test_a_refused_publish_counts_for_no_rate(rig: Rig) -> None:
    rig.publishing().take(1, (1 << 16) * BURST_S)
    for _ in range(20):
        with pytest.raises(QuotaExceeded, match="quota bytes_per_second"):
            rig.publishing().take(1000, 1)
    assert rig.publishing().delay_s(1000 * BURST_S - 1, 0) == 0


def test_a_publish_that_can_never_be_allowed_names_the_largest(rig: Rig) -> None:
    with pytest.raises(
        TooLargeForQuota,
        match="has 10,001 messages, and the quota messages_per_second of user:alice allows 10,000"
        " at once: send smaller batches",
    ):
        rig.publishing().take(10_001, 1)
    with pytest.raises(TooLargeForQuota, match=r"has 640\.25 KiB, .* allows 640 KiB at once"):
        rig.publishing().take(1, (640 << 10) + 256)
    with pytest.raises(TooLargeForQuota, match="allows 40,000 at once"):
        rig.publishing().delay_s(40_001, 1)


def test_delays_add_up_and_end_at_the_longest(rig: Rig) -> None:
    quota = rig.publishing()
    assert quota.delay_s(10_000, 1) == 0
    assert quota.delay_s(1_500, 1) == pytest.approx(1.5)
    assert quota.delay_s(1_500, 1) == pytest.approx(3)
    assert quota.delay_s(27_000, 1) == pytest.approx(DELAY_S_MAX)
    with pytest.raises(QuotaExceeded, match=r"other publishes wait already: .* after 31 s"):
        quota.delay_s(1, 1)
    assert rig.counted("penstock_access_quota_delays_total") == 3
    assert rig.counted("penstock_access_quota_refusals_total") == 1
    rig.clock.advance(DELAY_S_MAX)
    assert quota.delay_s(1, 1) == pytest.approx(0.001)


def test_without_rates_a_publish_is_not_looked_at(rig: Rig) -> None:
    assert rig.quotas.publish_quota(parse_principal("user:carol")) is None
    rig.rules("[roles.team.quotas]\ntasks = 1\n[principals]\n'user:alice' = ['team']")
    assert rig.quotas.publish_quota(ALICE) is None


def test_a_changed_file_takes_effect_and_an_invalid_one_changes_nothing(rig: Rig) -> None:
    rig.publishing().take(10_000, 1)
    rig.rules(FILE.replace("= 1000", "= 'x'"))
    assert rig.control.problems
    with pytest.raises(QuotaExceeded):
        rig.publishing().take(1, 1)
    rig.rules(FILE + "\n# a change elsewhere\n")
    assert not rig.control.problems
    with pytest.raises(QuotaExceeded):
        rig.publishing().take(1, 1)
    rig.rules(FILE.replace("= 1000", "= 2000"))
    rig.publishing().take(20_000, 1)
    rig.rules(FILE.split("[roles.team.quotas]", maxsplit=1)[0])
    assert rig.quotas.publish_quota(ALICE) is None


def test_buckets_are_kept_while_they_are_not_full(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quota_use, "PUBLISHERS_MAX", 3)
    others = [replace(parse_principal(f"user:u{n}"), roles=("team",)) for n in range(20)]
    rig.publishing().take(10_000, 1)
    for one in others:
        rig.publishing(one).take(0, 0)
    with pytest.raises(QuotaExceeded):
        rig.publishing().take(1, 1)
    for one in others:
        rig.publishing(one).take(10_000, 1)
    assert len(rig.quotas._publish_quotas) <= 3


def test_counts_end_with_their_blocks(rig: Rig) -> None:
    queries = rig.quotas.queries
    for _ in range(4):
        queries.enter(ALICE)
    with pytest.raises(
        QuotaExceeded,
        match=r"user:alice runs as many queries as its quota queries allows \(4\): wait until one"
        " ends, or ask an administrator for a larger quota",
    ):
        queries.enter(ALICE)
    with queries.held(BOB), pytest.raises(QuotaExceeded, match=r"user:bob runs .* \(1\)"):
        queries.enter(BOB)
    queries.leave(ALICE)
    with queries.held(ALICE):
        pass
    for _ in range(3):
        queries.leave(ALICE)
    assert queries.count(ALICE.id) == 0
    with queries.held(BOB):
        pass
    assert not queries._counts


def test_a_new_limit_counts_what_there_is(rig: Rig) -> None:
    carol = parse_principal("user:carol")
    for _ in range(3):
        rig.quotas.connections.enter(carol)
    rig.rules(FILE + "[roles.other.quotas]\nconnections = 3")
    with pytest.raises(QuotaExceeded, match=r"has as many connections to this process .* \(3\)"):
        rig.quotas.connections.enter(carol)


def test_tasks_count_from_their_submission_to_their_end(rig: Rig) -> None:
    rig.rules(FILE.replace("tasks = 10", "tasks = 2"))
    active: list[str] = []
    quotas = rig.quotas

    def of(principal: str) -> list[str]:
        assert principal == "user:alice"
        return active

    with quotas.submission(ALICE, "a", of):
        active.append("a")  # counted once while the overlord knows it already
        with quotas.submission(ALICE, "b", of):
            with (
                pytest.raises(QuotaExceeded, match=r"tasks that have not ended .* \(2\)"),
                quotas.submission(ALICE, "c", of),
            ):
                pass
            with quotas.submission(ALICE, "b", of):  # the overlord refuses it
                pass
            with pytest.raises(QuotaExceeded), quotas.submission(ALICE, "c", of):
                pass
    with quotas.submission(ALICE, "c", of):
        active.append("c")
    with pytest.raises(QuotaExceeded), quotas.submission(ALICE, "d", of):
        pass
    active.remove("a")
    with quotas.submission(ALICE, "d", of):
        pass
    assert not quotas._tasks._submitted


def test_the_first_refusal_of_a_minute_is_recorded_and_each_is_counted(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    rig.rules(FILE.replace("queries = 4", "queries = 1"))
    rig.quotas.queries.enter(ALICE)
    rig.quotas.queries.enter(BOB)
    with caplog.at_level("INFO", logger="penstock.audit"):
        for principal in (ALICE, BOB):
            for _ in range(50):
                with pytest.raises(QuotaExceeded):
                    rig.quotas.queries.enter(principal, "192.0.2.1:5")
        rig.clock.advance(60)
        with pytest.raises(QuotaExceeded):
            rig.quotas.queries.enter(ALICE)
    found = list(audited(caplog))
    assert [one["principal"] for one in found] == ["user:alice", "user:bob", "user:alice"]
    assert found[0]["event"] == "quota"
    assert found[0]["quota"] == "queries"
    assert found[0]["allowed"] is False
    assert found[0]["origin"] == "192.0.2.1:5"
    assert rig.counted("penstock_access_quota_refusals_total") == 101
