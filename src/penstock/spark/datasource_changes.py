"""Changes of the visible files of a datasource, revision by revision.

Owns the records of changes, their JSON form, and how they are read from the metadata. Readers of
streams get them from the router, or read the metadata themselves. Visibility, and which revisions
are known, belong to `segments.past_segments`.

Invariant: a revision has the same changes in the same order at each read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final, cast

from penstock.core.errors import InvalidRequest
from penstock.segments.past_segments import VisibleChanges, changes_between, visible_at
from penstock.spark.tables.table_files import TableFile

if TYPE_CHECKING:
    from penstock.segments.catalog import VisiblePiece
    from penstock.segments.deep_storage import DeepStore
    from penstock.storage.metadata import MetadataStore

CHANGES_MAX: Final = 10_000
"""Changes after which an answer ends; a revision that has more of them is sent whole."""
SEGMENTS_READ_MAX: Final = 5_000
"""Segments that are read for an answer until it ends, even if it has few changes."""
_REVISIONS_MAX: Final = 100


class RowChange(StrEnum):
    """Rows appeared, or went."""

    INSERT = "insert"
    DELETE = "delete"


@dataclass(frozen=True, slots=True)
class FileChange:
    """Rows of a file that appeared or went.

    Attributes:
        kind: Which of both.
        file: The file; its clip says which rows.
        again: Whether the rows may have been visible before: their segment is older than the
            revision. Not for rows that went.
    """

    kind: RowChange
    file: TableFile
    again: bool = False


@dataclass(frozen=True, slots=True)
class FileCommit:
    """The changes at one revision: first rows that went, then rows that appeared."""

    revision: int
    changes: Sequence[FileChange]


@dataclass(frozen=True, slots=True)
class ChangesPage:
    """The changes after a revision, from the first one on.

    Attributes:
        revision: The revision of the metadata when they were read.
        newest: The last revision at which segments of the datasource changed, at least the first.
        next: The last revision that the page covers. Further changes follow it.
        more: Whether there may be further ones now.
        commits: The changes; a revision at which nothing became visible or hidden is left out.
    """

    revision: int
    newest: int
    next: int
    more: bool
    commits: Sequence[FileCommit]

    def to_json(self, datasource: str) -> dict[str, object]:
        """Return the page as a JSON object."""
        return {
            "datasource": datasource,
            "revision": self.revision,
            "newest": self.newest,
            "next": self.next,
            "more": self.more,
            "commits": [
                {
                    "revision": commit.revision,
                    "changes": [
                        {"change": one.kind.value, "again": one.again, **one.file.to_json()}
                        for one in commit.changes
                    ],
                }
                for commit in self.commits
            ],
        }

    @classmethod
    def from_json(cls, value: Mapping[str, object]) -> ChangesPage:
        """Parse the output of `to_json`.

        Raises:
            InvalidRequest: The value is not such an object.
        """
        try:
            return cls(
                int(str(value["revision"])),
                int(str(value["newest"])),
                int(str(value["next"])),
                bool(value["more"]),
                tuple(map(_commit, cast("list[Mapping[str, object]]", value["commits"]))),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise InvalidRequest(
                f"{value!r:.500} does not describe changes of a datasource: {error}"
            ) from error


def _commit(value: Mapping[str, object]) -> FileCommit:
    changes = cast("list[Mapping[str, object]]", value["changes"])
    return FileCommit(
        int(str(value["revision"])),
        tuple(
            FileChange(RowChange(str(one["change"])), TableFile.from_json(one), bool(one["again"]))
            for one in changes
        ),
    )


def files_at(
    store: MetadataStore, deep_store: DeepStore, datasource: str, revision: int
) -> list[TableFile]:
    """Return the files of the segments that were visible at a revision. Raises as `visible_at`."""
    return [_file(deep_store, piece) for piece in visible_at(store, datasource, revision)]


def changes_after(
    store: MetadataStore, deep_store: DeepStore, datasource: str, after: int, limit: int
) -> ChangesPage:
    """Return the changes after a revision.

    The work is bounded by the limits, and by the changes of one revision: those of one transaction.

    Args:
        store: The metadata store.
        deep_store: Where the files of segments are.
        datasource: The datasource.
        after: The revision.
        limit: Number of changes after which the page ends.

    Raises:
        InvalidRequest: There is no such revision yet, or a segment's payload cannot be read.
        NotFound: It is older than the oldest one that is kept.
        Unavailable: The metadata store does not answer.
    """
    now = store.revision()
    revisions, newest = store.history.changed(datasource, after, _REVISIONS_MAX)
    commits: list[FileCommit] = []
    count = rows_read = 0
    last = after
    for revision in revisions:
        if count >= limit or rows_read >= SEGMENTS_READ_MAX:
            break
        found = changes_between(store, datasource, revision - 1, revision)
        changes = tuple(_changes_of(found, store, deep_store))
        if changes:
            commits.append(FileCommit(revision, changes))
        count += len(changes)
        rows_read += found.rows_read
        last = revision
    return ChangesPage(now, newest, last, last < newest, tuple(commits))


def _changes_of(
    found: VisibleChanges, store: MetadataStore, deep_store: DeepStore
) -> Iterator[FileChange]:
    for piece in found.removed:
        yield FileChange(RowChange.DELETE, _file(deep_store, piece))
    new = store.history.inserted((str(one.segment.id) for one in found.added), found.revision)
    for piece in found.added:
        again = str(piece.segment.id) not in new
        yield FileChange(RowChange.INSERT, _file(deep_store, piece), again)


def _file(deep_store: DeepStore, piece: VisiblePiece) -> TableFile:
    return TableFile(
        deep_store.location(piece.segment.load_spec),
        piece.segment.columns,
        piece.segment.interval,
        piece.interval if piece.clipped else None,
        size_bytes=piece.segment.size,
        rows=piece.segment.total_rows,
    )
