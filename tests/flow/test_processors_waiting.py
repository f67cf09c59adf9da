"""Wait and Notify, and the signals between them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from penstock.core.errors import CorruptData, Unavailable
from penstock.flow.processor import StateManager
from penstock.flow.processors.routing.wait_notify import Notify, SignalCounts, Wait
from penstock.testing.flow import ProcessorRunner

PENALTY_MS = 30_000


@dataclass
class Pair:
    """A Wait and a Notify of one service: they have one store of states."""

    notify: ProcessorRunner[Notify]
    wait: ProcessorRunner[Wait]

    def join(self) -> None:
        self.wait.context.state = StateManager("wait", self.notify._around.repository)

    def again(self) -> None:
        """Look again at what waits."""
        waiting = self.wait.sent("wait")
        self.wait.clear()
        for sent in waiting:
            kept = {k: v for k, v in sent.attributes.items() if k != "uuid"}
            self.wait.enqueue(sent.content, kept)
        self.wait.run()


@pytest.fixture
def pair() -> Iterator[Pair]:
    with (
        ProcessorRunner(Notify, {"signal": "${id}", "count": "${n:replaceEmpty(1)}"}) as notify,
        ProcessorRunner(Wait, {"signal": "${id}", "target": "${target:replaceEmpty(2)}"}) as wait,
    ):
        made = Pair(notify, wait)
        made.join()
        yield made


def test_a_flowfile_waits_until_its_signal_was_given_often_enough(pair: Pair) -> None:
    pair.wait.enqueue(b"held", id="a")
    pair.wait.enqueue(b"other", id="b")
    pair.wait.run()
    assert pair.wait.counts() == {"wait": 2}
    assert all(sent.is_penalized for sent in pair.wait.sent("wait"))
    pair.notify.enqueue(id="a")
    pair.notify.run()
    pair.again()
    assert pair.wait.counts() == {"wait": 2}
    pair.notify.enqueue(id="a")
    pair.notify.run()
    pair.again()
    assert [sent.content for sent in pair.wait.sent("success")] == [b"held"]
    assert "wait.since" not in pair.wait.sent("success")[0].attributes
    assert pair.notify.counts() == {"success": 2}


def test_each_that_goes_on_takes_its_target(pair: Pair) -> None:
    for content in (b"1", b"2", b"3"):
        pair.wait.enqueue(content, id="a")
    pair.notify.enqueue(id="a", n="5")
    pair.notify.run()
    pair.wait.run()
    assert [sent.content for sent in pair.wait.sent("success")] == [b"1", b"2"]
    assert [sent.content for sent in pair.wait.sent("wait")] == [b"3"]
    pair.notify.enqueue(id="a", n="1")
    pair.notify.run()
    pair.again()
    assert [sent.content for sent in pair.wait.sent("success")] == [b"3"]
    assert not pair.notify.context.state.shared("signals").get()


def test_without_taking_all_go_on(pair: Pair) -> None:
    pair.wait.restart({"signal": "${id}", "take": False})
    pair.join()
    for _ in range(3):
        pair.wait.enqueue(id="a")
    pair.notify.enqueue(id="a")
    pair.notify.run()
    pair.wait.run()
    assert pair.wait.counts() == {"success": 3}


def test_a_flowfile_that_waits_too_long_expires(pair: Pair) -> None:
    pair.wait.restart({"signal": "${id}", "expires_after": "2 min"})
    pair.join()
    pair.wait.enqueue(b"held", id="a")
    pair.wait.run()
    pair.wait.advance(119_999)
    pair.again()
    assert pair.wait.counts() == {"wait": 1}
    pair.wait.advance(1)
    pair.again()
    assert [sent.content for sent in pair.wait.sent("expired")] == [b"held"]


def test_one_counter_is_looked_at_or_all(pair: Pair) -> None:
    pair.notify.restart({"signal": "s", "counter": "${c}"})
    pair.wait.restart({"signal": "s", "counter": "${c}"})
    pair.join()
    pair.notify.enqueue(c="good")
    pair.notify.enqueue(c="bad")
    pair.notify.run()
    pair.wait.enqueue(b"none", c="ugly")
    pair.wait.enqueue(b"good", c="good")
    pair.wait.enqueue(b"all")
    pair.wait.enqueue(b"late")
    pair.wait.run()
    assert [sent.content for sent in pair.wait.sent("success")] == [b"good", b"all"]


def test_a_crash_before_the_commit_neither_doubles_a_signal_nor_loses_one(pair: Pair) -> None:
    commits = 0

    def second_fails() -> None:
        nonlocal commits
        commits += 1
        if commits == 2:
            raise Unavailable("no space left; free some")

    pair.notify.enqueue(id="a", n="1")
    pair.notify.before_commit(second_fails)  # the signal is durable, the FlowFile's commit fails
    with pytest.raises(Unavailable):
        pair.notify.run()
    pair.notify.restart()
    pair.join()
    pair.notify.run()
    assert pair.notify.counts() == {"success": 1}
    assert SignalCounts(pair.notify.context.state.shared("signals").get()).total("a") == 1


def test_a_flowfile_that_was_let_go_but_not_committed_goes_on_without_taking_twice(
    pair: Pair,
) -> None:
    pair.notify.enqueue(id="a", n="2")
    pair.notify.run()
    pair.wait.enqueue(b"held", id="a")

    def fails() -> None:
        raise Unavailable("no space left; free some")

    pair.wait.before_commit(fails)
    with pytest.raises(Unavailable):
        pair.wait.run()
    pair.wait.before_commit(lambda: None)
    pair.wait.advance(PENALTY_MS)
    pair.wait.enqueue(b"another", id="a")
    pair.wait.run()
    assert [sent.content for sent in pair.wait.sent("success")] == [b"held"]
    assert [sent.content for sent in pair.wait.sent("wait")] == [b"another"]


def test_bad_names_and_counts_fail_with_the_reason(pair: Pair) -> None:
    pair.notify.enqueue(n="1")
    pair.notify.enqueue(id="a", n="0")
    pair.notify.enqueue(id="a", n="x")
    pair.notify.run()
    reasons = [sent.attributes["error.reason"] for sent in pair.notify.sent("failure")]
    assert ["is empty" in reasons[0], "invalid: use 1" in reasons[1], "integer" in reasons[2]] == [
        True,
        True,
        True,
    ]
    pair.wait.enqueue(id="a", target="-1")
    pair.wait.enqueue(target="1")
    pair.wait.run()
    assert pair.wait.counts() == {"failure": 2}


def test_signals_that_nobody_takes_are_forgotten_and_too_many_are_refused(pair: Pair) -> None:
    pair.notify.enqueue(id="old")
    pair.notify.run()
    pair.notify.advance(86_400_001)
    pair.notify.enqueue(id="new")
    pair.notify.run()
    assert list(pair.notify.context.state.shared("signals").get()) == ["new"]
    for number in range(5_000):
        pair.notify.enqueue(id=str(number))
    pair.notify.run_until_idle()
    assert pair.notify.counts()["failure"] == 200
    assert "are full" in pair.notify.sent("failure")[0].attributes["error.reason"]


class SignalStory(RuleBasedStateMachine):
    """Any order of giving, taking, commits and repeats: the total is what was given less taken."""

    def __init__(self) -> None:
        super().__init__()
        self.state: dict[str, str] = {}
        self.given: dict[str, int] = {}
        self.taken: dict[str, int] = {}
        self.settled: set[str] = set()
        self.total = 0

    @rule(number=st.integers(0, 5), count=st.integers(1, 3))
    def give(self, number: int, count: int) -> None:
        uuid = f"g{number}"
        signals = SignalCounts(self.state)
        signals.give("s", "c", count, uuid, 1)
        self.state = signals.encode()
        if uuid not in self.given:
            self.given[uuid] = count
            self.total += count

    @rule(number=st.integers(0, 5), count=st.integers(1, 3))
    def take(self, number: int, count: int) -> None:
        uuid = f"t{number}"
        signals = SignalCounts(self.state)
        took = signals.take("s", "", count, uuid, 1)
        self.state = signals.encode()
        assert took == (uuid in self.taken or count <= self.total)
        if took and uuid not in self.taken:
            self.taken[uuid] = count
            self.total -= count

    @rule(kind=st.sampled_from("gt"), number=st.integers(0, 5))
    def commit(self, kind: str, number: int) -> None:
        signals = SignalCounts(self.state)
        signals.committed([f"{kind}{number}"])
        self.state = signals.encode()
        (self.given if kind == "g" else self.taken).pop(f"{kind}{number}", None)

    @invariant()
    def the_total_is_kept(self) -> None:
        assert SignalCounts(self.state).total("s") == self.total
        if not (self.given or self.taken or self.total):
            # At the latest with the next commit nothing is left of it.
            signals = SignalCounts(self.state)
            signals.committed([])
            assert not signals.encode()


TestSignalStory = SignalStory.TestCase


def test_a_damaged_state_is_an_error() -> None:
    with pytest.raises(CorruptData):
        SignalCounts({"a": "{"})
