"""SQL that writes: `INSERT INTO` and `REPLACE INTO`, converted into the spec of a task. Pure.

    INSERT INTO name query PARTITIONED BY granularity [CLUSTERED BY column, …]
    REPLACE INTO name OVERWRITE ALL | OVERWRITE WHERE time [OR time …]
        query PARTITIONED BY granularity [CLUSTERED BY column, …]

    granularity   ALL [TIME], HOUR, DAY …, 'P1D', FLOOR(__time TO DAY), TIME_FLOOR(__time, 'P1D')
    time          __time >= TIMESTAMP '…' AND __time < TIMESTAMP '…'

Owns Druid's clauses around the query; the query itself is Spark SQL, checked to be read-only.
`externs` handles the files that it reads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.core.errors import InvalidRequest
from penstock.core.intervals import Granularity, Interval, parse_time
from penstock.core.sql import tree
from penstock.core.sql.checked_query import CheckedQuery, checked_query
from penstock.core.sql.writer import blank
from penstock.core.sql_sizes import statement_tokens
from penstock.core.sql_text import check_variables, each_token
from penstock.indexing.batch.sql.column_check import may_give
from penstock.indexing.batch.sql.external_tables import ExternalTables, read_external_tables
from penstock.indexing.batch.sql.statement_tokens import StatementTokens
from penstock.indexing.specs.batch.batch_task_specs import parse_batch_task
from penstock.indexing.specs.batch.sql_ingest import SqlIngestSpec
from penstock.indexing.specs.inputs import extern_name
from penstock.indexing.specs.scalars import TIME_COLUMN

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydantic import JsonValue

_PARTITIONED: Final = (
    "end the statement with PARTITIONED BY and a granularity, such as PARTITIONED BY DAY"
)
# Keys of the context that are fields of the spec.
_SETTINGS: Final = ("rowsPerSegment", "maxParseExceptions")
_OVERWRITE: Final = (
    "write OVERWRITE ALL, or OVERWRITE WHERE __time >= TIMESTAMP '…' AND __time < TIMESTAMP '…'"
)


def writes(sql: str) -> bool:
    """Return whether a statement is an INSERT or a REPLACE, and so becomes a task.

    Raises:
        InvalidRequest: Its first text, name or comment is not closed.
    """
    first = next(each_token(sql), None)
    return first is not None and first.text in {"INSERT", "REPLACE"}


def parse_ingest(sql: str, *, context: Mapping[str, JsonValue] | None = None) -> SqlIngestSpec:
    """Parse a statement that writes.

    Args:
        sql: The statement.
        context: The context of the task.

    Raises:
        InvalidRequest: It does not have the form above; the message has the position and a remedy.
    """
    found = statement_tokens(sql)
    while found and found[-1].text == ";":
        found.pop()
    check_variables(sql)
    externs = read_external_tables(sql, found)
    reader = StatementTokens(sql, found)
    replaces = reader.take("INSERT", "REPLACE").text == "REPLACE"
    reader.take("INTO")
    datasource = reader.name("the datasource's name")
    if reader.sees("(") and not reader.is_query():
        raise reader.wrong(
            "the columns are named in the query: SELECT … AS name; a query is expected"
        )
    overwrite = _overwrite(reader) if replaces else None
    if not replaces and reader.sees("OVERWRITE"):
        raise reader.wrong("INSERT overwrites nothing: use REPLACE INTO, or omit OVERWRITE")
    checked, partitioned_by, clustered_by = _query(reader, externs)
    value: dict[str, JsonValue] = {
        "type": "query_controller",
        "dataSource": datasource,
        "sql": externs.shown,
        "query": checked.text.strip(),
        "partitionedBy": partitioned_by,
        "clusteredBy": list(clustered_by),
        "context": dict(context or {}),
    }
    if overwrite is not None:
        value["overwrite"] = list(overwrite)
    if externs.found:
        value["externs"] = externs.tables
    for name in _SETTINGS:
        if context and (setting := context.get(name)) is not None:
            value[name] = setting
    spec = parse_batch_task(value)
    assert isinstance(spec, SqlIngestSpec)
    _check_time(spec, checked.root)
    return spec


def _check_time(spec: SqlIngestSpec, query: tree.Query) -> None:
    """Refuse a query that certainly has no time column, so that its task does not fail later."""
    externs = {
        extern_name(number): any(column.name.lower() == TIME_COLUMN for column in one.signature)
        for number, one in enumerate(spec.externs, 1)
    }
    if not may_give(query, TIME_COLUMN, externs):
        raise InvalidRequest(
            f"the query returns no column {TIME_COLUMN}, which each row needs (PARTITIONED BY"
            f" {spec.segment_granularity}): add one, such as TIMESTAMP '2024-01-01' AS"
            f" {TIME_COLUMN}",
            place="query",
        )


def _overwrite(reader: StatementTokens) -> list[str]:
    if not reader.sees("OVERWRITE"):
        raise reader.wrong(f"a REPLACE must specify what it replaces: {_OVERWRITE}")
    reader.at += 1
    if reader.sees("ALL"):
        reader.at += 1
        return ["all"]
    reader.take("WHERE")
    intervals = [_time_range(reader)]
    while reader.sees("OR"):
        reader.at += 1
        intervals.append(_time_range(reader))
    return [str(interval) for interval in intervals]


def _time_range(reader: StatementTokens) -> Interval:
    parenthesis = reader.sees("(") and not reader.is_query()
    if parenthesis:
        reader.at += 1
    start_ms = end_ms = None
    for number in range(2):
        if number:
            if not reader.sees("AND"):
                raise reader.wrong(f"the interval needs a start and an end: {_OVERWRITE}")
            reader.at += 1
        if reader.name("__time").lower() != "__time":
            reader.at -= 1
            raise reader.wrong(f"only __time can be compared: {_OVERWRITE}")
        if reader.sees(">", "="):
            reader.at += 2
            start_ms = _time(reader)
        elif reader.sees("<") and not reader.sees("<", "="):
            reader.at += 1
            end_ms = _time(reader)
        else:
            raise reader.wrong(f"the interval is half open: {_OVERWRITE}")
    if parenthesis:
        reader.take(")")
    if start_ms is None or end_ms is None or start_ms >= end_ms:
        raise reader.wrong(f"the interval needs a start and a later end: {_OVERWRITE}")
    return Interval(start_ms, end_ms)


def _time(reader: StatementTokens) -> int:
    if reader.sees("TIMESTAMP") or reader.sees("DATE"):
        reader.at += 1
    return parse_time(reader.text("a time").replace(" ", "T"))


def _query(
    reader: StatementTokens, externs: ExternalTables
) -> tuple[CheckedQuery, str, tuple[str, ...]]:
    """Return the query, its time chunks and the columns it is sorted by."""
    first = reader.at
    if not (reader.token.text in {"SELECT", "WITH", "VALUES", "TABLE"} or reader.sees("(")):
        raise reader.wrong("a query is expected: SELECT … FROM …")
    depth = 0
    while reader.at < len(reader.found):
        text = reader.token.text
        depth += {"(": 1, ")": -1}.get(text, 0)
        if depth == 0 and reader.sees("PARTITIONED", "BY"):
            break
        reader.at += 1
    else:
        raise InvalidRequest(f"specify the time chunks: {_PARTITIONED}", place="query")
    begin, end = reader.found[first].position, reader.token.position
    checked = checked_query(blank(reader.sql[:begin]) + externs.query(begin, end), begin)
    reader.at += 2
    granularity = _granularity(reader)
    clustered: list[str] = []
    if reader.sees("CLUSTERED", "BY"):
        reader.at += 2
        clustered.append(reader.name("a column's name"))
        while reader.sees(","):
            reader.at += 1
            clustered.append(reader.name("a column's name"))
    if reader.at < len(reader.found):
        raise reader.wrong("the end of the statement is expected")
    return checked, granularity, tuple(clustered)


def _granularity(reader: StatementTokens) -> str:
    if reader.token.is_text:
        found = reader.text("a period")
    else:
        word = reader.name(_PARTITIONED).upper()
        if word == "ALL":
            reader.at += reader.sees("TIME")
            return "all"
        if word in {"FLOOR", "TIME_FLOOR"} and reader.sees("("):
            reader.at += 1
            if reader.name("__time").lower() != "__time":
                reader.at -= 1
                raise reader.wrong("time chunks are of __time")
            if word == "FLOOR":
                reader.take("TO")
                found = reader.name("a granularity")
            else:
                reader.take(",")
                found = reader.text("a period")
            reader.take(")")
        else:
            found = word
    try:
        Granularity.parse(found)
    except InvalidRequest as error:  # narrow: the error must have this position
        reader.at -= 1
        raise reader.wrong(f"{error}; {_PARTITIONED}") from error
    return found
