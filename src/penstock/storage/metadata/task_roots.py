"""Task roots: the folders in which workers keep the folders of their tasks.

Announced files are stored by the id of a root and a relative path. A worker registers the path of
each of its roots when it starts, so moving a root requires no other change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import Connection, insert, select, update

from penstock.storage.metadata import schema
from penstock.storage.metadata.revision import raise_revision, take_turn
from penstock.storage.metadata.sql_database import in_batches

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.storage.metadata.sql_database import Transactions


class TaskRoots:
    """The table of task roots."""

    def __init__(self, database: Transactions) -> None:
        self._database = database

    def register(self, root: str, path: str, task_ids: Sequence[str] = ()) -> None:
        """Store the current path of a root.

        Args:
            root: Its id, which stays the same when it is moved.
            path: Its current absolute path.
            task_ids: Tasks that have a folder there. Files that they announced by an absolute path,
                as earlier releases did, are made relative, wherever the root was then.
        """

        def work(connection: Connection) -> None:
            take_turn(connection)
            table = schema.task_roots
            known = select(table.c.path).where(table.c.id == root)
            before = connection.execute(known).scalar()
            values = {"path": path, "updated_ms": self._database.now_ms()}
            if before is None:
                connection.execute(insert(table).values(id=root, **values))
            else:
                connection.execute(update(table).where(table.c.id == root).values(values))
            if _make_relative(connection, root, task_ids) or before not in {None, path}:
                raise_revision(connection, segments=False)

        self._database.write(work)

    def paths(self) -> dict[str, str]:
        """Return the path of each root by its id."""
        return self._database.read(read_roots)


_ROOTS = select(schema.task_roots.c.id, schema.task_roots.c.path)


def read_roots(connection: Connection) -> dict[str, str]:
    """Return the current path of each task root by its id."""
    return {row.id: row.path for row in connection.execute(_ROOTS)}


def stored_path(path: str, roots: Mapping[str, str]) -> dict[str, str]:
    """Return the root of a path and the relative path; outside all roots, the path unchanged."""
    found = [(place, root) for root, place in roots.items() if path.startswith(f"{place}/")]
    if not found:
        return {"root": "", "path": path}
    place, root = max(found)  # of nested roots the inner one is longer, and greater
    return {"root": root, "path": path.removeprefix(f"{place}/")}


def full_path(root: str, path: str, roots: Mapping[str, str]) -> str:
    """Return the current path of a file: the reverse of `stored_path`."""
    return f"{roots[root]}/{path}" if root else path


def _make_relative(connection: Connection, root: str, task_ids: Sequence[str]) -> int:
    """Make absolute paths of announced files of some tasks relative; return their number."""
    table, count = schema.announced, 0
    for batch in in_batches(task_ids):
        mine = (table.c.root == "") & table.c.task_id.in_(batch)
        for row in connection.execute(select(table).where(mine)).all():
            _, found, rest = row.path.rpartition(f"/{row.task_id}/")
            if not found:
                continue
            this = mine & (table.c.task_id == row.task_id) & (table.c.path == row.path)
            moved = {"root": root, "path": f"{row.task_id}/{rest}"}
            count += connection.execute(update(table).where(this).values(moved)).rowcount
    return count
