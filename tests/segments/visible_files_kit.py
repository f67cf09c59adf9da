"""Files with rows in a folder, and what is visible of them, for tests of table formats."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.core.intervals import Interval
from penstock.segments.engine_columns import Columns
from penstock.segments.visible_rows import VisibleFile, VisibleRows
from penstock.testing.clock import VirtualClock

DAY_MS = 86_400_000
FIRST_DAY = 20_000
ROWS = 4
PLAIN: Columns = (("__time", "timestamp"), ("page", "string"), ("ms", "bigint"))
WIDE: Columns = (*PLAIN, ("tags", "array<string>"), ("price", "decimal(10,2)"))


@dataclass
class FilesWorld:
    """Files in a folder, with the rows that a table of them should have."""

    folder: Path
    clock: VirtualClock = field(default_factory=VirtualClock)
    visible: dict[str, VisibleFile] = field(default_factory=dict)
    columns: dict[str, Columns] = field(default_factory=dict)
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    revision: int = 0

    def add(self, day: int, days: int = 1, columns: Columns = PLAIN) -> str:
        """Add a file with rows in some days."""
        number = next(self.numbers)
        start_ms = (FIRST_DAY + day) * DAY_MS
        step_ms = days * DAY_MS // ROWS
        times = [(start_ms + at * step_ms) * 1000 for at in range(ROWS)]
        values: dict[str, pa.Array] = {
            "__time": pa.array(times, pa.timestamp("us", tz="UTC")),
            "page": pa.array([f"/{number}"] * ROWS),
            "ms": pa.array([number * 100 + at for at in range(ROWS)]),
        }
        if columns == WIDE:
            values["tags"] = pa.array([["a", "b"], [], None, ["c"]])
            values["price"] = pa.array([1, 2, None, 3], pa.decimal128(10, 2))
        path = self.folder / "clicks" / f"{number}.parquet"
        path.parent.mkdir(exist_ok=True)
        pq.write_table(pa.table(values), path)
        interval = Interval(start_ms, start_ms + days * DAY_MS)
        name = str(path)
        self.visible[name] = VisibleFile(name, ROWS, path.stat().st_size, interval)
        self.columns[name] = columns
        return name

    def hide(self, name: str) -> None:
        """Hide the second half of a file's time."""
        file = self.visible[name]
        middle_ms = (file.interval.start_ms + file.interval.end_ms) // 2
        visible = Interval(file.interval.start_ms, middle_ms)
        self.visible[name] = replace(file, visible=(visible,))

    def cover(self, name: str) -> None:
        """Hide the second row of a file, so that two pieces stay visible."""
        file = self.visible[name]
        start_ms, end_ms = file.interval.start_ms, file.interval.end_ms
        row_ms = (end_ms - start_ms) // ROWS
        pieces = Interval(start_ms, start_ms + row_ms), Interval(start_ms + 2 * row_ms, end_ms)
        self.visible[name] = replace(file, visible=pieces)

    def cover_nothing(self, name: str) -> None:
        """Hide a time of a file in which it has no rows."""
        file = self.visible[name]
        visible = Interval(file.interval.start_ms, file.interval.end_ms - 1)
        self.visible[name] = replace(file, visible=(visible,))

    def rows(self) -> VisibleRows:
        """Return what is visible now, at a new revision."""
        self.revision += 1
        self.clock.advance(seconds=1)
        types = {name: type_ for pairs in self.columns.values() for name, type_ in pairs}
        in_files = list(dict.fromkeys(self.columns[name] for name in self.visible))
        files = sorted(self.visible.values(), key=lambda one: (one.interval, one.location))
        return VisibleRows(self.revision, files, tuple(types.items()), in_files)

    def expected(self) -> list[int]:
        """Return the values of the visible rows."""
        found = []
        for file in self.visible.values():
            number = int(Path(file.location).stem)
            start_ms, end_ms = file.interval.start_ms, file.interval.end_ms
            found += [
                number * 100 + at
                for at in range(ROWS)
                if any(
                    one.start_ms <= start_ms + at * (end_ms - start_ms) // ROWS < one.end_ms
                    for one in file.visible or (file.interval,)
                )
            ]
        return sorted(found)
