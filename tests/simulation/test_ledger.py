"""The simulation's ledger: what each kind of commit may do to what is in view."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from tests.harness.cluster_simulation.ledger import Change, Ledger
from tests.harness.cluster_simulation.users import Batch


def change(added: str = "", removed: str = "") -> Change:
    return Change(Counter(map(int, added)), Counter(map(int, removed)))


def always(commit: int) -> Callable[..., int]:
    return lambda _day: commit


@pytest.fixture
def ledger() -> Ledger:
    """Events 1 to 4 were read by commit 1, of days 0, 0, 1, 1."""
    one = Ledger(days={n: (n - 1) // 2 % 2 for n in range(1, 10)})
    assert one.stream(1, [1, 2, 3, 4], change("1234")) == ""
    return one


def test_a_stream_adds_what_was_read_and_nothing_else(ledger: Ledger) -> None:
    assert ledger.stream(2, [5, 6], change("56")) == ""
    assert "should have added [7, 8]" in ledger.stream(3, [7, 8], change("7"))
    assert "should have added [7]" in ledger.stream(3, [7], change("78"))
    assert "removed rows" in ledger.stream(3, [7], change("7", "1"))


def test_what_is_read_again_is_there_again(ledger: Ledger) -> None:
    assert ledger.stream(2, [3, 4], change("34")) == ""
    assert ledger.taken_out({1}, change(removed="3344"), wholly=True) == ""


def test_a_replace_takes_away_every_copy_of_before_its_lock(ledger: Ledger) -> None:
    assert ledger.stream(5, [3], change("3")) == ""
    batch = Batch("replace", frozenset({7}), frozenset({1}))
    assert "should have removed" in ledger.batch(7, batch, always(5), change("7", "334"))
    assert ledger.batch(7, batch, always(5), change("7", "34")) == ""
    later = Batch("replace", frozenset({8}), frozenset({1}))
    assert ledger.batch(8, later, always(8), change("8", "37")) == ""


def test_a_compaction_changes_nothing(ledger: Ledger) -> None:
    assert ledger.batch(2, Batch("compact"), always(2), change()) == ""
    assert "compacted, and" in ledger.batch(2, Batch("compact"), always(2), change(removed="1"))


def test_a_batch_publishes_once(ledger: Ledger) -> None:
    batch = Batch("append", frozenset({7, 8}), frozenset({1}))
    assert "other rows" in ledger.batch(2, batch, always(2), change("7"))
    assert ledger.batch(2, batch, always(2), change("78")) == ""
    assert "again" in ledger.batch(3, batch, always(3), change("78"))


def test_a_day_is_taken_out_wholly_by_a_user_and_as_far_as_seen_by_the_rules(
    ledger: Ledger,
) -> None:
    assert "should have taken out" in ledger.taken_out({0}, change(removed="1"), wholly=True)
    assert "should have taken out" in ledger.taken_out({0}, change(removed="13"), wholly=False)
    assert ledger.taken_out({0}, change(removed="1"), wholly=False) == ""
    assert ledger.taken_out({0}, change(removed="2"), wholly=True) == ""


def test_only_what_was_there_comes_back(ledger: Ledger) -> None:
    assert ledger.taken_out({0}, change(removed="12"), wholly=True) == ""
    assert "never there" in ledger.brought_back(change("9"))
    assert ledger.brought_back(change("12")) == ""
    batch = Batch("replace", frozenset({9}), frozenset({0}))
    assert ledger.batch(4, batch, always(4), change("9", "12")) == ""


def test_what_a_bring_back_hid_may_come_with_a_replace_that_carries_it_over(ledger: Ledger) -> None:
    assert ledger.brought_back(change(removed="1")) == ""
    replace = Batch("replace", frozenset({8}), frozenset({1}))
    assert ledger.batch(3, replace, always(9), change("18", "34")) == ""
    again = Batch("replace", frozenset({9}), frozenset({1}))
    assert "added other rows" in ledger.batch(4, again, always(9), change("29", "8"))


def test_rows_that_were_published_and_that_nobody_sees(ledger: Ledger) -> None:
    hidden = Batch("append", frozenset({8}), frozenset({1}))
    assert "nobody sees" in ledger.batch(3, hidden, always(9), change())
