"""Schema of an Iceberg table: types, and the ids of columns, which are kept for ever. Pure.

Owns the conversion of columns with Spark types to Iceberg's schema, the ids, and the name mapping,
which engines need because the files of segments have no field ids. Source of types and rules: the
Iceberg table specification, "Schemas", "Schema Evolution" and "Column Projection".

Invariants:

- a name keeps its id for ever, even if no segment has such a column;
- a column is left out, with the reason, if an engine could not read it in each file
  (`engine_columns`), or could not distinguish its name from another one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from penstock.segments.engine_columns import (
    Columns,
    depth,
    element_type,
    engine_type,
    found_in_files,
    why_unreadable,
)
from penstock.segments.iceberg.partitions import PARTITION_NAMES
from penstock.segments.json_fields import JsonFields

_ELEMENT: Final = "element"
"""The name that Parquet gives the elements of a list."""


@dataclass(frozen=True, slots=True)
class ColumnIds:
    """The ids of a table's columns.

    Attributes:
        columns: Id of each column by its name.
        elements: Ids of the elements of a column with lists, the outermost list first.
        last: The largest id so far.
    """

    columns: Mapping[str, int]
    elements: Mapping[str, Sequence[int]]
    last: int

    @classmethod
    def none(cls) -> ColumnIds:
        """Return the ids of a table without columns."""
        return cls({}, {}, 0)

    def extended(self, columns: Columns) -> ColumnIds:
        """Return these ids, and new ones for columns and lists without."""
        names, elements, last = dict(self.columns), dict(self.elements), self.last
        for name, type_ in columns:
            if name not in names:
                last += 1
                names[name] = last
            missing = depth(type_) - len(known := tuple(elements.get(name, ())))
            if missing > 0:
                more = range(last + 1, last + 1 + missing)
                elements[name] = (*known, *more)
                last = more[-1]
        return self if last == self.last else ColumnIds(names, elements, last)

    def to_json(self) -> dict[str, object]:
        """Return the ids as a JSON object."""
        elements = {name: list(ids) for name, ids in self.elements.items()}
        return {"columns": dict(self.columns), "elements": elements, "last": self.last}

    @classmethod
    def from_json(cls, value: Mapping[str, object]) -> ColumnIds:
        """Parse the output of `to_json`.

        Raises:
            InvalidRequest: The value is not such an object.
        """
        fields = JsonFields(value, "column ids")
        columns, elements = fields.mapping("columns"), fields.mapping("elements")
        return cls(
            {name: int(str(id_)) for name, id_ in columns.items()},
            {
                name: tuple(int(str(id_)) for id_ in ids)
                for name, ids in elements.items()
                if isinstance(ids, list)
            },
            fields.whole("last", 0),
        )


@dataclass(frozen=True, slots=True)
class TableSchema:
    """The schema of a table.

    Attributes:
        fields: Its fields in Iceberg's JSON form, in order.
        mapping: Its name mapping in Iceberg's JSON form.
        left_out: Reason for each column that Iceberg's engines could not read.
        last_id: The largest id of its fields.
    """

    fields: Sequence[Mapping[str, object]]
    mapping: Sequence[Mapping[str, object]]
    left_out: Mapping[str, str]
    last_id: int


def table_schema(columns: Columns, in_files: Iterable[Columns], ids: ColumnIds) -> TableSchema:
    """Return the schema of a table.

    Args:
        columns: Its columns; names may differ only in case.
        in_files: The distinct columns of its files.
        ids: Ids of all its columns.
    """
    names, types = found_in_files(columns, in_files)
    paths = (path for name, type_ in columns for path in _element_paths(name, type_))
    reserved = {*PARTITION_NAMES, *paths}
    fields, mapping, left_out = [], [], {}
    for name, type_ in columns:
        reason = why_unreadable(type_, types[name], "Iceberg")
        if name in reserved:
            reason = "Iceberg gives the elements of another column, or a partition, this name"
        if reason:
            left_out[name] = reason
            continue
        elements = list(ids.elements.get(name, ()))[: depth(type_)]
        id_ = ids.columns[name]
        fields.append(
            {"id": id_, "name": name, "required": False, "type": _json_type(type_, elements)}
        )
        mapping.append(_mapping(id_, names[name], elements))
    return TableSchema(fields, mapping, left_out, ids.last)


def _element_paths(name: str, type_: str) -> Iterator[str]:
    """Yield the names by which Iceberg finds the elements of a column, at each depth."""
    for _ in range(depth(type_)):
        name = f"{name}.{_ELEMENT}"
        yield name


def _json_type(type_: str, elements: Sequence[int]) -> object:
    element = element_type(type_)
    if element is None:
        return engine_type(type_)
    return {
        "type": "list",
        "element-id": elements[0],
        "element-required": False,
        "element": _json_type(element, elements[1:]),
    }


def _mapping(id_: int, names: Sequence[str], elements: Sequence[int]) -> Mapping[str, object]:
    found: dict[str, object] = {"field-id": id_, "names": list(names)}
    if elements:
        found["fields"] = [_mapping(elements[0], [_ELEMENT], elements[1:])]
    return found
