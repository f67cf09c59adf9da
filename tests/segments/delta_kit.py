"""A Delta table of files with rows, and a naive reader of its log."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.segments.delta.delta_files import DeltaFiles
from penstock.segments.delta.delta_table import DeltaTable
from penstock.segments.visible_rows import VisibleRows
from tests.segments.visible_files_kit import WIDE, FilesWorld

CLICKS = "clicks"
KINDS = ["add", "long", "wide", "remove", "hide", "cover", "nothing", "show", "other", "drop"]


@dataclass
class DeltaWorld(FilesWorld):
    """A table in a folder, with the rows that it should have."""

    table_id: str = "t1"
    stored_revision: int | None = None
    table: DeltaTable = field(init=False)

    def __post_init__(self) -> None:
        self.table = self.opened()

    def opened(self) -> DeltaTable:
        """Return the table as another process opens it."""
        files = DeltaFiles(str(self.folder), CLICKS)
        return DeltaTable(CLICKS, files, self.table_id, self.revision_now, self.clock)

    def revision_now(self) -> int:
        return self.revision if self.stored_revision is None else self.stored_revision

    def create(self) -> VisibleRows:
        rows = self.rows()
        self.table.create(rows)
        return rows

    def build(self) -> VisibleRows:
        rows = self.rows()
        self.table.update(rows)
        return rows

    @property
    def log(self) -> Path:
        return self.folder / CLICKS / "_delta_log"

    def copies(self) -> list[Path]:
        return sorted((self.folder / CLICKS / "_delta_rows").glob("*"))


class NaiveReader:
    """The rows that an engine finds at a version: from a checkpoint, or from the first entry.

    Args:
        folder: The folder of the table.
        checkpoint: The version of the checkpoint to begin with; -1: the first entry.
        last: The version to read; None: the newest.
    """

    def __init__(self, folder: Path, checkpoint: int = -1, last: int | None = None) -> None:
        self.folder = folder
        self.files: dict[str, Mapping[str, Any]] = {}
        self.removed: set[str] = set()
        self.fields: dict[str, Any] = {}
        self.revision = -1
        self.version = checkpoint
        if checkpoint >= 0:
            table = pq.read_table(folder / "_delta_log" / f"{checkpoint:020d}.checkpoint.parquet")
            for row in table.to_pylist(maps_as_pydicts="strict"):
                self._apply({kind: value for kind, value in row.items() if value is not None})
        while last is None or self.version < last:
            path = folder / "_delta_log" / f"{self.version + 1:020d}.json"
            if not path.exists():
                break
            self.version += 1
            paths: list[str] = []
            for line in path.read_text().splitlines():
                action = json.loads(line)
                paths += [one["path"] for kind, one in action.items() if kind in {"add", "remove"}]
                self._apply(action)
            assert len(paths) == len(set(paths)), "an entry adds or removes a file once"

    def _apply(self, action: Mapping[str, Any]) -> None:
        ((kind, fields),) = action.items()
        if kind == "add":
            self.files[fields["path"]] = fields
            self.removed.discard(fields["path"])
        elif kind == "remove":
            self.files.pop(fields["path"], None)
            self.removed.add(fields["path"])
            assert fields["deletionTimestamp"] > 0
        elif kind == "txn":
            self.revision = fields["version"]
        else:
            self.fields[kind] = fields

    def rows(self, column: str = "ms") -> list[int]:
        """Return the values of a column, and check the bounds and counts of each file."""
        found: list[int] = []
        for path, fields in self.files.items():
            file = self.folder / unquote(path)
            assert file.stat().st_size == fields["size"]
            table = pq.read_table(file, columns=["__time", column])
            stats = json.loads(fields["stats"])
            assert stats["numRecords"] == table.num_rows
            times = table["__time"].cast(pa.timestamp("ms", "UTC"))
            low, high = (
                pa.scalar(stats[bound]["__time"]).cast(pa.timestamp("ms", "UTC"))
                for bound in ("minValues", "maxValues")
            )
            assert all(low.as_py() <= one <= high.as_py() for one in times.to_pylist())
            found += table[column].to_pylist()
        return sorted(found)


def change(world: DeltaWorld, step: str, number: int) -> None:
    """Change the visible files by one step of a kind."""
    names = sorted(world.visible)
    one = names[number % len(names)] if names else ""
    if step == "add":
        world.add(number)
    elif step == "long":
        world.add(number, days=3)
    elif step == "wide":
        world.add(number, columns=WIDE)
    elif step == "drop":
        world.visible.clear()
    elif step == "other":
        world.table = world.opened()
    elif not one:
        return
    elif step == "remove":
        del world.visible[one]
    elif step == "hide":
        world.hide(one)
    elif step == "cover":
        world.cover(one)
    elif step == "nothing":
        world.cover_nothing(one)
    elif step == "show":
        world.visible[one] = replace(world.visible[one], visible=())
