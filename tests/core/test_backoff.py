"""Delays between attempts: growth, bound, random part, and the count of failures."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.core.backoff import Backoff, RetryPolicy, delay_after


def test_delays_grow_by_the_factor_up_to_the_maximum() -> None:
    doubled, tripled = RetryPolicy(100, 5_000), RetryPolicy(1, 100, factor=3)
    assert [doubled.delay_ms(n) for n in (1, 2, 3, 6, 7, 500)] == [100, 200, 400, 3200, 5000, 5000]
    assert [tripled.delay_ms(n) for n in range(1, 7)] == [1, 3, 9, 27, 81, 100]
    assert RetryPolicy(50, 20).delay_ms(1) == 20
    assert [delay_after(n, 2, 64) for n in (1, 2, 3, 6, 7, 500)] == [2, 4, 8, 64, 64, 64]


@given(st.integers(1, 200), st.floats(0, 1), st.floats(0, 1, exclude_max=True))
def test_the_random_part_only_shortens(failures: int, jitter: float, random: float) -> None:
    policy = RetryPolicy(100, 60_000, jitter=jitter)
    full_s = policy.delay_ms(failures) / 1_000
    least_s = full_s * (1 - jitter)
    assert least_s - 1e-9 <= policy.random_delay_s(failures, lambda: random) <= full_s


def test_failures_count_until_a_success() -> None:
    backoff = Backoff(RetryPolicy(100, 1_000), lambda: 0.0)
    assert [backoff.next_s() for _ in range(3)] == [0.1, 0.2, 0.4]
    backoff.reset()
    assert backoff.next_s() == 0.1


def test_the_first_retries_may_come_at_once() -> None:
    backoff = Backoff(RetryPolicy(100, 1_000), lambda: 0.0, free_retries=2)
    assert [backoff.next_s() for _ in range(4)] == [0.0, 0.0, 0.1, 0.2]
