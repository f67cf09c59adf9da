"""The files of each datasource, as taken from one metadata snapshot. Plain records.

Owns their JSON form too, in which they go from the router to Spark. Knows no Spark, and does not
decide what is visible.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, cast

from penstock.core.errors import InvalidRequest
from penstock.core.intervals import Interval

Columns = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class TableFile:
    """One Parquet file of a datasource.

    Attributes:
        path: A path on this host, or a URL.
        columns: (name, Spark SQL type) pairs.
        interval: The time that its rows are of.
        clip: Only rows of this interval count; None: all do.
        announced: A running task shows it; it is no published segment yet.
    """

    path: str
    columns: Columns
    interval: Interval
    clip: Interval | None = None
    announced: bool = False

    def to_json(self) -> dict[str, object]:
        """Return the file as a JSON object."""
        return {
            "path": self.path,
            "columns": [list(pair) for pair in self.columns],
            "interval": str(self.interval),
            "clip": None if self.clip is None else str(self.clip),
            "announced": self.announced,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, object]) -> TableFile:
        """Read what `to_json` gives; fields of later releases are left alone.

        Raises:
            InvalidRequest: It is no such object.
        """
        try:
            clip = value["clip"]
            return cls(
                str(value["path"]),
                columns_from_json(value["columns"]),
                Interval.parse(str(value["interval"])),
                None if clip is None else Interval.parse(str(clip)),
                bool(value["announced"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise InvalidRequest(f"{value!r} describes no file of a datasource: {error}") from error


@dataclass(frozen=True, slots=True)
class Tables:
    """The files of every datasource at one revision of the metadata."""

    revision: int
    files: Mapping[str, tuple[TableFile, ...]]


class TableSource(Protocol):
    """Where `SqlService` and the router learn which files are visible."""

    def revision(self) -> int:
        """Return the metadata revision; cheap."""
        ...

    def tables(self) -> Tables:
        """Return the visible files of every datasource, all from one revision."""
        ...


def columns_from_json(value: object) -> Columns:
    """Return (name, type) pairs from a list of lists."""
    return tuple((name, type_) for name, type_ in cast("list[list[str]]", value))
