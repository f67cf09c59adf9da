"""Datasources that change in seeded steps, and the rows that every engine must read.

Each step is a transaction on a real metadata store, as tasks and the coordinator make it, over real
Parquet files: publish, append, replace, compact, tombstone, mark unused and used, drop and restore,
kill, another schema, and a stream with announced rows, a hand-over, a replica and a failed task.

The model is naive: a row is visible if the complete time chunk of the highest version at its time
has it. It is computed instant by instant, from the flags of the store and rows kept in memory.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Final

from penstock.core.durations import DAY_MS, HOUR_MS
from penstock.core.errors import Conflict
from penstock.core.instants import format_time
from penstock.core.intervals import Interval
from penstock.segments.deep_storage import DeepStore
from penstock.segments.segment import Segment, SegmentId, ShardSpec
from penstock.spark.tables.table_files import Columns
from penstock.storage.metadata import (
    AllocateRequest,
    AnnouncedFile,
    AnnouncedOffsets,
    MetadataStore,
    PublishKind,
    PublishRequest,
    SegmentRow,
    TaskRow,
)
from tests.kits.open_tables_rows_kit import (
    KINDS,
    RESERVED,
    TIME,
    NamedKind,
    Row,
    as_type,
    is_within,
    random_rows,
    write_file,
)

FILES_MAX: Final = 20
"""A datasource with more visible files is compacted or dropped, because reads take their time."""
_DAYS: Final = 12


@dataclass(frozen=True)
class StoredRows:
    """Rows of one file."""

    columns: Columns
    rows: Sequence[Row]


@dataclass
class _Stream:
    """The stream of a datasource, with the files of the running sequence."""

    numbers: Iterator[int]
    committed: int = 0
    tasks: list[str] = field(default_factory=list)
    sequence: str = ""
    end: int = 0
    files: list[tuple[AnnouncedFile, StoredRows]] = field(default_factory=list)


class ChangingTables:
    """Some datasources in a metadata store, their rows, and steps that change them.

    Args:
        folder: A folder for the files.
        store: The metadata store.
        seed: Chooses all steps.
        kinds: The datasources.
        announces: Whether steps make streams of their own.
    """

    def __init__(
        self,
        folder: Path,
        store: MetadataStore,
        seed: int,
        *,
        kinds: Sequence[NamedKind] = KINDS,
        announces: bool = True,
        deep_storage: Path | None = None,
    ) -> None:
        self.deep_storage = deep_storage or folder / "deep"
        self.store = store
        self.kinds = {kind.name: kind for kind in kinds}
        self.counts: Counter[str] = Counter()
        self._folder = folder
        self._seed = seed
        self._chance = random.Random(f"open tables {seed}")
        # The steps do not depend on the reads.
        self._times = random.Random(f"times {seed}")
        self._deep_store = DeepStore(str(self.deep_storage))
        self._deep_store.make_root()
        self._number = 0
        self._stored: dict[str, StoredRows] = {}
        self._streams = {name: _Stream(iter(range(1, 1 << 30))) for name in self.kinds}
        self._columns = {kind.name: self._first_columns(kind) for kind in kinds}
        self._last: PublishRequest | None = None
        self._steps: list[tuple[int, Callable[[str], None]]] = [
            (6, self.publish),
            (4, self.append),
            (5, self.replace_rows),
            (3, self.compact),
            (1, self.hide),
            (2, self.mark_unused),
            (3, self.mark_used),
            (1, self.drop),
            (2, self.kill),
            (3, self.change_schema),
            (1, self.publish_late),
            (1, self.repeat),
        ]
        if announces:
            self._steps += [(6, self.persist), (3, self.hand_over), (1, self.fail)]

    # -- steps

    def step(self) -> tuple[str, str]:
        """Change a datasource; return its name and the step's."""
        name = self._chance.choice(list(self.kinds))
        visible = self._visible(name)
        change: Callable[[str], None]
        if not visible and self._chance.random() < 0.5:
            change = self._chance.choice((self.restore, self.publish))
        elif len(visible) > FILES_MAX:
            change = self._chance.choice((self.compact, self.compact, self.drop))
        else:
            weights = [weight for weight, _ in self._steps]
            (change,) = self._chance.choices([one for _, one in self._steps], weights)
        change(name)
        self.counts[change.__name__] += 1
        return name, change.__name__

    def publish(self, name: str) -> None:
        """Publish rows of a time chunk under a new version."""
        self._write(name, self.some_interval(name), self._version())

    def publish_late(self, name: str) -> None:
        """Publish rows under an old version, which newer ones hide at once."""
        self._write(name, self.some_interval(name), format_time(self._new_number()))

    def append(self, name: str) -> None:
        """Append rows to a time chunk, or to one without segments."""
        chunks = [one.interval for one, _ in self._visible(name)]
        interval = self._chance.choice([*chunks, self.some_interval(name)])
        row = self._allocated(name, interval, f"append{self._new_number()}")
        if row is not None:
            self._commit(name, [row], "append")

    def replace_rows(self, name: str) -> None:
        """Replace a time chunk, a part of one, or one with its neighbours."""
        chunks = self._visible(name)
        if not chunks:
            return
        interval = self._chance.choice(chunks)[0].interval
        wider = Interval(
            interval.start_ms // DAY_MS * DAY_MS - DAY_MS,
            -(-interval.end_ms // DAY_MS) * DAY_MS + DAY_MS,
        )
        quarter_ms = (interval.end_ms - interval.start_ms) // 4
        part = Interval(interval.start_ms + quarter_ms, interval.end_ms - quarter_ms)
        self._write(name, self._chance.choice((interval, part, wider)), self._version(), "replace")

    def hide(self, name: str) -> None:
        """Replace a time chunk with no rows: a tombstone hides it."""
        chunks = self._visible(name)
        if chunks:
            interval = self._chance.choice(chunks)[0].interval
            tombstone = Segment(
                name,
                interval,
                self._version(),
                {"type": "tombstone"},
                ShardSpec.tombstone(),
                size=1,
            )
            self._commit(name, [tombstone.to_row()], "replace")

    def compact(self, name: str) -> None:
        """Write the visible rows of some time again, with the types of now."""
        chunks = sorted(one.interval for one, _ in self._visible(name))
        if not chunks:
            return
        first = self._chance.randrange(len(chunks))
        some = chunks[first : first + self._chance.randint(1, FILES_MAX)]
        interval = Interval(some[0].start_ms, max(one.end_ms for one in some))
        columns = tuple((column, _wider(types)) for column, types in self.columns(name).items())
        rows = [
            {column: as_type(row.get(column), type_) for column, type_ in columns}
            for row in self.visible_rows(name, has_announced=False)
            if is_within(row, interval)
        ]
        if rows:
            self._write(name, interval, self._version(), "replace", StoredRows(columns, rows))

    def mark_unused(self, name: str) -> None:
        """Mark one segment, or those of some time, unused."""
        used = [row.id for row in self._rows(name) if row.used]
        if used and self._chance.random() < 0.5:
            self.store.segments.mark_unused([self._chance.choice(used)])
        else:
            self.store.segments.mark_unused_within(name, self.some_interval(name))

    def mark_used(self, name: str) -> None:
        """Mark some segments used."""
        unused = [row.id for row in self._rows(name) if not row.used]
        if unused:
            self.store.segments.mark_used(self._chance.sample(unused, min(3, len(unused))))

    def drop(self, name: str) -> None:
        """Mark all segments unused."""
        self.store.segments.mark_unused_within(name)

    def restore(self, name: str) -> None:
        """Mark all segments used."""
        self.store.segments.mark_used_within(name)

    def kill(self, name: str) -> None:
        """Delete some unused segments and their files."""
        unused = [row.id for row in self._rows(name) if not row.used]
        killed = self.store.segments.kill(self._chance.sample(unused, len(unused) // 2))
        for row in killed.files_free:
            if row.payload["loadSpec"] != {"type": "tombstone"}:
                self._deep_store.kill(Segment.from_row(row).load_spec)

    def change_schema(self, name: str) -> None:
        """Change the columns of later rows: a new one, one less, or another type."""
        kind = self.kinds[name]
        columns = dict(self._columns[name])
        column = self._chance.choice(list(kind.columns))
        if column in columns and column not in kind.first and self._chance.random() < 0.4:
            del columns[column]
        else:
            columns[column] = self._chance.choice(kind.columns[column])
        self._columns[name] = tuple(columns.items())

    def repeat(self, _name: str) -> None:
        """Publish once more what was published last."""
        if self._last is not None and self._last.sequence_name:
            assert self.store.publish(self._last).already_published

    def persist(self, name: str) -> None:
        """Announce rows of a stream's task, and those that it announced before; maybe by two."""
        stream = self._streams[name]
        if not stream.sequence:
            number = self._new_number()
            stream.sequence, stream.end = f"sequence{number}", stream.committed
            stream.tasks = [f"task{number}", f"replica{number}"][: self._chance.randint(1, 2)]
            self.store.tasks.insert_new(
                [TaskRow(one, name, "index_penstock", one, {}) for one in stream.tasks]
            )
        interval = self.some_interval(name, days=1)
        # Two names in files of one segment that differ in case alone would be two columns.
        stored = self._random(name, interval, may_swap_case=False)
        path = self._folder / f"running{self._seed}-{self._new_number()}.parquet"
        write_file(path, stored.columns, stored.rows)
        payload = {"columns": [list(one) for one in stored.columns], "bytes": path.stat().st_size}
        file = AnnouncedFile(str(path), interval, len(stored.rows), payload)
        stream.files.append((file, stored))
        stream.end += len(stored.rows)
        for task in stream.tasks:
            reading = AnnouncedOffsets(name, {0: stream.committed}, {0: stream.end})
            files = [one for one, _ in stream.files]
            assert self.store.announce(task, name, stream.sequence, files, reading)

    def hand_over(self, name: str) -> None:
        """Publish the rows of a stream's sequence as segments, in the place of announced ones."""
        stream = self._streams[name]
        places: list[tuple[SegmentRow, StoredRows]] = []
        for at, (file, stored) in enumerate(stream.files):
            sequence = f"{stream.sequence}-{at}"
            row = self._allocated(name, file.interval, sequence, stored)
            if row is None:
                return self.fail(name)
            places.append((row, stored))
        if stream.sequence:
            request = PublishRequest(
                *(stream.tasks[0], name, tuple(row for row, _ in places)),
                supervisor_id=name,
                start_offsets={0: stream.committed},
                end_offsets={0: stream.end},
                sequence_name=stream.sequence,
                kind="append",
            )
            outcome = self.store.publish(request)
            assert outcome.ok, outcome
            self._last = request
            stream.committed = stream.end
            self._end_sequence(name, "SUCCESS")
        return None

    def fail(self, name: str) -> None:
        """End the tasks of a stream without a publish: their rows are read again later."""
        if self._streams[name].sequence:
            self._end_sequence(name, "FAILED")

    # -- what is to be read

    def names(self) -> list[str]:
        """Return the names of the datasources that have data."""
        return sorted(name for name in self.kinds if self._visible(name) or self._announced(name))

    def some_interval(self, name: str, days: int = 0) -> Interval:
        """Return a time that the datasource may have rows of."""
        start_ms = (self.kinds[name].first_day + self._chance.randrange(_DAYS)) * DAY_MS
        if not days and self._chance.random() < 0.3:
            start_ms += self._chance.randrange(24) * HOUR_MS
            return Interval(start_ms, start_ms + HOUR_MS)
        return Interval(start_ms, start_ms + (days or self._chance.choice((1, 1, 1, 3))) * DAY_MS)

    def some_time(self, name: str) -> Interval:
        """Return a time that begins or ends at a visible row, if there is one."""
        rows = self.visible_rows(name, has_announced=True)
        if not rows:
            start_ms = self.kinds[name].first_day * DAY_MS
            return Interval(start_ms, start_ms + DAY_MS)
        at_ms = int(str(self._times.choice(rows)["__time"])) // 1000
        before_ms, after_ms = self._times.choice(
            ((0, 1), (0, HOUR_MS), (HOUR_MS, 0), (1, 1), (0, DAY_MS), (DAY_MS, 0), (DAY_MS, DAY_MS))
        )
        return Interval(at_ms - before_ms, at_ms + after_ms)

    def is_exact(self, name: str) -> bool:
        """Return whether the case of columns counts."""
        return self.kinds[name].has_case_variants

    def visible_rows(self, name: str, *, has_announced: bool) -> list[Row]:
        """Return the visible rows, with the names of columns as `is_exact` has it."""
        found = [
            self._folded(name, row)
            for segment, chunks in self._visible(name)
            for row in self._stored[segment.id].rows
            if any(is_within(row, one) for one in chunks)
        ]
        if has_announced:
            announced = self._announced(name)
            found += [self._folded(name, row) for stored in announced for row in stored.rows]
        return found

    def columns(self, name: str, *, has_announced: bool = True) -> Mapping[str, frozenset[str]]:
        """Return the types that each column has in the files."""
        types: defaultdict[str, set[str]] = defaultdict(set)
        files = [self._stored[one.id] for one, _ in self._visible(name)]
        for stored in (*files, *(self._announced(name) if has_announced else ())):
            for column, type_ in stored.columns:
                types[column if self.is_exact(name) else column.lower()].add(type_)
        return {column: frozenset(found) for column, found in types.items()}

    def delta_columns(self, name: str) -> frozenset[str]:
        """Return the columns that engines of Delta can read in all segments."""
        return _readable(self.columns(name, has_announced=False))

    def iceberg_columns(self, name: str) -> frozenset[str]:
        """Return the columns that engines of Iceberg can read in all files."""
        return _readable(self.columns(name)) - RESERVED

    def sql_columns(self, name: str) -> frozenset[str]:
        """Return all columns."""
        return frozenset(self.columns(name))

    def _folded(self, name: str, row: Row) -> Row:
        return row if self.is_exact(name) else {key.lower(): value for key, value in row.items()}

    def _announced(self, name: str) -> list[StoredRows]:
        return [stored for _, stored in self._streams[name].files]

    def _rows(self, name: str) -> list[SegmentRow]:
        return sorted(
            (row for row in self.store.segments.every() if row.datasource == name),
            key=lambda row: row.id,
        )

    def _visible(self, name: str) -> list[tuple[SegmentRow, list[Interval]]]:
        """Return the segments of which a part is visible, with these parts."""
        chunks: defaultdict[tuple[str, Interval], list[SegmentRow]] = defaultdict(list)
        for row in self.store.segments.used(name):
            chunks[row.version, row.interval].append(row)
        complete = {
            key: rows
            for key, rows in chunks.items()
            if {row.partition_number for row in rows}
            >= set(range(max(row.core_partitions for row in rows)))
        }
        ends = sorted({at for _, one in complete for at in (one.start_ms, one.end_ms)})
        shown: defaultdict[tuple[str, Interval], list[Interval]] = defaultdict(list)
        for start_ms, end_ms in pairwise(ends):
            over = [one for one in complete if one[1].start_ms <= start_ms < one[1].end_ms]
            if over:
                shown[max(over)].append(Interval(start_ms, end_ms))
        return [
            (row, parts)
            for key, parts in shown.items()
            for row in complete[key]
            if row.id in self._stored
        ]

    # -- writes

    def _first_columns(self, kind: NamedKind) -> Columns:
        return (TIME, *((name, kind.columns[name][0]) for name in kind.first))

    def _new_number(self) -> int:
        self._number += 1
        return self._number

    def _version(self) -> str:
        return format_time(1_770_000_000_000 + self._new_number())

    def _random(self, name: str, interval: Interval, *, may_swap_case: bool = True) -> StoredRows:
        columns = self._columns[name]
        if may_swap_case and self.kinds[name].swaps_case and self._chance.random() < 0.2:
            columns = (TIME, *((column.swapcase(), type_) for column, type_ in columns[1:]))
        count = self._chance.randint(1, 12)
        return StoredRows(columns, random_rows(self._chance, interval, columns, count))

    def _write(
        self,
        name: str,
        interval: Interval,
        version: str,
        kind: PublishKind = "insert",
        given: StoredRows | None = None,
    ) -> None:
        """Publish a time chunk in a few segments."""
        core = self._chance.randint(1, 3)
        made = []
        for number in range(core):
            stored = self._random(name, interval)
            if given is not None:
                stored = StoredRows(given.columns, given.rows[number::core])
            shard = ShardSpec(number, core)
            made.append(self._pushed(Segment(name, interval, version, {}, shard), stored))
        self._commit(name, made, kind)

    def _allocated(
        self, name: str, interval: Interval, sequence: str, stored: StoredRows | None = None
    ) -> SegmentRow | None:
        """Allocate a segment and write its file; None: the time has others."""
        request = AllocateRequest(name, interval, sequence, self._version())
        try:
            (place,) = self.store.allocate_segments([request])
        except Conflict:  # of a version that was used and killed
            return None
        if place is None:
            return None
        shard = ShardSpec(place.partition_number, place.core_partitions)
        segment = Segment(name, place.interval, place.version, {}, shard)
        return self._pushed(segment, stored or self._random(name, place.interval))

    def _pushed(self, segment: Segment, stored: StoredRows) -> SegmentRow:
        path = self._folder / f"written{self._seed}-{self._new_number()}.parquet"
        write_file(path, stored.columns, stored.rows)
        id_ = SegmentId(
            *(segment.datasource, segment.interval, segment.version),
            segment.shard_spec.partition_number,
        )
        pushed = self._deep_store.push(str(path), id_, f"u{self._new_number()}")
        path.unlink()
        self._stored[str(id_)] = stored
        return replace(
            segment,
            load_spec=pushed.load_spec,
            size=pushed.size,
            total_rows=len(stored.rows),
            columns=tuple(stored.columns),
        ).to_row()

    def _commit(self, name: str, rows: Sequence[SegmentRow], kind: PublishKind) -> None:
        task = f"batch{self._new_number()}"
        request = PublishRequest(task, name, tuple(rows), sequence_name=task, kind=kind)
        outcome = self.store.publish(request)
        assert outcome.ok, outcome
        self._last = request

    def _end_sequence(self, name: str, state: str) -> None:
        stream = self._streams[name]
        for task in stream.tasks:
            self.store.tasks.set_status(task, state)
        stream.sequence, stream.files = "", []


def _wider(types: Collection[str]) -> str:
    """Return the type that holds the values of all types."""
    if len(types) == 1:
        return next(iter(types))
    return "double" if set(types) <= {"bigint", "float", "double"} else "string"


def _readable(columns: Mapping[str, Collection[str]]) -> frozenset[str]:
    """Return the columns whose types in files can be read as one."""
    return frozenset(
        column
        for column, types in columns.items()
        if len(types) == 1 or set(types) == {"float", "double"}
    )
