"""Scheduling of flows beside a design that polls, in one process: idle cost, time to a trigger.

The polling design is the one of NiFi: each component has a chain of tasks in a scheduled thread
pool; one that has nothing to do is looked at again after 10 ms. It is measured with a tenth or less
of the components, as with all of them it takes a whole core and more.
"""

from __future__ import annotations

import heapq
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

from benchmarks.table import Row, against, print_rows
from penstock.core.clock import SystemClock
from penstock.flow.scheduling.component_protocol import (
    NOTHING_DONE,
    WORKED,
    ComponentRun,
    RunOutcome,
)
from penstock.flow.scheduling.cron import CronExpression
from penstock.flow.scheduling.pool import ThreadPool
from penstock.flow.scheduling.scheduler import Scheduler
from penstock.flow.scheduling.strategy import ComponentSchedule, every
from penstock.mailbox import MailboxThread

COMPONENTS = 10_000
POLLED = 500
THREADS = 10
POLL_S = 0.010
IDLE_S = 10.0
PINGS = 1_000
PAUSE_S = 0.003
BUSY_S = 2.0
NEXT_TIMES = 20_000
AIM_IDLE_PERCENT = 0.5
AIM_P99_US = 2_000.0
AIM_NEXT_TIMES = 50_000.0
EXPRESSIONS = {
    "minutes, UTC": ("0 0/10 * * * ?", "UTC"),
    "daily, New York": ("0 30 2 * * ?", "America/New_York"),
    "last Friday, Berlin": ("0 15 10 ? * 6L", "Europe/Berlin"),
}


class Part:
    """A component that notes when it was triggered."""

    def __init__(self, batch: int = 1) -> None:
        self.queue: deque[float] = deque()
        self.waits_s: list[float] = []
        self.batch = batch
        self.triggers = 0
        self.ran = threading.Semaphore(0)

    def has_work(self, now_ms: int) -> bool:  # noqa: ARG002
        return bool(self.queue)

    def next_due_ms(self) -> None:
        return None

    def is_open(self) -> bool:
        return True

    def problems(self) -> list[str]:
        return []

    def trigger(self, run: ComponentRun) -> RunOutcome:  # noqa: ARG002
        at = time.perf_counter()
        if not self.queue:
            return NOTHING_DONE
        self.triggers += 1
        for _ in range(min(self.batch, len(self.queue))):
            self.waits_s.append(at - self.queue.popleft())
        self.ran.release()
        return WORKED

    def on_scheduled(self) -> None: ...

    def on_unscheduled(self) -> None: ...

    def on_stopped(self) -> None: ...

    def on_terminated(self) -> None: ...


class Polling:
    """The peer: a scheduled thread pool that looks at every component every 10 ms."""

    def __init__(self, parts: list[Part]) -> None:
        now_s = time.monotonic()
        self._heap = [(now_s + POLL_S * n / len(parts), n) for n in range(len(parts))]
        self._parts = parts
        self._changed = threading.Condition()
        self._ends = False
        self._threads = [threading.Thread(target=self._serve) for _ in range(THREADS)]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        with self._changed:
            self._ends = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def _serve(self) -> None:
        while True:
            with self._changed:
                while not self._ends:
                    wait_s = self._heap[0][0] - time.monotonic() if self._heap else POLL_S
                    if wait_s <= 0:
                        break
                    self._changed.wait(wait_s)
                if self._ends:
                    return
                _, number = heapq.heappop(self._heap)
            part = self._parts[number]
            worked = part.has_work(0) and part.trigger(None) is WORKED  # type: ignore[arg-type]
            with self._changed:
                due_s = time.monotonic() + (0.0 if worked else POLL_S)
                heapq.heappush(self._heap, (due_s, number))
                self._changed.notify()


@contextmanager
def scheduler() -> Iterator[Scheduler]:
    clock, pool = SystemClock(), ThreadPool("benchmark")
    with MailboxThread("benchmark scheduler", clock=clock) as thread:
        made = Scheduler(thread.processor, pool, clock=clock)
        yield made
        made.close().result()


@contextmanager
def ours(parts: list[Part], schedule: ComponentSchedule) -> Iterator[list[Callable[[], None]]]:
    """Run parts; gives what wakes each."""
    with scheduler() as made:
        for number, part in enumerate(parts):
            made.add(str(number), part, schedule)
        for number in range(len(parts)):
            started = made.start(str(number))
        started.result()
        _until_all_run(made)
        yield [made.waker(str(number)) for number in range(len(parts))]


def _until_all_run(made: Scheduler) -> None:
    while any(each.state.value != "running" for each in made.statistics().result().components):
        time.sleep(0.05)


@contextmanager
def polled(parts: list[Part]) -> Iterator[list[Callable[[], None]]]:
    polling = Polling(parts)
    try:
        yield [lambda: None] * len(parts)
    finally:
        polling.close()


def cpu_percent(seconds: float) -> float:
    """Return how much of one core this process takes while nothing happens."""
    time.sleep(0.5)
    cpu, wall = time.process_time(), time.perf_counter()
    time.sleep(seconds)
    return 100 * (time.process_time() - cpu) / (time.perf_counter() - wall)


def idle_ours() -> float:
    with scheduler() as made:
        for number in range(2 * COMPONENTS):
            made.add(str(number), Part(), every("1 hour") if number % 2 else ComponentSchedule())
            made.start(str(number))
        _until_all_run(made)
        return cpu_percent(IDLE_S)


def idle_polling() -> float:
    with polled([Part() for _ in range(POLLED)]):
        return cpu_percent(IDLE_S / 3)


def to_trigger_us(part: Part, wake: Callable[[], None]) -> tuple[float, float]:
    """Return median and 99th percentile of the time from an event to its trigger."""
    for _ in range(PINGS):
        time.sleep(PAUSE_S)  # lets all threads fall asleep: that is what is measured
        part.queue.append(time.perf_counter())
        wake()
        part.ran.acquire()
    waits = sorted(part.waits_s)
    return waits[len(waits) // 2] * 1e6, waits[len(waits) * 99 // 100] * 1e6


def latency_ours() -> tuple[float, float]:
    parts = [Part() for _ in range(100)]
    with ours(parts, ComponentSchedule()) as wakers:
        return to_trigger_us(parts[0], wakers[0])


def latency_polling() -> tuple[float, float]:
    parts = [Part() for _ in range(100)]
    with polled(parts) as wakers:
        return to_trigger_us(parts[0], wakers[0])


def busy_ours() -> float:
    parts = [Part() for _ in range(20)]
    with ours(parts, ComponentSchedule()) as wakers:
        return _busy(parts, wakers)


def busy_polling() -> float:
    parts = [Part() for _ in range(20)]
    with polled(parts) as wakers:
        return _busy(parts, wakers)


def _busy(parts: list[Part], wakers: list[Callable[[], None]]) -> float:
    for part, wake in zip(parts, wakers, strict=True):
        part.queue.extend([0.0] * 200_000)
        wake()
    started = time.perf_counter()
    before = sum(part.triggers for part in parts)
    time.sleep(BUSY_S)
    rate = (sum(part.triggers for part in parts) - before) / (time.perf_counter() - started)
    for part in parts:
        part.queue.clear()
    return rate


def next_times(text: str, zone: str) -> float:
    expression = CronExpression.parse(text, zone)
    base_ms = int(datetime(2026, 1, 15, tzinfo=UTC).timestamp() * 1000)
    at_ms: int | None = base_ms
    started = time.perf_counter()
    for _ in range(NEXT_TIMES):
        at_ms = expression.next(at_ms if at_ms is not None else base_ms)
    return NEXT_TIMES / (time.perf_counter() - started)


def run() -> list[Row]:
    """Return the rows of the table."""
    peer = "polling every 10 ms"
    idle, idle_peer = idle_ours(), idle_polling()
    (p50, p99), (p50_peer, p99_peer) = latency_ours(), latency_polling()
    name = f"scheduling: idle, {COMPONENTS:,} by event and {COMPONENTS:,} hourly"
    return [
        against(name, idle, "% core", "aim", AIM_IDLE_PERCENT, "< 1"),
        against(name, idle, "% core", f"{peer}, {POLLED} alone", idle_peer, "< 1"),
        against("scheduling: event to trigger, p50", p50, "µs", peer, p50_peer, "< 1"),
        against("scheduling: event to trigger, p99", p99, "µs", peer, p99_peer, "< 1"),
        against("scheduling: event to trigger, p99", p99, "µs", "aim", AIM_P99_US, "< 1"),
        against("scheduling: 20 busy, empty triggers", busy_ours(), "runs/s", peer, busy_polling()),
        *(
            against(f"cron: next, {case}", next_times(*given), "/s", "aim", AIM_NEXT_TIMES, ">= 1")
            for case, given in EXPRESSIONS.items()
        ),
    ]


if __name__ == "__main__":
    print_rows(run())
