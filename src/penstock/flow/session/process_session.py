"""Process session as a processor uses it: the operations on FlowFiles.

Owns the calls and the rules of each. Does not own the transaction (`session_transaction`).

Invariants: a FlowFile is an immutable value. A call that changes one returns the newest version,
and every call accepts any version. A call that breaks the rules rolls the session back and raises
`SessionMisuse`, which names the FlowFile.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final, cast, overload

from penstock.core.errors import InvalidRequest
from penstock.flow.errors import SessionMisuse
from penstock.flow.flowfile import FILENAME, PATH, UUID, FlowFile
from penstock.flow.relationships import Relationship
from penstock.flow.repository.commit_note import TopicTransfer
from penstock.flow.session.content_streams import (
    ContentStream,
    export_pieces,
    file_pieces,
    stream_pieces,
)
from penstock.flow.session.session_state import TO_SOURCE, named, with_attributes, with_penalty
from penstock.flow.session.session_transaction import SessionTransaction

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from penstock.flow.queue.queue import FilterVerdict

READ_ALL_MAX_BYTES: Final = 16 << 20
_NOT_INHERITED: Final = (UUID, "alternate.identifier", "discard.reason")


class SessionTopics:
    """Messages of topics that FlowFiles were received from or sent as, for provenance.

    Args:
        transaction: The session.
    """

    def __init__(self, transaction: SessionTransaction) -> None:
        self._transaction = transaction
        self._calls = transaction.calls

    @property
    def is_recorded(self) -> bool:
        """Return whether `received` and `sent` have an effect."""
        return self._transaction.services.records

    def received(
        self, flowfiles: Sequence[FlowFile], topic: str, partition: int, offset: int
    ) -> None:
        """Record from which messages FlowFiles were created, for the record of provenance.

        Args:
            flowfiles: One FlowFile for each of consecutive messages.
            topic: The topic.
            partition: Stream partition.
            offset: Offset of the first message.
        """
        self._transferred(_received(topic, partition, offset, _ids(flowfiles)))

    def received_into(self, flowfile: FlowFile, topic: str, messages: Mapping[int, range]) -> None:
        """Record the messages of which a FlowFile consists: ranges of offsets by partition."""
        for partition, offsets in messages.items():
            counts = [len(offsets)]
            self._transferred(_received(topic, partition, offsets.start, [flowfile.id], counts))

    def sent(
        self,
        flowfiles: Sequence[FlowFile],
        topic: str,
        place: tuple[int, int] | None,
        counts: Sequence[int] = (),
    ) -> None:
        """Record to which messages FlowFiles were published, for the record of provenance.

        Args:
            flowfiles: The FlowFiles, in the order of their messages.
            topic: The topic.
            place: Stream partition, and offset of the first message; None: unknown.
            counts: Number of messages of each; empty: one each.
        """
        partition, offset = place or (-1, -1)
        self._transferred(
            TopicTransfer(
                is_send=True,
                topic=topic,
                partition=partition,
                offset=offset,
                ids=_ids(flowfiles),
                counts=list(counts),
            )
        )

    def _transferred(self, transfer: TopicTransfer) -> None:
        with self._calls as work:
            if work.services.records:
                work.session_state.transfers.append(transfer)


class ProcessSession:
    """Operations of a processor on FlowFiles, in one transaction; for the triggered thread only.

    Attributes:
        state: State of the processor; changes take effect with the commit.
        counters: ``session.counters.add("rows", 12)``: counters shown with the processor.
        on_committed: ``session.on_committed(callback)``: registers a function to call after the
            commit, for example to acknowledge input to its sender.
        topics: Records which messages FlowFiles were received from or sent as.
    """

    def __init__(self, transaction: SessionTransaction) -> None:
        self._transaction = transaction
        self._calls = transaction.calls
        self.state = transaction.state
        self.counters = transaction.counters
        self.on_committed = transaction.on_committed
        self.topics = SessionTopics(transaction)

    # -- taking

    def get(self) -> FlowFile | None:
        """Take one FlowFile; None if there is none. Successive calls rotate over the inputs."""
        with self._calls as work:
            return work.intake.one(work.session_state)

    def get_many(self, limit: int) -> list[FlowFile]:
        """Take up to `limit` FlowFiles of one input. Successive calls rotate over the inputs."""
        if limit < 1:
            raise InvalidRequest(f"get_many({limit}): the limit must be 1 or more")
        with self._calls as work:
            return work.intake.many(work.session_state, limit)

    def get_where(self, accept: Callable[[FlowFile], FilterVerdict]) -> list[FlowFile]:
        """Take the FlowFiles that a filter accepts.

        The filter receives those of all inputs, in order.
        """
        with self._calls as work:
            return work.intake.where(work.session_state, accept)

    # -- creating

    @overload
    def create(
        self,
        parents: FlowFile | Sequence[FlowFile] = (),
        *,
        attributes: Mapping[str, str] | None = None,
    ) -> FlowFile: ...
    @overload
    def create(
        self,
        parents: FlowFile | Sequence[FlowFile] = (),
        *,
        each: Iterable[Mapping[str, str]],
    ) -> list[FlowFile]: ...
    def create(
        self,
        parents: FlowFile | Sequence[FlowFile] = (),
        *,
        attributes: Mapping[str, str] | None = None,
        each: Iterable[Mapping[str, str]] | None = None,
    ) -> FlowFile | list[FlowFile]:
        """Create a FlowFile without content, or many at once, which takes a third of the time.

        Args:
            parents: The FlowFile gets the attributes of one parent, or those that are equal in all
                of several parents, and their oldest lineage.
            attributes: Additional attributes.
            each: Create one FlowFile for each of these maps, with that map as its additional
                attributes.

        Raises:
            SessionMisuse: A parent is not open in this session.
            InvalidRequest: An attribute is not text; nothing is created.
        """
        own = [_checked(one) for one in ((attributes or {},) if each is None else each)]
        given = [parents] if isinstance(parents, FlowFile) else parents
        with self._calls as work:
            newest = [work.session_state.open(parent, "create a FlowFile from") for parent in given]
            made = _made(work, newest, own)
            work.session_state.add_many(made, [parent.id for parent in newest])
            return made[0] if each is None else made

    def clone(self, flowfile: FlowFile, offset: int = 0, size: int | None = None) -> FlowFile:
        """Create a FlowFile with the same attributes and content, or a part of it.

        No bytes are copied.

        Args:
            flowfile: FlowFile of this session.
            offset: Start of the part, in bytes.
            size: Length of the part in bytes; None: up to the end.

        Raises:
            InvalidRequest: The part is outside the content.
            SessionMisuse: The FlowFile is not open in this session.
        """
        with self._calls as work:
            work.content.finish_appends([work.session_state.open(flowfile, "clone")])
            f = work.session_state.newest[flowfile.id]
            length = f.size - offset if size is None else size
            if offset < 0 or length < 0 or offset + length > f.size:
                raise InvalidRequest(
                    f"{named(f)} has {f.size:,} bytes of content, so it has no part of "
                    f"{length:,} bytes at offset {offset:,}: choose a part within the content"
                )
            clone = FlowFile(
                work.numbers.take(),
                {**f.attributes, UUID: work.services.new_uuid()},
                length,
                f.claim if length else None,
                f.content_offset + offset if length else 0,
                f.entry_ms,
                f.lineage_start_ms,
                f.lineage_index,
            )
            work.session_state.add_many([clone], [f.id])
            return clone

    # -- content

    def read(self, flowfile: FlowFile) -> io.BufferedReader:
        """Return a stream of the content: ``with session.read(flowfile) as content:``.

        Raises:
            ContentMissing: The content is missing.
            SessionMisuse: The FlowFile is not open in this session.
        """
        with self._calls as work:
            return work.content.read(work.session_state.open(flowfile, "read"))

    def read_all(self, flowfile: FlowFile, max_bytes: int = READ_ALL_MAX_BYTES) -> bytes:
        """Return the content.

        Raises:
            InvalidRequest: The content is longer than `max_bytes`.
            ContentMissing: The content is missing.
            SessionMisuse: The FlowFile is not open in this session.
        """
        with self._calls as work:
            return work.content.read_all(work.session_state.open(flowfile, "read"), max_bytes)

    @overload
    def write(self, flowfile: FlowFile) -> ContentStream: ...
    @overload
    def write(self, flowfile: FlowFile, data: Buffer) -> FlowFile: ...
    def write(self, flowfile: FlowFile, data: Buffer | None = None) -> ContentStream | FlowFile:
        """Write new content: the given bytes, or the bytes written to the returned stream.

        ``with session.write(flowfile) as out:`` If an exception leaves the context, the FlowFile is
        unchanged.

        Raises:
            Unavailable: Disk full or I/O error; the FlowFile is unchanged.
            SessionMisuse: The FlowFile is not open in this session, or is being written.
        """
        with self._calls as work:
            opened = work.session_state.open(flowfile, "write")
            if data is None:
                return work.content.write(opened)
            return work.content.put(opened, data)

    def append(self, flowfile: FlowFile) -> ContentStream:
        """Return a stream that appends to the content: ``with session.append(flowfile) as out:``.

        Raises:
            ContentMissing: The existing content is missing.
            Unavailable: Disk full or I/O error; the FlowFile is unchanged.
            SessionMisuse: The FlowFile is not open in this session, or is being written.
        """
        with self._calls as work:
            return work.content.append(work.session_state.open(flowfile, "append to"))

    def import_from(
        self, flowfile: FlowFile, source: str | Path | BinaryIO | Iterator[Buffer]
    ) -> FlowFile:
        """Copy a file, a stream, or pieces of bytes into the content of a FlowFile.

        Raises:
            NotFound: The file does not exist.
            Unavailable: The file cannot be read, or the content cannot be written; nothing is
                changed.
            SessionMisuse: The FlowFile is not open in this session.
        """
        if isinstance(source, str | Path):
            pieces: Iterator[Buffer] = file_pieces(self._transaction.services.fs, str(source))
        else:
            pieces = _stream_or_pieces(source)
        with self.write(flowfile) as out:
            for piece in pieces:
                out.write(piece)
        with self._calls as work:
            return work.session_state.newest[flowfile.id]

    def export_to(self, flowfile: FlowFile, target: str | Path | BinaryIO) -> int:
        """Write the content to a stream, or to a file: completely and durably, or not at all.

        Returns:
            Number of bytes.

        Raises:
            ContentMissing: The content is missing.
            Unavailable: The file could not be written.
            SessionMisuse: The FlowFile is not open in this session.
        """
        with self.read(flowfile) as content:
            if isinstance(target, str | Path):
                return export_pieces(content, self._transaction.services.fs, str(target))
            total = 0
            for piece in stream_pieces(content):
                target.write(piece)
                total += len(piece)
            return total

    # -- attributes

    def put_attributes(self, flowfile: FlowFile, attributes: Mapping[str, str]) -> FlowFile:
        """Set attributes of a FlowFile, and keep its other attributes.

        Raises:
            InvalidRequest: A name or a value is not text, or the name is `uuid`, which never
                changes.
            SessionMisuse: The FlowFile is not open in this session.
        """
        _checked(attributes)
        with self._calls as work:
            newest = work.session_state.open(flowfile, "set attributes of")
            changed = with_attributes(newest, {**newest.attributes, **attributes})
            work.session_state.change(changed)
            return changed

    def remove_attributes(self, flowfile: FlowFile, names: Iterable[str]) -> FlowFile:
        """Remove attributes of a FlowFile. Names that it does not have are ignored.

        Raises:
            InvalidRequest: A name is `uuid`, `filename` or `path`, which every FlowFile has.
            SessionMisuse: The FlowFile is not open in this session.
        """
        unwanted = set(names)
        for name in (UUID, FILENAME, PATH):
            if name in unwanted:
                raise InvalidRequest(
                    f"attribute {name!r} cannot be removed: every FlowFile has it"
                    + ("" if name == UUID else "; set it to another value")
                )
        with self._calls as work:
            newest = work.session_state.open(flowfile, "remove attributes of")
            kept = {k: value for k, value in newest.attributes.items() if k not in unwanted}
            changed = with_attributes(newest, kept)
            work.session_state.change(changed)
            return changed

    # -- transfer

    def transfer(
        self,
        flowfiles: FlowFile | Iterable[FlowFile],
        relationship: Relationship | str | None = None,
    ) -> None:
        """Transfer FlowFiles to a relationship; without one, back to their source queue.

        Raises:
            InvalidRequest: The processor does not have this relationship.
            SessionMisuse: One is not open in this session, or was not taken from a queue.
        """
        route = relationship.name if isinstance(relationship, Relationship) else relationship
        with self._calls as work:
            if route is None:
                route = TO_SOURCE
            elif route not in work.context.relationships:
                known = ", ".join(sorted(work.context.relationships)) or "none"
                raise InvalidRequest(f"unknown relationship {route!r}: use one of {known}")
            if isinstance(flowfiles, FlowFile):
                ids = [work.session_state.open(flowfiles, "transfer").id]
            else:
                ids = work.session_state.open_ids(list(flowfiles), "transfer")
            work.session_state.route(ids, route)

    def remove(self, flowfiles: FlowFile | Iterable[FlowFile]) -> None:
        """Remove FlowFiles from the flow.

        Raises:
            SessionMisuse: One is not open in this session.
        """
        with self._calls as work:
            work.session_state.remove(work.session_state.open_ids(_listed(flowfiles), "remove"))

    def penalize(self, flowfiles: FlowFile | Iterable[FlowFile]) -> None:
        """Penalize FlowFiles: they cannot be taken during the penalty period, in any queue.

        Raises:
            SessionMisuse: One is not open in this session.
        """
        with self._calls as work:
            ids = work.session_state.open_ids(_listed(flowfiles), "penalize")
            until_ms = work.services.clock.now_ms() + work.context.penalty_ms
            newest = work.session_state.newest
            for penalized in with_penalty([newest[number] for number in ids], until_ms):
                work.session_state.change(penalized)

    def migrate(self, target: ProcessSession, flowfiles: FlowFile | Iterable[FlowFile]) -> None:
        """Move FlowFiles to another session, which then transfers or removes them.

        Raises:
            InvalidRequest: The target is not another session of this processor.
            SessionMisuse: One is not open here, or would be separated from its parent or child.
        """
        self._transaction.migrate(target._transaction, _listed(flowfiles))

    # -- end of the session

    def checkpoint(self) -> None:
        """Complete the work so far: a later rollback does not undo it. Nothing is committed.

        Raises:
            SessionMisuse: A FlowFile was neither transferred nor removed; the session is rolled
                back.
        """
        self._transaction.checkpoint()

    def commit(self, *, durable: bool = False) -> None:
        """Commit now. Without this call, the runner of the processor commits after the trigger.

        Args:
            durable: Return only when the commit survives a power loss. Use this before input is
                acknowledged to its sender.

        Raises:
            SessionMisuse: A FlowFile was neither transferred nor removed; the session is rolled
                back.
            Unavailable: Full disk or I/O error; the session is rolled back.
        """
        self._transaction.commit(durable=durable)

    def rollback(self, *, penalize: bool = False, whole: bool = False) -> None:
        """Return FlowFiles taken since the last checkpoint to their queues, and discard new ones.

        Args:
            penalize: FlowFiles that are given back cannot be taken during the penalty period.
            whole: Also roll back earlier checkpoints.
        """
        self._transaction.rollback(penalize=penalize, whole=whole)


def _stream_or_pieces(source: BinaryIO | Iterator[Buffer]) -> Iterator[Buffer]:
    # An open file is also an iterator of its lines.
    if isinstance(source, io.IOBase) or hasattr(source, "read"):
        return stream_pieces(cast("BinaryIO", source))
    return source


def _received(
    topic: str, partition: int, offset: int, ids: list[int], counts: Sequence[int] = ()
) -> TopicTransfer:
    return TopicTransfer(
        is_send=False,
        topic=topic,
        partition=partition,
        offset=offset,
        ids=ids,
        counts=list(counts),
    )


def _ids(flowfiles: Sequence[FlowFile]) -> list[int]:
    return [flowfile.id for flowfile in flowfiles]


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _listed(flowfiles: FlowFile | Iterable[FlowFile]) -> list[FlowFile]:
    return [flowfiles] if isinstance(flowfiles, FlowFile) else list(flowfiles)


def _checked(attributes: Mapping[str, str]) -> Mapping[str, str]:
    if UUID in attributes:
        raise InvalidRequest("attribute 'uuid' never changes: remove it from the call")
    try:
        text = "".join(chain(attributes, attributes.values()))
        if "" not in attributes and (text.isascii() or text.encode()):
            return attributes  # fast path for the usual case
    except (TypeError, UnicodeEncodeError):
        pass  # the loop below finds the attribute
    for name, value in attributes.items():
        if not (name and _is_text(name) and _is_text(value)):
            raise InvalidRequest(
                f"attribute {name!r} is {value!r}: names and values must be text; convert it with "
                "str()"
            )
        try:
            f"{name}{value}".encode()
        except UnicodeEncodeError as error:
            raise InvalidRequest(
                f"attribute {name!r} is {value!r}, which contains an unpaired surrogate and "
                "cannot be encoded: decode the input with errors='replace'"
            ) from error
    return attributes


def _made(
    work: SessionTransaction, parents: Sequence[FlowFile], own: Sequence[Mapping[str, str]]
) -> list[FlowFile]:
    new_uuid = work.services.new_uuid
    now_ms = work.services.clock.now_ms()
    inherited = _inherited(parents) if parents else {}
    oldest_ms, oldest_index = min(
        ((parent.lineage_start_ms, parent.lineage_index) for parent in parents),
        default=(now_ms, None),
    )
    made = []
    for number, attributes in enumerate(own, work.numbers.take(len(own))):
        uuid = new_uuid()
        made.append(
            FlowFile(
                number,
                {UUID: uuid, FILENAME: uuid, PATH: "./", **inherited, **attributes},
                0,
                None,
                0,
                now_ms,
                oldest_ms,
                number if oldest_index is None else oldest_index,
            )
        )
    return made


def _inherited(parents: Sequence[FlowFile]) -> dict[str, str]:
    first, *others = (dict(parent.attributes) for parent in parents)
    for other in others:
        first = {k: value for k, value in first.items() if other.get(k) == value}
    for name in _NOT_INHERITED:
        first.pop(name, None)
    return first


__all__ = ["READ_ALL_MAX_BYTES", "ProcessSession", "SessionMisuse"]
