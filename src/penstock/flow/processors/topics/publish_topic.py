"""PublishTopic: a processor that publishes FlowFiles as messages exactly once.

Owns how FlowFiles are divided into batches, the response to a refusal by the broker, and the
publish intents: batches with their sequence numbers, written to the processor's state before
they are published.

    intent durable → published with its sequence number → FlowFiles committed, intent deleted

After a crash in between, the same batch is published again with the same number, which the
broker accepts once. `PublishIntents` is pure; `TopicPublisher` is the base of all processors that
publish to a topic.

Invariants: a FlowFile is transferred to success when all of its messages are durable at the
broker. If the result of a batch is unknown, that batch is published again before any other. A
number is never used for two batches; a publisher whose state is lost has a new producer name,
so its numbers may start again.
"""

from __future__ import annotations

import secrets
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Final

import msgspec

from penstock.broker.broker_client import BrokerClient
from penstock.core.errors import (
    Conflict,
    CorruptData,
    Dependency,
    Forbidden,
    InvalidRequest,
    NotFound,
    Unauthenticated,
    Unavailable,
)
from penstock.core.http_errors import ClientRemedies
from penstock.flow.errors import ProcessError
from penstock.flow.flowfile import UUID, FlowFile
from penstock.flow.processor import (
    INT,
    PERIOD,
    SIZE,
    STR,
    ExpressionProperty,
    InputRequirement,
    ProcessContext,
    Processor,
    ProcessSession,
    Property,
    Relationship,
    choice,
)
from penstock.flow.processors.failure import WRITES_REASON, fail
from penstock.flow.processors.topics.service_addresses import SERVICE
from penstock.flow.queue.queue import FilterVerdict

_PRODUCER: Final = "producer"
_SEQUENCE: Final = "sequence"
_OPEN: Final = "open"


class PublishBatch(msgspec.Struct, frozen=True):
    """Batch of messages for one topic.

    Attributes:
        sequence: Sequence number.
        topic: The topic.
        key: Messages with the same key go to the same stream partition; empty: any.
        uuids: FlowFiles of the messages, in order.
        start: First byte, for one FlowFile that is published in parts.
        end: Byte after the last; equal to `start`: not decided yet; -1: not published in parts.
    """

    sequence: int
    topic: str
    key: str
    uuids: tuple[str, ...]
    start: int = 0
    end: int = -1

    @property
    def is_part(self) -> bool:
        """Return whether it is a part of one FlowFile."""
        return self.end >= 0

    def part(self, start: int, end: int) -> PublishBatch:
        """Return the batch of a part of its FlowFile."""
        return msgspec.structs.replace(self, start=start, end=end)


_decoder: Final = msgspec.json.Decoder(tuple[PublishBatch, ...])


@dataclass(frozen=True, slots=True)
class PublishIntents:
    """Recorded intents.

    Attributes:
        producer: Name of the publisher at the broker.
        sequence: Last number used.
        batches: Batches that may have been published, and whose FlowFiles are not committed.
    """

    producer: str
    sequence: int = 0
    batches: tuple[PublishBatch, ...] = ()

    def open(self, batches: Sequence[PublishBatch]) -> PublishIntents:
        """Return a copy with batches to publish, which get the next numbers."""
        numbered = tuple(
            msgspec.structs.replace(batch, sequence=number)
            for number, batch in enumerate(batches, self.sequence + 1)
        )
        return replace(self, sequence=self.sequence + len(numbered), batches=numbered)

    def closed(self) -> PublishIntents:
        """Return a copy without batches."""
        return replace(self, batches=())

    def state(self) -> dict[str, str]:
        """Return the intents as state."""
        return {
            _PRODUCER: self.producer,
            _SEQUENCE: str(self.sequence),
            _OPEN: msgspec.json.encode(self.batches).decode(),
        }


def read_intents(state: Mapping[str, str], new_name: str) -> PublishIntents:
    """Return the intents of a state.

    Args:
        state: Result of `PublishIntents.state`, or empty.
        new_name: Name of the publisher, if the state is empty.

    Raises:
        CorruptData: The state is invalid.
    """
    if _PRODUCER not in state:
        return PublishIntents(new_name)
    try:
        batches = _decoder.decode(state[_OPEN])
        return PublishIntents(state[_PRODUCER], int(state[_SEQUENCE]), batches)
    except (KeyError, ValueError, msgspec.DecodeError) as error:
        raise CorruptData("the state of a publisher", 0, str(error)) from None


POSITION: Final = "publish.position"
_PRODUCER_BYTES: Final = 12
_SPREAD: Final = 16
_REMEDIES: Final = ClientRemedies(
    "set the property broker_token", "the property broker_url names the HTTP port of the broker"
)
_BATCH_MAX: Final = 10_000
_BODY_MAX: Final = 64 << 20


def _check_batch(count: int) -> None:
    if not 0 < count <= _BATCH_MAX:
        raise InvalidRequest(f"{count:,} FlowFiles at once: use 1 to {_BATCH_MAX:,}")


def _check_body(size: int) -> None:
    if not 0 < size <= _BODY_MAX:
        raise InvalidRequest(f"{size:,} bytes in one batch: use 1 B to 64 MB")


class TopicPublisher(Processor):
    """Base class of processors that publish to a topic, exactly once."""

    input = InputRequirement.REQUIRED
    triggers_serially = True
    state = "Name and sequence number of the publisher at the broker, and unfinished batches."
    writes_attributes: ClassVar[Mapping[str, str]] = {
        POSITION: "Number of bytes of a large FlowFile that were published before it failed.",
        **WRITES_REASON,
    }

    success = Relationship("All their messages are durable at the broker.")
    failure = Relationship(
        "The broker refuses the messages permanently, or the content is not a valid message."
    )

    broker_url = Property(
        STR, default="", about="HTTP address of the broker; without it, that of this service."
    )
    broker_token = Property(
        STR, default="", sensitive=True, about="Token, if the broker requires one."
    )
    timeout = Property(PERIOD, default="30 sec", about="Timeout for each answer of the broker.")
    batch_size = Property(
        INT, default=1_000, about="Maximum number of FlowFiles per trigger.", validator=_check_batch
    )
    batch_bytes = Property(
        SIZE,
        default="4 MB",
        about="Maximum size of one batch; the broker's --max-body-size must be at least as large.",
        validator=_check_body,
    )

    _broker: BrokerClient
    _missing_since_ms: int | None

    @abstractmethod
    def destination(self, flowfile: FlowFile, now_ms: int) -> tuple[str, str]:
        """Return topic and key.

        Raises:
            ProcessError: An expression fails for this FlowFile.
            InvalidRequest: This FlowFile has no valid destination.
            Unavailable: The destination is not known now.
        """

    @property
    @abstractmethod
    def by_lines(self) -> bool:
        """Whether each line is a message; otherwise the whole content is one message."""

    def on_scheduled(self, context: ProcessContext) -> None:  # noqa: ARG002
        """Check the broker's address; the broker need not be reachable yet.

        Raises:
            InvalidRequest: The address is invalid.
        """
        url, token = SERVICE.addresses().broker(self.broker_url, self.broker_token)
        self._broker = BrokerClient(
            url, token=token, timeout_s=self.timeout / 1000, remedies=_REMEDIES
        )
        self._missing_since_ms = None

    def on_stopped(self, context: ProcessContext) -> None:  # noqa: ARG002
        """Close the connection."""
        self._broker.close()

    def on_trigger(self, context: ProcessContext, session: ProcessSession) -> None:
        """Publish recorded batches; if there are none, the next FlowFiles."""
        intents = read_intents(context.state.get(), secrets.token_hex(_PRODUCER_BYTES))
        if intents.batches:
            flowfiles = _begun(intents, session)
        else:
            flowfiles = session.get_where(_Selection(self.batch_size, self.batch_bytes))
            try:
                intents = intents.open(self._batches(flowfiles, context, session))
            except Unavailable as error:
                _retry_later(error, context, session)
                return
            if intents.batches:
                context.state.set(intents.state(), durable=True)
        if not intents.batches:
            return
        if not flowfiles:
            self._wait_for_missing(intents, context)
            return
        self._missing_since_ms = None
        try:
            self._publish_all(intents, flowfiles, context, session)
        except Unavailable as error:
            # It is unknown whether the batch arrived: it stays recorded and is published first.
            _retry_later(error, context, session)
        except (Forbidden, Unauthenticated) as error:
            # A right can come back, and the content is not the reason: the FlowFiles wait.
            refused = Unavailable(str(error), dependency=Dependency.BROKER)
            _retry_later(refused, context, session, context.identity.penalty_ms)

    def _wait_for_missing(self, intents: PublishIntents, context: ProcessContext) -> None:
        # They may be penalized. If they are missing after the longest penalty, they were removed
        # from the queue.
        now_ms = context.clock.now_ms()
        if self._missing_since_ms is None:
            self._missing_since_ms = now_ms
        if now_ms - self._missing_since_ms > context.identity.penalty_ms:
            context.log.warning(
                "FlowFiles of a recorded batch no longer exist: the next ones are published"
            )
            context.state.set(intents.closed().state(), durable=True)
            self._missing_since_ms = None
        else:
            context.yield_()

    def _batches(
        self, flowfiles: Sequence[FlowFile], context: ProcessContext, session: ProcessSession
    ) -> list[PublishBatch]:
        now_ms = context.clock.now_ms()
        groups: dict[tuple[str, str], list[str]] = {}
        for flowfile in flowfiles:
            if not flowfile.size:
                why = "the content is empty, so there is no message"
                fail(context, session, flowfile, self.failure, why)
                continue
            try:
                group = self.destination(flowfile, now_ms)
            except (ProcessError, InvalidRequest) as error:
                fail(context, session, flowfile, self.failure, error)
                continue
            groups.setdefault(group, []).append(flowfile.attributes[UUID])
        batches = [
            PublishBatch(0, topic, key, tuple(uuids)) for (topic, key), uuids in groups.items()
        ]
        # A FlowFile larger than a batch was selected as the only one.
        is_large = self.by_lines and any(f.size > self.batch_bytes for f in flowfiles)
        return [batch.part(0, 0) for batch in batches] if is_large else batches

    def _publish_all(
        self,
        intents: PublishIntents,
        flowfiles: Sequence[FlowFile],
        context: ProcessContext,
        session: ProcessSession,
    ) -> None:
        by_uuid = {flowfile.attributes[UUID]: flowfile for flowfile in flowfiles}
        for batch in intents.batches:
            found = [by_uuid[uuid] for uuid in batch.uuids if uuid in by_uuid]
            try:
                if batch.is_part and found:
                    self._publish_parts(intents, batch, found[0], context, session)
                elif found:
                    self._publish_whole(intents, batch, found, session)
            except (Forbidden, Unauthenticated):
                raise
            except (InvalidRequest, NotFound, Conflict) as error:
                for flowfile in found:
                    fail(context, session, flowfile, self.failure, error)
            else:
                session.transfer(found, self.success)
        done = read_intents(context.state.get(), intents.producer)
        session.state.set(done.closed().state())

    def _publish_whole(
        self,
        intents: PublishIntents,
        batch: PublishBatch,
        found: Sequence[FlowFile],
        session: ProcessSession,
    ) -> None:
        limit = max(flowfile.size for flowfile in found)
        if limit > _BODY_MAX:
            raise InvalidRequest(
                f"a message of {limit:,} bytes is too large: use at most {_BODY_MAX:,}"
            )
        contents = [session.read_all(flowfile, limit) for flowfile in found]
        if not self.by_lines:
            place = self._broker.publish(
                batch.topic,
                contents,
                key=batch.key or None,
                durable=True,
                producer=_producer(intents, batch),
            )
            session.topics.sent(found, batch.topic, place)
        else:
            place = self._publish_lines(intents, batch, b"\n".join(contents))
            if session.topics.is_recorded:
                session.topics.sent(found, batch.topic, place, [_lines_in(one) for one in contents])

    def _publish_parts(
        self,
        intents: PublishIntents,
        batch: PublishBatch,
        flowfile: FlowFile,
        context: ProcessContext,
        session: ProcessSession,
    ) -> None:
        """Publish a large FlowFile part by part; each part is recorded before it is published."""
        try:
            while batch.start < flowfile.size:
                if not context.is_scheduled:
                    raise Unavailable(
                        "the processor is stopping; the remaining parts are "
                        "published when it runs again"
                    )
                lines = self._part(batch, flowfile, session)
                if batch.end == batch.start:
                    intents = intents.open([batch.part(batch.start, batch.start + len(lines))])
                    context.state.set(intents.state(), durable=True)
                    [batch] = intents.batches
                place = self._publish_lines(intents, batch, lines)
                if session.topics.is_recorded:
                    session.topics.sent([flowfile], batch.topic, place, [_lines_in(lines)])
                batch = batch.part(batch.end, batch.end)
        except (InvalidRequest, NotFound, Conflict):  # narrow: these are routed
            session.put_attributes(flowfile, {POSITION: str(batch.start)})
            raise

    def _part(self, batch: PublishBatch, flowfile: FlowFile, session: ProcessSession) -> bytes:
        with session.read(flowfile) as content:
            content.seek(batch.start)
            if batch.end > batch.start:
                return content.read(batch.end - batch.start)
            part = content.read(self.batch_bytes)
        if batch.start + len(part) == flowfile.size:
            return part
        lines = part[: part.rfind(b"\n") + 1]
        if not lines:
            raise InvalidRequest(
                f"the line at byte {batch.start:,} is longer than `batch_bytes`, "
                f"{self.batch_bytes:,}: raise it, or split the content"
            )
        return lines

    def _publish_lines(
        self, intents: PublishIntents, batch: PublishBatch, lines: bytes
    ) -> tuple[int, int] | None:
        if not lines.strip(b"\r\n"):
            return None  # only line breaks: no message
        return self._broker.publish_encoded(
            batch.topic,
            lines,
            binary=False,
            key=batch.key or None,
            durable=True,
            producer=_producer(intents, batch),
        )


class PublishTopic(TopicPublisher):
    """Publishes the content of FlowFiles to a topic: one message each, or one for each line.

    Each message is published once, even if a process is killed: batches are numbered, and the
    broker accepts a number once. While the broker is unavailable, FlowFiles stay in the queue.
    FlowFiles larger than a batch are published line by line in parts, which are read one at a time.
    """

    tags = ("topic", "publish", "nsq", "sink")

    topic = ExpressionProperty(STR, about="The topic; created if it does not exist.")
    key = ExpressionProperty(
        STR, default="", about="Messages with the same key stay in order, in one stream partition."
    )
    message = Property(
        choice("flowfile", "line"),
        default="flowfile",
        about="Unit of a message; empty lines are skipped.",
    )

    @property
    def by_lines(self) -> bool:
        """Whether each line is a message."""
        return self.message == "line"

    def destination(self, flowfile: FlowFile, now_ms: int) -> tuple[str, str]:
        """Return topic and key.

        Raises:
            ProcessError: An expression fails for this FlowFile.
            InvalidRequest: The topic is empty.
        """
        topic = self.topic.of(flowfile, now_ms=now_ms)
        if not topic:
            raise InvalidRequest(
                f"topic {self.topic.text!r} is empty for this FlowFile: set the attribute"
            )
        return topic, self.key.of(flowfile, now_ms=now_ms)


def _retry_later(
    error: Unavailable,
    context: ProcessContext,
    session: ProcessSession,
    wait_ms: int | None = None,
) -> None:
    session.rollback()
    context.log.warning("not published, will be retried: %s", error)
    context.report_unavailable(error)
    context.yield_(wait_ms)


def _begun(intents: PublishIntents, session: ProcessSession) -> list[FlowFile]:
    wanted = {uuid for batch in intents.batches for uuid in batch.uuids}

    def accept(flowfile: FlowFile) -> FilterVerdict:
        return FilterVerdict.ACCEPT if flowfile.attributes[UUID] in wanted else FilterVerdict.REJECT

    return session.get_where(accept)


class _Selection:
    """Accepts FlowFiles up to a number and a size; a larger FlowFile is accepted only by itself."""

    def __init__(self, count: int, size_bytes: int) -> None:
        self._count = count
        self._left_bytes = size_bytes
        self._taken = 0

    def __call__(self, flowfile: FlowFile) -> FilterVerdict:
        if self._taken and flowfile.size > self._left_bytes:
            return FilterVerdict.REJECT_AND_STOP
        self._taken += 1
        self._left_bytes -= flowfile.size
        is_last = self._taken >= self._count or self._left_bytes <= 0
        return FilterVerdict.ACCEPT_AND_STOP if is_last else FilterVerdict.ACCEPT


def _lines_in(content: bytes) -> int:
    """Return the number of messages in lines; empty lines are none."""
    return len([line for line in content.split(b"\n") if line])


def _producer(intents: PublishIntents, batch: PublishBatch) -> tuple[str, int]:
    # Without a key the name determines the stream partition: several names use several partitions.
    number = "" if batch.key else f".{batch.sequence % _SPREAD}"
    return f"{intents.producer}{number}", batch.sequence
