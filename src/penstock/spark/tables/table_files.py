"""Files of each datasource, from one metadata snapshot. Plain records.

Owns their JSON form, too, in which the router sends them to Spark. Does not depend on Spark, and
does not decide what is visible.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol, cast

from penstock.core.errors import InvalidRequest, NotFound
from penstock.core.intervals import Interval

if TYPE_CHECKING:
    from penstock.indexing.specs.rows.declared_projections import DeclaredProjections

Columns = tuple[tuple[str, str], ...]

_NAMES_SHOWN: Final = 20


@dataclass(frozen=True, slots=True)
class TableFile:
    """One Parquet file of a datasource.

    Attributes:
        path: A path on this host, or a URL.
        columns: (name, Spark SQL type) pairs.
        interval: The interval of its rows.
        clip: Only rows of this interval count; None: all do.
        announced: Announced by a running task, and not published yet.
        size_bytes: Its size when it was written; 0: unknown.
        part_of: Files with the same text become one segment; empty: the file is a segment.
        rows: Number of its rows, with those that a row cut hides; 0: unknown.
    """

    path: str
    columns: Columns
    interval: Interval
    clip: Interval | None = None
    announced: bool = False
    size_bytes: int = 0
    part_of: str = ""
    rows: int = 0

    def to_json(self) -> dict[str, object]:
        """Return the file as a JSON object."""
        return {
            "path": self.path,
            "columns": [list(pair) for pair in self.columns],
            "interval": str(self.interval),
            "clip": None if self.clip is None else str(self.clip),
            "announced": self.announced,
            "size": self.size_bytes,
            "partOf": self.part_of,
            "rows": self.rows,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, object]) -> TableFile:
        """Parse the output of `to_json`; fields of later releases are ignored.

        Raises:
            InvalidRequest: The value is not such an object.
        """
        try:
            clip = value["clip"]
            return cls(
                str(value["path"]),
                columns_from_json(value["columns"]),
                Interval.parse(str(value["interval"])),
                None if clip is None else Interval.parse(str(clip)),
                bool(value["announced"]),
                int(str(value.get("size", 0))),
                str(value.get("partOf", "")),
                int(str(value.get("rows", 0))),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise InvalidRequest(
                f"{value!r} does not describe a file of a datasource: {error}"
            ) from error


@dataclass(frozen=True, slots=True)
class Tables:
    """The files of every datasource at one revision of the metadata."""

    revision: int
    files: Mapping[str, tuple[TableFile, ...]]

    def of(self, datasource: str) -> tuple[TableFile, ...]:
        """Return the files of a datasource, at least one.

        Raises:
            NotFound: It has no data; the message lists datasources with data.
        """
        found = self.files.get(datasource)
        if not found:
            raise NotFound(
                f'there is no datasource "{datasource}" with data; known are: {self.known_names()}'
            )
        return found

    def known_names(self) -> str:
        """Return the names of the datasources with data, for messages."""
        names = sorted(name for name, files in self.files.items() if files)
        more = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
        return ", ".join(f'"{name}"' for name in names[:_NAMES_SHOWN]) + more or "none yet"


@dataclass(frozen=True, slots=True)
class Feeder:
    """A supervisor that writes rows to a datasource, with the name that its spec has."""

    supervisor_id: str
    suspended: bool
    datasource: str = ""


class TableSource(Protocol):
    """Source of the visible files for `SqlService` and the router."""

    def revision(self) -> int:
        """Return the metadata revision; cheap."""
        ...

    def tables(self) -> Tables:
        """Return the visible files of every datasource, all from one revision."""
        ...

    def feeders(self, datasource: str) -> Sequence[Feeder]:
        """Return the supervisors of a datasource, whose name may differ in case."""
        ...

    def is_dropped(self, datasource: str) -> bool:
        """Return whether a datasource has segments, but no used ones."""
        ...

    def projections(self, datasource: str) -> Sequence[DeclaredProjections]:
        """Return the projections of a datasource, possibly some seconds old."""
        ...


def why_empty(source: TableSource, datasource: str) -> str:
    """Describe why a known datasource has no rows; empty if it is unknown."""
    told = []
    if feeders := source.feeders(datasource):
        told.append(reason_without_rows(datasource, feeders))
    if source.is_dropped(datasource):
        told.append(
            f'all segments of "{datasource}" are unused: penstock segment list {datasource}'
            f" --unused lists them, and penstock segment mark-used {datasource} --interval …"
            " makes them visible again, unless retention rules drop them again"
            f" (penstock rule list {datasource})"
        )
    return "; ".join(told)


def reason_without_rows(datasource: str, feeders: Sequence[Feeder]) -> str:
    """Describe why a datasource has no rows yet although it has supervisors."""
    running = [feeder.supervisor_id for feeder in feeders if not feeder.suspended]
    if running:
        return (
            f'"{datasource}" has no rows yet: supervisor {running[0]} exists and its'
            " first rows will follow; try again in a few seconds. If none arrive, check with"
            f" penstock supervisor status {running[0]} or the page Supervisors whether its tasks"
            " wait for slots"
        )
    name = feeders[0].supervisor_id
    return (
        f'"{datasource}" has no rows: its supervisor {name} is suspended;'
        f" resume it with penstock supervisor resume {name} or on the page Supervisors"
    )


def columns_from_json(value: object) -> Columns:
    """Return (name, type) pairs from a list of lists."""
    return tuple((name, type_) for name, type_ in cast("list[list[str]]", value))
