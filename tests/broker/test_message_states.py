"""The states of a channel's messages, message by message, against the code that works on ranges."""

from __future__ import annotations

import copy
import itertools
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import numpy as np
import pytest
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
from penstock.core.state_machine import IGNORED, IMPOSSIBLE, Refusal, Transition

S, E, F = DeliveryState, MessageEvent, MessageEffect
PARTITIONS = 2
TIMEOUT_MS, TOUCH_MS, LATER_MS = 30, 100, 10_000
CLIENT = 1
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


class MessagesOfOneState:
    """A real `ChannelState` whose messages all have one state, and that state in the table.

    Each event is reported as `delivery` and `drop_policy` do, for the messages that they find. If
    the table has no transition, they find none, and nothing may change.

    Attributes:
        expected: State of the messages.
        stale: Owners whose next answer belongs to a delivery from before a seek.
    """

    def __init__(self, count: int) -> None:
        self.ids = np.arange(count, dtype=np.int64)
        self.real = ChannelState([0] * PARTITIONS)
        self.now = 1_000
        self.expected = S.FRESH
        self.stale: frozenset[int] = frozenset()

    @property
    def owner(self) -> int:
        return self.real.in_flight.owner_of(0)

    def report(self, event: MessageEvent) -> None:
        """Report an event to the code and to the table, and compare."""
        outcome = MESSAGE_MACHINE.outcome(self.expected, event)
        before = copy.deepcopy(self)
        accepted = self.report_to_code(event)
        is_answer = event in ANSWERS | OUTCOMES_OF_PUTS
        if is_answer and self.takes_stale(event, before):
            self.stale = before.stale - {answering(event)}
            outcome = IGNORED
        if isinstance(outcome, Transition):
            assert accepted, "the table accepts it, the code does not"
            self.check_effects(set(outcome.effects), event, before)
            self.expected = outcome.state
        else:
            assert not accepted
            self.check_effects(set(), event, before)
        if F.REMEMBER_DELIVERY in self.effects_of(outcome):
            self.stale |= {before.owner}
        for partition, offset in map(message_id.split, self.ids.tolist()):
            assert delivery_state(self.real, partition, offset) is self.expected
        assert (self.owner != 0) == (self.expected in OWNED)
        assert (self.owner == DEAD_LETTERS) == (self.expected is S.DEAD_LETTERING)

    def takes_stale(self, event: MessageEvent, before: MessagesOfOneState) -> bool:
        """Whether an answer is the one to a delivery from before a seek; a TOUCH is never."""
        client = answering(event)
        can_be = event in {E.FINISHED, E.DEAD_LETTER_STORED} or before.owner == client
        return client in before.stale and can_be and event is not E.TOUCHED

    @staticmethod
    def effects_of(outcome: object) -> tuple[MessageEffect, ...]:
        return outcome.effects if isinstance(outcome, Transition) else ()

    def check_effects(
        self, effects: set[MessageEffect], event: MessageEvent, before: MessagesOfOneState
    ) -> None:
        """Check the records for the journal, the counters, the owners and the time-outs."""
        real, ids, count = self.real, set(self.ids.tolist()), len(self.ids)
        records = Records(real.recorder.pending())
        assert records.next == ({0} if F.RECORD_NEXT in effects else set())
        assert records.waiting == (ids if F.RECORD_WAIT in effects else set())
        assert records.done == (ids if F.RECORD_DONE in effects else set())
        assert records.repositioned == ({0} if F.RECORD_SEEK in effects else set())
        assert real.recorder.urgent == (F.JOURNAL_SOON in effects)
        assert real.requeued_count == (count if F.COUNT_REQUEUED in effects else 0)
        assert real.timed_out_count == (count if F.COUNT_TIMED_OUT in effects else 0)
        real.recorder.clear()
        real.requeued_count = real.timed_out_count = 0
        given = {F.SEND: CLIENT, F.PUT_DEAD_LETTER: DEAD_LETTERS}
        for effect in effects & given.keys():
            assert self.owner == given[effect]
        if event in {E.DELIVERED, E.DEAD_LETTERED} and not effects & given.keys():
            assert self.owner == before.owner
        if F.EXTEND_DEADLINE in effects:
            assert self.deadline > before.deadline
        elif self.owner == before.owner:
            assert self.deadline == before.deadline
        if F.REMEMBER_DELIVERY in effects:
            assert self.forgets_a_late_answer_of(before.owner)

    @property
    def deadline(self) -> int:
        held = self.real.in_flight.find(0)
        return 0 if held is None else held[1]

    def forgets_a_late_answer_of(self, client: int) -> bool:
        """Whether of two answers to new deliveries the first has no effect; on a copy."""
        other = copy.deepcopy(self.real)
        other.deliver(0, 0, len(self.ids), client, self.now, TIMEOUT_MS)
        answers = [other.finish(client, self.ids) for _ in range(2)]
        return not answers[0].any() and bool(answers[1].all())

    # -- events, as their reporters find messages

    def fresh(self) -> tuple[int, int]:
        progress = self.real.progress[0]
        return progress.next, progress.fresh_until(len(self.ids))

    def due(self) -> list[Redelivery]:
        return self.real.due(self.now, len(self.ids))

    def report_to_code(self, event: MessageEvent) -> bool:
        """Do what an event does; return whether the messages were found or accepted."""
        real = self.real
        start, end = self.fresh()
        match event:
            case E.DELIVERED if start < end:
                real.deliver(0, start, end, CLIENT, self.now, TIMEOUT_MS)
            case E.DELIVERED:
                found = self.due()
                real.redeliver(found, CLIENT, self.now, TIMEOUT_MS)
                return bool(found)
            case E.DEFERRED if start < end:
                real.defer(0, start, end, self.now + LATER_MS)
            case E.EXPIRED | E.MISSING | E.TRIMMED | E.PASSED_OVER if start < end:
                real.skip(0, start, end)
            case E.EXPIRED | E.MISSING | E.OUT_OF_ATTEMPTS:
                found = self.due()
                real.drop(found)
                return bool(found)
            case E.DEAD_LETTERED:
                found = self.due()
                real.redeliver(found, DEAD_LETTERS, self.now, TIMEOUT_MS)
                return bool(found)
            case E.DUE:
                was_ready, self.now = real.retries.ready, real.retries.next_ms or self.now
                real.retries.make_due_ready(self.now)
                return real.retries.ready > was_ready
            case E.TIMED_OUT:
                self.now += 2 * TOUCH_MS
                self.stale = frozenset()  # their time-outs have passed, too
                return bool(real.expire(self.now))
            case E.OWNER_LEFT:
                self.stale -= {CLIENT}
                # Later than now, so that becoming due is an event of its own.
                return bool(real.release(CLIENT, self.now + LATER_MS))
            case E.DELETED:
                return bool(real.drop_below(0, len(self.ids)))
            case E.SOUGHT_BEFORE | E.SOUGHT_PAST:
                real.seek(0, 0 if event is E.SOUGHT_BEFORE else len(self.ids))
            case _ if event in ANSWERS | OUTCOMES_OF_PUTS:
                return self.answer(event, answering(event))
            case _:
                return False
        return True

    def answer(self, event: MessageEvent, client: int) -> bool:
        real, ids = self.real, self.ids.tolist()
        if event in {E.FINISHED, E.DEAD_LETTER_STORED}:
            accepted = real.finish(client, self.ids).tolist()
        elif event in {E.REQUEUED, E.DEAD_LETTER_FAILED}:
            accepted = [real.requeue(client, number, self.now + LATER_MS) for number in ids]
        else:
            self.now += 1
            accepted = [
                real.in_flight.touch(client, number, self.now, TIMEOUT_MS, TOUCH_MS)
                for number in ids
            ]
        assert len(set(accepted)) == 1
        return bool(accepted[0])


def answering(event: MessageEvent) -> int:
    """Return the owner that an answer comes from."""
    return DEAD_LETTERS if event in OUTCOMES_OF_PUTS else CLIENT


@pytest.mark.parametrize("count", [1, 3])
def test_the_code_follows_the_table_for_every_pair_of_state_and_event(count: int) -> None:
    """Every pair, by walks over the real state, for one message and for a range.

    Two walks that end in the same state, with the same late answers to come, count as one: times
    and numbers of deliveries differ, and change no outcome.
    """
    first = MessagesOfOneState(count)
    left, known = deque([first]), {(first.expected, first.stale)}
    tried = set()
    while left:
        at = left.popleft()
        for event in E:
            after = copy.deepcopy(at)
            after.report(event)
            tried.add((at.expected, event))
            if (after.expected, after.stale) not in known:
                known.add((after.expected, after.stale))
                left.append(after)
        for event in ANSWERS:
            assert not copy.deepcopy(at).answer(event, CLIENT + 1), "it is not the owner"
    assert tried == set(itertools.product(S, E))


@dataclass(frozen=True)
class Facts:
    """A message as an owner without a table would keep it: results of the effects of a walk.

    Attributes:
        state: State of the machine.
        owner: The consumer or the dead-letter topic that has it; 0: nobody.
        is_passed: It is before the first undelivered offset.
        is_due: It waits for a consumer, not for its due time.
        is_done: It is in the finished ranges.
        was_delivered: A consumer had it since the last seek.
        may_be_put: An append to the dead-letter topic may have an outcome that was not reported.
    """

    state: DeliveryState = S.FRESH
    owner: int = 0
    is_passed: bool = False
    is_due: bool = False
    is_done: bool = False
    was_delivered: bool = False
    may_be_put: bool = False

    def may_be_reported(self, event: MessageEvent) -> bool:
        """Whether an event may be reported now; the table must decide each of these."""
        is_fresh = not self.is_passed
        match event:
            case E.DELIVERED | E.EXPIRED | E.MISSING:
                return is_fresh or self.is_due
            case E.DEFERRED | E.TRIMMED:
                return is_fresh
            case E.OUT_OF_ATTEMPTS | E.DEAD_LETTERED:
                return self.is_due and self.was_delivered
            case E.TIMED_OUT:
                return self.owner != 0
            case E.OWNER_LEFT:
                return self.owner == CLIENT
            case E.DUE:
                return self.is_passed and not (self.owner or self.is_due or self.is_done)
            case E.DEAD_LETTER_STORED | E.DEAD_LETTER_FAILED:
                return self.may_be_put
            case _:
                return True

    def after(self, event: MessageEvent) -> Facts:
        """Return the facts after an event, and check its effects."""
        outcome = MESSAGE_MACHINE.transition(self.state, event)
        is_refused = event in ANSWERS and self.owner != CLIENT
        assert isinstance(outcome, Refusal) == is_refused
        if outcome == Transition(self.state) or isinstance(outcome, Refusal):
            return self
        effects = set(outcome.effects)
        if self.is_done:
            assert event in SEEKS, "done until a seek"
        was_sent_before = event is E.SOUGHT_BEFORE and self.owner != 0
        assert (F.REMEMBER_DELIVERY in effects) == was_sent_before
        assert not effects & {F.SEND, F.PUT_DEAD_LETTER} or not self.owner, "one owner at most"
        now = replace(self, state=outcome.state, is_due=event in {E.DUE, E.TIMED_OUT})
        if event is not E.TOUCHED:
            now = replace(now, owner=0)
        for effect in outcome.effects:
            now = now.carried_out(effect, event)
        if outcome.state is S.DEFERRED and event is not E.OWNER_LEFT:
            assert {F.RECORD_WAIT, F.JOURNAL_SOON} <= effects, "a crash must not make it come early"
        return now.checked()

    def carried_out(self, effect: MessageEffect, event: MessageEvent) -> Facts:
        """Return them after an effect."""
        match effect:
            case F.SEND:
                return replace(self, owner=CLIENT, was_delivered=True)
            case F.PUT_DEAD_LETTER:
                return replace(self, owner=DEAD_LETTERS, may_be_put=True)
            case F.RECORD_NEXT:
                return replace(self, is_passed=True)
            case F.RECORD_DONE:
                return replace(self, is_done=True)
            case F.RECORD_SEEK:
                is_past = event is E.SOUGHT_PAST
                return replace(self, is_passed=is_past, is_done=is_past, was_delivered=False)
            case _:
                return self

    def checked(self) -> Facts:
        """Check that the facts decide the state."""
        if self.owner:
            expected = S.IN_FLIGHT if self.owner == CLIENT else S.DEAD_LETTERING
        elif not self.is_passed:
            expected = S.FRESH
        elif self.is_done:
            expected = S.DONE
        else:
            expected = S.READY if self.is_due else S.DEFERRED
        assert self.state is expected
        return self


def test_a_message_is_done_only_by_its_owner_or_by_a_drop_and_begins_again_only_by_a_seek() -> None:
    """All facts that any number of events can make: there are few."""
    left, known, reported = [Facts()], {Facts()}, set()
    while left:
        facts = left.pop()
        for event in filter(facts.may_be_reported, E):
            reported.add((facts.state, event))
            after = facts.after(event)
            if after not in known:
                known.add(after)
                left.append(after)
    assert {facts.state for facts in known} == set(S)
    decided = {
        (state, event)
        for state, event in itertools.product(S, E)
        if MESSAGE_MACHINE.outcome(state, event) is not IMPOSSIBLE
    }
    assert reported == decided
