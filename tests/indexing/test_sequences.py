"""Sequences and batches: the answers to end offsets, and that every offset is in one sequence."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.errors import CorruptData, InvalidRequest
from penstock.core.state_machine import IMPOSSIBLE, Refusal, Transition
from penstock.indexing.read_plan import AvailableRange, BatchLimits, next_batch
from penstock.indexing.sequences import (
    SEQUENCE_MACHINE,
    SequenceEffect,
    SequenceEvent,
    SequenceState,
    TaskSequences,
    offsets_from_json,
)
from penstock.indexing.sequences import Sequence as ReadSequence

NO_LIMITS = BatchLimits(10**9, 10**12)


def begun() -> TaskSequences:
    return TaskSequences.begin("B", {0: 0, 1: 0})


def end(
    sequences: TaskSequences,
    offsets: Mapping[int, int],
    *,
    finish: bool = False,
    current: Mapping[int, int] | None = None,
    paused: bool = True,
) -> TaskSequences:
    return sequences.set_end_offsets(
        offsets, finish=finish, current=current or offsets, paused=paused
    ).sequences


def publishing(sequences: TaskSequences) -> TaskSequences:
    return sequences.on(sequences.items[0].name, SequenceEvent.READY).sequences


def published(sequences: TaskSequences) -> TaskSequences:
    return sequences.on(sequences.items[0].name, SequenceEvent.PUBLISHED).sequences


def _name(sequence: ReadSequence | None) -> str:
    assert sequence is not None
    return sequence.name


def test_closing_opens_the_next_where_it_ends() -> None:
    after = end(begun(), {0: 3, 1: 4})
    assert [(s.name, dict(s.start), s.end) for s in after.items] == [
        ("B_0", {0: 0, 1: 0}, {0: 3, 1: 4}),
        ("B_1", {0: 3, 1: 4}, None),
    ]


def test_finishing_opens_nothing() -> None:
    after = end(begun(), {0: 3, 1: 4}, finish=True)
    assert after.final == {0: 3, 1: 4}
    assert len(after.items) == 1
    assert not after.done
    assert published(publishing(after.reached({0: 3, 1: 4}))).done


@pytest.mark.parametrize("paused", [True, False])
def test_asking_again_changes_nothing(paused: bool) -> None:
    once = end(begun(), {0: 3, 1: 4})
    assert end(once, {0: 3, 1: 4}, current={0: 9, 1: 9}, paused=paused) is once
    finished = end(once, {0: 9, 1: 9}, finish=True)
    assert end(finished, {0: 9, 1: 9}, finish=True, paused=paused) is finished
    first = published(publishing(finished.reached({0: 9, 1: 9})))
    both = published(publishing(first))
    assert end(both, {0: 9, 1: 9}, finish=True, paused=paused) is both


@pytest.mark.parametrize(
    ("offsets", "finish", "current", "paused", "says"),
    [
        ({0: 3}, False, {0: 0, 1: 0}, True, "one offset for each"),
        ({0: 3, 1: 4, 2: 0}, True, {0: 0, 1: 0}, True, "one offset for each"),
        ({0: 3, 1: 4}, False, {0: 0, 1: 0}, False, "pause the task"),
        ({0: 3, 1: 4}, True, {0: 4, 1: 0}, True, "before the offsets already read"),
    ],
)
def test_what_does_not_fit_is_refused(
    offsets: Mapping[int, int], finish: bool, current: Mapping[int, int], paused: bool, says: str
) -> None:
    with pytest.raises(InvalidRequest, match=says):
        end(begun(), offsets, finish=finish, current=current, paused=paused)


def test_an_end_that_was_agreed_is_not_moved() -> None:
    finished = end(begun(), {0: 3, 1: 4}, finish=True)
    for finish in (True, False):
        with pytest.raises(InvalidRequest, match="agreed already"):
            end(finished, {0: 5, 1: 5}, finish=finish)


def test_only_the_oldest_is_published() -> None:
    two = end(end(begun(), {0: 3, 1: 4}), {0: 9, 1: 9}, finish=True)
    assert two.reached({0: 3, 1: 3}).to_publish is None
    read = two.reached({0: 9, 1: 9})
    assert read.to_publish is not None
    assert read.to_publish.name == "B_0"
    assert publishing(read).to_publish is None
    assert _name(published(publishing(read)).to_publish) == "B_1"


def kept(
    start: Mapping[str, int], end: Mapping[str, int] | None, number: int = 0
) -> dict[str, Any]:
    return {"number": number, "name": f"B_{number}", "start": start, "end": end}


@pytest.mark.parametrize(
    "raw",
    [
        *(None, [], {}, {"baseName": "B", "final": None, "sequences": []}),
        *(
            {"baseName": "B", "final": None, "sequences": sequences}
            for sequences in (
                [kept({"0": 0}, {"0": 3}), kept({"0": 4}, None, 1)],
                [kept({"0": 0}, None), kept({"0": 4}, None, 1)],
                [kept({"0": 5}, {"0": 3}), kept({"0": 3}, None, 1)],
                [kept({"0": 0}, {"1": 3}), kept({"1": 3}, None, 1)],
                [kept({"0": 0}, {"0": 3})],
            )
        ),
        {"baseName": "B", "final": {"0": 4}, "sequences": [kept({"0": 0}, {"0": 3})]},
    ],
)
def test_a_damaged_list_of_sequences_is_told(raw: list[Any] | dict[str, Any] | None) -> None:
    with pytest.raises(CorruptData, match=r"sequences\.json"):
        TaskSequences.from_json(raw, source="sequences.json")


@pytest.mark.parametrize("raw", [None, {"a": 1}, {"0": -1}, {"0": True}, {"0": "1"}, {"-1": 0}])
def test_offsets_that_are_none_are_refused(raw: dict[str, Any] | None) -> None:
    with pytest.raises(InvalidRequest, match="offsets must be"):
        offsets_from_json(raw)


@given(st.data())
def test_every_offset_is_read_once_in_order_and_in_one_sequence(data: st.DataObject) -> None:
    """Ends are agreed at any time, messages come at any time, limits cut anywhere."""
    sequences, current = begun(), {0: 0, 1: 0}
    latest = {0: 0, 1: 0}
    read: dict[str, dict[int, int]] = {}
    for _ in range(data.draw(st.integers(1, 25))):
        kind = data.draw(st.sampled_from(["come", "read", "end", "ahead", "publish"]))
        if kind == "come":
            latest[data.draw(st.sampled_from([0, 1]))] += data.draw(st.integers(1, 9))
        elif kind == "read":
            limits = BatchLimits(data.draw(st.integers(1, 12)), data.draw(st.integers(1, 99)))
            there = {p: AvailableRange("f", 0, n, message_bytes=7) for p, n in latest.items()}
            batch = next_batch(sequences, current, there, limits)
            if batch is None:
                # What is left of the oldest unread sequence is not there yet.
                unread = next((s for s in sequences.items if not s.is_read(current)), None)
                assert unread is None or not any(
                    unread.left(p, current[p], latest[p]) for p in latest
                )
                continue
            assert batch.start == current
            assert 1 <= batch.messages <= max(1, limits.max_rows)
            assert all(batch.end[p] <= latest[p] for p in latest)
            (home,) = [s for s in sequences.items if s.name == batch.sequence]
            assert home.end is None or all(batch.end[p] <= home.end[p] for p in latest)
            counts = read.setdefault(batch.sequence, {0: 0, 1: 0})
            for p in latest:
                counts[p] += batch.end[p] - batch.start[p]
            current = dict(batch.end)
        elif kind in {"end", "ahead"} and sequences.final is None:
            ahead = data.draw(st.integers(0, 5)) if kind == "ahead" else 0
            assert sequences.last is not None
            start = sequences.last.start
            wanted = {p: max(o + ahead, start[p]) for p, o in current.items()}
            finish = data.draw(st.booleans())
            sequences = end(sequences, wanted, finish=finish, current=current)
        elif kind == "publish" and (ready := sequences.to_publish) is not None:
            ready_end = ready.end
            assert ready_end is not None
            whole = {p: ready_end[p] - ready.start[p] for p in latest}
            assert read.get(ready.name, {0: 0, 1: 0}) == whole
            sequences = published(publishing(sequences))
        sequences = sequences.reached(current)
        stored = TaskSequences.from_json(sequences.to_json(), source="x")
        assert stored.reached(current).items == sequences.items


def test_a_backlog_is_cut_in_proportion() -> None:
    there = {0: AvailableRange("f", 0, 3000, 100), 1: AvailableRange("f", 0, 1000, 100)}
    batch = next_batch(begun(), {0: 0, 1: 0}, there, BatchLimits(400, 10**9))
    assert batch is not None
    assert batch.end == {0: 300, 1: 100}
    batch = next_batch(begun(), {0: 0, 1: 0}, there, BatchLimits(10**9, 40_000))
    assert batch is not None
    assert batch.end == {0: 300, 1: 100}
    batch = next_batch(begun(), {0: 0, 1: 0}, there, NO_LIMITS)
    assert batch is not None
    assert batch.end == {0: 3000, 1: 1000}


def test_a_message_larger_than_the_limit_is_read_alone() -> None:
    there = {0: AvailableRange("f", 0, 5, 10**6)}
    batch = next_batch(TaskSequences.begin("B", {0: 0}), {0: 0}, there, BatchLimits(100, 1000))
    assert batch is not None
    assert batch.end == {0: 1}


@st.composite
def _ends(draw: st.DrawFn, at: Mapping[int, int]) -> dict[int, int]:
    return {p: o + draw(st.integers(0, 5)) for p, o in at.items()}


@given(st.data())
def test_whatever_happens_offsets_only_go_forward(data: st.DataObject) -> None:
    """Persists, checkpoints, publishes and the finish in any order; the invariants after each."""
    sequences, current = begun(), {0: 0, 1: 0}
    stored = dict(current)
    committed: list[tuple[dict[int, int], dict[int, int]]] = []
    for step in data.draw(
        st.lists(st.sampled_from(["persist", "checkpoint", "finish", "publish"]), max_size=30)
    ):
        if step == "persist":
            ends = data.draw(_ends(current))
            there = {p: AvailableRange("f", 0, o) for p, o in ends.items()}
            batch = next_batch(sequences, current, there, NO_LIMITS)
            if batch is not None:
                assert dict(batch.start) == current
                current = dict(batch.end)
        elif step == "publish":
            due = sequences.to_publish
            if due is not None:
                assert due.end is not None
                assert dict(due.start) == stored
                committed.append((dict(due.start), dict(due.end)))
                stored = dict(due.end)
                sequences = published(publishing(sequences))
        elif sequences.final is None:
            assert sequences.last is not None
            after = {p: max(current[p], o) for p, o in sequences.last.start.items()}
            finish = step == "finish"
            sequences = end(sequences, data.draw(_ends(after)), finish=finish, current=current)
        sequences = sequences.reached(current)
        # Nothing is read beyond the end, nor published before it is persisted.
        assert all(current[p] <= o for p, o in (sequences.final or {}).items())
        first = sequences.items[0].start if sequences.items else sequences.final
        assert first is not None
        assert dict(first) == stored
        assert all(current[p] >= stored[p] for p in stored)
    assert all(a[1] == b[0] for a, b in itertools.pairwise(committed))


OPEN = {0: 3, 1: 4}  # where the open sequence starts


@pytest.mark.parametrize("finish", [True, False])
@pytest.mark.parametrize("paused", [True, False])
@pytest.mark.parametrize("stage", ["open", "closed"])
@pytest.mark.parametrize(
    ("offsets", "kind"),
    [
        ({0: 3}, "misfit"),
        ({0: 3, 1: 4, 2: 0}, "misfit"),
        (OPEN, "start"),
        ({0: 9, 1: 9}, "end"),
        ({0: 9, 1: 8}, "ahead"),
        ({0: 5, 1: 3}, "behind"),
    ],
)
def test_the_table_of_answers_to_end_offsets(
    stage: str, offsets: Mapping[int, int], kind: str, paused: bool, finish: bool
) -> None:
    sequences = end(begun(), OPEN)
    if stage == "closed":
        sequences = end(sequences, {0: 9, 1: 9}, finish=True)
    repeated = (stage == "open" and kind == "start" and not finish) or (
        stage == "closed" and kind == "end" and finish
    )
    fits = kind in {"end", "ahead"} or (kind == "start" and finish)
    taken = stage == "open" and paused and fits
    if repeated:
        assert end(sequences, offsets, finish=finish, current=OPEN, paused=paused) is sequences
    elif taken:
        after = end(sequences, offsets, finish=finish, current=OPEN, paused=paused)
        assert after.items[1].end == offsets
        assert after.final == (offsets if finish else None)
        assert after.last is not None
        assert finish or (dict(after.last.start), after.last.end) == (offsets, None)
    else:
        with pytest.raises(InvalidRequest):
            end(sequences, offsets, finish=finish, current=OPEN, paused=paused)


# the machine of one sequence


@dataclass(frozen=True)
class Facts:
    """A sequence as an owner without a table would keep it, in one run of its task.

    Attributes:
        state: State of the machine.
        stored: Its state in sequences.json, which has only OPEN and CLOSED; None if missing.
        is_started: Its task has reported the start.
        has_messages: Some of its messages are persisted.
        is_whole: All of its messages are persisted.
        is_published: The effect PUBLISH was carried out.
        is_gone: The task no longer has it.
    """

    state: SequenceState
    stored: SequenceState | None
    is_started: bool = False
    has_messages: bool = False
    is_whole: bool = False
    is_published: bool = False
    is_gone: bool = False

    def may_be_reported(self, event: SequenceEvent) -> bool:
        """Whether the owner may report an event now; the table must decide each of these."""
        match event:
            case SequenceEvent.STARTED:
                return not self.is_started
            case SequenceEvent.REACHED:
                return self.stored is SequenceState.CLOSED and not self.is_whole
            case _ if not self.is_started:
                return False
            case SequenceEvent.PERSISTED:
                return not self.is_whole and not self.is_gone
            case SequenceEvent.STREAM_LOST:
                return self.has_messages and not self.is_whole
            case SequenceEvent.STREAM_LOST_BEFORE:
                return not self.has_messages and not self.is_whole and not self.is_gone
            case SequenceEvent.MERGED:
                return self.has_messages
            case SequenceEvent.READY:
                return self.is_whole and not self.is_published
            case SequenceEvent.PUBLISHED:
                return self.is_published and not self.is_gone
            case _:
                return True

    def after(self, event: SequenceEvent) -> Facts:
        """Return the facts after an event, and check its effects."""
        outcome = SEQUENCE_MACHINE.transition(self.state, event)
        if isinstance(outcome, Refusal):
            assert event is SequenceEvent.END_SET
            assert self.state is not SequenceState.OPEN
            return self
        now = replace(
            self,
            state=outcome.state,
            is_started=self.is_started or event is SequenceEvent.STARTED,
            has_messages=self.has_messages or event is SequenceEvent.PERSISTED,
            is_whole=self.is_whole or event is SequenceEvent.REACHED,
        )
        saves = [effect for effect in outcome.effects if effect.name.startswith("SAVE_")]
        assert list(outcome.effects[: len(saves)]) == saves, "what follows happens after the save"
        for effect in outcome.effects:
            if effect is SequenceEffect.SAVE_SEQUENCES:
                now = replace(now, stored=now.state_in_file(), is_gone=now.state_in_file() is None)
                continue
            assert now.stored is now.state_in_file(), "no effect of a state that a crash would undo"
            if effect is SequenceEffect.PUBLISH:
                assert not self.is_published
                now = replace(now, is_published=True)
            if effect is SequenceEffect.ANNOUNCE:
                assert not now.is_published, "it would show rows twice"
            if effect is SequenceEffect.DELETE_OLD_FILES_LATER:
                assert SequenceEffect.SAVE_COMMIT in saves, "a crash would need the old files"
        return now.checked()

    def after_crash(self) -> tuple[Facts, ...]:
        """Return the facts with which the next run begins; none if the sequence is gone."""
        if self.stored is None:
            return ()
        return (Facts(self.stored, self.stored, has_messages=self.has_messages).checked(),)

    def state_in_file(self) -> SequenceState | None:
        """Return the state that sequences.json should have."""
        if self.state in SEQUENCE_MACHINE.final:
            return None
        return SequenceState.OPEN if self.state is SequenceState.OPEN else SequenceState.CLOSED

    def checked(self) -> Facts:
        """Check the invariants between two events."""
        assert self.stored is self.state_in_file()
        assert self.is_gone == (self.state in SEQUENCE_MACHINE.final)
        waits_or_later = {SequenceState.READ, SequenceState.PUBLISHING, SequenceState.PUBLISHED}
        assert self.is_whole == (self.state in waits_or_later)
        publishes_or_later = {SequenceState.PUBLISHING, SequenceState.PUBLISHED}
        assert self.is_published == (self.state in publishes_or_later)
        assert (self.state is SequenceState.WITHDRAWN) <= (not self.has_messages)
        return self


def test_every_sequence_of_events_keeps_the_promises_and_reaches_every_cell() -> None:
    """All facts that any number of events can make: there are few.

    A crash is not an event: it leaves what is stored, from which the next run begins.
    """
    begun = {Facts(state, state) for state in SEQUENCE_MACHINE.initial}
    left, known, reported = [*begun], {*begun}, set()
    while left:
        facts = left.pop()
        for event in filter(facts.may_be_reported, SequenceEvent):
            reported.add((facts.state, event))
            after = facts.after(event)
            for found in (after, *after.after_crash()):
                if found not in known:
                    known.add(found)
                    left.append(found)
    assert {facts.state for facts in known} == set(SequenceState)
    assert {
        (state, event)
        for state in SequenceState
        for event in SequenceEvent
        if isinstance(SEQUENCE_MACHINE.outcome(state, event), Transition)
    } <= reported, "a cell that can never happen"


def test_a_cut_withdraws_what_comes_after_it_and_keeps_what_is_read() -> None:
    three = end(end(begun(), {0: 3, 1: 4}), {0: 9, 1: 9})
    assert three.cut({0: 5, 1: 4}).sequences.items == (
        replace(three.items[0], state=SequenceState.READ),
        replace(three.items[1], end={0: 5, 1: 4}, state=SequenceState.READ),
    )
    step = three.cut({0: 3, 1: 4})
    assert [one.name for one in step.sequences.items] == ["B_0"]
    assert step.sequences.final == {0: 3, 1: 4}
    assert step.effects == (SequenceEffect.SAVE_SEQUENCES,)


@pytest.mark.parametrize("state", list(SequenceState))
def test_files_merged_too_late_are_deleted_and_others_replace_the_old_ones(
    state: SequenceState,
) -> None:
    outcome = SEQUENCE_MACHINE.outcome(state, SequenceEvent.MERGED)
    if state is SequenceState.WITHDRAWN:
        assert outcome is IMPOSSIBLE
        return
    late = state in {SequenceState.PUBLISHING, SequenceState.PUBLISHED}
    assert isinstance(outcome, Transition)
    assert (SequenceEffect.DELETE_NEW_FILES in outcome.effects) == late
    assert (SequenceEffect.SAVE_COMMIT in outcome.effects) == (not late)
