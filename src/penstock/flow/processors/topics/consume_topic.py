"""ConsumeTopic: a processor that receives the messages of a channel as FlowFiles.

`ConsumeTopic` owns the commit and the record of the messages that were taken last. The consumer
runs on the thread of an event loop: it holds received messages until a trigger takes them, and
requeues them if none does for long, so that they do not time out at the broker. If the consumer
fails, triggers raise the reason until another one is created.

Invariants: a message is finished at the broker only when its FlowFile survives a power loss. A
message that is delivered again because a crash or a lost connection came between commit and
finish is recognized. A message that a trigger took is finished or requeued by that trigger; all
others are requeued by the consumer.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import ClassVar, Final

from penstock.broker import message_id
from penstock.client import ConnectionOptions, Consumer, ConsumerOptions, Message, finish_all
from penstock.client.addresses import Address
from penstock.core.bearer import Bearer
from penstock.core.errors import Dependency, InvalidRequest, Unavailable
from penstock.core.guarded_connections import NETWORK_GUARD
from penstock.core.loop_stalls import watched_loop
from penstock.core.loop_tasks import LoopThread, keep_running, start_awaited
from penstock.core.network_guard import NetworkDestination, url_destination
from penstock.core.threads import OnDeath
from penstock.core.tls_trust import TRUST
from penstock.flow.errors import ProcessError
from penstock.flow.processor import (
    INT,
    STR,
    InputRequirement,
    Problem,
    ProcessContext,
    Processor,
    ProcessSession,
    Property,
    Relationship,
    choice,
    list_of,
)
from penstock.flow.processors.topics.service_addresses import SERVICE

HOLD_S: Final = 15.0
REFUSED_S: Final = 5.0
"""Delay before the next attempt at the broker of this service, after it refused the consumer."""


class _Arrived:
    """Messages that arrived together; compared by identity, to find them in the queue."""

    def __init__(self, messages: Sequence[Message]) -> None:
        self.messages = messages


class TopicReceiver:
    """Keeps a consumer's messages for triggers. Methods without `async` are thread-safe.

    Args:
        loop: Event loop of the consumer.
        consumer: Creates the consumer; called on the loop.
        max_in_flight: Maximum number of messages in flight.
        batch: Maximum number of messages that are returned together.
        context: The processor's context, which is woken when messages can be taken.
        retries_refusals: Whether a refusal may end: at the broker of this service, rights can
            change at any time.

    Attributes:
        failure: Why the last consumer failed; empty once another one was started.
    """

    def __init__(
        self,
        loop: LoopThread,
        consumer: Callable[[], Consumer],
        max_in_flight: int,
        batch: int,
        context: ProcessContext,
        *,
        retries_refusals: bool = False,
    ) -> None:
        self._loop = loop
        self._retries_refusals = retries_refusals
        self._make = consumer
        self._max_in_flight = max_in_flight
        self._batch = batch
        self._context = context
        self._consumer: Consumer | None = None
        self._pump: asyncio.Task[None] | None = None
        # Both ends of a deque may be used by several threads; the thread that popped messages owns
        # them.
        self._waiting: deque[_Arrived] = deque()
        self._stopping: asyncio.Task[None] | None = None
        self._paused = False
        self.failure = ""

    async def start(self) -> None:
        """Start to consume.

        Raises:
            InvalidRequest: A name or an address is invalid.
        """
        self._begin()
        self._pump = keep_running(
            "consumer", self._consume, on_death=OnDeath.RESTART, may_return=True
        )

    def _begin(self) -> Consumer:
        consumer = self._consumer = self._make()
        consumer.start()
        return consumer

    def begin_stop(self) -> None:
        """Requeue messages that were not taken, and disconnect when the others are answered."""
        self._loop.post(self._begin_stop)

    async def stop(self) -> None:
        """Stop, and wait until that is done."""
        await asyncio.shield(self._begin_stop())

    def _begin_stop(self) -> asyncio.Task[None]:
        if self._stopping is None:
            self._stopping = start_awaited(self._stop())
        return self._stopping

    async def _stop(self) -> None:
        self._requeue_waiting()
        if self._consumer is not None:
            await self._consumer.stop()
        if self._pump is not None:
            self._pump.cancel()  # it may wait to restart
            await asyncio.wait([self._pump])

    def take(self) -> Sequence[Message]:
        """Take messages that arrived together; empty if there are none."""
        if self._paused:
            # Before the call: if messages are held too long meanwhile, they pause it again.
            self._paused = False
            try:
                self._loop.post(lambda: self._set_in_flight(self._max_in_flight))
            except BaseException:
                self._paused = True
                raise
        return self._pop()

    def report_unreachable(self) -> None:
        """Report that no broker can be reached, if that is so."""
        consumer = self._consumer
        failure = None if consumer is None else consumer.connect_failure
        if failure is not None:
            error = Unavailable(str(failure.error), dependency=Dependency.BROKER)
            self._context.report_unavailable(error, tries=failure.tries)

    def finish(self, messages: Sequence[Message]) -> None:
        """Finish messages at the broker."""
        self._loop.post(lambda: finish_all(messages))

    def give_back(self, messages: Sequence[Message]) -> None:
        """Requeue messages at the broker."""
        self._loop.post(lambda: self._requeue(messages))

    async def _consume(self) -> None:
        """Take messages until the consumer is stopped; at a restart, from a new consumer."""
        while await self._is_refused() and self._retries_refusals:
            await self._discard_consumer()
            await asyncio.sleep(REFUSED_S)

    async def _is_refused(self) -> bool:
        """Take messages until the consumer is stopped; return whether the broker refuses it."""
        try:
            consumer = self._consumer or self._begin()
            self.failure = ""
            await self._take_all(consumer)
        except InvalidRequest as error:
            self.failure = f"the broker refuses: {error}"
            self._context.wake()
            return True
        except Exception as error:  # narrow: a cancelled task ends with the processor
            self.failure = f"no messages can be consumed, will be retried: {error!r}"
            try:
                self._context.wake()
                self._requeue_waiting()
            finally:
                await self._discard_consumer()
            raise
        return False

    async def _discard_consumer(self) -> None:
        """Stop the consumer, so that the next restart creates another one."""
        try:
            if self._consumer is not None:
                await self._consumer.stop()
        finally:
            self._consumer = None

    async def _take_all(self, consumer: Consumer) -> None:
        loop = asyncio.get_running_loop()
        # No variable here refers to the messages while the next ones are awaited.
        while self._hold(await consumer.take(self._batch), loop):
            pass

    def _hold(self, messages: Sequence[Message], loop: asyncio.AbstractEventLoop) -> bool:
        """Hold messages for a trigger; return whether there were any."""
        if not messages:
            return False
        if self._stopping is not None:
            self._requeue(messages)
            return True
        arrived = _Arrived(messages)
        self._waiting.append(arrived)
        self._context.wake()
        loop.call_later(HOLD_S, self._held_too_long, arrived)
        return True

    def _held_too_long(self, arrived: _Arrived) -> None:
        try:
            self._waiting.remove(arrived)
        except ValueError:
            return  # they were taken
        self._paused = True
        try:
            self._set_in_flight(0)
        finally:
            self._requeue(arrived.messages)

    def _set_in_flight(self, count: int) -> None:
        if self._consumer is not None:
            self._consumer.set_max_in_flight(count)

    def _requeue_waiting(self) -> None:
        while messages := self._pop():
            self._requeue(messages)

    def _pop(self) -> Sequence[Message]:
        """Remove messages that arrived together, and return them; empty if there are none."""
        try:
            arrived = self._waiting.popleft()
        except IndexError:  # not checked before: another thread may take them in between
            return ()
        # The timer keeps `arrived` until `HOLD_S` is over, which must not keep the messages.
        messages, arrived.messages = arrived.messages, ()
        return messages

    @staticmethod
    def _requeue(messages: Sequence[Message]) -> None:
        for message in messages:
            message.requeue()


_START_S: Final = 10.0
_STOP_S: Final = 20.0
_MARK_CHARS: Final = 12
_LAST: Final = "last"
_KNOWN_COMMITS: Final = 3
_KNOWN_MESSAGES: Final = 50_000


def _check_count(count: int) -> None:
    if not 0 < count <= 10_000:
        raise InvalidRequest(f"{count:,} messages: use 1 to 10,000")


class ConsumeTopic(Processor):
    """Consumes the messages of a topic's channel, from Penstock or nsqd.

    Each message is finished at the broker when its FlowFile is durable; messages that arrive
    together share one commit. A message that is delivered again, because the broker was killed or
    the connection broke, is recognized if it is among the last 50,000 messages or, after a crash of
    the flow process, among the messages of the last commits. For older messages, and with several
    consumers on the channel, use DetectDuplicate on `message.id` if duplicates matter.
    """

    input = InputRequirement.FORBIDDEN
    triggers_serially = True
    tags = ("topic", "consume", "nsq", "source")
    state = "Marks of recent messages, to recognize duplicates."
    writes_attributes: ClassVar[Mapping[str, str]] = {
        "topic.name": "The topic.",
        "topic.channel": "The channel.",
        "message.id": "Id of the message, if each message has its own FlowFile.",
        "message.attempts": "Number of deliveries, if each message has its own FlowFile.",
        "message.timestamp.ns": "Time of publication; of several messages, that of the first.",
        "message.count": "Number of messages in the content.",
    }

    success = Relationship("Messages.")

    topic = Property(STR, required=True, about="The topic; created if it does not exist.")
    channel = Property(STR, required=True, about="The channel; created if it does not exist.")
    addresses = Property(
        list_of(STR),
        about="TCP addresses of brokers; without them and `lookup`, the broker of this service.",
    )
    lookup = Property(
        list_of(STR), default="", about="HTTP addresses of lookup services that list brokers."
    )
    auth_secret = Property(
        STR,
        default="",
        sensitive=True,
        about="Secret that is sent if a broker requires authentication.",
    )
    content = Property(
        choice("message", "lines"),
        default="message",
        about="One FlowFile for each message, or one for many, with one message per line.",
    )
    batch_size = Property(
        INT, default=1_000, about="Maximum number of messages per trigger.", validator=_check_count
    )
    max_in_flight = Property(
        INT,
        default=2_000,
        about="Maximum number of unfinished messages in this processor.",
        validator=_check_count,
    )

    _loop: LoopThread
    _receiver: TopicReceiver
    _recent: dict[str, None]  # marks of messages, oldest first

    def check(self) -> Iterator[Problem]:
        """Yield combinations of properties that are not allowed."""
        if self.addresses == () and not self.lookup:
            yield Problem("addresses", "is empty, and so is lookup: set one of them")

    def on_scheduled(self, context: ProcessContext) -> None:
        """Start to consume; brokers need not be reachable yet.

        Raises:
            InvalidRequest: A name or an address is invalid.
            Unavailable: The service has not found its own broker yet.
        """
        # Not on the loop, which would block while the service queries its database, or while names
        # are resolved.
        addresses = self._addresses()
        secret = self.auth_secret or (SERVICE.addresses().token if self._is_own else None)
        for url in self.lookup:
            NETWORK_GUARD.check(url_destination(url if "://" in url else f"http://{url}"))
        self._recent = dict.fromkeys(_marks(context.state.get()))
        name = f"{context.name} consumes"
        self._loop = LoopThread(name, watched_loop(name))
        self._receiver = TopicReceiver(
            self._loop,
            lambda: self._consumer(addresses, secret),
            self.max_in_flight,
            self.batch_size,
            context,
            retries_refusals=self._is_own,
        )
        self._loop.start()
        try:
            self._loop.run(self._receiver.start(), _START_S)
        except BaseException:
            self._loop.stop()
            raise

    def on_unscheduled(self, context: ProcessContext) -> None:  # noqa: ARG002 - of every processor
        """Stop taking messages; a terminated processor gets no `on_stopped`."""
        self._receiver.begin_stop()

    def on_stopped(self, context: ProcessContext) -> None:  # noqa: ARG002 - of every processor
        """Requeue the remaining messages, and disconnect."""
        try:
            self._loop.run(self._receiver.stop(), _STOP_S)
        finally:
            self._loop.stop()

    def on_trigger(self, context: ProcessContext, session: ProcessSession) -> None:  # noqa: ARG002 - of every processor
        """Take messages that have arrived.

        Raises:
            ProcessError: The broker refuses permanently, or the consumer failed.
        """
        if self._receiver.failure:
            raise ProcessError(self._receiver.failure)
        messages: list[Message] = []
        committed = False
        try:
            self._take(messages)
            if not messages:
                self._receiver.report_unreachable()
                return
            new = {_mark(message): message for message in messages}
            new = {mark: message for mark, message in new.items() if mark not in self._recent}
            if len(new) < len(messages):
                session.counters.add("repeated", len(messages) - len(new))
            self._create(list(new.values()), session)
            session.state.set(_remember(session.state.get(), new))
            session.commit(durable=True)
            committed = True
            self._keep_in_mind(new)
        finally:
            if committed:
                self._receiver.finish(messages)
            elif messages:
                self._receiver.give_back(messages)

    def _take(self, messages: list[Message]) -> None:
        """Add messages that have arrived to a list, which has them if a later step raises."""
        while len(messages) < self.batch_size and (arrived := self._receiver.take()):
            try:
                messages += arrived
            except BaseException:
                self._receiver.give_back(arrived)
                raise

    def _keep_in_mind(self, marks: Iterable[str]) -> None:
        self._recent.update(dict.fromkeys(marks))
        for oldest in list(islice(self._recent, max(0, len(self._recent) - _KNOWN_MESSAGES))):
            del self._recent[oldest]

    def _create(self, messages: Sequence[Message], session: ProcessSession) -> None:
        where = {"topic.name": self.topic, "topic.channel": self.channel}
        if self.content == "message":
            made = []
            for message in messages:
                attributes = {
                    **where,
                    "message.id": message.id.decode("ascii", "replace"),
                    "message.attempts": str(message.attempts),
                    "message.timestamp.ns": str(message.timestamp_ns),
                    "message.count": "1",
                }
                made.append(session.write(session.create(attributes=attributes), message.body))
            session.transfer(made, self.success)
            if self._is_own and session.topics.is_recorded:
                for start, end, partition, offset in _runs(messages):
                    session.topics.received(made[start:end], self.topic, partition, offset)
        elif messages:
            first_ns = min(message.timestamp_ns for message in messages)
            several = {"message.count": str(len(messages)), "message.timestamp.ns": str(first_ns)}
            flowfile = session.create(attributes={**where, **several})
            lines = b"\n".join([*(message.body for message in messages), b""])
            session.transfer(session.write(flowfile, lines), self.success)
            if self._is_own and session.topics.is_recorded:
                for start, end, partition, offset in _runs(messages):
                    offsets = range(offset, offset + end - start)
                    session.topics.received_into(flowfile, self.topic, {partition: offsets})

    @property
    def _is_own(self) -> bool:
        """Whether it consumes from the broker of this service."""
        return self.addresses is None and not self.lookup

    def _consumer(self, addresses: Sequence[str], secret: Bearer) -> Consumer:
        # The own broker needs TLS if it is on another host; other servers are as configured.
        hosts = [one.rpartition(":")[0] for one in addresses] if self._is_own else []
        needs_tls = any(TRUST.scheme(host) == "https" for host in hosts)
        connection = ConnectionOptions(
            auth_secret=secret or None, tls=TRUST.context("broker") if needs_tls else None
        )
        return Consumer(
            self.topic,
            self.channel,
            addresses=addresses,
            lookup=self.lookup,
            max_in_flight=self.max_in_flight,
            options=ConsumerOptions(connection=connection),
        )

    def _addresses(self) -> tuple[str, ...]:
        if self.addresses is None:
            return () if self.lookup else (SERVICE.addresses().broker_tcp(),)
        for text in self.addresses:
            address = Address.parse(text)
            if address.path:
                raise InvalidRequest(
                    f"addresses: {text}: flows must not connect to sockets of this host: leave"
                    " addresses out to use the broker of this service"
                )
            NETWORK_GUARD.check(NetworkDestination("nsq", address.host, address.port))
        return self.addresses


def _mark(message: Message) -> str:
    # Each broker numbers its messages independently, so the time is part of the mark.
    hashed = hashlib.blake2b(b"%b %d" % (message.id, message.timestamp_ns), digest_size=9)
    return base64.urlsafe_b64encode(hashed.digest()).decode("ascii")


def _runs(messages: Sequence[Message]) -> list[tuple[int, int, int, int]]:
    """Return the runs of messages with consecutive offsets: start, end, partition, offset."""
    numbers = [message_id.parse(message.id) for message in messages]
    runs: list[tuple[int, int, int, int]] = []
    start = 0
    for place, number in enumerate(numbers, 1):
        follows = place < len(numbers) and number is not None and numbers[place] == number + 1
        if not follows:
            first = numbers[start]
            if first is not None:
                runs.append((start, place, *message_id.split(first)))
            start = place
    return runs


def _marks(state: Mapping[str, str]) -> list[str]:
    found: list[str] = []
    for number in reversed(range(_KNOWN_COMMITS)):
        text = state.get(f"{_LAST}.{number}", "")
        found += [text[at : at + _MARK_CHARS] for at in range(0, len(text), _MARK_CHARS)]
    return found


def _remember(state: Mapping[str, str], marks: Iterable[str]) -> dict[str, str]:
    newest = "".join(marks)
    if not newest:
        return dict(state)
    older = {
        f"{_LAST}.{number + 1}": state.get(f"{_LAST}.{number}", "")
        for number in range(_KNOWN_COMMITS - 1)
    }
    return {f"{_LAST}.0": newest, **older}
