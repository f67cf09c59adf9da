"""The state of a channel against a naive model, with crashes and snapshots at any moment."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from penstock.broker import message_id
from penstock.broker.channel.channel_state import ATTEMPTS_MAX, ChannelState, Redelivery
from penstock.broker.channel.offset_ranges import OffsetRangeSet
from penstock.broker.channel.persistence import restore, snapshot

PARTITIONS = 2
CLIENTS = st.integers(1, 3)
PARTITION = st.integers(0, PARTITIONS - 1)


def written(state: ChannelState) -> list[bytes]:
    """Return what goes to the journal now, which counts as written."""
    pending = state.recorder.pending()
    state.recorder.clear()
    return [pending] if pending else []


class AgainstModel(RuleBasedStateMachine):
    """Drives a state and a model of dictionaries side by side."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1_000
        self.ends = [0] * PARTITIONS
        self.state = ChannelState([0] * PARTITIONS)
        self.blob = snapshot(self.state)
        self.journal: list[bytes] = []
        self.next = [0] * PARTITIONS
        self.done: set[int] = set()
        self.held: dict[int, tuple[int, int, int, int]] = {}  # id -> client, deadline, since, tries
        self.waiting: dict[int, tuple[int, int]] = {}  # id -> due, tries
        self.stale: dict[tuple[int, int], int] = {}  # client, id -> deadline, from before a seek
        self.repositioned: set[int] = set()  # since the journal was written

    def advance(self, partition: int, offset: int) -> None:
        while message_id.of(partition, offset) in self.done:
            offset += 1
        self.next[partition] = offset

    def fresh_end(self, partition: int, count: int) -> int:
        start = self.state.progress[partition].next
        return self.state.progress[partition].fresh_until(min(self.ends[partition], start + count))

    @rule(partition=PARTITION, skip=st.integers(0, 30), count=st.integers(1, 20))
    def skip_ahead(self, partition: int, skip: int, count: int) -> None:
        start = self.next[partition] + skip
        end = min(self.ends[partition], start + count)
        if start >= end:
            return
        self.state.progress[partition].skip(start, end)
        self.done.update(message_id.of(partition, offset) for offset in range(start, end))
        self.advance(partition, self.next[partition])

    @rule(partition=PARTITION, count=st.integers(1, 700))
    def publish(self, partition: int, count: int) -> None:
        self.ends[partition] += count

    @rule(ms=st.integers(0, 40))
    def wait(self, ms: int) -> None:
        self.now += ms
        lost = self.state.expire(self.now)
        self.stale = {key: until for key, until in self.stale.items() if until > self.now}
        over = [n for n, (_, deadline, _, _) in self.held.items() if deadline <= self.now]
        assert sum(lost.values()) == len(over)
        for number in over:
            self.waiting[number] = (self.now, self.held.pop(number)[3])

    @rule(partition=PARTITION, count=st.integers(1, 600), client=CLIENTS, ms=st.integers(1, 50))
    def deliver(self, partition: int, count: int, client: int, ms: int) -> None:
        start = self.state.progress[partition].next
        end = self.fresh_end(partition, count)
        if start >= end:
            return
        self.state.deliver(partition, start, end, client, self.now, ms)
        for offset in range(start, end):
            held = (client, self.now + ms, self.now, 1)
            self.held[message_id.of(partition, offset)] = held
        self.advance(partition, end)

    @rule(partition=PARTITION, count=st.integers(1, 20), ms=st.integers(1, 50), skip=st.booleans())
    def defer_or_skip(self, partition: int, count: int, ms: int, skip: bool) -> None:
        start = self.state.progress[partition].next
        end = self.fresh_end(partition, count)
        if start >= end:
            return
        ids = [message_id.of(partition, offset) for offset in range(start, end)]
        if skip:
            self.state.progress[partition].skip(start, end)
            self.done.update(ids)
        else:
            self.state.defer(partition, start, end, self.now + ms)
            self.waiting.update(dict.fromkeys(ids, (self.now + ms, 0)))
        self.advance(partition, end)

    @rule(limit=st.integers(1, 30), client=CLIENTS, drop=st.booleans())
    def take_due(self, limit: int, client: int, drop: bool) -> None:
        retries = self.state.due(self.now, limit)
        expected = sorted(
            (due, number) for number, (due, _) in self.waiting.items() if due <= self.now
        )[:limit]
        assert [retry.id for retry in retries] == [number for _, number in expected]
        assert [retry.attempts for retry in retries] == [self.waiting[n][1] for _, n in expected]
        if drop:
            self.state.drop(retries)
            self.done.update(retry.id for retry in retries)
        else:
            self.state.redeliver(retries, client, self.now, 30)
        for retry in retries:
            del self.waiting[retry.id]
            if not drop:
                held = (client, self.now + 30, self.now, retry.attempts + 1)
                self.held[retry.id] = held

    @precondition(lambda self: self.held)
    @rule(data=st.data(), client=CLIENTS)
    def finish(self, data: st.DataObject, client: int) -> None:
        known = sorted({*self.held, *(number for _, number in self.stale)})
        some = data.draw(st.lists(st.sampled_from(known), max_size=40))
        first = data.draw(st.integers(0, len(known)))
        ids = [*known[first : first + data.draw(st.integers(0, 600))], *some, 5 << 48, -1]
        taken = self.state.finish(client, np.array(ids, np.int64))
        for number, done in zip(ids, taken.tolist(), strict=True):
            was_before = self.stale.pop((client, number), None) is not None
            mine = not was_before and number in self.held and self.held[number][0] == client
            assert done == mine
            if mine:
                del self.held[number]
                self.done.add(number)

    @precondition(lambda self: self.held)
    @rule(data=st.data(), client=CLIENTS, ms=st.integers(0, 50))
    def requeue(self, data: st.DataObject, client: int, ms: int) -> None:
        number = data.draw(st.sampled_from(sorted(self.held)))
        mine = self.held[number][0] == client
        if mine:
            mine = self.stale.pop((client, number), None) is None
        elif self.state.in_flight.of(client):
            self.stale.pop((client, number), None)
        assert self.state.requeue(client, number, self.now + ms) == mine
        if mine:
            self.waiting[number] = (self.now + ms, self.held.pop(number)[3])

    @precondition(lambda self: self.held)
    @rule(data=st.data(), client=CLIENTS, ms=st.integers(1, 90))
    def touch(self, data: st.DataObject, client: int, ms: int) -> None:
        number = data.draw(st.sampled_from(sorted(self.held)))
        owner, _, since, tries = self.held[number]
        assert self.state.in_flight.touch(client, number, self.now, ms, 100) == (owner == client)
        if owner == client:
            self.held[number] = (owner, min(self.now + ms, since + 100), since, tries)

    @rule(client=CLIENTS)
    def disconnect(self, client: int) -> None:
        mine = [number for number, held in self.held.items() if held[0] == client]
        assert self.state.release(client, self.now) == len(mine)
        self.stale = {key: until for key, until in self.stale.items() if key[0] != client}
        for number in mine:
            self.waiting[number] = (self.now, self.held.pop(number)[3])

    @rule(data=st.data(), partition=PARTITION)
    def seek(self, data: st.DataObject, partition: int) -> None:
        offset = data.draw(st.integers(0, self.ends[partition]))
        self.state.seek(partition, offset)
        self.repositioned.add(partition)
        self.next[partition] = offset
        for number, (client, deadline, _, _) in self.held.items():
            if message_id.of(partition, offset) <= number < message_id.of(partition + 1, 0):
                key = (client, number)
                self.stale[key] = max(deadline, self.stale.get(key, 0))
        for known in (self.held, self.waiting):
            for number in [n for n in known if message_id.split(n)[0] == partition]:
                del known[number]
        self.done = {n for n in self.done if message_id.split(n)[0] != partition}
        self.done.update(message_id.of(partition, below) for below in range(offset))

    @rule(data=st.data(), partition=PARTITION)
    def drop_below(self, data: st.DataObject, partition: int) -> None:
        offset = data.draw(st.integers(0, self.ends[partition]))
        ids = {message_id.of(partition, below) for below in range(offset)}
        gone = ids - self.done - set(self.held)
        assert self.state.drop_below(partition, offset) == len(gone)
        for number in gone & set(self.waiting):
            del self.waiting[number]
        self.done |= gone
        self.advance(partition, max(self.next[partition], offset))

    @rule()
    def write_journal(self) -> None:
        self.journal += written(self.state)
        self.repositioned.clear()

    @rule()
    def compact(self) -> None:
        self.blob = snapshot(self.state)
        self.journal = []
        self.repositioned.clear()

    @rule()
    def restart(self) -> None:
        """Restart after everything was written: nothing but time limits is forgotten."""
        self.write_journal()
        self.state, _ = restore(self.blob, self.journal, [0] * PARTITIONS, self.ends)
        for number, (_, _, _, tries) in self.held.items():
            self.waiting[number] = (0, tries)
        self.held, self.stale = {}, {}
        for number, (_, tries) in self.waiting.items():
            if number in {n for n, _, _ in self.state.retries}:
                due = next(due for n, due, _ in self.state.retries if n == number)
                # What timed out, or was let go, waits again at once: it may come earlier.
                assert due <= self.waiting[number][0]
                self.waiting[number] = (due, tries)

    @rule()
    def crash(self) -> None:
        """Restart without what was not written: messages may come again, none is lost."""
        self.state, _ = restore(self.blob, self.journal, [0] * PARTITIONS, self.ends)
        # The model learns what the state knows; that nothing unfinished is done is checked here.
        waiting = {number: (due, tries) for number, due, tries in self.state.retries}
        for partition in range(PARTITIONS):
            offset = self.state.progress[partition].next
            self.next[partition] = offset
            for number in (message_id.of(partition, below) for below in range(offset)):
                if number not in waiting:
                    done = message_id.split(number)[1] in self.state.progress[partition].done
                    assert done
                    # A seek that was not written leaves the partition as it was before it.
                    assert number in self.done or partition in self.repositioned
        self.done = {
            message_id.of(partition, offset)
            for partition in range(PARTITIONS)
            for offset in range(self.next[partition])
            if message_id.of(partition, offset) not in waiting
        } | {
            number
            for partition in range(PARTITIONS)
            for start, end in self.state.progress[partition].done
            for number in range(message_id.of(partition, start), message_id.of(partition, end))
        }
        self.waiting, self.held, self.stale = waiting, {}, {}
        self.repositioned.clear()

    @invariant()
    def agree(self) -> None:
        assert [self.state.progress[p].next for p in range(PARTITIONS)] == self.next
        counts = self.state.counts(self.ends)
        assert counts.in_flight == len(self.held)
        assert counts.ready + counts.deferred == len(self.waiting)
        ahead = sum(message_id.split(n)[1] >= self.next[message_id.split(n)[0]] for n in self.done)
        assert counts.fresh == sum(self.ends) - sum(self.next) - ahead
        for client in (1, 2, 3):
            mine = sum(1 for held in self.held.values() if held[0] == client)
            assert self.state.in_flight.of(client) == mine
        for partition in range(PARTITIONS):
            undone = [
                message_id.split(n)[1]
                for n in (*self.held, *self.waiting)
                if message_id.split(n)[0] == partition
            ]
            assert self.state.progress[partition].floor == min(undone, default=self.next[partition])
        event = self.state.next_event_ms()
        times = [held[1] for held in self.held.values()]
        if times:
            assert event is not None
            assert event <= min(times)


TestAgainstModel = AgainstModel.TestCase
TestAgainstModel.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)


@pytest.mark.parametrize(
    ("added", "floor", "ranges"),
    [
        ([(0, 3)], 3, []),
        ([(5, 7), (3, 5)], 0, [(3, 7)]),
        ([(5, 7), (9, 11), (6, 10)], 0, [(5, 11)]),
        ([(5, 7), (9, 11), (0, 5)], 7, [(9, 11)]),
        ([(5, 7), (0, 20)], 20, []),
        ([(5, 5)], 0, []),
    ],
)
def test_ranges_merge(
    added: list[tuple[int, int]], floor: int, ranges: list[tuple[int, int]]
) -> None:
    found = OffsetRangeSet(0)
    for start, end in added:
        found.add(start, end)
    assert (found.floor, list(found)) == (floor, ranges)


def test_a_queue_that_lost_its_end_gives_the_offsets_to_new_messages() -> None:
    state = ChannelState([0])
    state.deliver(0, 0, 100, 1, 0, 1_000)
    state.finish(1, np.arange(50, 100))
    state.requeue(1, 10, 5)
    journal = written(state)
    after, was_cut = restore(snapshot(ChannelState([0])), journal, [0], [60])
    assert was_cut
    assert after.progress[0].next == 60
    counts = after.counts([60])
    assert (counts.ready, counts.deferred) == (49, 1)  # 0 to 49
    again, _ = restore(snapshot(after), [], [0], [100])
    assert again.counts([100]).fresh == 40  # new messages, none taken for done
    again.deliver(0, 60, 100, 1, 0, 1_000)
    crashed, _ = restore(snapshot(again), [], [0], [100])
    assert crashed.counts([100]).ready + crashed.counts([100]).deferred == 90


def test_what_was_skipped_ahead_is_passed() -> None:
    state = ChannelState([0])
    progress = state.progress[0]
    progress.skip(0, 10)
    progress.skip(15, 20)
    assert (progress.next, progress.fresh_until(30), state.counts([30]).fresh) == (10, 15, 15)
    state, was_cut = restore(b"", written(state), [0], [30])
    assert not was_cut
    state.deliver(0, 10, 15, 1, 0, 1_000)
    progress = state.progress[0]
    assert (progress.next, progress.fresh_until(30), progress.floor) == (20, 30, 10)
    state.finish(1, np.arange(10, 15))
    assert progress.floor == 20


def test_what_the_queue_deleted_is_done() -> None:
    state = ChannelState([0])
    state.deliver(0, 0, 100, 1, 0, 1_000)
    after, _ = restore(b"", written(state), [30], [100])
    assert (after.progress[0].floor, after.counts([100]).ready) == (30, 70)


def test_a_billion_messages_behind_a_deferred_one_cost_nothing() -> None:
    state = ChannelState([0])
    state.defer(0, 0, 1, 3_600_000)
    for start in range(1, 1_000_000_000, 100_000_000):
        state.progress[0].skip(start, start + 100_000_000)
    assert len(snapshot(state)) < 100
    assert state.progress[0].floor == 0


def test_attempts_stop_at_the_largest_number() -> None:
    state = ChannelState([0])
    state.deliver(0, 0, 1, 1, 0, 10)
    for _ in range(3):
        state.release(1, 0)
        state.redeliver([Redelivery(0, ATTEMPTS_MAX)], 1, 0, 10)
    state.requeue(1, 0, 0)
    assert state.due(0, 1) == [Redelivery(0, ATTEMPTS_MAX)]


def test_a_message_far_from_what_a_client_has_is_not_its_own() -> None:
    state = ChannelState([0])
    state.deliver(0, 0, 1, 1, 0, 1_000)
    assert not state.requeue(1, 1 << 40, 0)
    assert not state.in_flight.touch(1, 1 << 40, 0, 1_000, 1_000)
    assert state.in_flight.of(1) == 1


def test_what_is_said_of_a_delivery_from_before_a_seek_counts_for_nothing() -> None:
    state = ChannelState([0])
    state.deliver(0, 0, 4, 1, 0, 1_000)
    state.seek(0, 1)
    state.deliver(0, 1, 4, 1, 10, 1_000)
    # The first answers are for what it had before, the second for what it got after.
    assert state.finish(1, np.array([0, 1, 1, 2])).tolist() == [False, False, True, False]
    assert not state.requeue(1, 3, 0)
    assert state.requeue(1, 3, 5_000)
    assert state.finish(1, np.array([2])).all()
    assert (state.progress[0].floor, state.in_flight.of(1)) == (3, 0)
    # What was not answered in time is forgotten: by then an answer is for the new delivery.
    state.seek(0, 0)
    state.deliver(0, 0, 4, 1, 20, 1_000)
    state.seek(0, 0)
    state.expire(1_020)
    state.deliver(0, 0, 4, 1, 1_020, 1_000)
    assert state.finish(1, np.arange(4)).all()


def test_a_message_that_comes_and_goes_within_a_millisecond_is_there_once() -> None:
    state = ChannelState([0])
    state.deliver(0, 0, 1, 1, 0, 1_000)
    for attempts in range(1, 4):
        state.requeue(1, 0, 5)
        assert state.due(5, 10) == [Redelivery(0, attempts)]
        state.redeliver([Redelivery(0, attempts)], 1, 5, 1_000)
        assert state.in_flight.of(1) == 1
