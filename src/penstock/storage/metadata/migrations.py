"""The steps from each format number to the next, and the function that runs them.

A released step is never changed: a later change is a new step. All pending steps run in one
transaction under one mutex of the database, so an interrupted process leaves the old format, and
two that start at once run one after the other.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import orjson
from sqlalchemy import Connection, insert, inspect, select, text, update

from penstock.core.errors import InvalidRequest
from penstock.storage.metadata.schema import format_table

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from penstock.storage.metadata.sql_database import Database

# `{serial}`, a number that the database generates, and `{bytes}` differ between databases.
_FORMAT_1 = """
CREATE TABLE penstock_revision (
  id INTEGER PRIMARY KEY, revision BIGINT NOT NULL, segments_revision BIGINT NOT NULL);
INSERT INTO penstock_revision (id, revision, segments_revision) VALUES (1, 0, 0);
CREATE TABLE penstock_tasks (
  id TEXT PRIMARY KEY, datasource TEXT NOT NULL, type TEXT NOT NULL, group_id TEXT NOT NULL,
  created_ms BIGINT NOT NULL, updated_ms BIGINT NOT NULL, active BOOLEAN NOT NULL,
  state TEXT NOT NULL, status TEXT NOT NULL, payload TEXT NOT NULL);
CREATE INDEX penstock_tasks_active ON penstock_tasks (active, created_ms);
CREATE INDEX penstock_tasks_datasource ON penstock_tasks (datasource, created_ms);
CREATE TABLE penstock_supervisors (
  id TEXT NOT NULL, version INTEGER NOT NULL, tombstone BOOLEAN NOT NULL,
  created_ms BIGINT NOT NULL, payload TEXT NOT NULL, PRIMARY KEY (id, version));
CREATE TABLE penstock_offsets (
  supervisor_id TEXT PRIMARY KEY, offsets TEXT NOT NULL, updated_ms BIGINT NOT NULL);
CREATE TABLE penstock_counts (
  supervisor_id TEXT PRIMARY KEY, processed BIGINT NOT NULL, unparseable BIGINT NOT NULL,
  thrown_away_late BIGINT NOT NULL, thrown_away_early BIGINT NOT NULL,
  thrown_away_filtered BIGINT NOT NULL, dead_letters BIGINT NOT NULL);
CREATE TABLE penstock_segments (
  id TEXT PRIMARY KEY, datasource TEXT NOT NULL, start_ms BIGINT NOT NULL, end_ms BIGINT NOT NULL,
  version TEXT NOT NULL, partition_number INTEGER NOT NULL, core_partitions INTEGER NOT NULL,
  used BOOLEAN NOT NULL, created_ms BIGINT NOT NULL, used_changed_ms BIGINT NOT NULL,
  payload TEXT NOT NULL,
  UNIQUE (datasource, start_ms, end_ms, version, partition_number));
CREATE INDEX penstock_segments_used ON penstock_segments (used, datasource, start_ms);
CREATE TABLE penstock_pending (
  datasource TEXT NOT NULL, start_ms BIGINT NOT NULL, end_ms BIGINT NOT NULL,
  version TEXT NOT NULL, partition_number INTEGER NOT NULL, core_partitions INTEGER NOT NULL,
  sequence_name TEXT NOT NULL, created_ms BIGINT NOT NULL,
  PRIMARY KEY (datasource, start_ms, end_ms, version, partition_number),
  UNIQUE (datasource, sequence_name, start_ms, end_ms, version));
CREATE TABLE penstock_announced (
  task_id TEXT NOT NULL, sequence_name TEXT NOT NULL, path TEXT NOT NULL,
  datasource TEXT NOT NULL, start_ms BIGINT NOT NULL, end_ms BIGINT NOT NULL,
  row_count BIGINT NOT NULL, payload TEXT NOT NULL,
  PRIMARY KEY (task_id, datasource, sequence_name, path));
CREATE INDEX penstock_announced_sequence ON penstock_announced (datasource, sequence_name);
CREATE TABLE penstock_published (
  datasource TEXT NOT NULL, sequence_name TEXT NOT NULL, task_id TEXT NOT NULL,
  start_offsets TEXT NOT NULL, end_offsets TEXT NOT NULL, published_ms BIGINT NOT NULL,
  PRIMARY KEY (datasource, sequence_name));
CREATE TABLE penstock_leases (
  service TEXT NOT NULL, instance TEXT NOT NULL, host TEXT NOT NULL, port INTEGER NOT NULL,
  started_ms BIGINT NOT NULL, expires_ms BIGINT NOT NULL, extra TEXT NOT NULL,
  PRIMARY KEY (service, instance));
CREATE TABLE penstock_audit (
  serial {serial}, key TEXT NOT NULL, type TEXT NOT NULL, author TEXT NOT NULL,
  comment TEXT NOT NULL, created_ms BIGINT NOT NULL, payload TEXT NOT NULL);
CREATE INDEX penstock_audit_key ON penstock_audit (key, serial);
"""

# The topic of the offsets: a topic that is created again under its name has another id. Empty:
# unknown, so the first id that is seen is used.
_FORMAT_2 = """
ALTER TABLE penstock_offsets ADD COLUMN topic_id TEXT NOT NULL DEFAULT '';
"""

# Locks, terms of leadership, concurrent commits, rules and dynamic configuration. A pending segment
# has a wider unique key, which SQLite supports only with a new table.
_FORMAT_3 = """
CREATE TABLE penstock_task_locks (
  task_id TEXT NOT NULL, datasource TEXT NOT NULL, granularity TEXT NOT NULL, type TEXT NOT NULL,
  start_ms BIGINT NOT NULL, end_ms BIGINT NOT NULL, version TEXT NOT NULL,
  partition_number INTEGER NOT NULL, group_id TEXT NOT NULL, priority INTEGER NOT NULL,
  revoked BOOLEAN NOT NULL, created_ms BIGINT NOT NULL,
  PRIMARY KEY (task_id, datasource, granularity, type, start_ms, end_ms, version,
    partition_number));
CREATE TABLE penstock_terms (
  service TEXT PRIMARY KEY, number BIGINT NOT NULL, holder TEXT NOT NULL,
  expires_ms BIGINT NOT NULL);
CREATE TABLE penstock_upgrades (
  task_id TEXT NOT NULL, segment_id TEXT NOT NULL, version TEXT NOT NULL,
  PRIMARY KEY (task_id, segment_id));
CREATE TABLE penstock_killed (
  datasource TEXT NOT NULL, start_ms BIGINT NOT NULL, end_ms BIGINT NOT NULL,
  version TEXT NOT NULL, partition_number INTEGER NOT NULL,
  PRIMARY KEY (datasource, start_ms, end_ms, version));
CREATE TABLE penstock_rules (
  datasource TEXT PRIMARY KEY, updated_ms BIGINT NOT NULL, rules TEXT NOT NULL);
CREATE TABLE penstock_config (
  name TEXT PRIMARY KEY, updated_ms BIGINT NOT NULL, payload {bytes} NOT NULL);
ALTER TABLE penstock_segments ADD COLUMN upgraded_from TEXT NOT NULL DEFAULT '';
ALTER TABLE penstock_segments ADD COLUMN changed_revision BIGINT NOT NULL DEFAULT 0;
CREATE INDEX penstock_segments_changed ON penstock_segments (changed_revision);
CREATE INDEX penstock_segments_root ON penstock_segments (upgraded_from);
CREATE INDEX penstock_segments_length ON penstock_segments (datasource, (end_ms - start_ms));
CREATE INDEX penstock_segments_unused ON penstock_segments (used, used_changed_ms, id);
CREATE TABLE penstock_places (
  datasource TEXT NOT NULL, start_ms BIGINT NOT NULL, end_ms BIGINT NOT NULL,
  version TEXT NOT NULL, partition_number INTEGER NOT NULL, core_partitions INTEGER NOT NULL,
  sequence_name TEXT NOT NULL, created_ms BIGINT NOT NULL, previous_id TEXT NOT NULL,
  allocator_id TEXT NOT NULL, upgraded_from TEXT NOT NULL,
  PRIMARY KEY (datasource, start_ms, end_ms, version, partition_number),
  UNIQUE (datasource, sequence_name, previous_id, start_ms, end_ms, version));
INSERT INTO penstock_places SELECT datasource, start_ms, end_ms, version, partition_number,
  core_partitions, sequence_name, created_ms, '', '', '' FROM penstock_pending;
DROP TABLE penstock_pending;
ALTER TABLE penstock_places RENAME TO penstock_pending;
CREATE INDEX penstock_pending_root ON penstock_pending (upgraded_from);
CREATE INDEX penstock_tasks_type ON penstock_tasks (active, type, created_ms);
CREATE INDEX penstock_tasks_of ON penstock_tasks (active, datasource, created_ms);
CREATE INDEX penstock_tasks_ended ON penstock_tasks (active, updated_ms);
"""

_SPELLED = {
    "sqlite": {"serial": "INTEGER PRIMARY KEY AUTOINCREMENT", "bytes": "BLOB"},
    "postgresql": {
        "serial": "BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY",
        "bytes": "BYTEA",
    },
}

# The offsets in announced files; they are unknown for those that an earlier release announced.
_FORMAT_4 = """
ALTER TABLE penstock_announced ADD COLUMN reading TEXT NOT NULL DEFAULT ''
"""

# Whether a terminated supervisor has released its source. It is unknown for older supervisors, so
# these release their source again, which does no harm.
_FORMAT_5 = """
ALTER TABLE penstock_supervisors ADD COLUMN released BOOLEAN NOT NULL DEFAULT FALSE
"""

# Paths of announced files are relative to a task root, whose path the worker registers. Absolute
# ones cannot be converted here: the worker that has their task makes them relative.
_FORMAT_6 = """
CREATE TABLE penstock_task_roots (
  id TEXT PRIMARY KEY, path TEXT NOT NULL, updated_ms BIGINT NOT NULL);
ALTER TABLE penstock_announced ADD COLUMN root TEXT NOT NULL DEFAULT ''
"""

_TIME_6 = r"\d{4,}-\d\d-\d\dT\d\d_\d\d_\d\d\.\d{3}Z"
# The end of a location in deep storage that has the form of a segment's file.
_SEGMENT_FILE_6 = re.compile(
    rf".*/([^/]+/{_TIME_6}_{_TIME_6}/[^/]+/\d+/[^/]+/part\.parquet"
    r"|[^/]+/attempts/[^/]+/[^/]+/.+)",
    re.DOTALL,
)
_ROWS_AT_ONCE_6 = 1000


def _make_load_specs_relative(connection: Connection) -> None:
    """Make the load specs of segments relative to the deep storage, for any present or past root.

    Other load specs, such as those of tombstones or of Druid, are unchanged.
    """
    page = text(
        "SELECT id, payload FROM penstock_segments WHERE id > :after ORDER BY id LIMIT :count"
    )
    change = text("UPDATE penstock_segments SET payload = :payload WHERE id = :id")
    after = ""
    while rows := connection.execute(page, {"after": after, "count": _ROWS_AT_ONCE_6}).all():
        after = rows[-1].id
        changed = [
            {"id": row.id, "payload": payload}
            for row in rows
            if (payload := _with_relative_load_spec(row.payload)) is not None
        ]
        if changed:
            connection.execute(change, changed)


def _with_relative_load_spec(payload: str) -> str | None:
    """Return a segment's payload with a relative load spec, None if it needs no change."""
    segment = orjson.loads(payload)
    spec = segment.get("loadSpec")
    if not isinstance(spec, dict) or spec.get("type") not in {"local", "fsspec"}:
        return None
    location = spec.get("path" if spec["type"] == "local" else "url")
    found = _SEGMENT_FILE_6.fullmatch(location) if isinstance(location, str) else None
    if found is None:
        return None
    segment["loadSpec"] = {"type": "deepStorage", "path": found[1]}
    return orjson.dumps(segment, option=orjson.OPT_SORT_KEYS).decode()


# The log of publishes. Nothing recorded the segments of older publishes, so it begins empty.
_FORMAT_7 = """
CREATE TABLE penstock_publishes (
  id BIGINT PRIMARY KEY, datasource TEXT NOT NULL, task_id TEXT NOT NULL,
  sequence_name TEXT NOT NULL, kind TEXT NOT NULL, supervisor_id TEXT NOT NULL,
  topic_id TEXT NOT NULL, start_offsets TEXT NOT NULL, end_offsets TEXT NOT NULL,
  counts TEXT NOT NULL, segments TEXT NOT NULL, published_ms BIGINT NOT NULL);
CREATE TABLE penstock_publish_ranges (
  supervisor_id TEXT NOT NULL, stream_partition INTEGER NOT NULL, start_offset BIGINT NOT NULL,
  publish_id BIGINT NOT NULL, end_offset BIGINT NOT NULL,
  PRIMARY KEY (supervisor_id, stream_partition, start_offset, publish_id));
CREATE INDEX penstock_publish_ranges_of ON penstock_publish_ranges (publish_id);
ALTER TABLE penstock_segments ADD COLUMN publish_id BIGINT NOT NULL DEFAULT 0;
CREATE INDEX penstock_segments_publish ON penstock_segments (publish_id)
"""

# Sizes and rows of segments, which lists and pictures of very many segments sum up. SQLite would
# read each payload to reach a column after it, so an index has everything that a sum needs.
_FORMAT_8 = """
ALTER TABLE penstock_segments ADD COLUMN bytes BIGINT NOT NULL DEFAULT 0;
ALTER TABLE penstock_segments ADD COLUMN row_count BIGINT NOT NULL DEFAULT 0
"""

_SUMS_8 = {
    "sqlite": """
UPDATE penstock_segments SET
  bytes = coalesce(CAST(json_extract(payload, '$.size') AS INTEGER), 0),
  row_count = coalesce(CAST(json_extract(payload, '$.totalRows') AS INTEGER), 0)
""",
    "postgresql": """
UPDATE penstock_segments SET
  bytes = coalesce(CAST(substring(CAST(payload AS json)->>'size' FROM '^[0-9]+') AS BIGINT), 0),
  row_count =
    coalesce(CAST(substring(CAST(payload AS json)->>'totalRows' FROM '^[0-9]+') AS BIGINT), 0)
""",
}
_INDEX_8 = """
CREATE INDEX penstock_segments_sums ON penstock_segments (datasource, start_ms, end_ms, version,
  used, partition_number, core_partitions, bytes, row_count, created_ms)
"""


def _fill_sums(connection: Connection) -> None:
    """Fill the columns from the payloads, then create the index, which is faster in this order."""
    connection.exec_driver_sql(_SUMS_8[connection.dialect.name])
    connection.exec_driver_sql(_INDEX_8)


# Lookups and their rows.
_FORMAT_9 = """
CREATE TABLE penstock_lookups (
  name TEXT PRIMARY KEY, spec_version BIGINT NOT NULL, spec TEXT NOT NULL,
  changed_ms BIGINT NOT NULL, content_version BIGINT NOT NULL, loaded_ms BIGINT NOT NULL,
  row_count BIGINT NOT NULL, bytes BIGINT NOT NULL, due_ms BIGINT NOT NULL,
  failures BIGINT NOT NULL, failed_ms BIGINT NOT NULL, reason TEXT NOT NULL);
CREATE TABLE penstock_lookup_contents (
  name TEXT PRIMARY KEY, content_version BIGINT NOT NULL, content {bytes} NOT NULL)
"""

# Which segments were used at earlier revisions: nothing recorded it before, so the current revision
# is the oldest one. Owners of lookups: those of an older format belong to the installation.
_FORMAT_10 = """
CREATE TABLE penstock_used_periods (
  segment_id TEXT NOT NULL, from_revision BIGINT NOT NULL, to_revision BIGINT NOT NULL,
  datasource TEXT NOT NULL, PRIMARY KEY (segment_id, from_revision));
CREATE INDEX penstock_used_periods_end ON penstock_used_periods (datasource, to_revision);
CREATE TABLE penstock_oldest_revisions (datasource TEXT PRIMARY KEY, revision BIGINT NOT NULL);
INSERT INTO penstock_oldest_revisions (datasource, revision)
  SELECT '', revision FROM penstock_revision WHERE revision > 0;
ALTER TABLE penstock_lookups ADD COLUMN owner TEXT NOT NULL DEFAULT '';
"""

# Changes of a datasource by revision: without these, a reader of changes read all of its rows.
_FORMAT_11 = """
CREATE INDEX penstock_segments_revision ON penstock_segments (datasource, changed_revision);
CREATE INDEX penstock_used_periods_start ON penstock_used_periods (datasource, from_revision);
"""

MIGRATIONS = (
    _FORMAT_1,
    _FORMAT_2,
    _FORMAT_3,
    _FORMAT_4,
    _FORMAT_5,
    _FORMAT_6,
    _FORMAT_7,
    _FORMAT_8,
    _FORMAT_9,
    _FORMAT_10,
    _FORMAT_11,
)
# Changes of rows after the statements of a format.
_CONVERSIONS: Mapping[int, Callable[[Connection], None]] = {
    6: _make_load_specs_relative,
    8: _fill_sums,
}
FORMAT_NUMBER = len(MIGRATIONS)

# A number that other programs on the same PostgreSQL are unlikely to lock.
_POSTGRES_MUTEX = 0x70656E73


def migrate(database: Database) -> None:
    """Migrate the database to `FORMAT_NUMBER`.

    Raises:
        InvalidRequest: It has a newer format, or is an SQLite file of another program.
        Unavailable: It does not answer.
    """
    # The usual start has nothing to do, and must not wait for writers.
    if database.read(lambda c: _format_number(c, database.name)) < FORMAT_NUMBER:
        # Rewriting a large table may take long; no mailbox waits for it.
        database.write(lambda c: _take_steps(c, database.name), unlimited=True)


def rewrite_specs(
    database: Database, change: Callable[[dict[str, object]], Mapping[str, object] | None]
) -> dict[str, int]:
    """Change the stored specs of tasks and supervisors, ended and older ones included.

    It is not a step of a format: an operator runs it, while nothing else uses the database. One
    transaction changes all of them.

    Args:
        database: A database in this release's format.
        change: Returns the changed spec; None: it stays.

    Returns:
        The number of changed rows, by table.

    Raises:
        Unavailable: The database does not answer.
    """
    return database.write(lambda c: _rewrite(c, change), unlimited=True)


def _rewrite(
    connection: Connection, change: Callable[[dict[str, object]], Mapping[str, object] | None]
) -> dict[str, int]:
    counts = {}
    for table, key in (("penstock_tasks", "id"), ("penstock_supervisors", "id, version")):
        names = key.split(", ")
        where = " AND ".join(f"{one} = :{one}" for one in names)
        rows = connection.execute(text(f"SELECT {key}, payload FROM {table}")).all()  # noqa: S608 - constants
        changed = []
        for row in rows:
            payload = change(orjson.loads(row.payload))
            if payload is not None:
                new = orjson.dumps(dict(payload), option=orjson.OPT_SORT_KEYS).decode()
                changed.append({one: getattr(row, one) for one in names} | {"payload": new})
        if changed:
            update_rows = f"UPDATE {table} SET payload = :payload WHERE {where}"  # noqa: S608 - constants
            connection.execute(text(update_rows), changed)
        counts[table] = len(changed)
    return counts


def _take_steps(connection: Connection, name: str) -> None:
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _POSTGRES_MUTEX})
    number = _format_number(connection, name)
    if number >= FORMAT_NUMBER:
        return
    if number == 0:
        format_table.create(connection)
        connection.execute(insert(format_table).values(id=1, number=0))
    for reached, step in enumerate(MIGRATIONS[number:], number + 1):
        for statement in step.format(**_SPELLED[connection.dialect.name]).split(";"):
            if statement.strip():
                connection.exec_driver_sql(statement)
        if reached in _CONVERSIONS:
            _CONVERSIONS[reached](connection)
    connection.execute(update(format_table).values(number=FORMAT_NUMBER))


def _format_number(connection: Connection, name: str) -> int:
    """Return the format number, 0 for an empty database; refuse databases of other programs."""
    found = inspect(connection).get_table_names()
    if format_table.name not in found:
        if connection.dialect.name == "sqlite" and found:
            raise InvalidRequest(
                f"{name} is an SQLite database of another program (it has the table {found[0]!r}): "
                "use another file"
            )
        return 0
    number = connection.execute(select(format_table.c.number)).scalar_one_or_none() or 0
    if number > FORMAT_NUMBER:
        raise InvalidRequest(
            f"{name} has format number {number}, but this release of Penstock knows up to "
            f"{FORMAT_NUMBER}: install the release that wrote it, or a newer one"
        )
    return int(number)
