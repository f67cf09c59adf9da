"""Plan of a write: the work of Spark's workers, from its options and the DataFrame's schema.

Owns the options and their defaults: granularity and roll-up are those of the datasource's newest
rows unless options set them. Owns which types of Spark can be stored, and the comparison with the
columns that the datasource has. Does not use Spark.

    datasource            its name
    url, token, tlsCa     as for reading: the router
    deepStorage           workers write there themselves; without it they send files to the router
    overwrite             only with mode overwrite: intervals, `all`, or `chunks`
    segmentGranularity    the time chunks; default: the datasource's, or day
    queryGranularity      precision of the time; default: the datasource's, or none
    rollup                true or false; default: as the datasource, or true if there are metrics
    metricsSpec           metrics of a roll-up, JSON; default: the datasource's
    maxParseExceptions    rows without a usable time that may be left out; default 0, -1: any number
    context               context of the task, JSON
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.core.column_case import ColumnNames
from penstock.core.errors import InvalidRequest
from penstock.core.intervals import Interval
from penstock.indexing.specs import TIME_COLUMN, DataSchema, parse_data_schema
from penstock.indexing.specs.batch.batch_task_specs import parse_batch_task
from penstock.spark.batch.final_files import BatchTarget
from penstock.spark.batch.input.dimension_discovery import Found, FoundType, discovered
from penstock.spark.batch.options import SparkBatchOptions
from penstock.spark.rollup import fold_of
from penstock.spark.router_requests import RouterAddress
from penstock.spark.schema_columns import (
    file_columns,
    file_form,
    folded_columns,
    row_shape,
)
from penstock.spark.sink.router_client import DatasourceForm, RouterClient
from penstock.spark.sink.sink_files import SinkFiles, WrittenPart
from penstock.spark.sink.sink_rows import SinkRows
from penstock.spark.tables.table_columns import wider
from penstock.spark.topic.row_shape import FieldType

if TYPE_CHECKING:
    from pydantic import JsonValue
    from pyspark.sql.types import StructType

STORED_AS: Final[Mapping[str, FoundType]] = {
    **dict.fromkeys(("tinyint", "smallint", "int", "bigint", "boolean"), "long"),
    **dict.fromkeys(("float", "double", "decimal"), "double"),
    **dict.fromkeys(("string", "varchar", "char"), "string"),
}
"""Types of Spark, without parameters, and the type of a column in which such values are stored."""
_REMEDIES: Final[Mapping[str, str]] = {
    **dict.fromkeys(("array", "map", "struct", "variant"), "store it as JSON text, with to_json"),
    **dict.fromkeys(
        ("date", "timestamp", "timestamp_ntz"),
        "store it as text, with date_format, or as a number, with unix_millis",
    ),
    "binary": "store it as text, with hex or base64",
    "void": "cast it to a type, such as string",
}
_OTHER_REMEDY: Final = "cast it to string"
_BOOLEANS: Final = {"true": True, "false": False}
OPTIONS: Final = (
    "datasource",
    "url",
    "token",
    "tlsCa",
    "deepStorage",
    "overwrite",
    "segmentGranularity",
    "queryGranularity",
    "rollup",
    "metricsSpec",
    "maxParseExceptions",
    "context",
)
"""Options of a write."""


@dataclass(frozen=True, slots=True)
class SinkPlan:
    """One write, or one batch of a streaming query. It is sent to the workers.

    Attributes:
        rows: How rows become files.
        files: Where they go.
        spec: The task that publishes them, without what its workers report.
    """

    rows: SinkRows
    files: SinkFiles
    spec: Mapping[str, JsonValue]


def task_spec(
    spec: Mapping[str, JsonValue],
    parts: Sequence[WrittenPart],
    batch: tuple[str, int] | None = None,
) -> dict[str, JsonValue]:
    """Return the spec of the task that publishes the files of the workers.

    Args:
        spec: The spec of the plan.
        parts: The reports of the workers.
        batch: Id of the streaming query, and number of the batch.
    """
    files: list[JsonValue] = [
        {"name": name, "rows": rows, "bytes": size}
        for part in parts
        for name, rows, size in part.files
    ]
    found: dict[str, JsonValue] = {
        **spec,
        "files": files,
        "rows": sum(part.counts.rows for part in parts),
        "unparseable": sum(part.counts.unparseable for part in parts),
    }
    if batch is not None:
        found["batch"] = {"queryId": batch[0], "batchId": batch[1]}
    return found


def plan_write(
    options: Mapping[str, str], schema: StructType, *, overwrite: bool, is_stream: bool
) -> SinkPlan:
    """Return the plan of a write. Asks the router about the datasource.

    Args:
        options: The options; their names ignore case.
        schema: The schema of the DataFrame.
        overwrite: Whether the mode is overwrite, or complete for a stream.
        is_stream: Whether it is a streaming query.

    Raises:
        InvalidRequest: An option is wrong, or rows with this schema cannot be stored.
        Forbidden: The token may not write the datasource.
        Unavailable: The router does not answer.
    """
    datasource, url = options.get("datasource"), options.get("url")
    if not datasource:
        raise InvalidRequest('set option("datasource", …) to the name of a datasource')
    if not url:
        raise InvalidRequest(
            'set option("url", "http://127.0.0.1:8888"): rows are written through the router'
        )
    replaced = _replaced(options, overwrite=overwrite, is_stream=is_stream)
    found = columns_found(schema)
    router = RouterClient(RouterAddress(url, options.get("token"), options.get("tlsCa")))
    form = router.form(datasource)
    check_against(form.columns, found)
    data_schema = schema_of(options, form, found)
    task_id = f"index_spark_{secrets.token_hex(16)}"
    exceptions = _whole_number(options, "maxParseExceptions", 0)
    spec: dict[str, JsonValue] = {
        "type": "index_spark",
        "id": task_id,
        "dataSchema": data_schema.model_dump(mode="json", by_alias=True),
        "maxParseExceptions": exceptions,
        "context": {"useConcurrentLocks": True, **_json_object(options, "context")},
    }
    if replaced is not None:
        spec["overwrite"] = list(replaced)
    parse_batch_task(spec)
    files = SinkFiles(router, form.name, task_id, options.get("deepStorage"))
    return SinkPlan(sink_rows(data_schema, replaced or (), exceptions), files, spec)


def columns_found(schema: StructType) -> Found:
    """Return the columns of a DataFrame with the types of dimensions, without the time.

    Raises:
        InvalidRequest: The time is missing, a name occurs twice, or a type cannot be stored.
    """
    found: Found = {}
    has_time = False
    for field in schema.fields:
        type_ = field.dataType.simpleString().partition("(")[0].partition("<")[0]
        if field.name == TIME_COLUMN:
            if type_ != "timestamp":
                raise InvalidRequest(
                    f"column {TIME_COLUMN} of the DataFrame is {type_}, and must be timestamp: use"
                    " to_timestamp, or timestamp_millis for a number"
                )
            has_time = True
        elif field.name in found:
            raise InvalidRequest(f"the DataFrame has two columns {field.name!r}: rename one")
        elif type_ not in STORED_AS:
            remedy = _REMEDIES.get(type_, _OTHER_REMEDY)
            raise InvalidRequest(
                f"column {field.name!r} of the DataFrame is {type_}, which a datasource cannot"
                f" store: {remedy}, or leave it out"
            )
        else:
            found[field.name] = STORED_AS[type_]
    if not has_time:
        raise InvalidRequest(
            f"the DataFrame has no column {TIME_COLUMN}: add one of type timestamp, such as"
            f' df.withColumnRenamed("time", "{TIME_COLUMN}")'
        )
    return found


def check_against(columns: Sequence[tuple[str, str]], found: Found) -> None:
    """Refuse columns that would change the type of a column of the datasource to text.

    A column that the datasource does not have is added, and one that is missing is null. Whole
    numbers and decimals are both numbers: the datasource's column becomes double.

    Raises:
        InvalidRequest: A number would be added to text, or text to numbers.
    """
    known = ColumnNames(dict(columns))
    for name, type_ in found.items():
        before = known.get(name)
        after = "string" if type_ == "string" else "double"
        if before not in {None, after} and wider(str(before), after) == "string":
            raise InvalidRequest(
                f"column {name!r} of the DataFrame is {type_}, and {before} in the datasource:"
                f" cast it to {before}, or write it under another name"
            )


def schema_of(options: Mapping[str, str], form: DatasourceForm, found: Found) -> DataSchema:
    """Return the schema of the files.

    Raises:
        InvalidRequest: An option is wrong, or the roll-up needs another column.
    """
    rollup = form.rollup or {}
    given = options.get("metricsSpec")
    metrics: JsonValue = _json(options, "metricsSpec") if given else rollup.get("metricsSpec") or []
    is_rolled_up = _flag(options, "rollup", default=bool(metrics))
    schema = parse_data_schema(
        {
            "dataSource": form.name,
            "timestampSpec": {"column": TIME_COLUMN, "format": "auto"},
            "dimensionsSpec": {"useSchemaDiscovery": True},
            "metricsSpec": metrics if is_rolled_up or given else [],
            "granularitySpec": {
                "segmentGranularity": options.get("segmentGranularity")
                or form.segment_granularity
                or "day",
                "queryGranularity": options.get("queryGranularity")
                or (rollup.get("queryGranularity") if is_rolled_up else None)
                or "none",
                "rollup": is_rolled_up,
            },
        }
    )
    schema = discovered(schema, found)
    spec = schema.dimensions_spec.model_copy(update={"use_schema_discovery": False})
    schema = schema.model_copy(update={"dimensions_spec": spec})
    _check_metrics(schema, found)
    return schema


def _check_metrics(schema: DataSchema, found: Found) -> None:
    """Refuse metrics that the workers cannot compute from these columns.

    Raises:
        InvalidRequest: There is one.
    """
    names = [metric.name for metric in schema.metrics]
    if folded_columns(schema) is None:
        raise InvalidRequest(
            f"the roll-up of {schema.datasource} has metrics ({', '.join(names)}) that Spark's"
            ' workers cannot compute, such as sketches: set option("rollup", "false"), set'
            " metricsSpec to sums, minima, maxima, counts, first and last values of one type, or"
            " load the rows with a task"
        )
    read = row_shape(schema).fields
    if unread := found.keys() - {name for name, _ in read}:
        raise InvalidRequest(
            f"column {min(unread)!r} of the DataFrame has a name that rows cannot have, or that of"
            " a metric, which is computed from other columns: rename it, or leave it out"
        )
    for name, type_ in read:
        if name not in found:
            metric = next((m.name for m in schema.metrics if name in m.inputs), name)
            raise InvalidRequest(
                f"the DataFrame has no column {name!r}, from which the roll-up of"
                f' {schema.datasource} computes {metric}: add it, or set option("rollup", "false")'
            )
        if found[name] == "string" and type_ is not FieldType.STRING:
            raise InvalidRequest(
                f"column {name!r} of the DataFrame is text, and a metric needs a number: cast it"
            )


def sink_rows(schema: DataSchema, replaced: Sequence[str], exceptions: int) -> SinkRows:
    """Return how rows become files of a schema.

    Args:
        schema: The schema, whose roll-up workers can compute.
        replaced: The intervals that the write replaces, `all` or `chunks`; empty: it appends.
        exceptions: Maximum number of rows without a usable time.
    """
    columns = folded_columns(schema)
    assert columns is not None, "checked before"
    form = file_form(schema, SparkBatchOptions().compression_level)
    names = tuple(name for name, _ in file_columns(schema))
    target = BatchTarget("", schema.segment_granularity, names, form)
    intervals = [Interval.parse(text) for text in replaced if text not in {"all", "chunks"}]
    return SinkRows(
        row_shape(schema).fields,
        columns,
        fold_of(schema),
        target,
        tuple(intervals),
        drops_without_time=exceptions != 0,
    )


def _replaced(
    options: Mapping[str, str], *, overwrite: bool, is_stream: bool
) -> tuple[str, ...] | None:
    """Return what a write replaces; None: it appends."""
    given = options.get("overwrite")
    if is_stream:
        if overwrite or given:
            raise InvalidRequest(
                "a streaming query can only append to a datasource: use the output mode append, and"
                " leave out option overwrite"
            )
        return None
    if not overwrite:
        if given:
            raise InvalidRequest('set mode("overwrite"), or leave out option overwrite')
        return None
    if not given:
        raise InvalidRequest(
            'mode("overwrite") needs option overwrite: the interval to replace, such as'
            " 2026-01-01/2026-02-01, chunks for the time chunks that have rows, or all"
        )
    texts = tuple(part.strip() for part in given.split(","))
    if texts in {("all",), ("chunks",)}:
        return texts
    return tuple(str(Interval.parse(text)) for text in texts)


def _json(options: Mapping[str, str], name: str) -> JsonValue:
    try:
        found: JsonValue = json.loads(options[name])
    except ValueError as error:
        raise InvalidRequest(f"option {name} is not JSON ({error}): correct it") from None
    return found


def _json_object(options: Mapping[str, str], name: str) -> dict[str, JsonValue]:
    found = _json(options, name) if options.get(name) else {}
    if not isinstance(found, dict):
        raise InvalidRequest(f"option {name} must be a JSON object, such as {{}}")
    return found


def _flag(options: Mapping[str, str], name: str, *, default: bool) -> bool:
    given = options.get(name)
    if given is None:
        return default
    found = _BOOLEANS.get(given.strip().lower())
    if found is None:
        raise InvalidRequest(f"option {name} must be true or false, not {given!r}")
    return found


def _whole_number(options: Mapping[str, str], name: str, default: int) -> int:
    given = options.get(name, str(default)).strip()
    if not given.lstrip("-").isascii() or not given.lstrip("-").isdigit():
        raise InvalidRequest(f"option {name} must be a whole number, not {given!r}")
    return int(given)
