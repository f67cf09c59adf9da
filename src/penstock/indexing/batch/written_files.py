"""The output of one call of the engine, as the task stores it in its folder.

``written-N.json``, one for each job of the task, records the first phase: with it a restarted peon
continues with the publish; without it the peon reads the input again into another folder.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from penstock.core.errors import CorruptData
from penstock.indexing.batch.batch_engine import BatchResult, Bucket, ParseError, WrittenFile
from penstock.indexing.engine import RowCounts
from penstock.indexing.engine_json import (
    counts_from_json,
    counts_to_json,
    data_file_from_json,
    data_file_to_json,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.core.intervals import Interval
    from penstock.indexing.task.task_folder import TaskFolder

_FILE: Final = "written-{}.json"


@dataclass(frozen=True, slots=True)
class EngineOutput:
    """The files of a task's input, all durable in deep storage, and the counts of rows.

    `dimensions` and `metrics` are the names of the columns in the schema after discovery.
    """

    files: tuple[WrittenFile, ...]
    counts: RowCounts
    dimensions: tuple[str, ...]
    metrics: tuple[str, ...]
    parse_errors: tuple[ParseError, ...] = ()

    @classmethod
    def of(cls, result: BatchResult) -> EngineOutput:
        """Return the stored form of an engine's result."""
        schema = result.schema
        return cls(
            result.files,
            result.counts,
            tuple(dimension.name for dimension in schema.dimensions),
            tuple(metric.name for metric in schema.metrics),
            result.parse_errors,
        )

    @property
    def rows(self) -> int:
        """Number of rows in the files; after a roll-up it is smaller than the number read."""
        return sum(file.data.rows for file in self.files)

    def rebased(self, place: Callable[[str], str]) -> EngineOutput:
        """Return a copy with each path as `place` returns it."""
        return replace(
            self,
            files=tuple(
                replace(file, data=replace(file.data, path=place(file.data.path)))
                for file in self.files
            ),
        )

    def of_chunks(self, which: Callable[[Interval], bool]) -> EngineOutput:
        """Return a copy with only the files of some time chunks."""
        return replace(self, files=tuple(f for f in self.files if which(f.data.interval)))

    def keep(self, folder: TaskFolder, number: int, read: str) -> None:
        """Store the output of a job by its number, durably; `read` identifies its input.

        Raises:
            Unavailable: Disk full or I/O error.
        """
        folder.write_json(
            _FILE.format(number),
            {
                "read": read,
                "files": [_file_to_json(file) for file in self.files],
                "counts": counts_to_json(self.counts),
                "dimensions": list(self.dimensions),
                "metrics": list(self.metrics),
                "parseErrors": [[e.place, e.row, e.reason] for e in self.parse_errors],
            },
        )

    @classmethod
    def find(cls, folder: TaskFolder, number: int, read: str) -> EngineOutput | None:
        """Return the stored output of a job; None if it has not ended with this input yet.

        Raises:
            CorruptData: The file is damaged. It was written atomically, so this is a broken disk.
        """
        value = folder.read_json(_FILE.format(number))
        if value is None or value.get("read", "") != read:
            return None
        try:
            return cls(
                tuple(_file_from_json(item) for item in _items(value["files"])),
                counts_from_json(value["counts"]),
                tuple(str(name) for name in _items(value["dimensions"])),
                tuple(str(name) for name in _items(value["metrics"])),
                tuple(ParseError(*map(str, _items(e))) for e in _items(value["parseErrors"])),
            )
        except (KeyError, TypeError, ValueError) as error:
            path = f"{folder.path}/{_FILE.format(number)}"
            raise CorruptData(path, 0, f"not the output of a batch task: {error!r}") from error


def _file_to_json(file: WrittenFile) -> dict[str, object]:
    bucket = file.bucket
    return {
        "data": data_file_to_json(file.data),
        "bucket": None
        if bucket is None
        else {
            "number": bucket.number,
            "count": bucket.count,
            "start": _key_to_json(bucket.start),
            "end": _key_to_json(bucket.end),
        },
    }


def _file_from_json(value: object) -> WrittenFile:
    if not isinstance(value, Mapping):
        raise TypeError("a file is not an object")
    data, bucket = value["data"], value["bucket"]
    if not isinstance(data, Mapping):
        raise TypeError("data is not an object")
    return WrittenFile(
        data_file_from_json(data),
        None
        if bucket is None
        else Bucket(
            int(bucket["number"]),
            int(bucket["count"]),
            _key_from_json(bucket["start"]),
            _key_from_json(bucket["end"]),
        ),
    )


def _key_to_json(key: tuple[str | None, ...] | None) -> list[str | None] | None:
    return None if key is None else list(key)


def _key_from_json(value: object) -> tuple[str | None, ...] | None:
    if value is None:
        return None
    return tuple(None if part is None else str(part) for part in _items(value))


def _items(value: object) -> list[object]:
    if not isinstance(value, list):
        raise TypeError(f"{value!r} is not a list")
    return value
