"""The queue against a sorted list: polls give the first ones, and nothing is lost."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from penstock.flow.flowfile import FlowFile
from penstock.flow.prioritizers import (
    FirstInFirstOut,
    NewestFlowFileFirst,
    PriorityAttribute,
    SortOrder,
)
from penstock.flow.queue import swap_cursors
from penstock.flow.queue.drop_requests import DropState
from penstock.flow.queue.queue import AttributeIs, FilterVerdict, FlowFileQueue, PollResult
from penstock.flow.queue.queue_size import Availability, QueueOptions
from penstock.flow.swap import swap_pages
from tests.flow.flow_queue_kit import ByNumber, FakeHome, FlowQueueWorld, flowfile, ids
from tests.harness.call_faults_kit import FAULTS

EXPIRATION_MS = 1_000
ORDERS = st.sampled_from(
    [(), (FirstInFirstOut(),), (NewestFlowFileFirst(),), (PriorityAttribute(),), (ByNumber(3),)]
)

OPERATIONS = (
    *("put", "poll", "poll_where", "give_back", "expire", "drop"),
    *("change_order", "run_jobs", "look", "availability", "options"),
)


class QueueMachine(RuleBasedStateMachine):
    """The model is a set of FlowFiles that are queued, and one of those that are taken."""

    @initialize(
        expires=st.booleans(), threshold=st.integers(1, 12), batch=st.integers(1, 9), order=ORDERS
    )
    def begin(self, *, expires: bool, threshold: int, batch: int, order: tuple) -> None:
        self.expiration_ms = EXPIRATION_MS if expires else 0
        self.options = QueueOptions(threshold, batch, self.expiration_ms)
        self.jobs = []
        self.world = FlowQueueWorld(self.options, background=self.jobs.append)
        self.order = SortOrder(order)
        self.world.order(order)
        self.queued: dict[int, FlowFile] = {}
        self.taken: dict[int, FlowFile] = {}
        self.seen_swept = 0
        self.number = 0

    @property
    def queue(self) -> FlowFileQueue:
        return self.world.queue

    @property
    def now(self) -> int:
        return self.world.clock.now_ms()

    def make(self, priority: int, penalty_ms: int, age_ms: int) -> FlowFile:
        self.number += 1
        return flowfile(
            self.number,
            priority if priority < 7 else None,
            entry_ms=self.now - age_ms,
            lineage_start_ms=self.now - age_ms // 3,
            lineage_index=priority,
            queued_ms=self.now,
            penalty_until_ms=self.now + penalty_ms if penalty_ms > 0 else 0,
        )

    flowfiles = st.tuples(
        st.integers(0, 9), st.integers(-900, 300), st.sampled_from([0, 0, 0, 500, 990])
    )

    @rule(values=st.lists(flowfiles, max_size=14))
    def put_many(self, values: list[tuple[int, int, int]]) -> None:
        made = [self.make(*value) for value in values]
        self.world.put(*made)
        self.queued |= {one.id: one for one in made}

    @rule(value=flowfiles)
    def put(self, value: tuple[int, int, int]) -> None:
        self.put_many([value])

    @rule(limit=st.integers(1, 20))
    def poll(self, limit: int) -> None:
        expected = self.ordered()[:limit]
        polled = self.queue.poll_many(limit)
        assert ids(polled.flowfiles) == ids(expected)
        assert polled.flowfiles == expected
        self.take(polled)

    @rule(modulus=st.integers(1, 4), wanted=st.integers(1, 6))
    def poll_where(self, modulus: int, wanted: int) -> None:
        found: list[FlowFile] = []

        def accept(one: FlowFile) -> FilterVerdict:
            if one.id % modulus:
                return FilterVerdict.REJECT
            found.append(one)
            return FilterVerdict.ACCEPT_AND_STOP if len(found) == wanted else FilterVerdict.ACCEPT

        liked = [one for one in self.ordered() if one.id % modulus == 0][:wanted]
        polled = self.queue.poll_where(accept)
        assert ids(polled.flowfiles) == ids(liked)[: len(polled.flowfiles)]
        if len(self.queued) <= self.options.swap_threshold:
            assert len(polled.flowfiles) == len(liked)
        self.take(polled)

    @rule()
    def poll_where_fails(self) -> None:
        def accept(one: FlowFile) -> FilterVerdict:
            raise KeyError(one.id)

        if self.ordered():
            with pytest.raises(KeyError):
                self.queue.poll_where(accept)
            self.account_swept()

    def take(self, polled: PollResult) -> None:
        for one in polled.flowfiles:
            self.taken[one.id] = self.queued.pop(one.id)
        self.world.home.commit(polled.expired)
        self.expired(polled.expired)
        assert sum(one.count for one in polled.expired_rows) == self.account_swept()

    def expired(self, flowfiles: list[FlowFile]) -> None:
        for one in flowfiles:
            assert self.is_expired(one)
            del self.queued[one.id]
            self.world.home._leave(one.id)

    def account_swept(self) -> int:
        new = self.world.home.swept[self.seen_swept :]
        self.seen_swept += len(new)
        for number in new:
            assert self.is_expired(self.queued.pop(number))
        return len(new)

    @precondition(lambda self: self.taken)
    @rule(data=st.data())
    def acknowledge(self, data: st.DataObject) -> None:
        gone = data.draw(st.sets(st.sampled_from(sorted(self.taken))))
        sizes = [self.taken.pop(number).size for number in gone]
        for number in gone:
            self.world.home._leave(number)
        self.queue.acknowledge(len(gone), sum(sizes))

    @precondition(lambda self: self.taken)
    @rule(data=st.data(), penalty_ms=st.sampled_from([0, 0, 50, 400]))
    def give_back(self, data: st.DataObject, penalty_ms: int) -> None:
        back = data.draw(st.sets(st.sampled_from(sorted(self.taken))))
        flowfiles = [self.taken.pop(number) for number in sorted(back)]
        size_bytes = sum(one.size for one in flowfiles)
        if penalty_ms:
            until = self.now + penalty_ms
            flowfiles = [msgspec.structs.replace(one, penalty_until_ms=until) for one in flowfiles]
            self.world.home.commit(flowfiles)
        self.queue.put_many(flowfiles)
        self.queue.acknowledge(len(flowfiles), size_bytes)
        self.queued |= {one.id: one for one in flowfiles}

    @rule(order=ORDERS)
    def change_order(self, order: tuple) -> None:
        self.order = SortOrder(order)
        self.world.order(order)

    @rule(ms=st.integers(1, 500))
    def wait(self, ms: int) -> None:
        self.world.clock.advance(ms=ms)

    @rule()
    def expire(self) -> None:
        polled = self.queue.expire()
        self.take(polled)
        assert not any(self.is_expired(one) for one in self.queued.values())

    @rule(kind=st.integers(0, 3))
    def drop(self, kind: int) -> None:
        predicate = None if kind == 3 else lambda attributes: attributes["kind"] == f"k{kind}"
        request = self.queue.drop(predicate)
        self.run_jobs()
        gone = [n for n, one in self.queued.items() if kind == 3 or n % 3 == kind]
        if gone and self.world.home.is_full:
            assert request.progress.state is DropState.FAILED
            assert (request.progress.failure, request.progress.dropped_count) != ("", 0)
            return
        assert request.progress.dropped_count == len(gone)
        assert request.progress.dropped_bytes == sum(self.queued.pop(n).size for n in gone)
        self.seen_swept = len(self.world.home.swept)

    @rule()
    def run_jobs(self) -> None:
        while self.jobs:
            self.jobs.pop(0)()

    @rule(full=st.booleans())
    def disk_full(self, *, full: bool) -> None:
        self.world.home.is_full = full and not self.expiration_ms

    @rule(seed=st.integers(0, 2**32))
    def crash(self, seed: int) -> None:
        home = self.world.home.restarted(self.world.home.fs.crash(seed))
        clock = self.world.clock
        self.jobs.clear()
        self.world = FlowQueueWorld(
            self.options, home=home, clock=clock, background=self.jobs.append
        )
        # As a controller does: the order is known before anything is put.
        self.world.order(self.order.prioritizers)
        self.queue.restore(*home.recovered())
        self.queued |= self.taken
        self.taken = {}
        self.seen_swept = 0

    @rule(
        error=st.sampled_from(FAULTS),
        at=st.integers(0, 9) | st.integers(0, 60),
        operation=st.sampled_from(OPERATIONS),
        data=st.data(),
    )
    def fault(
        self, error: type[BaseException], at: int, operation: str, data: st.DataObject
    ) -> None:
        """Raise something unexpected at one call of a port: nothing is lost, doubled or stuck."""
        faults, queue, polled = self.world.faults, self.queue, PollResult([])
        if operation == "put":
            made = [self.make(*value) for value in data.draw(st.lists(self.flowfiles, max_size=9))]
            self.world.home.commit(made)
            with faults.armed(error, at):
                queue.put_many(made)
            self.queued |= {one.id: one for one in made}
        elif operation == "give_back":
            back = list(self.taken.values())
            with faults.armed(error, at):
                queue.put_many(back)
            queue.acknowledge(len(back), sum(one.size for one in back))
            self.queued |= self.taken
            self.taken = {}
        elif operation == "change_order":
            order = data.draw(ORDERS)
            with faults.armed(error, at):
                self.world.order(order)
            if queue._queue_state.main.order == SortOrder(order).text:
                self.order = SortOrder(order)
        else:
            limit = data.draw(st.integers(1, 20))
            before = len(self.world.home.removed)
            with faults.armed(error, at):
                if operation == "poll":
                    polled = queue.poll_many(limit)
                elif operation == "poll_where":
                    polled = queue.poll_where(
                        lambda one: FilterVerdict.ACCEPT if one.id % 3 else FilterVerdict.REJECT
                    )
                elif operation == "expire":
                    polled = queue.expire()
                elif operation == "drop":
                    queue.drop(lambda attributes: attributes["kind"] == "k1")
                    self.run_jobs()
                elif operation == "run_jobs":
                    self.run_jobs()
                elif operation == "look":
                    queue.listing.first(limit)
                    queue.listing.count_by("kind")
                elif operation == "availability":
                    queue.availability(self.now)
                    queue.next_due_ms()
                else:
                    queue.set_options(self.options)
            for number in self.world.home.removed[before:]:
                del self.queued[number]
        self.after_fault(polled)

    def after_fault(self, polled: PollResult) -> None:
        home = self.world.home
        for number in home.swept[self.seen_swept :]:
            del self.queued[number]
        self.seen_swept = len(home.swept)
        for one in polled.flowfiles:
            self.taken[one.id] = self.queued.pop(one.id)
        home.commit(polled.expired)
        self.expired(polled.expired)
        assert not home.damages
        # What could not be read is tried again after a moment, by whatever comes next.
        self.world.clock.advance(ms=1_001)
        self.queue.listing.first(1)

    @rule(limit=st.integers(1, 30))
    def look(self, limit: int) -> None:
        if not self.expiration_ms:
            now = self.now
            later = [one for one in self.queued.values() if one.penalty_until_ms > now]
            later.sort(key=lambda one: (one.penalty_until_ms, one.id))
            assert ids(self.queue.listing.first(limit)) == ids([*self.ordered(), *later][:limit])
        assert sum(self.queue.listing.count_by("kind").values()) == len(self.queued)
        number = limit % (self.number + 1)
        found = self.queue.listing.search(AttributeIs("uuid", f"u{number}"), 1)
        assert bool(found) == (number in self.queued)
        liked = self.queue.listing.search(lambda attributes: attributes["kind"] == "k1", 1_000)
        assert set(ids(liked)) == {number for number in self.queued if number % 3 == 1}

    @invariant()
    def sizes_are_right(self) -> None:
        if not hasattr(self, "options"):
            return
        size = self.queue.size
        every = [*self.queued.values(), *self.taken.values()]
        assert (size.count, size.size_bytes) == (len(every), sum(one.size for one in every))
        assert size.unacknowledged_count == len(self.taken)
        assert min(size.active_count, size.active_bytes, size.swapped_count) >= 0
        assert min(size.swapped_bytes, size.unacknowledged_bytes) >= 0

    @invariant()
    def availability_is_right(self) -> None:
        if not hasattr(self, "options"):
            return
        due = [one for one in self.queued.values() if one.penalty_until_ms <= self.now]
        expected = (
            Availability.AVAILABLE
            if due
            else Availability.PENALIZED
            if self.queued
            else Availability.EMPTY
        )
        assert self.queue.availability(self.now) is expected
        if self.queued and not due:
            first = min(one.penalty_until_ms for one in self.queued.values())
            assert self.queue.next_due_ms() == first

    def is_expired(self, one: FlowFile) -> bool:
        return 0 < self.expiration_ms < self.now - one.entry_ms

    def ordered(self) -> list[FlowFile]:
        now = self.now
        due = [
            one
            for one in self.queued.values()
            if one.penalty_until_ms <= now and not self.is_expired(one)
        ]
        return [one for _, one in sorted(zip(self.order.keys(due), due, strict=True))]

    def teardown(self) -> None:
        if hasattr(self, "options"):
            self.world.clock.advance(1)
            self.poll(10_000)
            assert not any(one.penalty_until_ms <= self.now for one in self.queued.values())


QueueMachine.TestCase.settings = settings(stateful_step_count=40)


class TestQueueMachine(QueueMachine.TestCase):
    @pytest.fixture(autouse=True)
    def _small(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(swap_pages, "PAGE_ROWS", 3)
        monkeypatch.setattr(swap_cursors, "WINDOW_ROWS_MIN", 1)
        monkeypatch.setattr(swap_cursors, "WINDOW_ROWS_MAX", 4)


def test_the_home_of_the_tests_checks_what_it_is_told() -> None:
    home = FakeHome()
    home.commit([flowfile(1), flowfile(2)])
    file = home.swap_out("q", [flowfile(1), flowfile(2)], "o")
    home.loaded(file, [0], [1])
    with pytest.raises(AssertionError):
        home.loaded(file, [0], [1])
