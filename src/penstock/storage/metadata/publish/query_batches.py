"""Batches of streaming queries of Spark: each is published once.

The table `config` has the last published batch of each query in each datasource, under the
principal whose tasks publish it. So a principal cannot use the id of another one's query with
higher numbers, after which the batches of the other would count as published, or as too old.

A record is kept for `KEPT_MS` after its last batch, and longer while a task exists that was
submitted within this time. So a batch that is repeated within this time is recognized,
regardless of kills. Afterwards the record is deleted, and a repeated batch is a new one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from sqlalchemy import Connection, delete, select

from penstock.storage.metadata import schema
from penstock.storage.metadata.config_values import find_value, set_value
from penstock.storage.metadata.payloads import dump, load
from penstock.storage.metadata.revision import take_turn
from penstock.storage.metadata.rows.publish import PublishOutcome

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.storage.metadata.rows.publish import PublishRequest, QueryBatch
    from penstock.storage.metadata.sql_database import Transactions

KEPT_MS: Final = 400 * 86_400_000
"""Time after the last batch of a query for which it is recognized."""

_CLOCK_SLACK_MS: Final = 600_000  # clocks of hosts differ
_OF_ANYONE: Final = "sparkQuery/"
# Names of principals have no slash in this form.
_OF_PRINCIPALS: Final = "sparkBatch/"
_EXAMINED: Final = 5_000


class QueryBatches:
    """The last batches of streaming queries."""

    def __init__(self, database: Transactions) -> None:
        self._database = database

    def forget(self, *, after: str = "") -> tuple[int, str]:
        """Delete records that are no longer needed.

        It examines the next few thousand records, so that it is short; call it again and again.

        Args:
            after: The record after which it begins.

        Returns:
            The number of deleted records, and `after` for the next call: empty after the last one.
        """
        database = self._database
        page, expired = database.read(lambda c: _expired(c, after, database.now_ms()))
        end = page[-1] if len(page) == _EXAMINED else ""
        if not expired:
            return 0, end
        return database.write(lambda c: _delete(c, expired, database.now_ms())), end


def _expired(connection: Connection, after: str, now_ms: int) -> tuple[list[str], list[str]]:
    """Return the names of the next records, and of those of them that are old."""
    table = schema.config
    is_record = table.c.name.startswith(_OF_ANYONE) | table.c.name.startswith(_OF_PRINCIPALS)
    query = select(table.c.name, table.c.updated_ms).where(is_record, table.c.name > after)
    rows = connection.execute(query.order_by(table.c.name).limit(_EXAMINED)).all()
    names = [str(row.name) for row in rows]
    return names, [str(row.name) for row in rows if row.updated_ms < now_ms - KEPT_MS]


def _delete(connection: Connection, names: Sequence[str], now_ms: int) -> int:
    # No publish changes a record meanwhile.
    take_turn(connection)
    table, deleted = schema.config, 0
    for name in names:
        query = select(table.c.updated_ms).where(table.c.name == name)
        updated_ms = connection.execute(query).scalar()
        if updated_ms is None or updated_ms >= now_ms - KEPT_MS:
            continue
        if not _is_awaited(connection, name, int(updated_ms)):
            deleted += connection.execute(delete(table).where(table.c.name == name)).rowcount
    return deleted


def _is_awaited(connection: Connection, name: str, updated_ms: int) -> bool:
    """Return whether a task may repeat the batch of a record, having been submitted in time."""
    tasks = schema.tasks
    query = select(tasks.c.id).where(
        tasks.c.datasource == name.split("/", 3 if name.startswith(_OF_PRINCIPALS) else 2)[-1],
        tasks.c.active,
        tasks.c.created_ms <= updated_ms + KEPT_MS + _CLOCK_SLACK_MS,
    )
    return connection.execute(query.limit(1)).first() is not None


def refusal_of_batch(
    connection: Connection, datasource: str, batch: QueryBatch
) -> PublishOutcome | None:
    """Return why a batch of a streaming query is not published, None if it may be.

    Spark repeats only the last batch. One before that comes from an older copy of the query's
    checkpoint, and may have other rows than the batch that was published with its number.
    """
    found = find_value(connection, _record_of(datasource, batch))
    if found is None:
        # Records of earlier releases have no principal.
        found = find_value(connection, _record_of(datasource, batch._replace(owner="")))
    last = None if found is None else load(found.decode())
    if last is None or int(str(last["batch"])) < batch.batch_id:
        return None
    what = f"batch {batch.batch_id} of the Spark query {batch.query_id}"
    if last["batch"] == batch.batch_id:
        return PublishOutcome(
            ok=False,
            already_published=True,
            reason=f"{what} was published before, by task {last['task']}",
            earlier_task=str(last["task"]),
        )
    return PublishOutcome(
        ok=False,
        reason=f"{what} is before its batch {last['batch']}, which is published in {datasource}:"
        " the query's checkpoint is older than the datasource; begin with a new checkpoint, from"
        " the first rows that are missing",
    )


def remember_batch(
    connection: Connection, request: PublishRequest, batch: QueryBatch, now_ms: int
) -> None:
    """Record the last batch of a streaming query."""
    value = dump({"batch": batch.batch_id, "task": request.task_id}).encode()
    set_value(connection, _record_of(request.datasource, batch), value, now_ms)


def _record_of(datasource: str, batch: QueryBatch) -> str:
    if not batch.owner:
        return f"{_OF_ANYONE}{batch.query_id}/{datasource}"
    return f"{_OF_PRINCIPALS}{quote(batch.owner, safe='')}/{batch.query_id}/{datasource}"
