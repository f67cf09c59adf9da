"""The metadata tables of SQL: `INFORMATION_SCHEMA` and `sys`, as Druid has them. Pure.

Owns their names, columns, types and meanings. `penstock.spark.sql.information_schema` and
`penstock.services.api.system_tables` fill them. Source of names and types: the page "SQL metadata
tables" of Druid's documentation, and the signatures in its source where the page lacks a column.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from penstock.core.sql.lookup_calls import LOOKUP_SCHEMA

DRUID_SCHEMA: Final = "druid"
"""The schema of Druid's datasources, which a statement may write before their names."""

INFORMATION_SCHEMA: Final = "INFORMATION_SCHEMA"
SYS: Final = "sys"
CATALOG: Final = "druid"
"""The name of the only catalog."""

SCHEMAS: Final = (INFORMATION_SCHEMA, DRUID_SCHEMA, LOOKUP_SCHEMA, SYS)
"""All schemas."""


@dataclass(frozen=True, slots=True)
class MetadataColumn:
    """A column: its name, whether it is a BIGINT (otherwise a VARCHAR), and its meaning."""

    name: str
    is_number: bool
    about: str

    @property
    def spark_type(self) -> str:
        """The type in Spark SQL."""
        return "bigint" if self.is_number else "string"


@dataclass(frozen=True, slots=True)
class MetadataTable:
    """A metadata table.

    Attributes:
        schema: Its schema.
        name: Its name.
        about: Meaning of a row.
        needs: The rights without which rows are left out, or the table is refused.
        key: The column by whose values its source can choose rows; empty: there is none.
        columns: The columns.
    """

    schema: str
    name: str
    about: str
    needs: str
    key: str
    columns: tuple[MetadataColumn, ...]

    @property
    def full_name(self) -> str:
        """The name with its schema."""
        return f"{self.schema}.{self.name}"

    @property
    def view(self) -> str:
        """The name in statements for Spark, which no datasource can have because of the slash."""
        return f"{self.schema}/{self.name}".lower()


def _text(name: str, about: str = "Always null") -> MetadataColumn:
    return MetadataColumn(name, is_number=False, about=about)


def _number(name: str, about: str = "Always null") -> MetadataColumn:
    return MetadataColumn(name, is_number=True, about=about)


_VISIBLE: Final = (
    "read datasource:NAME, also of a part of its rows, for each datasource; read lookup:NAME for"
    " each lookup; none for other tables"
)
_READ: Final = "read datasource:NAME for each row, without a row filter or mask"
_IN_CATALOG: Final = f"`{CATALOG}`"

_SCHEMATA: Final = MetadataTable(
    *(INFORMATION_SCHEMA, "SCHEMATA", "A schema", "none", ""),
    (
        _text("CATALOG_NAME", _IN_CATALOG),
        _text("SCHEMA_NAME", "`druid`, `lookup`, `sys` or `INFORMATION_SCHEMA`"),
        _text("SCHEMA_OWNER"),
        _text("DEFAULT_CHARACTER_SET_CATALOG"),
        _text("DEFAULT_CHARACTER_SET_SCHEMA"),
        _text("DEFAULT_CHARACTER_SET_NAME"),
        _text("SQL_PATH"),
    ),
)
_TABLES: Final = MetadataTable(
    *(
        INFORMATION_SCHEMA,
        "TABLES",
        "A datasource that has rows, a lookup, or a metadata table",
        _VISIBLE,
    ),
    "TABLE_NAME",
    (
        _text("TABLE_CATALOG", _IN_CATALOG),
        _text("TABLE_SCHEMA", "The schema: `druid` for datasources, `lookup` for lookups"),
        _text("TABLE_NAME", "The name"),
        _text("TABLE_TYPE", "`TABLE` for datasources and lookups, otherwise `SYSTEM_TABLE`"),
        _text("IS_JOINABLE", "`YES`, because Spark joins any tables"),
        _text("IS_BROADCAST", "`YES` for lookups, otherwise `NO`"),
    ),
)
_COLUMNS: Final = MetadataTable(
    *(INFORMATION_SCHEMA, "COLUMNS", "A column of one of `TABLES`", _VISIBLE, "TABLE_NAME"),
    (
        _text("TABLE_CATALOG", _IN_CATALOG),
        _text("TABLE_SCHEMA", "The schema of the table"),
        _text("TABLE_NAME", "The table"),
        _text("COLUMN_NAME", "The name"),
        _number("ORDINAL_POSITION", "Its place among the columns, from 0 as in Druid"),
        _text("COLUMN_DEFAULT", "Empty"),
        _text("IS_NULLABLE", "`NO` for `__time` and the key of a lookup, otherwise `YES`"),
        _text("DATA_TYPE", "`VARCHAR`, `BIGINT`, `FLOAT`, `DOUBLE`, `TIMESTAMP` and so on"),
        _number("CHARACTER_MAXIMUM_LENGTH"),
        _number("CHARACTER_OCTET_LENGTH"),
        _number("NUMERIC_PRECISION", "Digits of a number"),
        _number("NUMERIC_PRECISION_RADIX", "10 for a number"),
        _number("NUMERIC_SCALE", "0 for a whole number"),
        _number("DATETIME_PRECISION", "3 for a time: milliseconds"),
        _text("CHARACTER_SET_NAME", "`UTF-8` for a text"),
        _text("COLLATION_NAME", "`UTF8_BINARY` for a text: texts are compared by their bytes"),
        _number("JDBC_TYPE", "The code of the type in `java.sql.Types`"),
    ),
)
_ROUTINES: Final = MetadataTable(
    *(INFORMATION_SCHEMA, "ROUTINES", "A function that queries may call", "none", ""),
    (
        _text("ROUTINE_CATALOG", _IN_CATALOG),
        _text("ROUTINE_SCHEMA", "`INFORMATION_SCHEMA`"),
        _text("ROUTINE_NAME", "The name in upper case"),
        _text("ROUTINE_TYPE", "`FUNCTION`"),
        _text("IS_AGGREGATOR", "`YES` for an aggregate function, otherwise `NO`"),
        _text("SIGNATURES", "Always null: `DESCRIBE FUNCTION` shows the arguments"),
    ),
)
_SEGMENTS: Final = MetadataTable(
    *(SYS, "segments"),
    "A used segment, or the unpublished files of one sequence of a running task in one time chunk",
    *(_READ, "datasource"),
    (
        _text("segment_id", "The id; for unpublished files, made from the name of the sequence"),
        _text("datasource", "The datasource"),
        _text("start", "Start of the interval, in ISO 8601"),
        _text("end", "End of the interval, in ISO 8601"),
        _number("size", "Bytes"),
        _text("version", "The version; null for unpublished files"),
        _number("partition_num", "The partition number; null for unpublished files"),
        _number("num_replicas", "1 if queries may read it, otherwise 0"),
        _number("num_rows", "Rows"),
        _number("is_active", "1 unless `is_overshadowed`"),
        _number("is_published", "1 for a segment, 0 for unpublished files"),
        _number("is_available", "1 if queries may read it, otherwise 0"),
        _number("is_realtime", "1 for unpublished files, otherwise 0"),
        _number("is_overshadowed", "1 if newer segments hide all of it, otherwise 0"),
        _text("shard_spec", "Its shard spec, as JSON; null for unpublished files"),
        _text("dimensions", "Its dimensions, as JSON; null for unpublished files"),
        _text("metrics", "Its metrics, as JSON; null for unpublished files"),
        _text("projections", "The names of its projections, as JSON, or null"),
        _text("last_compaction_state", "How it was compacted, as JSON, or null"),
        _number("replication_factor", "1, 0 if it is overshadowed, -1 for unpublished files"),
    ),
)
_SERVERS: Final = MetadataTable(
    *(SYS, "servers", "A process of Penstock", "read system:status", ""),
    (
        _text("server", "HOST:PORT"),
        _text("host", "The host"),
        _number("plaintext_port", "The port without TLS, or -1"),
        _number("tls_port", "The port with TLS, or -1"),
        _text(
            "server_type",
            "`router`, `overlord`, `middle_manager` (a worker), `flow` or `broker` (of messages)",
        ),
        _text("tier"),
        _number("curr_size", "0: no process holds segments"),
        _number("max_size", "0"),
        _number("is_leader", "1 for the overlord that leads, 0 for others, null for other types"),
        _text("start_time", "When it announced itself first, in ISO 8601"),
        _text("version"),
        _text("build_revision"),
        _text("labels"),
        _number("available_processors"),
        _number("total_memory"),
    ),
)
_SERVER_SEGMENTS: Final = MetadataTable(
    *(SYS, "server_segments"),
    "None: segments are read where they are stored, and no process holds any",
    *("read system:status", ""),
    (_text("server", "HOST:PORT"), _text("segment_id", "The segment")),
)
_TASKS: Final = MetadataTable(
    *(SYS, "tasks", "An active task, or one that ended within 24 hours; at most 10,000 of each"),
    *("read task:TASK for each row, or write on its datasource", ""),
    (
        _text("task_id", "The id"),
        _text("group_id", "The group"),
        _text("type", "The type"),
        _text("datasource", "The datasource"),
        _text("created_time", "When it was submitted, in ISO 8601"),
        _text("queue_insertion_time", "The year 1970, as in Druid's own answers"),
        _text("status", "`RUNNING`, `SUCCESS` or `FAILED`"),
        _text("runner_status", "`WAITING`, `PENDING`, `RUNNING` or `NONE`"),
        _number("duration", "Milliseconds, or -1 while it is active"),
        _text("location", "HOST:PORT of its process, or null"),
        _text("host", "The host, or null"),
        _number("plaintext_port", "The port without TLS, or -1"),
        _number("tls_port", "The port with TLS, or -1"),
        _text("error_msg", "The error of a failed task, to those who may read the datasource"),
    ),
)
_SUPERVISORS: Final = MetadataTable(
    *(SYS, "supervisors", "A supervisor"),
    *("read supervisor:ID for each row, or write on its datasource", ""),
    (
        _text("supervisor_id", "The id"),
        _text("datasource", "The datasource"),
        _text("state", "The state, such as `RUNNING` or `SUSPENDED`"),
        _text("detailed_state", "The state with its reason"),
        _number("healthy", "1 or 0"),
        _text("type", "The type"),
        _text("source", "The topic"),
        _number("suspended", "1 or 0"),
        _text("spec", "The spec, as JSON, without secrets"),
    ),
)
_QUERIES: Final = MetadataTable(
    *(SYS, "queries", "A query of this router that runs or waits for its turn"),
    *("none for one's own queries, manage system:queries for others", ""),
    (
        _text("id", "The id of the query"),
        _text("engine", "The engine that it asks for: `auto`, `spark` or `fast`"),
        _text("state", "`RUNNING`, or `ACCEPTED` while it waits"),
        _text("info", "JSON with `sqlQueryId`, `sql`, `identity` and `startTime`"),
    ),
)

METADATA_TABLES: Final[Mapping[tuple[str, str], MetadataTable]] = {
    (one.schema.lower(), one.name.lower()): one
    for one in (
        *(_SCHEMATA, _TABLES, _COLUMNS, _ROUTINES),
        *(_SEGMENTS, _SERVERS, _SERVER_SEGMENTS, _TASKS, _SUPERVISORS, _QUERIES),
    )
}
"""The tables by schema and name, both in lower case."""

METADATA_SCHEMAS: Final = frozenset(schema for schema, _ in METADATA_TABLES)
"""The schemas of metadata tables, in lower case."""
