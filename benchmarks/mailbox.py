"""The mailbox beside asyncio's call_soon_threadsafe and queue.SimpleQueue, in one process.

Each figure is the best of a few rounds that take turns, so that a busy moment of the machine hits
all of them alike. SimpleQueue is the limit, not the peer: it is written in C and has no states,
priorities, timers or metrics.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Callable

from benchmarks.table import Row, against, print_rows
from penstock.mailbox import MailboxProcessor, MailboxThread

CALLS = 100_000
BATCH = 1_000
ROUNDS = 5
PINGS = 1_000
PAUSE_S = 0.0003
AIM_LATENCY_US = 50.0


def nothing() -> None:
    """What every mail and callback does."""


def mailbox_one_thread() -> float:
    processor = MailboxProcessor()
    execute = processor.main_executor.execute
    started = time.perf_counter()
    for _ in range(CALLS // BATCH):
        for _ in range(BATCH):
            execute(nothing, "nothing")
        processor.drain()
    return CALLS / (time.perf_counter() - started)


def mailbox_loop_one_thread() -> float:
    """The same through the running loop and its default action, which posts the next batch."""
    left = CALLS // BATCH

    def post(_: object) -> None:
        nonlocal left
        if not left:
            processor.suspend()
        left -= 1
        for _ in range(BATCH):
            execute(nothing, "nothing")

    processor = MailboxProcessor(post)
    execute = processor.main_executor.execute
    started = time.perf_counter()
    processor.run()
    return CALLS / (time.perf_counter() - started)


def asyncio_one_thread() -> float:
    async def main() -> float:
        call = asyncio.get_running_loop().call_soon_threadsafe
        started = time.perf_counter()
        for _ in range(CALLS // BATCH):
            for _ in range(BATCH):
                call(nothing)
            await asyncio.sleep(0)
        return CALLS / (time.perf_counter() - started)

    return asyncio.run(main())


def queue_one_thread() -> float:
    calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
    started = time.perf_counter()
    for _ in range(CALLS // BATCH):
        for _ in range(BATCH):
            calls.put(nothing)
        for _ in range(BATCH):
            calls.get()()
    return CALLS / (time.perf_counter() - started)


def two_threads(put: Callable[[Callable[[], object]], object]) -> float:
    """Put from this thread to the one behind `put` until it has run all."""
    done = threading.Event()
    started = time.perf_counter()
    for _ in range(CALLS):
        put(nothing)
    put(done.set)
    done.wait()
    return CALLS / (time.perf_counter() - started)


def put_to_run_us(put: Callable[[Callable[[], object]], object]) -> float:
    """Return the median time from a put to an idle thread until its call runs there."""
    ran = threading.Semaphore(0)
    at = 0.0

    def note() -> None:
        nonlocal at
        at = time.perf_counter()
        ran.release()

    times = []
    for _ in range(PINGS):
        time.sleep(PAUSE_S)  # lets the other thread fall asleep: that is what is measured
        started = time.perf_counter()
        put(note)
        ran.acquire()
        times.append(at - started)
    return sorted(times)[PINGS // 2] * 1e6


Measure = Callable[[Callable[[Callable[[], object]], object]], float]


def with_mailbox(measure: Measure) -> float:
    with MailboxThread("benchmark") as thread:
        return measure(thread.executor.execute)


def with_asyncio(measure: Measure) -> float:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        return measure(loop.call_soon_threadsafe)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def with_queue(measure: Measure) -> float:
    calls: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()

    def run_all() -> None:
        while (call := calls.get()) is not None:
            call()

    thread = threading.Thread(target=run_all)
    thread.start()
    try:
        return measure(calls.put)
    finally:
        calls.put(None)
        thread.join()


def take_turns(*measures: Callable[[], float], best: Callable[..., float] = max) -> list[float]:
    rounds = [[measure() for measure in measures] for _ in range(ROUNDS)]
    return [best(figures) for figures in zip(*rounds, strict=True)]


def run() -> list[Row]:
    """Return the rows of the table."""
    loop, drain, peer, limit = take_turns(
        mailbox_loop_one_thread, mailbox_one_thread, asyncio_one_thread, queue_one_thread
    )
    ours2, peer2, limit2 = take_turns(
        lambda: with_mailbox(two_threads),
        lambda: with_asyncio(two_threads),
        lambda: with_queue(two_threads),
    )
    ours_us, peer_us = take_turns(
        lambda: with_mailbox(put_to_run_us), lambda: with_asyncio(put_to_run_us), best=min
    )
    name = "call_soon_threadsafe"
    return [
        against("mailbox: put + run, one thread, in the loop", loop, "mails/s", name, peer, ">= 3"),
        against("mailbox: put + run, one thread, drained", drain, "mails/s", name, peer, ">= 3"),
        against("mailbox: put + run, one thread", loop, "mails/s", "SimpleQueue", limit),
        against("mailbox: put + run, two threads", ours2, "mails/s", name, peer2, ">= 2"),
        against("mailbox: put + run, two threads", ours2, "mails/s", "SimpleQueue", limit2),
        against("mailbox: idle put to run, p50", ours_us, "µs", "aim", AIM_LATENCY_US, "< 1"),
        against("mailbox: idle put to run, p50", ours_us, "µs", name, peer_us),
    ]


if __name__ == "__main__":
    print_rows(run())
