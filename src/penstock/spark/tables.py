"""What SQL sees: the files of each datasource, taken from one metadata snapshot.

Owns the step from visible segments and announced files to paths, columns and clips. It knows no
Spark, and does not decide visibility (`penstock.segments.catalogue` does).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from penstock.core.intervals import Interval


@dataclass(frozen=True, slots=True)
class TableFile:
    """One Parquet file of a datasource; `clip`: only rows of this interval count."""

    path: str
    columns: tuple[tuple[str, str], ...]
    interval: Interval
    clip: Interval | None = None


@dataclass(frozen=True, slots=True)
class Tables:
    """The files of every datasource at one revision of the metadata."""

    revision: int
    files: Mapping[str, tuple[TableFile, ...]]


class TableSource(Protocol):
    """Where `SqlService` and the data source learn which files are visible."""

    def revision(self) -> int:
        """Return the metadata revision; cheap."""
        ...

    def tables(self) -> Tables:
        """Return the visible files of every datasource, all from one revision."""
        ...
