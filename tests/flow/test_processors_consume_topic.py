"""ConsumeTopic, against a real broker."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from types import SimpleNamespace
from typing import NoReturn, cast

import pytest

from penstock.broker.options import BrokerOptions
from penstock.client import Consumer, Message
from penstock.core import threads
from penstock.core.errors import Closed, Dependency, InvalidRequest, Unavailable
from penstock.core.loop_tasks import LoopThread
from penstock.core.threads import Death, Deaths
from penstock.flow.errors import ProcessError
from penstock.flow.processor import ProcessContext, PropertyValue
from penstock.flow.processors.topics.consume_topic import (
    ConsumeTopic,
    TopicReceiver,
    _Arrived,
)
from penstock.testing.flow import ProcessorRunner
from tests.broker.broker_kit import RunningBroker
from tests.kits.this_host_kit import this_host_listed


@pytest.fixture(autouse=True)
def servers_of_this_host() -> Iterator[None]:
    """Allow servers of tests."""
    with this_host_listed():
        yield


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    folder = tmp_path_factory.mktemp("broker")
    options = BrokerOptions(folder=str(folder), http_port=0, tcp_port=0)
    with RunningBroker(options) as running:
        yield running


def runner_of(
    broker: RunningBroker, topic: str, **more: PropertyValue
) -> ProcessorRunner[ConsumeTopic]:
    address = f"127.0.0.1:{broker.server.broker.tcp_port}"
    properties = {"topic": topic, "channel": "flow", "addresses": address, **more}
    return ProcessorRunner(ConsumeTopic, properties)


def publish(broker: RunningBroker, topic: str, *messages: bytes) -> None:
    body = b"\n".join(messages)
    assert broker.ask("POST", f"/mpub?topic={topic}", body).status == 200


def take(runner: ProcessorRunner[ConsumeTopic], count: int) -> list[bytes]:
    """Trigger until so many messages came; return all, in order."""
    while sum(int(sent.attributes["message.count"]) for sent in runner.sent("success")) < count:
        runner.run_when_woken()
    return sorted(sent.content for sent in runner.sent("success"))


def test_each_message_is_a_flowfile_and_finished_when_it_is_durable(broker: RunningBroker) -> None:
    publish(broker, "each", b"a", b"b", b"c")
    with runner_of(broker, "each") as runner:
        assert take(runner, 3) == [b"a", b"b", b"c"]
        assert runner.durable_commits > 0
        first = runner.sent("success")[0].attributes
        assert (first["topic.name"], first["topic.channel"]) == ("each", "flow")
        assert len(first["message.id"]) == 16
        assert first["message.attempts"] == "1"
    with runner_of(broker, "each") as again:
        publish(broker, "each", b"d")
        assert take(again, 1) == [b"d"]


def test_many_messages_may_be_lines_of_one(broker: RunningBroker) -> None:
    publish(broker, "lines", *(b"%03d" % number for number in range(500)))
    with runner_of(broker, "lines", content="lines") as runner:
        contents = take(runner, 500)
        lines = b"".join(contents).splitlines()
        assert sorted(lines) == [b"%03d" % number for number in range(500)]
        assert len(contents) < 50


def test_a_commit_that_fails_has_them_come_again(broker: RunningBroker) -> None:
    def full() -> None:
        raise Unavailable("full")

    publish(broker, "again", b"a")
    with runner_of(broker, "again") as runner:
        runner.before_commit(full)
        with pytest.raises(Unavailable):
            runner.run_when_woken()
        runner.before_commit(lambda: None)
        assert take(runner, 1) == [b"a"]
        assert runner.sent("success")[0].attributes["message.attempts"] == "2"


def test_what_was_committed_and_not_finished_is_known_again(broker: RunningBroker) -> None:
    publish(broker, "known", b"a", b"b")
    with runner_of(broker, "known") as runner:
        # As if the process were killed between commit and finish: they come again.
        runner.processor._receiver.finish = runner.processor._receiver.give_back  # type: ignore[method-assign]
        take(runner, 2)
        runner.restart()
        publish(broker, "known", b"c")
        assert take(runner, 3) == [b"a", b"b", b"c"]
        while runner.statistics.counters.get("repeated", 0) < 2:
            runner.run_when_woken()
        assert runner.counts() == {"success": 3}


def test_what_was_not_finished_is_known_again_long_after(broker: RunningBroker) -> None:
    with runner_of(broker, "long") as runner:
        finish = runner.processor._receiver.finish
        unfinished: list[Message] = []
        runner.processor._receiver.finish = unfinished.extend  # type: ignore[method-assign]
        for number in range(6):
            publish(broker, "long", b"%d" % number)
            take(runner, number + 1)
        runner.processor._receiver.finish = finish  # type: ignore[method-assign]
        runner.processor._receiver.give_back(unfinished)
        while runner.statistics.counters.get("repeated", 0) < 6:
            runner.run_when_woken()
        assert runner.counts() == {"success": 6}


def test_what_nobody_takes_is_given_back_at_a_stop(broker: RunningBroker) -> None:
    publish(broker, "stop", b"a")
    with runner_of(broker, "stop") as runner:
        assert runner._host.woken.wait(120)
    with runner_of(broker, "stop") as runner:
        assert take(runner, 1) == [b"a"]


def test_what_is_held_too_long_is_given_back_and_asked_for_again(
    broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.flow.processors.topics.consume_topic.HOLD_S", 0.01)
    publish(broker, "held", b"a")
    with runner_of(broker, "held") as runner:
        intake = runner.processor._receiver
        while not intake._paused:
            assert runner._host.woken.wait(120)
        monkeypatch.setattr("penstock.flow.processors.topics.consume_topic.HOLD_S", 15.0)
        runner._host.woken.clear()
        runner.run()
        assert take(runner, 1) == [b"a"]
        assert int(runner.sent("success")[0].attributes["message.attempts"]) > 1


def test_messages_are_requested_again_though_the_first_request_failed(
    broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The receiver stayed paused for good, and what the trigger had taken came after a time-out."""
    monkeypatch.setattr("penstock.flow.processors.topics.consume_topic.HOLD_S", 0.01)
    publish(broker, "paused", b"a")
    with runner_of(broker, "paused") as runner:
        receiver = runner.processor._receiver
        while not receiver._paused:
            assert runner._host.woken.wait(120)
        monkeypatch.setattr("penstock.flow.processors.topics.consume_topic.HOLD_S", 15.0)
        with monkeypatch.context() as patched:
            patched.setattr(receiver._loop, "post", fails)
            with pytest.raises(MemoryError):
                runner.run()
        runner._host.woken.clear()
        runner.run()
        assert take(runner, 1) == [b"a"]


def test_messages_that_a_failed_trigger_took_come_again_at_once(
    broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(broker, "taken", b"a")
    with runner_of(broker, "taken") as runner:
        receiver = runner.processor._receiver
        assert runner._host.woken.wait(120)
        pop = receiver._pop

        def pop_and_pause() -> Sequence[Message]:
            receiver._paused = True  # so that the next one of the batch fails
            monkeypatch.setattr(receiver, "_set_in_flight", lambda _count: None)
            return pop()

        posts = iter([fails, receiver._loop.post])

        def post(work: Callable[[], object]) -> None:
            next(posts)(work)

        with monkeypatch.context() as patched:
            patched.setattr(receiver, "_pop", pop_and_pause)
            patched.setattr(receiver._loop, "post", post)
            with pytest.raises(MemoryError):
                runner.run()
        runner._host.woken.clear()
        assert take(runner, 1) == [b"a"]
        assert runner.sent("success")[0].attributes["message.attempts"] == "2"


def fails(_work: object) -> NoReturn:
    raise MemoryError("no room")


@pytest.mark.parametrize(
    "wrong", [{"topic": "not a topic!"}, {"channel": ""}, {"addresses": "nonsense::"}]
)
def test_what_is_no_name_or_address_fails_the_start(
    broker: RunningBroker, wrong: dict[str, str]
) -> None:
    runner = runner_of(broker, **{"topic": "t", **wrong})
    with pytest.raises(InvalidRequest):
        runner.start()
    runner.close()


def test_a_broker_that_does_not_answer_is_reported_until_it_does(broker: RunningBroker) -> None:
    port = broker.server.broker.tcp_port
    with runner_of(broker, "away", addresses="127.0.0.1:1") as runner:
        pause = threading.Event()
        reported: Unavailable | None = None
        for _ in range(12_000):
            runner.run()
            if (reported := runner.unavailable) is not None:
                break
            pause.wait(0.01)
        assert reported is not None
        assert reported.dependency is Dependency.BROKER
        runner.restart({"topic": "away", "channel": "flow", "addresses": f"127.0.0.1:{port}"})
        publish(broker, "away", b"a")
        assert take(runner, 1) == [b"a"]
        runner.unavailable  # noqa: B018 - resets it
        runner.run()
        assert runner.unavailable is None


def test_an_address_is_needed() -> None:
    problems = ConsumeTopic.problems({"topic": "t", "channel": "c", "addresses": ""})
    assert [problem.place for problem in problems] == ["addresses"]


def test_a_consumer_that_fails_is_replaced_and_its_processor_says_so(
    broker: RunningBroker, monkeypatch: pytest.MonkeyPatch, deaths: Deaths
) -> None:
    """Messages stopped to come, or the process of all flows ended."""
    monkeypatch.setattr(threads, "pause_s", lambda _in_a_row: 0.01)
    with runner_of(broker, "replaced") as runner:
        receiver = runner.processor._receiver
        failed = receiver._consumer
        assert failed is not None
        failing = MemoryError("no room")
        receiver._loop.post(lambda: failed._connections.task_failed("rotation", failing))
        while not receiver.failure:
            assert runner._host.woken.wait(120)
        while receiver._consumer in (failed, None):
            with suppress(ProcessError):
                runner.run()
        publish(broker, "replaced", b"a", b"b")
        assert take(runner, 2) == [b"a", b"b"]
        assert deaths.counts() == {"consumer": 1}
        assert not deaths.down()


def test_a_consumer_that_cannot_be_replaced_is_replaced_at_the_next_restart(
    broker: RunningBroker, monkeypatch: pytest.MonkeyPatch, deaths: Deaths
) -> None:
    """The restart after it took messages from a consumer that was never started."""
    monkeypatch.setattr(threads, "pause_s", lambda _in_a_row: 0.01)
    errors = [MemoryError("no room")]
    start = Consumer.start

    def fail_once(consumer: Consumer) -> None:
        if errors:
            raise errors.pop()
        start(consumer)

    with runner_of(broker, "restarts") as runner:
        receiver = runner.processor._receiver
        failed = receiver._consumer
        assert failed is not None
        monkeypatch.setattr(Consumer, "start", fail_once)
        failing = MemoryError("no room")
        receiver._loop.post(lambda: failed._connections.task_failed("rotation", failing))
        while errors or receiver.failure or receiver._consumer in (failed, None):
            with suppress(ProcessError):
                runner.run()
        publish(broker, "restarts", b"a", b"b")
        assert take(runner, 2) == [b"a", b"b"]
        assert deaths.counts() == {"consumer": 2}
        assert not deaths.down()


class _TakenInBetween(deque[_Arrived]):
    """Another thread takes the last element after a check of the length."""

    def __bool__(self) -> bool:
        return True


def test_a_trigger_may_take_messages_while_a_failed_consumer_gives_them_back(
    broker: RunningBroker, monkeypatch: pytest.MonkeyPatch, deaths: Deaths
) -> None:
    """An IndexError replaced the error, and the failed consumer was never stopped."""
    monkeypatch.setattr(threads, "pause_s", lambda _in_a_row: 3_600.0)
    died: list[Death] = []
    has_died = threading.Event()

    def note(death: Death) -> None:
        died.append(death)
        has_died.set()

    forget = deaths.listen(note)
    with runner_of(broker, "race") as runner:
        receiver = runner.processor._receiver
        failed = receiver._consumer
        assert failed is not None
        receiver._waiting = _TakenInBetween()
        failing = MemoryError("no room")
        receiver._loop.post(lambda: failed._connections.task_failed("rotation", failing))
        assert has_died.wait(120)
        assert isinstance(died[0].error, Closed)
        assert failed._stopped.is_set()
    forget()


def test_a_processor_whose_consumer_waits_to_restart_says_why_and_stops_at_once(
    broker: RunningBroker, monkeypatch: pytest.MonkeyPatch, deaths: Deaths
) -> None:
    monkeypatch.setattr(threads, "pause_s", lambda _in_a_row: 3_600.0)
    has_died = threading.Event()
    forget = deaths.listen(lambda _death: has_died.set())
    with runner_of(broker, "waiting") as runner:
        receiver = runner.processor._receiver
        failed = receiver._consumer
        assert failed is not None
        failing = MemoryError("no room")
        receiver._loop.post(lambda: failed._connections.task_failed("rotation", failing))
        with pytest.raises(ProcessError, match=r"rotation: MemoryError\('no room'\)"):
            runner.run_when_woken()
        assert has_died.wait(120)
        forget()
        (down,) = deaths.down()
        assert down.startswith("consumer ended unexpectedly")
    assert not deaths.down()


class _Received:
    """A message of `_ReceivesOnce`."""

    def requeue(self) -> None:
        pass


class _ReceivesOnce:
    """A consumer that receives messages once."""

    def __init__(self) -> None:
        self.known: list[weakref.ref[_Received]] = []
        self._stopped = asyncio.Event()

    def start(self) -> None:
        pass

    async def stop(self) -> None:
        self._stopped.set()

    async def take(self, count: int) -> Sequence[_Received]:
        if self.known:
            await self._stopped.wait()
            return ()
        messages = [_Received() for _ in range(count)]
        self.known = [weakref.ref(message) for message in messages]
        return messages


def test_messages_that_were_taken_are_not_kept_until_they_would_be_held_too_long() -> None:
    """Each message stayed in memory for 15 s, whatever the maximum in flight."""
    loop, woken = LoopThread("consumer", asyncio.new_event_loop()), threading.Event()
    consumers: list[_ReceivesOnce] = []

    def consumer() -> Consumer:
        consumers.append(_ReceivesOnce())
        return cast("Consumer", consumers[-1])

    context = cast("ProcessContext", SimpleNamespace(wake=woken.set))
    receiver = TopicReceiver(loop, consumer, 4, 2, context)
    loop.start()
    try:
        loop.run(receiver.start(), 120)
        assert woken.wait(120)
        messages = receiver.take()
        assert len(messages) == 2
        loop.run(asyncio.sleep(0), 120)  # until the consumer awaits the next ones
        del messages
        gc.collect()
        assert [known() for known in consumers[0].known] == [None, None]
        loop.run(receiver.stop(), 120)
    finally:
        loop.stop()
