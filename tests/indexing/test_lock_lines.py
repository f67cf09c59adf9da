"""Lines of tasks that wait for locks: who is tried when."""

from __future__ import annotations

from penstock.indexing.overlord.lock_waits import LockWaitQueue


def test_only_the_first_of_a_line_is_tried_and_the_next_when_it_has_its_locks() -> None:
    lines = LockWaitQueue()
    assert lines.join("a", "day") == "a"
    assert lines.join("b", "day") is None
    assert lines.join("c", "hour") == "c"
    assert lines.leave("a") == "b"


def test_a_line_is_tried_again_when_one_in_its_way_lets_go() -> None:
    lines = LockWaitQueue()
    lines.join("a", "day")
    assert lines.refused("a", ["x", "y"]) is None
    assert lines.released(frozenset({"z"})) == []
    assert lines.released(frozenset({"y"})) == ["a"]


def test_what_is_let_go_during_a_try_is_a_reason_for_another() -> None:
    lines = LockWaitQueue()
    lines.join("a", "day")
    assert lines.released(frozenset({"x"})) == []
    assert lines.refused("a", ["x"]) == "a"


def test_who_stands_in_the_line_and_in_its_way_comes_first() -> None:
    """A new leader asks in its own order; who had the locks before would wait behind itself."""
    lines = LockWaitQueue()
    lines.join("new", "day")
    lines.join("other", "day")
    lines.join("holder", "day")
    assert lines.refused("new", ["holder"]) == "holder"
    assert lines.head_of("new") == ("holder", 1)
    assert lines.leave("holder") == "new"
