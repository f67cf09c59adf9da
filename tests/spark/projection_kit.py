"""Projections as specs have them, and a datasource that has columns of every kind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from penstock.indexing.specs.rows.projections import Projection
from penstock.spark.projections.plan import ProjectionPlan
from penstock.spark.projections.projection_catalog import plans
from penstock.spark.tables.table_files import Columns

COLUMNS: Columns = (
    ("__time", "timestamp"),
    ("carrier", "string"),
    ("City", "string"),
    ("n", "bigint"),
    ("big", "bigint"),
    ("d", "double"),
    ("f", "float"),
    ("count", "bigint"),
    ("delays", "bigint"),
    ("payload", "string"),
    ("flag", "boolean"),
    ("sketch", "binary"),
    ("tags", "array<string>"),
    ("distinct", "string"),
)
METRICS = frozenset({"count", "delays", "sketch"})


def virtual(name: str, expression: str) -> dict[str, object]:
    return {"type": "expression", "name": name, "expression": expression}


def aggregator(kind: str, field: str, name: str = "") -> dict[str, object]:
    return {"type": kind, "name": name or f"{kind}_{field}", "fieldName": field}


def projection(
    *grouping: str,
    virtual: Sequence[Mapping[str, object]] = (),
    aggregators: Sequence[Mapping[str, object]] = (),
    name: str = "p",
    **more: object,
) -> Projection:
    """Return a projection that groups by columns; without aggregators it sums up `n` and `d`."""
    default = [aggregator("longSum", "n"), aggregator("doubleSum", "d"), aggregator("longMin", "n")]
    return Projection.model_validate(
        {
            "type": "aggregate",
            "name": name,
            "groupingColumns": list(grouping),
            "virtualColumns": list(virtual),
            "aggregators": list(aggregators) or default,
            **more,
        }
    )


def plan(
    *grouping: str,
    virtual: Sequence[Mapping[str, object]] = (),
    aggregators: Sequence[Mapping[str, object]] = (),
    columns: Columns = COLUMNS,
    **more: object,
) -> ProjectionPlan:
    """Return the plan of such a projection, which has one."""
    spec = projection(*grouping, virtual=virtual, aggregators=aggregators, **more)
    (made,) = plans([spec], METRICS, columns)
    return made
