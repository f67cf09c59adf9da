"""Schema of a Delta table: types, and the features that readers need for them. Pure.

Owns the conversion of columns with Spark types to Delta's schema. Source of the types: the Delta
transaction log protocol, "Schema Serialization Format" and "Timestamp without timezone".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import orjson

from penstock.core.column_case import case_variants_in, shown_case_variants
from penstock.core.errors import Conflict
from penstock.segments.engine_columns import (
    Columns,
    element_type,
    engine_type,
    found_in_files,
    innermost,
    why_unreadable,
)

TIMESTAMP_NTZ: Final = "timestampNtz"
"""The feature of columns with times without a zone."""

# Delta's names of types where they differ from Iceberg's.
_NAMES: Final = {"int": "integer", "timestamptz": "timestamp", "timestamp": "timestamp_ntz"}


@dataclass(frozen=True, slots=True)
class DeltaSchema:
    """The schema of a table.

    Attributes:
        text: The schema in Delta's JSON form.
        features: The features that readers need.
        left_out: Reason for each column that engines could not read.
    """

    text: str
    features: Sequence[str]
    left_out: Mapping[str, str]


def delta_schema(datasource: str, columns: Columns, in_files: Iterable[Columns]) -> DeltaSchema:
    """Return the schema of a datasource.

    Args:
        datasource: The datasource.
        columns: Its columns.
        in_files: The distinct columns of its files.

    Raises:
        Conflict: Names of columns differ only in case.
    """
    distinct = list(in_files)
    names = [name for name, _ in columns]
    names += [name for of_file in distinct for name, _ in of_file]
    if variants := case_variants_in(names):
        raise Conflict(
            f"the columns {shown_case_variants(variants)} of {datasource} differ only in case, and"
            " engines of Delta tables ignore case: give them names that differ, or one name, and"
            " compact the older segments; or read the datasource as an Iceberg table"
        )
    _, types = found_in_files(columns, distinct)
    fields, left_out, features = [], {}, set()
    for name, type_ in columns:
        if reason := why_unreadable(type_, types[name], "Delta"):
            left_out[name] = reason
            continue
        if innermost(type_) == "timestamp_ntz":
            features.add(TIMESTAMP_NTZ)
        fields.append({"name": name, "type": _json_type(type_), "nullable": True, "metadata": {}})
    text = orjson.dumps({"type": "struct", "fields": fields}).decode()
    return DeltaSchema(text, sorted(features), left_out)


def _json_type(type_: str) -> object:
    element = element_type(type_)
    if element is not None:
        return {"type": "array", "elementType": _json_type(element), "containsNull": True}
    name = str(engine_type(type_))
    return _NAMES.get(name, name.replace(" ", ""))
