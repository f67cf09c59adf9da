"""How `max_in_flight` is shared, and how failing handlers slow a consumer down."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.client.options import BackoffOptions
from penstock.client.ready_counts import ReadyDistribution, ReadyShares, Slowdown
from penstock.core.backoff import Backoff


def shared(max_in_flight: int, *limits: int) -> ReadyShares[int]:
    shares: ReadyShares[int] = ReadyShares(max_in_flight)
    for key, limit in enumerate(limits):
        shares.join(key, limit)
    return shares


@given(st.integers(1, 50), st.lists(st.integers(1, 20), min_size=1, max_size=12))
def test_all_that_may_be_shared_is_shared(max_in_flight: int, limits: list[int]) -> None:
    shares = shared(max_in_flight, *limits).shares()
    assert all(0 <= shares[key] <= limit for key, limit in enumerate(limits))
    assert sum(shares.values()) == min(max_in_flight, sum(limits))
    if max_in_flight >= len(limits):
        assert min(shares.values()) >= 1
        uncapped = [shares[key] for key, limit in enumerate(limits) if shares[key] < limit]
        assert max(uncapped, default=0) - min(uncapped, default=0) <= 1


@given(st.integers(1, 6), st.integers(1, 12), st.booleans())
def test_with_fewer_than_connections_all_have_their_turn(
    max_in_flight: int, count: int, trial: bool
) -> None:
    shares = shared(max_in_flight, *[2500] * count)
    served: set[int] = set()
    for _ in range(count):
        now = shares.trial() if trial else shares.shares()
        served |= {key for key, share in now.items() if share}
        assert sum(now.values()) <= max_in_flight
        shares.rotate(set(range(count)), trial=trial)
    assert served == set(range(count))


@given(st.integers(1, 20), st.integers(0, 20), st.integers(1, 6))
def test_what_is_shared_may_change_at_any_time(before: int, after: int, count: int) -> None:
    shares = shared(before, *[2500] * count)
    shares.resize(after)
    assert shares.shares() == shared(after, *[2500] * count).shares()
    assert sum(shares.shares().values()) == after
    assert sum(shares.trial().values()) == min(1, after)
    everybody = set(range(count))
    assert shares.rotate(everybody) == (0 < after < count)
    assert shares.rotate(everybody, trial=True) == (after > 0 and count > 1)


def test_a_busy_connection_keeps_its_turn() -> None:
    shares = shared(2, 9, 9, 9, 9)
    assert shares.shares() == {0: 1, 1: 1, 2: 0, 3: 0}
    assert shares.rotate({1, 2, 3})
    assert shares.shares() == {0: 1, 2: 1, 3: 0, 1: 0}
    assert not shares.rotate({3, 1})
    shares.leave(0)
    assert shares.shares() == {2: 1, 3: 1, 1: 0}
    assert not shared(4, 9, 9).rotate({0, 1})


def test_slowing_down_and_coming_back() -> None:
    slowdown = Slowdown(BackoffOptions(first_ms=1_000, max_ms=3_000), lambda: 0.0)
    assert slowdown.succeeded() is None
    assert slowdown.failed() == 1.0
    paces = [slowdown.pace]
    assert slowdown.failed() is None  # it was begun before the pause
    assert slowdown.succeeded() is None
    slowdown.pause_over()
    paces.append(slowdown.pace)
    assert paces == [ReadyDistribution.PAUSED, ReadyDistribution.TRIAL]
    assert slowdown.failed() == 2.0
    slowdown.pause_over()
    assert slowdown.failed() == 3.0
    slowdown.pause_over()
    assert slowdown.succeeded() == 2.0
    slowdown.pause_over()
    assert slowdown.succeeded() == 1.0
    slowdown.pause_over()
    assert slowdown.succeeded() is None
    assert slowdown.pace is ReadyDistribution.FULL


def test_without_options_nothing_slows_down() -> None:
    slowdown = Slowdown(None, lambda: 0.0)
    assert slowdown.failed() is None
    assert slowdown.pace is ReadyDistribution.FULL


@given(st.integers(1, 200), st.floats(0, 1, exclude_max=True))
def test_pauses_are_bounded_and_spread(level: int, chance: float) -> None:
    options = BackoffOptions(first_ms=100, max_ms=60_000)
    full = min(60.0, 0.1 * 2 ** (level - 1))
    assert full / 2 <= options.policy.random_delay_s(level, lambda: chance) <= full


def test_the_first_attempt_comes_at_once() -> None:
    backoff = Backoff(BackoffOptions().policy, lambda: 0.0, free_retries=1)
    assert [backoff.next_s() for _ in range(4)] == [0.0, 0.1, 0.2, 0.4]
    backoff.reset()
    assert backoff.next_s() == 0.0
