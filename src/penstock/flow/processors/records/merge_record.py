"""MergeRecord: a processor that combines the records of several FlowFiles into one FlowFile.

`plan_bins` groups the waiting FlowFiles by number, size and age, and `plan_parts` groups the
fragments of a split FlowFile; both are pure. The processor writes the bins that are ready.
FlowFiles stay in the queue until then, and each trigger computes the plan again, so a restart
loses no bin.

Invariants: nothing is held between two triggers. A bin keeps the queue's order. A FlowFile is
in at most one bin. A bin is within both limits, unless a single FlowFile exceeds them.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import ClassVar, Final

import pyarrow as pa

from penstock.flow.flowfile import FILENAME
from penstock.flow.processor import (
    PERIOD,
    SIZE,
    FlowFile,
    InputRequirement,
    Problem,
    ProcessContext,
    ProcessSession,
    Property,
    Relationship,
)
from penstock.flow.processors.failure import WRITES_REASON, fail
from penstock.flow.processors.records.base import (
    RECORD_COUNT,
    RecordProcessor,
    accept_only,
    record_attributes,
)
from penstock.flow.processors.records.formats.format_protocols import BadRecords, common_schema
from penstock.flow.processors.records.formats.record_formats import RecordFormat
from penstock.flow.processors.records.split_record import (
    FRAGMENT_COUNT,
    FRAGMENT_ID,
    FRAGMENT_INDEX,
    ORIGINAL_NAME,
)
from penstock.flow.queue.queue import FilterVerdict


@dataclass(frozen=True, slots=True)
class MergeBins:
    """FlowFile that waits.

    Attributes:
        id: Its id.
        key: Correlation; equal for all FlowFiles of a bin.
        records: Number of its records, as far as known.
        size_bytes: Size of its content.
        since_ms: When it began to wait.
        index: Number of its part, if it is one of several.
        parts: Number of parts; 0: unknown.
    """

    id: int
    key: str
    records: int
    size_bytes: int
    since_ms: int
    index: int = 0
    parts: int = 0


@dataclass(frozen=True, slots=True)
class BinBounds:
    """Bounds that decide when a bin is ready, and when it is full.

    Attributes:
        min_records: Number of records at which a bin is ready, if it also has `min_bytes`.
        max_records: Number of records at which a bin is full.
        min_bytes: See `min_records`.
        max_bytes: Size at which a bin is full.
        max_age_ms: Wait of the oldest FlowFile after which a bin is ready; None: no limit.
        max_bins: Maximum number of waiting bins; beyond it the oldest is ready.
    """

    min_records: int
    max_records: int
    min_bytes: int
    max_bytes: int
    max_age_ms: int | None
    max_bins: int


@dataclass(slots=True)
class Bin:
    """FlowFiles that are merged together."""

    waiting: list[MergeBins] = field(default_factory=list)
    records: int = 0
    size_bytes: int = 0

    @property
    def since_ms(self) -> int:
        """Return when its oldest FlowFile began to wait."""
        return min(one.since_ms for one in self.waiting)

    def add(self, one: MergeBins) -> None:
        """Add a FlowFile."""
        self.waiting.append(one)
        self.records += one.records
        self.size_bytes += one.size_bytes


@dataclass(frozen=True, slots=True)
class MergePlan:
    """Result of planning.

    Attributes:
        ready: Bins to merge.
        incomplete: Bins that did not become complete in time.
        due_ms: When the next bin is ready by its age; None: only new FlowFiles make one ready.
        waits: Whether FlowFiles continue to wait.
    """

    ready: list[Bin]
    incomplete: list[Bin]
    due_ms: int | None
    waits: bool


def plan_bins(
    waiting: Sequence[MergeBins], bounds: BinBounds, now_ms: int, *, must: bool = False
) -> MergePlan:
    """Plan by number, size and age.

    Args:
        waiting: Waiting FlowFiles in the order of the queue.
        bounds: When a bin is ready.
        now_ms: The time.
        must: Make one bin ready in any case, because the processor cannot see more FlowFiles.
    """
    ready: list[Bin] = []
    opened: dict[str, Bin] = {}
    for one in waiting:
        current = opened.get(one.key)
        if current is not None and (
            current.records + one.records > bounds.max_records
            or current.size_bytes + one.size_bytes > bounds.max_bytes
        ):
            ready.append(opened.pop(one.key))
            current = None
        if current is None:
            current = opened[one.key] = Bin()
        current.add(one)
        if current.records >= bounds.max_records or current.size_bytes >= bounds.max_bytes:
            ready.append(opened.pop(one.key))
    left: list[Bin] = []
    for one_bin in opened.values():
        enough = one_bin.records >= bounds.min_records and one_bin.size_bytes >= bounds.min_bytes
        (ready if enough or _is_old(one_bin, bounds, now_ms) else left).append(one_bin)
    left.sort(key=lambda one_bin: one_bin.since_ms)
    over = max(len(left) - bounds.max_bins, int(must and not ready))
    ready += left[:over]
    return MergePlan(ready, [], _due_ms(left[over:], bounds), waits=bool(left[over:]))


def plan_parts(
    waiting: Sequence[MergeBins], bounds: BinBounds, now_ms: int, *, must: bool = False
) -> MergePlan:
    """Plan by parts: a bin is ready when all parts of one split FlowFile are present.

    Args:
        waiting: Waiting FlowFiles in the order of the queue; the key identifies the split FlowFile.
        bounds: Bounds for age and number of bins.
        now_ms: The time.
        must: As for `plan_bins`; the bin is then incomplete.
    """
    opened: dict[str, Bin] = {}
    for one in waiting:
        opened.setdefault(one.key, Bin()).add(one)
    ready, incomplete, left = list[Bin](), list[Bin](), list[Bin]()
    for one_bin in opened.values():
        parts = max(one.parts for one in one_bin.waiting)
        if parts and {one.index for one in one_bin.waiting} >= set(range(parts)):
            one_bin.waiting.sort(key=lambda one: one.index)
            ready.append(one_bin)
        else:
            (incomplete if _is_old(one_bin, bounds, now_ms) else left).append(one_bin)
    left.sort(key=lambda one_bin: one_bin.since_ms)
    over = max(len(left) - bounds.max_bins, int(must and not ready and not incomplete))
    incomplete += left[:over]
    return MergePlan(ready, incomplete, _due_ms(left[over:], bounds), waits=bool(left[over:]))


def _is_old(one_bin: Bin, bounds: BinBounds, now_ms: int) -> bool:
    return bounds.max_age_ms is not None and one_bin.since_ms + bounds.max_age_ms <= now_ms


def _due_ms(left: Sequence[Bin], bounds: BinBounds) -> int | None:
    if bounds.max_age_ms is None or not left:
        return None
    return min(one_bin.since_ms for one_bin in left) + bounds.max_age_ms


_WAITING_MAX: Final = 20_000
_PIECE_BYTES: Final = 1 << 20
MERGE_COUNT: Final = "merge.count"


class MergeStrategy(enum.Enum):
    """Rule that decides which FlowFiles are merged together."""

    BINS = "bins"
    PARTS = "parts"


class MergeRecord(RecordProcessor):
    """Writes the records of several FlowFiles into one.

    With ``bins``, FlowFiles with the same correlation are combined in their order until the bounds
    are reached; with ``parts``, all parts that SplitRecord created from one FlowFile, in their
    order. Without a schema the result has the fields of all inputs. JSON lines that stay JSON
    lines, without a schema, are concatenated without parsing.
    """

    input = InputRequirement.REQUIRED
    triggers_serially = True
    tags = ("records", "merge", "bin", "batch", "defragment")
    reads_attributes: ClassVar[Mapping[str, str]] = {
        "record.count": "Number of records of a FlowFile; without it, a FlowFile counts as 1.",
        FRAGMENT_ID: "For parts: identifies the parts of one FlowFile.",
        FRAGMENT_INDEX: "For parts: number of the part.",
        FRAGMENT_COUNT: "For parts: number of parts.",
        ORIGINAL_NAME: "For parts: name of the result.",
        "of the correlation": "Attributes in `correlation`.",
    }
    writes_attributes: ClassVar[Mapping[str, str]] = {
        "mime.type": "MIME type of the result.",
        "record.count": "Number of records of the result.",
        MERGE_COUNT: "Number of merged FlowFiles.",
        **WRITES_REASON,
    }

    output_format = Property(
        RecordFormat, about="Format of the result; by default, the format of the input."
    )
    strategy = Property(
        MergeStrategy,
        default="bins",
        about="bins: by the bounds; parts: the parts of a split FlowFile.",
    )
    correlation = Property(
        str,
        default="",
        about="Attribute that is equal for all FlowFiles of a bin; empty: all FlowFiles match.",
    )
    min_records = Property(
        int, default=1, about="Minimum number of records at which a bin is ready."
    )
    max_records = Property(int, default=100_000, about="Maximum number of records of a bin.")
    min_size = Property(SIZE, default="0", about="Minimum size at which a bin is ready.")
    max_size = Property(SIZE, default="128 MB", about="Maximum size of a bin.")
    max_age = Property(
        PERIOD,
        about="A bin is ready when its oldest FlowFile has waited for this time in the queue. "
        "For parts: incomplete bins then fail.",
    )
    max_bins = Property(
        int, default=100, about="Maximum number of waiting bins; beyond it the oldest is ready."
    )

    merged = Relationship("Merged FlowFiles.")
    original = Relationship("FlowFiles that were merged.")
    failure = Relationship(
        "The content does not have the format or fits no other FlowFile; or parts are missing."
    )

    def check(self) -> Iterator[Problem]:
        """Yield errors that involve several properties."""
        if not 1 <= self.min_records <= self.max_records:
            yield Problem("min_records", "must be 1 or more, and not more than max_records")
        if not self.min_size <= self.max_size or not self.max_size:
            yield Problem("min_size", "must be no more than max_size, which must be more than 0")
        if not 1 <= self.max_bins <= _WAITING_MAX:
            yield Problem("max_bins", f"must be at least 1 and at most {_WAITING_MAX:,}")

    def on_trigger(self, context: ProcessContext, session: ProcessSession) -> None:
        """Merge the bins that are ready; leave other FlowFiles in the queue."""
        now_ms = context.clock.now_ms()
        plan = self._plan(session, now_ms)
        chosen = [*plan.ready, *plan.incomplete]
        if not chosen:
            if not plan.waits:
                return
            due_ms = plan.due_ms
            rest_ms = context.identity.yield_ms
            context.yield_(rest_ms if due_ms is None else min(rest_ms, max(due_ms - now_ms, 1)))
            return
        wanted = {one.id for one_bin in chosen for one in one_bin.waiting}
        taken = {flowfile.id: flowfile for flowfile in session.get_where(accept_only(wanted))}
        for one_bin in plan.ready:
            flowfiles = _of(one_bin, taken)
            if self.strategy is MergeStrategy.PARTS and len(flowfiles) < len(one_bin.waiting):
                session.transfer(flowfiles)  # one expired meanwhile: the others continue to wait
            else:
                self._merge(context, session, flowfiles)
        for one_bin in plan.incomplete:
            parts = one_bin.waiting[0].parts
            reason = f"only {len(one_bin.waiting)} of {parts} parts arrived in time: raise max_age"
            for flowfile in _of(one_bin, taken):
                fail(context, session, flowfile, self.failure, reason)

    def _plan(self, session: ProcessSession, now_ms: int) -> MergePlan:
        waiting: list[MergeBins] = []

        def collect(flowfile: FlowFile) -> FilterVerdict:
            waiting.append(self._waiting(flowfile))
            return (
                FilterVerdict.REJECT_AND_STOP
                if len(waiting) >= _WAITING_MAX
                else FilterVerdict.REJECT
            )

        session.get_where(collect)
        bounds = BinBounds(
            min_records=self.min_records,
            max_records=self.max_records,
            min_bytes=self.min_size,
            max_bytes=self.max_size,
            max_age_ms=self.max_age,
            max_bins=self.max_bins,
        )
        planned = plan_parts if self.strategy is MergeStrategy.PARTS else plan_bins
        return planned(waiting, bounds, now_ms, must=len(waiting) >= _WAITING_MAX)

    def _waiting(self, flowfile: FlowFile) -> MergeBins:
        attributes = flowfile.attributes
        is_part = self.strategy is MergeStrategy.PARTS
        name = FRAGMENT_ID if is_part else self.correlation
        return MergeBins(
            id=flowfile.id,
            key=attributes.get(name, "") if name else "",
            records=_number(attributes.get(RECORD_COUNT), 1),
            size_bytes=flowfile.size,
            since_ms=flowfile.queued_ms,
            index=_number(attributes.get(FRAGMENT_INDEX), 0),
            parts=_number(attributes.get(FRAGMENT_COUNT), 0),
        )

    def _merge(
        self, context: ProcessContext, session: ProcessSession, flowfiles: list[FlowFile]
    ) -> None:
        """Merge a bin; FlowFiles that cannot be read fail, and the others are merged."""
        while flowfiles:
            made = session.create(flowfiles)
            try:
                count = self._write(session, made, flowfiles)
            except _Unfit as error:
                session.remove(made)
                for flowfile in error.flowfiles:
                    fail(context, session, flowfile, self.failure, error)
                unfit = {flowfile.id for flowfile in error.flowfiles}
                flowfiles = [f for f in flowfiles if f.id not in unfit]
                continue
            target = self.output_format or self.input_format
            attributes = {**record_attributes(target, count), MERGE_COUNT: str(len(flowfiles))}
            name = flowfiles[0].attributes.get(ORIGINAL_NAME)
            if self.strategy is MergeStrategy.PARTS and name is not None:
                attributes[FILENAME] = name
            session.put_attributes(made, attributes)
            session.counters.add("records", count)
            session.transfer(made, self.merged)
            session.transfer(flowfiles, self.original)
            return

    def _write(self, session: ProcessSession, made: FlowFile, flowfiles: list[FlowFile]) -> int:
        target = self.output_format or self.input_format
        if self.input_format is target is RecordFormat.JSON_LINES and self.schema is None:
            return _join_lines(session, made, flowfiles)
        schema = self.schema or self._common_schema(session, flowfiles)
        options = replace(self.reading_options(), schema=schema)
        count = 0
        with session.write(made) as out:
            with _blaming(flowfiles):
                writer = self.writer(target, out, schema)
            for flowfile in flowfiles:
                with _blaming([flowfile]):
                    for batch in self.records(session, flowfile, options).batches:
                        writer.write(batch)
                        count += batch.num_rows
            writer.close()
        return count

    def _common_schema(self, session: ProcessSession, flowfiles: Sequence[FlowFile]) -> pa.Schema:
        schemas = []
        for flowfile in flowfiles:
            with _blaming([flowfile]):
                schemas.append(self.records(session, flowfile, self.reading_options()).schema)
        with _blaming(flowfiles):
            return common_schema(schemas)


class _Unfit(Exception):
    """These FlowFiles cannot be merged; never leaves this module."""

    def __init__(self, flowfiles: Sequence[FlowFile], reason: BadRecords) -> None:
        super().__init__(str(reason))
        self.flowfiles = flowfiles


@contextmanager
def _blaming(flowfiles: Sequence[FlowFile]) -> Iterator[None]:
    try:
        yield
    except BadRecords as error:
        raise _Unfit(flowfiles, error) from None


def _join_lines(session: ProcessSession, made: FlowFile, flowfiles: Sequence[FlowFile]) -> int:
    """Concatenate the contents, each ended by a line break; return the number of lines."""
    count = 0
    with session.write(made) as out:
        for flowfile in flowfiles:
            last = b"\n"
            with session.read(flowfile) as content:
                while piece := content.read(_PIECE_BYTES):
                    out.write(piece)
                    count += piece.count(b"\n")
                    last = piece[-1:]
            if last != b"\n":
                out.write(b"\n")
                count += 1
    return count


def _of(one_bin: Bin, taken: Mapping[int, FlowFile]) -> list[FlowFile]:
    # A FlowFile may have expired meanwhile.
    return [taken[one.id] for one in one_bin.waiting if one.id in taken]


def _number(text: str | None, otherwise: int) -> int:
    if text is None or not (text.isascii() and text.isdigit() and len(text) < 16):
        return otherwise
    return int(text)
