"""Check that the segments that a replacing task has read are still the current ones.

A compaction, like any task that replaces rows it has read, publishes those rows again. Marking
segments takes no locks: rows of a segment that was marked unused meanwhile would come back with
that publish, and a segment that was marked used would be hidden without being in it. Both are
refused here.

Regular changes beside a replace are not refused: segments appended under its lock, which its commit
copies, and segments marked unused because newer ones hide them.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final

from sqlalchemy import Connection, select

from penstock.core.intervals import condensed
from penstock.storage.metadata import schema
from penstock.storage.metadata.chunks.chunk import chunks_of, hull, not_hidden
from penstock.storage.metadata.chunks.reading import overlapping
from penstock.storage.metadata.publish.upgrades import read_upgrades
from penstock.storage.metadata.rows import PublishOutcome
from penstock.storage.metadata.snapshots import segment_row
from penstock.storage.metadata.sql_database import batches

if TYPE_CHECKING:
    from collections.abc import Collection

    from penstock.storage.metadata.rows import Basis, PublishRequest

_NAMED_MAX: Final = 10
_NEXT: Final = (
    "nothing was published, so the task fails: submit it again for the current segments; automatic"
    " compaction plans the interval again by itself"
)


def refusal_of_basis(connection: Connection, request: PublishRequest) -> PublishOutcome | None:
    """Return why the publish is refused, None if its basis is unchanged."""
    basis = request.basis
    if basis is None:
        return None
    used = _used(connection, request.datasource, basis)
    if withdrawn := _withdrawn(connection, basis, used):
        what = "which it has read, was marked unused since: its rows would come back"
        return _refused(request, withdrawn, what)
    carried_over = read_upgrades(connection, request.task_id)
    known = {*basis.shown, *basis.hidden, *carried_over}
    if added := sorted(
        name for name, root in used.items() if name not in known and root not in carried_over
    ):
        what = "which it has not read, was marked used since: its rows would be hidden"
        return _refused(request, added, what)
    return None


def _used(connection: Connection, datasource: str, basis: Basis) -> dict[str, str]:
    """Return the used segments in the intervals of the basis: the id of each, and of its file."""
    table = schema.segments
    found: dict[str, str] = {}
    for interval in condensed(basis.intervals):
        query = select(table.c.id, table.c.upgraded_from).where(
            table.c.used, *overlapping(connection, datasource, interval)
        )
        found.update((row.id, row.upgraded_from) for row in connection.execute(query))
    return found


def _withdrawn(connection: Connection, basis: Basis, used: Collection[str]) -> list[str]:
    """Return the shown segments that were marked unused or killed.

    Newer segments of the basis may hide them. Segments that were appended since hide none: in a
    time chunk that was completely removed they start a new version, above the old one.
    """
    wanted = sorted(name for name in basis.shown if name not in used)
    if not wanted:
        return []
    table = schema.segments
    rows = [
        segment_row(row)
        for batch in batches(sorted(basis.shown))
        for row in connection.execute(select(table).where(table.c.id.in_(batch)))
    ]
    if not rows:
        return wanted
    seen = {
        (chunk.interval, chunk.version)
        for chunk in not_hidden(chunks_of(rows).values(), hull(rows))
    }
    hidden = {row.id for row in rows if (row.interval, row.version) not in seen}
    return [name for name in wanted if name not in hidden]


def _refused(request: PublishRequest, names: list[str], what: str) -> PublishOutcome:
    others = f" (and {len(names) - 1} more)" if len(names) > 1 else ""
    return PublishOutcome(
        ok=False,
        reason=f"task {request.task_id!r}: segment {names[0]!r}{others}, {what}; {_NEXT}",
        outdated_by=tuple(islice(names, _NAMED_MAX)),
    )
