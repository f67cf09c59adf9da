"""Whether what a replacing task has read is still what there is.

A compaction, and all that replaces rows it has read, publishes those rows again. Marking segments
takes no locks: what somebody takes out of view meanwhile would come back with that publish, and
what is brought back into view would be hidden without being in it. Both are refused here.

Not refused is what goes on by itself beside a replace: segments appended under its lock, which its
commit carries over, and segments marked unused because newer ones hide them.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final

from sqlalchemy import Connection, select

from penstock.core.intervals import condensed
from penstock.storage.metadata import schema
from penstock.storage.metadata.batches import batches
from penstock.storage.metadata.chunks.chunk import chunks_of, hull, not_hidden
from penstock.storage.metadata.chunks.reading import overlapping
from penstock.storage.metadata.commits.upgrades import read_upgrades
from penstock.storage.metadata.rows import PublishOutcome
from penstock.storage.metadata.snapshots import segment_row

if TYPE_CHECKING:
    from collections.abc import Collection

    from penstock.storage.metadata.rows import Basis, PublishRequest

_NAMED_MAX: Final = 10
_NEXT: Final = (
    "nothing was published, so the task fails: submit it again for what is there now; automatic"
    " compaction plans the interval anew by itself"
)


def refusal_of_basis(connection: Connection, request: PublishRequest) -> PublishOutcome | None:
    """Return why the publish may not be, None if all that it is built upon is as it was."""
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
        what = "which it has not read, was marked used since: its rows would be lost from view"
        return _refused(request, added, what)
    return None


def _used(connection: Connection, datasource: str, basis: Basis) -> dict[str, str]:
    """Return the used segments of the basis' intervals: by id, whose file each shares."""
    table = schema.segments
    found: dict[str, str] = {}
    for interval in condensed(basis.intervals):
        query = select(table.c.id, table.c.upgraded_from).where(
            table.c.used, *overlapping(connection, datasource, interval)
        )
        found.update((row.id, row.upgraded_from) for row in connection.execute(query))
    return found


def _withdrawn(connection: Connection, basis: Basis, used: Collection[str]) -> list[str]:
    """Return those of the shown segments that a mark took out of view, or a kill.

    Newer ones of the basis may hide them. What was appended since hides none: a time chunk that was
    taken out whole is begun anew, above the old one.
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
