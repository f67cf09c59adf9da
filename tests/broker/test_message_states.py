"""The states of a channel's messages, message by message, against the code that works on ranges."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from penstock.broker import message_id
from penstock.broker.channel import journal_records
from penstock.broker.channel.channel_state import ChannelState, Redelivery
from penstock.broker.channel.in_flight import DEAD_LETTERS
from penstock.broker.channel.message_states import (
    MESSAGE_MACHINE,
    DeliveryState,
    MessageEffect,
    MessageEvent,
    delivery_state,
)
from penstock.core.state_machine import Refusal, Transition

S, E, F = DeliveryState, MessageEvent, MessageEffect
PARTITIONS = 2
LENGTH = 5
TIMEOUT_MS, TOUCH_MS = 30, 100
CLIENTS = st.integers(1, 3)
PARTITION = st.integers(0, PARTITIONS - 1)
OWNED = {S.IN_FLIGHT, S.DEAD_LETTERING}
ANSWERS = {E.FINISHED, E.REQUEUED, E.TOUCHED}
SEEKS = {E.SOUGHT_BEFORE, E.SOUGHT_PAST}
OUTCOMES_OF_PUTS = {E.DEAD_LETTER_STORED, E.DEAD_LETTER_FAILED}


class Records:
    """Records for the journal, as sets."""

    def __init__(self, blob: bytes) -> None:
        self.next: set[int] = set()
        self.waiting: set[int] = set()
        self.done: set[int] = set()
        self.repositioned: set[int] = set()
        journal_records.replay(blob, self)

    def on_seek(self, partition: int, offset: int) -> None:
        del offset
        self.repositioned.add(partition)

    def on_next(self, partition: int, offset: int) -> None:
        del offset
        self.next.add(partition)

    def on_retry(self, number: int, due_ms: int, attempts: int) -> None:
        del due_ms, attempts
        self.waiting.add(number)

    def on_done(self, partition: int, start: int, end: int) -> None:
        self.done.update(message_id.of(partition, offset) for offset in range(start, end))


class AgainstTable(RuleBasedStateMachine):
    """Reports each event to the table for each message, and to `ChannelState` for all at once."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1_000
        self.state = ChannelState([0] * PARTITIONS)
        self.states: dict[int, DeliveryState] = {}
        self.owners: dict[int, int] = {}
        self.deadlines: dict[int, int] = {}  # time-out or due time
        self.since: dict[int, int] = {}
        self.stale: dict[tuple[int, int], int] = {}  # owner, id -> deadline
        self.effects: dict[int, list[MessageEffect]] = {}
        self.counted: Counter[MessageEffect] = Counter()

    # -- the table

    def happened(self, event: MessageEvent, numbers: Iterable[int]) -> None:
        for number in numbers:
            before = self.states[number]
            outcome = MESSAGE_MACHINE.transition(before, event)
            assert isinstance(outcome, Transition), (event, before)
            if F.REMEMBER_DELIVERY in outcome.effects:
                key = (self.owners[number], number)
                self.stale[key] = max(self.deadlines[number], self.stale.get(key, 0))
            if F.EXTEND_DEADLINE in outcome.effects:
                latest = self.since[number] + TOUCH_MS
                self.deadlines[number] = min(self.now + TIMEOUT_MS, latest)
            elif outcome.state in OWNED and before not in OWNED:
                self.deadlines[number] = self.now + TIMEOUT_MS
                self.since[number] = self.now
            self.states[number] = outcome.state
            self.effects.setdefault(number, []).extend(outcome.effects)
            self.counted.update(outcome.effects)
            if outcome.state not in OWNED:
                self.owners.pop(number, None)

    def given_to(self, client: int, numbers: Iterable[int]) -> None:
        self.owners.update(dict.fromkeys(numbers, client))

    def in_state(self, *states: DeliveryState) -> list[int]:
        return sorted(number for number, state in self.states.items() if state in states)

    def of(self, client: int) -> list[int]:
        return sorted(number for number, owner in self.owners.items() if owner == client)

    def below(self, partition: int, offset: int) -> list[int]:
        first, last = message_id.of(partition, 0), message_id.of(partition, offset)
        return [number for number in self.states if first <= number < last]

    def make_due_ready(self) -> None:
        due = [n for n in self.in_state(S.DEFERRED) if self.deadlines[n] <= self.now]
        self.happened(E.DUE, due)

    def one_of(self, data: st.DataObject, likely: Iterable[int]) -> int:
        """Draw any message, mostly one of the likely ones."""
        likely = sorted(likely)
        anything = st.sampled_from(sorted(self.states))
        return data.draw(st.sampled_from(likely) | anything if likely else anything)

    def is_stale(self, client: int, number: int) -> bool:
        return self.stale.pop((client, number), None) is not None

    # -- events

    @initialize()
    def publish_some(self) -> None:
        for partition in range(PARTITIONS):
            self.publish(partition, 6)

    @rule(partition=PARTITION, count=st.integers(1, 6))
    def publish(self, partition: int, count: int) -> None:
        end = len(self.below(partition, 1 << 40))
        for offset in range(end, end + count):
            self.states[message_id.of(partition, offset)] = S.FRESH

    @rule(ms=st.integers(0, 40))
    def wait(self, ms: int) -> None:
        self.now += ms
        self.state.expire(self.now)
        self.stale = {key: until for key, until in self.stale.items() if until > self.now}
        self.make_due_ready()
        late = [n for n in self.in_state(*OWNED) if self.deadlines[n] <= self.now]
        self.happened(E.TIMED_OUT, late)
        self.deadlines.update(dict.fromkeys(late, self.now))

    def fresh(self, partition: int, count: int) -> tuple[int, int, list[int]]:
        progress = self.state.progress[partition]
        end = len(self.below(partition, 1 << 40))
        start, end = progress.next, progress.fresh_until(min(end, progress.next + count))
        return start, end, [message_id.of(partition, offset) for offset in range(start, end)]

    @rule(partition=PARTITION, count=st.integers(1, 20), client=CLIENTS)
    def deliver(self, partition: int, count: int, client: int) -> None:
        start, end, numbers = self.fresh(partition, count)
        if numbers:
            self.state.deliver(partition, start, end, client, self.now, TIMEOUT_MS)
            self.given_to(client, numbers)
            self.happened(E.DELIVERED, numbers)

    @rule(partition=PARTITION, count=st.integers(1, 9), ms=st.integers(1, 50))
    def defer(self, partition: int, count: int, ms: int) -> None:
        start, end, numbers = self.fresh(partition, count)
        if numbers:
            self.state.defer(partition, start, end, self.now + ms)
            self.happened(E.DEFERRED, numbers)
            self.deadlines.update(dict.fromkeys(numbers, self.now + ms))

    @rule(
        partition=PARTITION,
        count=st.integers(1, 9),
        event=st.sampled_from((E.EXPIRED, E.MISSING, E.TRIMMED, E.PASSED_OVER)),
    )
    def drop_fresh(self, partition: int, count: int, event: MessageEvent) -> None:
        start, end, numbers = self.fresh(partition, count)
        if numbers:
            self.state.skip(partition, start, end)
            self.happened(event, numbers)

    def due(self, limit: int) -> list[Redelivery]:
        found = self.state.due(self.now, limit)
        self.make_due_ready()
        ready = sorted((self.deadlines[n], n) for n in self.in_state(S.READY))
        assert [one.id for one in found] == [number for _, number in ready[:limit]]
        return found

    @rule(limit=st.integers(1, 9), client=CLIENTS)
    def redeliver(self, limit: int, client: int) -> None:
        found = self.due(limit)
        numbers = [one.id for one in found]
        self.state.redeliver(found, client, self.now, TIMEOUT_MS)
        self.given_to(client, numbers)
        self.happened(E.DELIVERED, numbers)

    @rule(limit=st.integers(1, 9), event=st.sampled_from((E.OUT_OF_ATTEMPTS, E.EXPIRED, E.MISSING)))
    def drop_ready(self, limit: int, event: MessageEvent) -> None:
        found = self.due(limit)
        self.state.drop(found)
        self.happened(event, [one.id for one in found])

    @rule(limit=st.integers(1, 9))
    def dead_letter(self, limit: int) -> None:
        found = self.due(limit)
        numbers = [one.id for one in found]
        self.state.redeliver(found, DEAD_LETTERS, self.now, TIMEOUT_MS)
        self.given_to(DEAD_LETTERS, numbers)
        self.happened(E.DEAD_LETTERED, numbers)

    @precondition(lambda self: self.states)
    @rule(data=st.data(), stored=st.booleans())
    def dead_letter_ended(self, data: st.DataObject, stored: bool) -> None:
        some = {self.one_of(data, self.of(DEAD_LETTERS)) for _ in range(3)}
        numbers = [n for n in sorted(some) if (DEAD_LETTERS, n) not in self.stale]
        if stored:
            self.state.finish(DEAD_LETTERS, np.array(numbers, np.int64))
            self.happened(E.DEAD_LETTER_STORED, numbers)
            return
        for number in numbers:
            self.state.requeue(DEAD_LETTERS, number, self.now + 10)
            was = self.states[number]
            self.happened(E.DEAD_LETTER_FAILED, [number])
            if was is S.DEAD_LETTERING:
                self.deadlines[number] = self.now + 10

    @precondition(lambda self: self.states)
    @rule(data=st.data(), client=CLIENTS, event=st.sampled_from(sorted(ANSWERS, key=str)))
    def answer(self, data: st.DataObject, client: int, event: MessageEvent) -> None:
        stale = [number for owner, number in self.stale if owner == client]
        number = self.one_of(data, stale or self.of(client))
        ids = np.array([number], np.int64)
        answers: dict[MessageEvent, Callable[[], bool]] = {
            E.FINISHED: lambda: bool(self.state.finish(client, ids)[0]),
            E.REQUEUED: lambda: self.state.requeue(client, number, self.now + 20),
            E.TOUCHED: lambda: self.state.in_flight.touch(
                client, number, self.now, TIMEOUT_MS, TOUCH_MS
            ),
        }
        has_some = bool(self.of(client))
        accepted = answers[event]()
        # A TOUCH does not count as the answer to a delivery from before a seek.
        if event is E.TOUCHED:
            is_stale = False
        else:
            is_stale = (event is E.FINISHED or has_some) and self.is_stale(client, number)
        if is_stale or self.owners.get(number) != client:
            assert not accepted
            if number not in self.owners:
                assert isinstance(MESSAGE_MACHINE.transition(self.states[number], event), Refusal)
            return
        assert accepted
        self.happened(event, [number])
        if event is E.REQUEUED:
            self.deadlines[number] = self.now + 20

    @rule(client=CLIENTS)
    def leave(self, client: int) -> None:
        mine = self.of(client)
        assert self.state.release(client, self.now) == len(mine)
        self.stale = {key: until for key, until in self.stale.items() if key[0] != client}
        self.happened(E.OWNER_LEFT, mine)
        self.deadlines.update(dict.fromkeys(mine, self.now))

    @rule(data=st.data(), partition=PARTITION)
    def delete_log(self, data: st.DataObject, partition: int) -> None:
        end = len(self.below(partition, 1 << 40))
        offset = data.draw(st.integers(0, end))
        self.happened(E.DELETED, self.below(partition, offset))
        assert self.state.drop_below(partition, offset) == self.counted[F.COUNT_DROPPED]

    @rule(data=st.data(), partition=PARTITION)
    def seek(self, data: st.DataObject, partition: int) -> None:
        numbers = self.below(partition, 1 << 40)
        offset = data.draw(st.integers(0, len(numbers)))
        if numbers:
            self.state.seek(partition, offset)
            first = message_id.of(partition, offset)
            self.happened(E.SOUGHT_PAST, [n for n in numbers if n < first])
            self.happened(E.SOUGHT_BEFORE, [n for n in numbers if n >= first])

    # -- what must agree

    @invariant()
    def each_message_is_in_the_state_of_the_table(self) -> None:
        for number, expected in self.states.items():
            assert delivery_state(self.state, *message_id.split(number)) is expected
            assert self.state.in_flight.owner_of(number) == self.owners.get(number, 0)

    @invariant()
    def the_effects_are_those_of_the_table(self) -> None:
        state, counted = self.state, self.counted
        records = Records(state.recorder.pending())
        with_effect = {
            effect: {n for n, effects in self.effects.items() if effect in effects} for effect in F
        }
        assert with_effect[F.RECORD_DONE] <= records.done
        assert all(self.states.get(n, S.DONE) is S.DONE for n in records.done)
        assert records.waiting == with_effect[F.RECORD_WAIT]
        partitions = {message_id.split(n)[0] for n in with_effect[F.RECORD_NEXT]}
        assert partitions <= records.next
        assert records.repositioned == {message_id.split(n)[0] for n in with_effect[F.RECORD_SEEK]}
        assert state.recorder.urgent == bool(with_effect[F.JOURNAL_SOON])
        assert state.requeued_count == counted[F.COUNT_REQUEUED]
        assert state.timed_out_count == counted[F.COUNT_TIMED_OUT]
        state.recorder.clear()
        state.requeued_count = state.timed_out_count = 0
        self.effects, self.counted = {}, Counter()


TestAgainstTable = AgainstTable.TestCase
TestAgainstTable.settings = settings(max_examples=80, stateful_step_count=50, deadline=None)


def test_a_message_is_done_only_by_its_owner_or_by_a_drop_and_begins_again_only_by_a_seek() -> None:
    """Walk every sequence of `LENGTH` events, with the owner as the tests' own fact."""
    walks: list[tuple[DeliveryState, bool, tuple[MessageEvent, ...]]] = [(S.FRESH, False, ())]
    for _ in range(LENGTH):
        following = []
        for state, is_owned, walk in walks:
            for event in E:
                outcome = MESSAGE_MACHINE.outcome(state, event)
                if not isinstance(outcome, Transition):
                    continue
                check_step(state, event, outcome, is_owned=is_owned)
                owned = event in {E.DELIVERED, E.DEAD_LETTERED} or (is_owned and event is E.TOUCHED)
                assert owned == (outcome.state in OWNED), (*walk, event)
                following.append((outcome.state, owned, (*walk, event)))
        walks = following
    assert {state for state, _, _ in walks} == set(S)


def check_step(
    state: DeliveryState,
    event: MessageEvent,
    outcome: Transition[DeliveryState, MessageEffect],
    *,
    is_owned: bool,
) -> None:
    """Check the invariants of one step."""
    effects = set(outcome.effects)
    assert is_owned or event not in ANSWERS | OUTCOMES_OF_PUTS
    assert not is_owned or F.SEND not in effects, "one owner at most"
    if state is S.DONE:
        assert event in SEEKS, "done until a seek"
    elif outcome.state is S.DONE:
        assert effects & {F.RECORD_DONE, F.RECORD_SEEK}, "or it would come again after a restart"
    if outcome.state is S.FRESH:
        assert event is E.SOUGHT_BEFORE
    if state is S.FRESH and outcome.state is not S.FRESH:
        assert effects & {F.RECORD_NEXT, F.RECORD_SEEK}, "the message at `next` is in no state"
    if outcome.state is S.DEFERRED and event is not E.OWNER_LEFT:
        assert {F.RECORD_WAIT, F.JOURNAL_SOON} <= effects, "a crash must not make it come early"
