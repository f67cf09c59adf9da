"""What an nsqlookupd is told: the pure machine, and a broker against a small nsqlookupd."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import struct
import threading
from collections.abc import Callable, Coroutine, Iterator
from types import SimpleNamespace
from typing import TYPE_CHECKING, TypeVar, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.broker.lookupd.announcer import LookupOptions, split_address
from penstock.broker.lookupd.registration import Registration
from penstock.broker.lookupd.topic_directory import ChannelInheritance, parse_channels
from penstock.broker.options import BrokerOptions
from penstock.core.errors import InvalidRequest, Unavailable
from tests.broker.broker_kit import RunningBroker
from tests.broker.v2_kit import V2

Answer = TypeVar("Answer")

if TYPE_CHECKING:
    from penstock.broker.lookupd.announcer import LookupdAnnouncer
    from penstock.broker.topics.channel_changes import ChannelChanges
    from penstock.broker.topics.topic import Topic

IDENTITY = b'{"broadcast_address":"here"}'
HELLO = b"  V1IDENTIFY\n" + struct.pack(">i", len(IDENTITY)) + IDENTITY


def answered(*answers: bytes) -> bytes:
    return b"".join(struct.pack(">i", len(answer)) + answer for answer in answers)


KNOWN = answered(b'{"tcp_port":4160,"http_port":4161,"broadcast_address":"there"}')
OK = answered(b"OK")


class Topics(dict[str, set[str]]):
    def names(self) -> list[str]:
        return list(self)

    def channels(self, topic: str) -> set[str] | None:
        return self.get(topic)


def registration(topics: Topics) -> Registration:
    return Registration(IDENTITY, topics, ping_interval_s=15.0, timeout_s=1.0)


def told(topics: Topics) -> Registration:
    """One that has told everything."""
    made = registration(topics)
    made.opened(0.0)
    assert made.take_output(0.0) == HELLO
    made.receive_data(KNOWN, 0.0)
    made.receive_data(OK * made.take_output(0.0).count(b"\n"), 0.0)
    return made


def test_it_says_who_it_is_and_then_what_it_has() -> None:
    made = registration(Topics(a={"y", "x"}, b=set()))
    assert made.take_output(0.0) == b""
    made.opened(0.0)
    assert made.take_output(0.0) == HELLO
    assert made.take_output(0.5) == b""
    was_identified = made.identified
    made.receive_data(KNOWN, 0.5)
    assert (was_identified, made.identified) == (False, True)
    assert made.http_address == "there:4161"
    assert made.take_output(0.5) == b"REGISTER a x\nREGISTER a y\nREGISTER b\n"


def test_what_comes_and_goes_is_told_once() -> None:
    topics = Topics(a={"x"})
    made = told(topics)
    topics["b"] = set()
    topics["a"] = {"z"}
    for name in "aba":
        made.changed(name)
    assert made.take_output(1.0) == b"REGISTER a z\nUNREGISTER a x\nREGISTER b\n"
    made.receive_data(OK * 3, 1.0)
    del topics["b"]
    made.changed("b")
    made.changed("never was")
    made.changed("a")
    assert made.take_output(2.0) == b"UNREGISTER b\n"


def test_it_pings_when_it_has_nothing_else_to_say() -> None:
    topics = Topics()
    made = told(topics)
    assert made.next_check_s(0.0) == 15.0
    assert made.take_output(14.9) == b""
    assert made.take_output(15.0) == b"PING\n"
    made.receive_data(OK, 15.1)
    topics["a"] = set()
    made.changed("a")
    assert made.take_output(20.0) == b"REGISTER a\n"
    made.receive_data(OK, 20.0)
    assert made.take_output(34.9) == b""
    assert made.take_output(35.0) == b"PING\n"


def test_an_answer_that_is_missing_ends_the_connection() -> None:
    made = told(Topics())
    made.require_answers(14.0)
    assert made.take_output(15.0) == b"PING\n"
    made.require_answers(15.9)
    assert made.next_check_s(15.9) == pytest.approx(0.1)
    with pytest.raises(Unavailable, match="no answer within 1 s"):
        made.require_answers(16.0)


def test_a_new_connection_tells_everything_again() -> None:
    topics = Topics(a={"x"})
    made = told(topics)
    made.changed("a")
    made.closed()
    assert not made.identified
    assert made.take_output(1.0) == b""
    made.changed("a")
    made.opened(2.0)
    assert made.take_output(2.0) == HELLO
    made.receive_data(KNOWN, 2.0)
    assert made.take_output(2.0) == b"REGISTER a x\n"


def test_very_many_topics_go_out_in_a_window() -> None:
    topics = Topics({f"t{number}": set() for number in range(1200)})
    made = registration(topics)
    made.opened(0.0)
    made.take_output(0.0)
    made.receive_data(KNOWN, 0.0)
    sizes = []
    while output := made.take_output(0.0):
        sizes.append(output.count(b"\n"))
        made.receive_data(OK * sizes[-1], 0.0)
    assert sizes == [500, 500, 200]


@pytest.mark.parametrize(
    "answer",
    [
        answered(b"E_INVALID client must IDENTIFY"),
        answered(b"E_BAD_PROTOCOL"),
        answered(b"[]"),
        struct.pack(">i", -1),
        struct.pack(">i", 1 << 30),
        b"HTTP/1.1 400 Bad Request",
        KNOWN + OK,
    ],
)
def test_who_is_no_nsqlookupd_is_not_told(answer: bytes) -> None:
    made = registration(Topics())
    made.opened(0.0)
    made.take_output(0.0)
    with pytest.raises(InvalidRequest):
        made.receive_data(answer, 0.0)


def test_a_refused_command_ends_the_connection() -> None:
    topics = Topics()
    made = told(topics)
    topics["a"] = set()
    made.changed("a")
    made.take_output(1.0)
    with pytest.raises(InvalidRequest, match="E_BAD_TOPIC"):
        made.receive_data(answered(b"E_BAD_TOPIC"), 1.0)


@pytest.mark.parametrize("answer", [b"{}", b'{"broadcast_address": 7, "http_port": "x"}'])
def test_an_nsqlookupd_need_not_say_where_its_http_is(answer: bytes) -> None:
    made = registration(Topics())
    made.opened(0.0)
    made.receive_data(answered(answer), 0.0)
    assert made.identified
    assert made.http_address is None


NAMES = st.sampled_from(["a", "b", "c"])


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("set"), NAMES, st.frozensets(NAMES)),
            st.tuples(st.just("delete"), NAMES, st.none()),
            st.tuples(st.just("talk"), st.none(), st.none()),
            st.tuples(st.just("reconnect"), st.none(), st.none()),
        ),
        max_size=30,
    ),
    st.integers(1, 9),
)
def test_the_other_side_knows_in_the_end_what_is_there(
    steps: list[tuple[str, str | None, frozenset[str] | None]], cut: int
) -> None:
    topics, known = Topics(), Known()
    made = registration(topics)
    made.opened(0.0)

    def talk() -> None:
        while output := made.take_output(0.0):
            answers = known.take(output)
            for start in range(0, len(answers), cut):
                made.receive_data(answers[start : start + cut], 0.0)

    for what, topic, channels in steps:
        if what == "set":
            assert topic is not None
            topics[topic] = set(channels or ())
            made.changed(topic)
        elif what == "delete":
            assert topic is not None
            topics.pop(topic, None)
            made.changed(topic)
        elif what == "reconnect":
            made.closed()
            known = Known()
            made.opened(0.0)
        else:
            talk()
    talk()
    assert known.topics == topics


class Known:
    """What an nsqlookupd knows of one broker."""

    def __init__(self) -> None:
        self.identity: dict[str, object] | None = None
        self.topics: dict[str, set[str]] = {}
        self.pings = 0
        self._buffer = b""

    def take(self, data: bytes, http_port: int = 4161) -> bytes:
        """Carry out commands; returns the answers."""
        self._buffer = (self._buffer + data).removeprefix(b"  V1")
        answers = []
        while b"\n" in self._buffer:
            line, rest = self._buffer.split(b"\n", 1)
            command, *names = line.decode().split(" ")
            if command == "IDENTIFY":
                size = struct.unpack(">i", rest[:4])[0]
                self.identity, rest = json.loads(rest[4 : 4 + size]), rest[4 + size :]
                document = {"broadcast_address": "127.0.0.1", "http_port": http_port}
                answers.append(json.dumps(document).encode())
            else:
                assert self.identity is not None
                answers.append(b"OK")
            self._buffer = rest
            self._note(command, *names)
        return answered(*answers)

    def _note(self, command: str, topic: str = "", channel: str = "") -> None:
        if command == "PING":
            self.pings += 1
        elif command == "REGISTER":
            self.topics.setdefault(topic, set()).update({channel} - {""})
        elif command == "UNREGISTER" and channel:
            self.topics.get(topic, set()).discard(channel)
        elif command == "UNREGISTER":
            self.topics.pop(topic, None)


class Nsqlookupd:
    """A small nsqlookupd on a thread: the TCP side, and ``/channels`` over HTTP."""

    def __init__(self, port: int = 0) -> None:
        self.known: Known | None = None
        self.connections = 0
        self.channels: dict[str, list[str]] = {}
        self._changed = threading.Condition()
        self._writers: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self.port, self.http_port = self._run(self._start(port))

    async def _start(self, port: int) -> tuple[int, int]:
        self._tcp = await asyncio.start_server(self._serve, "127.0.0.1", port)
        self._http = await asyncio.start_server(self._serve_http, "127.0.0.1", 0)
        tcp, http = (one.sockets[0].getsockname()[1] for one in (self._tcp, self._http))
        return int(tcp), int(http)

    def _run(self, work: Coroutine[object, object, Answer]) -> Answer:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(120)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        known = Known()
        self._writers.add(writer)
        with self._changed:
            self.known = known
            self.connections += 1
        try:
            while data := await reader.read(65536):
                answers = known.take(data, self.http_port)
                writer.write(answers)
                with self._changed:
                    self._changed.notify_all()
        finally:
            with self._changed:
                if self.known is known:
                    self.known = None
                self._changed.notify_all()
            self._writers.discard(writer)
            writer.close()

    async def _serve_http(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        target = head.split(b" ")[1].decode()
        assert target.startswith("/channels?topic=")
        body = json.dumps({"channels": self.channels.get(target.split("=")[1], [])}).encode()
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
        writer.close()

    def wait(self, condition: Callable[[Known | None], bool]) -> None:
        """Wait until what is known is as the test says."""
        with self._changed:
            assert self._changed.wait_for(lambda: condition(self.known), 120), (
                self.known and self.known.topics
            )

    def hang_up(self) -> None:
        async def close() -> None:
            for writer in tuple(self._writers):
                writer.transport.abort()

        self._run(close())

    def stop(self) -> None:
        async def close() -> None:
            self._tcp.close()
            self._http.close()
            for writer in tuple(self._writers):
                writer.transport.abort()
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            await asyncio.gather(*tasks, return_exceptions=True)

        self._run(close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@pytest.fixture
def lookupd() -> Iterator[Nsqlookupd]:
    made = Nsqlookupd()
    yield made
    made.stop()


@pytest.fixture
def options(options: BrokerOptions, lookupd: Nsqlookupd) -> BrokerOptions:
    addresses = (f"127.0.0.1:{lookupd.port}",)
    return dataclasses.replace(
        options,
        tcp_port=0,
        lookup=LookupOptions(tcp_addresses=addresses, timeout_ms=5_000, retry_ms=100),
    )


def test_a_broker_is_known_with_all_that_comes_and_goes(
    broker: RunningBroker, lookupd: Nsqlookupd
) -> None:
    lookupd.wait(lambda known: known is not None and known.identity is not None)
    assert lookupd.known is not None
    identity = lookupd.known.identity
    assert identity is not None
    assert identity["broadcast_address"] == "127.0.0.1"
    assert identity["tcp_port"] == broker.server.broker.tcp_port
    assert identity["http_port"] == broker.server.http_port
    assert identity["version"] == "1.3.0"
    with V2(broker.server.broker.tcp_port) as client:
        client.subscribe("t", "c")
        lookupd.wait(lambda known: known is not None and known.topics == {"t": {"c"}})
    with V2(broker.server.broker.tcp_port) as client:
        client.publish("u", b"x")
        client.subscribe("t", "d#ephemeral")
        lookupd.wait(
            lambda known: (
                known is not None and known.topics == {"t": {"c", "d#ephemeral"}, "u": set()}
            )
        )
    lookupd.wait(lambda known: known is not None and known.topics == {"t": {"c"}, "u": set()})
    broker.ask("POST", "/topic/delete?topic=u")
    broker.ask("POST", "/channel/delete?topic=t&channel=c")
    lookupd.wait(lambda known: known is not None and known.topics == {"t": set()})


def test_what_was_there_before_is_told_and_told_again_after_a_loss(
    options: BrokerOptions, lookupd: Nsqlookupd
) -> None:
    with RunningBroker(options) as broker:
        broker.ask("POST", "/topic/create?topic=t")
        broker.ask("POST", "/channel/create?topic=t&channel=c")
    lookupd.wait(lambda known: known is None)
    with RunningBroker(options):
        lookupd.wait(lambda known: known is not None and known.topics == {"t": {"c"}})
        lookupd.hang_up()
        lookupd.wait(
            lambda known: (
                known is not None and known.topics == {"t": {"c"}} and lookupd.connections == 3
            )
        )
    lookupd.wait(lambda known: known is None)


def test_a_broker_serves_while_no_nsqlookupd_is_there(options: BrokerOptions) -> None:
    lookup = LookupOptions(tcp_addresses=("127.0.0.1:1", "localhost:1"), retry_ms=100)
    alone = dataclasses.replace(options, lookup=lookup)
    with RunningBroker(alone) as broker, V2(broker.server.broker.tcp_port) as client:
        client.publish("t", b"x")


def test_a_new_topic_has_the_channels_that_others_have_from_its_first_message_on(
    broker: RunningBroker, lookupd: Nsqlookupd
) -> None:
    lookupd.channels["t"] = ["archive", "index", "gone#ephemeral", "../x"]
    lookupd.wait(lambda known: known is not None and known.identity is not None)
    announcer = broker.server.broker.announcer
    assert announcer is not None
    with V2(broker.server.broker.tcp_port) as client:
        while not announcer.http_addresses():
            client.ask(b"PUB other\n", struct.pack(">i", 1) + b"x")
        client.publish("t", b"1", b"2")
        lookupd.wait(
            lambda known: known is not None and known.topics.get("t") == {"archive", "index"}
        )
        client.publish("t", b"3")
    for channel in ("archive", "index"):
        with V2(broker.server.broker.tcp_port) as consumer:
            consumer.subscribe("t", channel, ready=5)
            assert [consumer.message().body for _ in range(3)] == [b"1", b"2", b"3"]


def test_the_servers_can_be_others_from_now_on(broker: RunningBroker, lookupd: Nsqlookupd) -> None:
    announcer = broker.server.broker.announcer
    assert announcer is not None
    broker.ask("POST", "/topic/create?topic=t")
    lookupd.wait(lambda known: known is not None and known.topics == {"t": set()})
    broker.run(announcer.set_addresses(()))
    lookupd.wait(lambda known: known is None)
    with pytest.raises(InvalidRequest, match="HOST:PORT"):
        broker.run(announcer.set_addresses(("nonsense",)))
    broker.run(announcer.set_addresses((f"127.0.0.1:{lookupd.port}",)))
    lookupd.wait(lambda known: known is not None and known.topics == {"t": set()})


def test_other_servers_may_be_named_before_the_last_ones_are_gone(
    broker: RunningBroker, lookupd: Nsqlookupd
) -> None:
    announcer = broker.server.broker.announcer
    assert announcer is not None
    here = f"127.0.0.1:{lookupd.port}"

    async def change() -> None:
        await announcer.set_addresses((here, "127.0.0.1:1", "127.0.0.1:2"))
        await asyncio.gather(announcer.set_addresses(()), announcer.set_addresses(()))
        await asyncio.gather(announcer.set_addresses(()), announcer.set_addresses((here,)))

    broker.run(change())
    assert announcer.addresses == (here,)
    lookupd.wait(lambda known: known is not None)


def test_a_name_that_can_be_no_hosts_is_tried_again_like_one_that_is_not_there(
    broker: RunningBroker, caplog: pytest.LogCaptureFixture
) -> None:
    announcer = broker.server.broker.announcer
    assert announcer is not None

    broker.run(announcer.set_addresses((f"{'x' * 64}..:4160",)))
    while "cannot be reached" not in caplog.text:
        broker.run(asyncio.sleep(0))
    broker.run(announcer.set_addresses(()))


@pytest.mark.parametrize(
    "address",
    [
        *("", "host", ":4160", "host:", "host:x", "::1:4160", "a/b:1"),
        *("host:0", "host:65536", "host:" + "9" * 5_000),
    ],
)
def test_addresses_that_are_none(address: str) -> None:
    with pytest.raises(InvalidRequest, match="HOST:PORT"):
        split_address(address)


def test_addresses() -> None:
    assert split_address("host.example:4160") == ("host.example", 4160)
    assert split_address("[::1]:4160") == ("::1", 4160)


@pytest.mark.parametrize("answer", [b"", b"[]", b"{}", b'{"channels": 7}', b'{"channels": null}'])
def test_answers_without_channels(answer: bytes) -> None:
    with pytest.raises(InvalidRequest):
        parse_channels(answer)


class SlowLookupd:
    """Answers when it is told to."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.open = 0
        self.most = 0
        self.go_on = asyncio.Event()

    async def get(self, _url: str, query: dict[str, str]) -> bytes:
        self.asked.append(query["topic"])
        self.open += 1
        self.most = max(self.most, self.open)
        await self.go_on.wait()
        self.open -= 1
        return b'{"channels":["c"]}'


def test_of_very_many_new_topics_a_few_are_asked_about_at_a_time() -> None:
    made: list[str] = []
    lookupd = SlowLookupd()

    async def make(topic: Topic, _name: str, _starts: object) -> None:
        made.append(topic.name)

    async def story() -> None:
        announcer = SimpleNamespace(http_addresses=lambda: ["a:1"])
        inheritance = ChannelInheritance(
            cast("LookupdAnnouncer", announcer),
            cast("ChannelChanges", SimpleNamespace(find_or_create=make)),
            lookupd,
        )
        for number in range(100):
            topic = SimpleNamespace(name=f"t{number}", queues=[0], closed=number == 50)
            inheritance.created(cast("Topic", topic))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert lookupd.open == 8
        lookupd.go_on.set()
        for _ in range(1_000):  # turns, of which it takes a few hundred
            await asyncio.sleep(0)
        await inheritance.stop()

    asyncio.run(story())
    assert lookupd.most == 8
    assert made == lookupd.asked == [f"t{number}" for number in range(100) if number != 50]
