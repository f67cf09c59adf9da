"""Events over HTTP: batches step by step, a sender with a virtual clock, a real server."""

from __future__ import annotations

import gzip
import http.server
import itertools
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.errors import InvalidRequest, Unavailable
from penstock.services.emitter import http_batches
from penstock.services.emitter.emitter import ComposingSink, Record, ServiceEmitter, SwitchingSink
from penstock.services.emitter.events import MetricEvent
from penstock.services.emitter.http_batches import (
    BatchOptions,
    EventBatch,
    EventBatches,
    framed,
)
from penstock.services.emitter.http_sink import HttpByFeedSink, HttpSink, HttpSinkOptions, post
from penstock.services.emitter.log_sink import LogSink
from penstock.services.emitter.service_emitter import make_sink
from penstock.services.options.resolution import resolve
from penstock.testing.clock import VirtualClock
from tests.harness.call_faults_kit import Faults

SMALL = BatchOptions(
    flush_ms=1_000,
    flush_count=3,
    batch_bytes_max=40,
    batches_waiting_max=2,
    event_bytes_max=60,
    memory_bytes_max=80,
)

STEPS = ["seal", "age", "take", "sent", "fail", "give up"]


@pytest.mark.parametrize("url", ["http://a..b:1/", "http://127.0.0.1:1/\u00e9", "http://h:x/"])
def test_a_url_that_cannot_be_asked_is_no_answer_and_ends_no_sender(url: str) -> None:
    with pytest.raises(OSError, match="no HTTP answer"):
        post(url, b"", {}, 0.1)


def test_a_batch_is_sealed_by_count_size_and_age() -> None:
    batches = EventBatches(SMALL)
    assert not batches.add(b"1" * 5, 0)
    assert not batches.add(b"2" * 5, 0)
    assert batches.add(b"3" * 5, 0.5)
    assert not batches.add(b"4" * 18, 0.6)
    assert batches.add(b"5" * 19, 0.6)  # both do not fit: the first is sealed
    assert not batches.seal_if_old(1.5)
    assert batches.seal_if_old(1.6)
    taken = [batches.take(), batches.take()]
    assert [len(one.events) for one in taken if one] == [1, 1]
    assert batches.dropped == 3  # the oldest of three


def test_large_events_go_alone_and_larger_ones_not_at_all() -> None:
    batches = EventBatches(SMALL)
    batches.add(b"a", 0)
    assert batches.add(b"L" * 20, 0)
    assert not batches.add(b"X" * 61, 0)
    assert batches.dropped == 1
    large = batches.take()
    assert large is not None
    assert large.events == [b"L" * 20]
    for _ in range(3):
        batches.add(b"M" * 20, 0)
    assert (batches.large, batches.dropped) == (2, 2)


def test_failed_batches_are_tried_again_one_after_the_fresh_ones() -> None:
    batches = EventBatches(SMALL)
    order = []
    for name in (b"a", b"b"):
        batches.add(name, 0)
        batches.seal(0)
        one = batches.take()
        assert one is not None
        batches.fail(one)
    for name in (b"c", b"d"):
        batches.add(name, 0)
        batches.seal(0)
    while (batch := batches.take()) is not None:
        order.append(batch.events[0])
        batches.sent(batch)
    assert order == [b"c", b"d", b"a"]  # and a rest
    last = batches.take()
    assert last is not None
    assert last.events == [b"b"]
    assert batches.completed == batches.begun == 4


def test_bounds_keep_to_the_memory_they_may_use() -> None:
    assert BatchOptions().waiting == 12
    assert BatchOptions(memory_bytes_max=1 << 40).waiting == 50
    tight = BatchOptions(memory_bytes_max=1 << 20)
    assert (tight.batch_bytes, tight.waiting) == (1 << 19, 2)
    with pytest.raises(InvalidRequest):
        EventBatches(BatchOptions(flush_count=0))


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("add"), st.integers(1, 70)),
            st.tuples(
                st.sampled_from(["seal", "age", "take", "sent", "fail", "give up"]), st.just(0)
            ),
        ),
        max_size=60,
    )
)
def test_every_event_is_held_sent_or_counted_as_dropped(steps: list[tuple[str, int]]) -> None:
    batches, out = EventBatches(SMALL), []
    added = gone = 0
    now_s = 0.0
    for step, size in steps:
        now_s += 0.3
        if step == "add":
            added += 1
            batches.add(b"x" * size, now_s)
        elif step == "seal":
            batches.seal(now_s)
        elif step == "age":
            batches.seal_if_old(now_s)
        elif step == "take" and (batch := batches.take()) is not None:
            out.append(batch)
        elif step == "sent" and out:
            gone += len(out[0].events)
            batches.sent(out.pop(0))
        elif step == "fail" and out:
            batches.fail(out.pop(0))
        elif step == "give up" and out:
            batches.drop(out.pop(0))
        held = batches.events + sum(len(batch.events) for batch in out)
        assert added == held + gone + batches.dropped
        assert max(batches.waiting, batches.large, batches.failed) <= 2
        fresh = batches.waiting + batches.large + sum(not batch.is_retry for batch in out)
        assert batches.completed == batches.begun - fresh


MEMORY_STEPS: list[Callable[[EventBatches], object]] = [
    lambda batches: batches.seal(9.0),
    lambda batches: batches.seal_if_old(9.0),
    lambda batches: batches.add(b"n" * 5, 0.1),
    lambda batches: batches.add(b"n" * 30, 0.1),  # the filling batch has no room for it
    lambda batches: batches.add(b"n" * 45, 0.1),  # alone
]


@pytest.mark.parametrize("step", MEMORY_STEPS)
def test_no_event_is_lost_where_memory_runs_out(step: Callable[[EventBatches], object]) -> None:
    for at in itertools.count():
        batches, faults = EventBatches(SMALL), Faults()
        for number in range(7):  # two batches wait, and a third fills
            batches.add(b"%d" % number, 0.0)
        with faults.armed_inside([http_batches.__name__], MemoryError, at):
            step(batches)
        found: list[bytes] = []
        batches.seal(9.0)
        while (batch := batches.take_last()) is not None:
            found += batch.events
            batches.sent(batch)
        known = {b"%d" % number for number in range(7)}
        assert len(known.intersection(found)) == 7 - batches.dropped, faults.raised
        assert len(found) == len(set(found))
        assert batches.completed == batches.begun  # or a flush waits without end
        if not faults.raised:
            return


class NoMemory(deque[EventBatch]):
    def append(self, item: EventBatch, /) -> None:
        raise MemoryError


def test_a_failed_batch_that_cannot_be_kept_counts_as_dropped() -> None:
    batches = EventBatches(SMALL)
    batches.add(b"a", 0)
    batches.seal(0)
    batch = batches.take()
    assert batch is not None
    batches._failed = NoMemory()
    with pytest.raises(MemoryError):
        batches.fail(batch)
    assert (batches.dropped, batches.completed) == (1, batches.begun)


def test_framing() -> None:
    events = [b'{"a":1}', b"2"]
    assert framed(events, "array") == b'[{"a":1},2]'
    assert framed(events, "newlines") == b'{"a":1}\n2\n'
    assert framed(events, "only_events") == b'{"a":1}2'


class Server:
    """What requests are answered by, in order; the last answer stays."""

    def __init__(self, clock: VirtualClock, *answers: int | None) -> None:
        self.clock = clock
        self.answers = list(answers)
        self.changed = threading.Condition()
        self.bodies: list[list[object]] = []
        self.timeouts: list[float] = []
        self.at: list[float] = []

    def __call__(self, url: str, body: bytes, headers: Mapping[str, str], timeout_s: float) -> int:
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        with self.changed:
            self.bodies.append(orjson.loads(body))
            self.timeouts.append(timeout_s)
            self.at.append(self.clock.monotonic_s())
            self.changed.notify_all()
        if answer is None:
            raise TimeoutError
        return answer

    def until(self, requests: int) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.bodies) >= requests, 120), self.bodies


class NoSpread:
    def gauss(self, mean: float, _deviation: float) -> float:
        return mean


Make = Callable[..., tuple[HttpSink, Server]]


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def make(clock: VirtualClock) -> Iterator[Make]:
    made: list[HttpSink] = []

    def build(*answers: int | None, **more: object) -> tuple[HttpSink, Server]:
        server = Server(clock, *answers)
        options = HttpSinkOptions("http://h:1/events", **more)  # type: ignore[arg-type]
        sink = HttpSink(options, clock, NoSpread(), server)  # type: ignore[arg-type]
        made.append(sink)
        return sink, server

    yield build
    for sink in made:
        try:
            sink.stop()
        except Unavailable:
            continue


def record(number: int) -> Record:
    return Record("metrics", {"n": number})


def test_events_are_sent_when_the_batch_is_full_or_old(make: Make, clock: VirtualClock) -> None:
    sink, server = make(200, batches=BatchOptions(flush_count=2))
    sink.start()
    clock.wait_for_waiting(1)
    for number in range(3):
        sink.accept(record(number))
    server.until(1)
    clock.wait_for_waiting(1)
    clock.advance(60)
    server.until(2)
    assert server.bodies == [[{"n": 0}, {"n": 1}], [{"n": 2}]]


def test_a_batch_is_tried_three_times_with_growing_pauses_then_kept(
    make: Make, clock: VirtualClock
) -> None:
    sink, server = make(
        500, None, 413, 200, timeout_min_ms=60_000, batches=BatchOptions(flush_count=1)
    )
    sink.start()
    clock.wait_for_waiting(1)
    sink.accept(record(1))
    for requests, pause_s in ((1, 1), (2, 2)):
        server.until(requests)
        clock.wait_for_waiting(1)
        clock.advance(pause_s)
    server.until(4)  # with the failed ones, without a time limit
    assert server.at == [0, 1, 3, 3]
    assert server.timeouts == [60, 59, 57, 60]
    sink.stop()
    samples = {(one.name, *one.labels): one.value for one in sink.samples()}
    assert samples[("penstock_emitter_sent_total",)] == 1
    assert samples[("penstock_emitter_failures_total",)] == 3
    assert samples[("penstock_emitter_dropped_total", ("sink", "http"))] == 0


def test_a_server_that_is_away_costs_a_try_each_half_minute(
    make: Make, clock: VirtualClock
) -> None:
    sink, server = make(None, batches=BatchOptions(flush_count=1), attempts=1)
    sink.start()
    clock.wait_for_waiting(1)
    sink.accept(record(1))
    for requests in (2, 3, 4):
        server.until(requests)
        clock.wait_for_waiting(1)
        clock.advance(30)
    server.until(5)
    assert server.at == [0, 0, 30, 60, 90]


def test_no_time_limit_is_shorter_than_any_sending(make: Make, clock: VirtualClock) -> None:
    sink, server = make(200, batches=BatchOptions(flush_count=1))
    sink.start()
    clock.wait_for_waiting(1)
    sink.accept(record(1))
    server.until(1)
    assert server.timeouts == [1.0]


def test_a_retry_that_would_come_too_late_is_left_to_the_failed_ones(
    make: Make, clock: VirtualClock
) -> None:
    sink, server = make(500, 200, batches=BatchOptions(flush_count=1))
    sink.start()
    clock.wait_for_waiting(1)
    sink.accept(record(1))
    server.until(2)
    assert server.at == [0, 0]
    assert server.timeouts == [1, 60]


def test_flush_waits_until_everything_was_sent_or_failed(make: Make) -> None:
    sink, server = make(200)
    sink.start()
    sink.accept(record(1))
    sink.flush()
    assert server.bodies == [[{"n": 1}]]
    sink.flush()


def test_a_flush_may_have_a_time_limit(make: Make, clock: VirtualClock) -> None:
    sink, _ = make(200, flush_timeout_ms=500)
    sink.accept(record(1))  # never started
    failures: list[str] = []

    def flush() -> None:
        try:
            sink.flush()
        except Unavailable as error:
            failures.append(str(error))

    thread = threading.Thread(target=flush)
    thread.start()
    clock.wait_for_waiting(1)
    clock.advance(0.5)
    thread.join()
    assert len(failures) == 1


def test_at_the_end_everything_is_tried_once_more(make: Make) -> None:
    sink, server = make(200)
    sink.accept(record(1))
    sink.stop()
    assert server.bodies == [[{"n": 1}]]
    sink.accept(record(2))
    assert len(server.bodies) == 1
    failing, server = make(None)
    failing.accept(record(1))
    with pytest.raises(Unavailable, match=r"did not accept the last 1 event$"):
        failing.stop()


def test_at_the_end_an_unexpected_error_loses_no_other_batch(clock: VirtualClock) -> None:
    """Or a flush that waits meanwhile never ends."""
    sent: list[bytes] = []

    def send(_url: str, body: bytes, _headers: Mapping[str, str], _timeout_s: float) -> int:
        if not sent:
            sent.append(b"")
            raise MemoryError
        sent.append(body)
        return 200

    options = HttpSinkOptions("http://h:1/events", BatchOptions(flush_count=1))
    sink = HttpSink(options, clock, send=send)
    for number in range(3):
        sink.accept(record(number))
    with pytest.raises(Unavailable, match=r"did not accept the last 1 event$"):
        sink.stop()
    assert sent[1:] == [b'[{"n":1}]', b'[{"n":2}]']
    assert (sink._batches.dropped, sink._batches.completed) == (1, sink._batches.begun)
    sink.flush()


@pytest.mark.parametrize("late_answer", [None, 200])
def test_at_the_end_events_behind_a_request_that_hangs_count_as_dropped(
    clock: VirtualClock, late_answer: int | None
) -> None:
    hangs, goes_on = threading.Event(), threading.Event()

    def send(*_: object) -> int:
        hangs.set()
        assert goes_on.wait(60)
        if late_answer is None:
            raise TimeoutError
        return late_answer

    options = HttpSinkOptions("http://h:1/events", BatchOptions(flush_count=1), stop_timeout_ms=20)
    sink = HttpSink(options, clock, send=send)
    sink.start()
    sink.accept(record(0))
    assert hangs.wait(60)
    sink.accept(record(1))
    sink.accept(record(2))
    with pytest.raises(Unavailable, match=r"did not answer within 0.02 s: lost the last 3 events$"):
        sink.stop()

    def dropped() -> float:
        return next(one.value for one in sink.samples() if "dropped" in one.name)

    assert dropped() == 3
    sink.flush()  # none of them is awaited
    goes_on.set()
    sink._thread.join(60)
    sink.stop()
    assert (dropped(), sink._batches.events) == (3, 0)
    assert sink._batches.completed == sink._batches.begun
    assert sink._sent.value == 0  # or a late answer counts its events twice


def test_each_feed_may_have_its_own_url(clock: VirtualClock) -> None:
    urls: list[str] = []

    def send(url: str, _body: bytes, _headers: Mapping[str, str], _timeout_s: float) -> int:
        urls.append(url)
        return 200

    def make(url: str) -> HttpSink:
        return HttpSink(HttpSinkOptions(url), clock, send=send)

    sink = HttpByFeedSink("http://h:1/{feed}", make)
    for feed in ("metrics", "a/b", "metrics"):
        sink.accept(Record(feed, {}))
    sink.stop()
    assert urls == ["http://h:1/metrics", "http://h:1/a%2Fb"]
    sent = {one.labels: one.value for one in sink.samples() if "sent" in one.name}
    assert sent == {(("feed", "metrics"),): 2, (("feed", "a/b"),): 1}
    for number in range(30):
        sink.accept(Record(f"f{number}", {}))
    with pytest.raises(InvalidRequest, match="exceeds the limit of"):
        sink.accept(Record("another", {}))
    with pytest.raises(InvalidRequest):
        HttpByFeedSink("http://h:1/", make)


def test_a_real_server_reads_what_is_sent() -> None:
    got: list[tuple[str, dict[str, str], bytes]] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            got.append((self.path, dict(self.headers), body))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        url = f"http://127.0.0.1:{server.server_address[1]}/in?x=1"
        options = HttpSinkOptions(url, compress=True, credentials="user:pass word")
        sink = HttpSink(options, VirtualClock())
        sink.accept(record(7))
        sink.stop()
        server.shutdown()
        serving.join()
    ((path, headers, body),) = got
    assert path == "/in?x=1"
    assert headers["Authorization"] == "Basic dXNlcjpwYXNzIHdvcmQ="
    assert orjson.loads(gzip.decompress(body)) == [{"n": 7}]
    with pytest.raises(OSError):
        post(url, b"", {}, 1)


def test_the_time_limit_of_a_request_is_for_all_of_its_reads() -> None:
    """It was for each read: a server that sent a byte now and then held the sender for hours."""

    def drip(connected: socket.socket) -> None:
        connected.sendall(b"HTTP/1.1 200 OK\r\nX: ")
        for _ in range(60):
            connected.sendall(b"x")
            time.sleep(0.05)
        connected.sendall(b"\r\n\r\n")

    with raw_server(drip) as url, pytest.raises(OSError, match="timed out"):
        post(url, b"[]", {}, 0.5)


def test_a_request_does_not_wait_for_the_body_of_its_answer() -> None:
    is_answered = threading.Event()

    def answer(connected: socket.socket) -> None:
        connected.sendall(b"HTTP/1.1 202 Accepted\r\nContent-Length: 9\r\n\r\n")
        assert is_answered.wait(60)

    with raw_server(answer) as url:
        try:
            assert post(url, b"[]", {}, 30) == 202
        finally:
            is_answered.set()


@contextmanager
def raw_server(answer: Callable[[socket.socket], None]) -> Iterator[str]:
    """Answer one request with what a function sends."""
    listening = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with listening.accept()[0] as connected:
            while not connected.recv(65_536).endswith(b"[]"):
                pass
            with suppress(ConnectionError):
                answer(connected)

    serving = threading.Thread(target=serve)
    serving.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/"
    finally:
        serving.join(60)
        listening.close()


def test_emitting_takes_microseconds_when_every_queue_is_full_and_nothing_answers() -> None:
    clock = VirtualClock()
    stuck = threading.Event()

    def hang(*_: object) -> int:
        stuck.wait(60)
        raise TimeoutError

    bounds = BatchOptions(flush_count=10, batches_waiting_max=2)
    http_sink = HttpSink(HttpSinkOptions("http://h:1", bounds), clock, send=hang)
    log_sink = LogSink(clock, capacity=10)  # not started: nobody takes what waits
    sinks = ComposingSink([http_sink, log_sink])
    emitter = ServiceEmitter({"service": "s"}, sinks, clock, capacity=100)
    http_sink.start()
    took_ns: list[int] = []

    def emit() -> None:
        mine = []
        for number in range(5_000):
            begun_ns = time.perf_counter_ns()
            emitter.emit(MetricEvent("m", number, {"d": "x"}))
            mine.append(time.perf_counter_ns() - begun_ns)
        took_ns.extend(mine)

    threads = [threading.Thread(target=emit) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    took_ns.sort()
    p50, p999 = (took_ns[int(len(took_ns) * part)] / 1_000 for part in (0.5, 0.999))
    print(f"emit: median {p50:.0f} µs, p99.9 {p999:.0f} µs, 4 threads, full queues")
    assert emitter.dropped == 20_000 - 100
    stuck.set()
    http_sink.accept(record(1))
    with pytest.raises(Unavailable):
        http_sink.stop()


def test_options_say_where_events_go() -> None:
    clock = VirtualClock()

    def made(**values: str) -> list[str]:
        sink = make_sink(resolve(values, {}), clock)
        assert isinstance(sink, ComposingSink)
        return [type(one).__name__ for one in sink._sinks]

    assert made() == ["LogSink", "PrometheusSink"]
    assert made(emitters="none") == []
    assert made(emitters="http", emitter_url="http://h:1/e") == ["HttpSink"]
    assert made(emitters="http", emitter_url="http://h:1/{feed}") == ["HttpByFeedSink"]
    with pytest.raises(InvalidRequest, match="--emitter-url"):
        made(emitters="http")
    with pytest.raises(InvalidRequest, match="is not a URL for events"):
        made(emitters="http", emitter_url="h:1")
    for wrong in ("log,none", "syslog", "log,log"):
        with pytest.raises(InvalidRequest, match="--emitters"):
            made(emitters=wrong)
    double = "alerts=log,alerts=http"
    for wrong in ("alerts", "=log", double, "alerts=syslog", "alerts=none+log", "alert=log"):
        with pytest.raises(InvalidRequest, match="--emitter-feeds"):
            made(emitter_feeds=wrong)
    with pytest.raises(InvalidRequest, match="--emitter-url"):
        made(emitter_feeds="alerts=http")


def test_feeds_may_go_to_emitters_of_their_own() -> None:
    given = {"emitters": "log", "emitter_feeds": "alerts = http+log , metrics=none"}
    sink = make_sink(resolve({**given, "emitter_url": "http://h:1/e"}, {}), VirtualClock())
    assert isinstance(sink, SwitchingSink)
    kinds = {
        feed: [type(one).__name__ for one in into._sinks] for feed, into in sink._by_feed.items()
    }
    assert kinds == {"alerts": ["HttpSink", "LogSink"], "metrics": []}
    assert [type(one).__name__ for one in sink._otherwise._sinks] == ["LogSink"]
    # The log is one and the same, whatever comes into it.
    assert [type(one).__name__ for one in sink._all._sinks] == ["LogSink", "HttpSink"]


def test_a_feed_whose_sender_cannot_start_is_tried_again(clock: VirtualClock) -> None:
    """Its events were taken in and never sent."""
    made: list[HttpSink] = []

    class Failing(HttpSink):
        def start(self) -> None:
            made.append(self)
            if len(made) == 1:
                raise RuntimeError("can't start new thread")

    sink = HttpByFeedSink("http://h:1/{feed}", lambda url: Failing(HttpSinkOptions(url), clock))
    sink.start()
    with pytest.raises(RuntimeError):
        sink.accept(Record("metrics", {}))
    sink.accept(Record("metrics", {}))
    sink.accept(Record("metrics", {}))
    assert len(made) == 2
