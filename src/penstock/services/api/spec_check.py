"""Check the expressions of a spec, whose calls only Spark can resolve.

Owns the places of expressions in the JSON. The overlord checks everything else, but has no Spark.
The router has a Spark, so it checks expressions before it forwards a spec. Values that do not have
the form of a spec are left for the overlord to refuse. A spec that is refused here is refused with
all errors that the overlord would report.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

import orjson

from penstock.core.errors import InvalidRequest, Unavailable
from penstock.indexing.specs import parse_supervisor
from penstock.indexing.specs.compaction import parse_compaction
from penstock.indexing.specs.druid_expressions import as_spark_sql
from penstock.indexing.specs.errors import SpecError
from penstock.indexing.specs.spec_text import read_object
from penstock.indexing.task_spec import parse_task

logger = logging.getLogger(__name__)

_INDEXER: Final = "/druid/indexer/v1"
_SUPERVISOR: Final = f"{_INDEXER}/supervisor"
_TASK: Final = f"{_INDEXER}/task"
_COMPACTION: Final = f"{_INDEXER}/compaction/config/datasources/"
_DEPTH_MAX: Final = 100

# Returns the mistake of each expression, or an empty text.
Mistakes = Callable[[Sequence[str]], Sequence[str]]


def is_checked(path: str) -> bool:
    """Return whether requests to this path contain a spec."""
    return path in {_SUPERVISOR, _TASK} or path.startswith(_COMPACTION)


def datasources_named(body: bytes) -> Iterator[str]:
    """Yield what may be the datasource that a spec writes, in JSON or YAML."""
    value = _value(body)
    for owner in (value, _inner(value, "spec"), _inner(value, "spec", "dataSchema")):
        name = _inner(owner, "dataSource")
        if isinstance(name, str):
            yield name


def check_expressions(path: str, body: bytes, mistakes: Mistakes) -> None:
    """Refuse a spec with an expression that no task could compute.

    Without Spark nothing is refused: the task will find the error and report the same.

    Args:
        path: Path of the request.
        body: The spec.
        mistakes: Checks expressions with Spark.

    Raises:
        InvalidRequest: Expressions are wrong; the message lists all errors of the spec.
    """
    found = list(_expressions(body))
    if not found:
        return
    try:
        wrong = mistakes([expression for _, expression in found])
    except Unavailable as error:
        logger.info("expressions of a spec are passed on unchecked: %s", error)
        return
    lines = [f"{place}: {text}" for (place, _), text in zip(found, wrong, strict=True) if text]
    if lines:
        lines = [*_other_mistakes(path, body), *lines]
        head = "" if len(lines) == 1 else f"{len(lines)} mistakes in the spec:\n  "
        raise InvalidRequest(head + "\n  ".join(lines))


def _other_mistakes(path: str, body: bytes) -> list[str]:
    """Return the errors of a spec that can be found without Spark."""
    try:
        if path == _SUPERVISOR:
            parse_supervisor(body)
        elif path == _TASK:
            parse_task(read_object(body))
        elif path.startswith(_COMPACTION):
            parse_compaction(body)
    except SpecError as error:
        return [
            f"{one.place}: {one.message}" if one.place else one.message for one in error.mistakes
        ]
    except InvalidRequest as error:
        return [str(error)]
    return []


def _expressions(body: bytes) -> Iterator[tuple[str, str]]:
    """Yield (place, expression in Spark SQL) of transforms, filters and projections."""
    value = _value(body)
    spec, schema = _inner(value, "spec"), _inner(value, "spec", "dataSchema")
    # The second is the place of a compaction, the third that of its supervisor.
    for place, owner in (
        ("spec.dataSchema.transformSpec", schema),
        ("transformSpec", value),
        ("spec.transformSpec", spec),
    ):
        transforms = _inner(owner, "transformSpec", "transforms")
        for number, one in enumerate(transforms if isinstance(transforms, list) else ()):
            yield from _expression(f"{place}.transforms[{number}]", one, condition=False)
        yield from _of_filter(f"{place}.filter", _inner(owner, "transformSpec", "filter"), 0)
        yield from _of_projections(place.removesuffix("transformSpec"), owner)
    source = _inner(spec, "ioConfig", "inputSource", "filter")
    yield from _of_filter("spec.ioConfig.inputSource.filter", source, 0)


def _of_projections(place: str, owner: object) -> Iterator[tuple[str, str]]:
    """Yield expressions of projections, whose errors no task would report."""
    projections = _inner(owner, "projections")
    for number, one in enumerate(projections if isinstance(projections, list) else ()):
        at = f"{place}projections[{number}]"
        columns = _inner(one, "virtualColumns")
        for count, column in enumerate(columns if isinstance(columns, list) else ()):
            yield from _expression(f"{at}.virtualColumns[{count}]", column, condition=False)
        yield from _of_filter(f"{at}.filter", _inner(one, "filter"), 0)


def _value(body: bytes) -> object:
    """Return the value of a spec in JSON or YAML; None if it is neither."""
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        try:
            return read_object(body)
        except SpecError:
            return None  # The overlord reports the error.


def _of_filter(place: str, node: object, depth: int) -> Iterator[tuple[str, str]]:
    if not isinstance(node, Mapping) or depth > _DEPTH_MAX:
        return
    if node.get("type") == "expression":
        yield from _expression(place, node, condition=True)
    yield from _of_filter(f"{place}.field", node.get("field"), depth + 1)
    inner = node.get("fields")
    for number, one in enumerate(inner if isinstance(inner, list) else ()):
        yield from _of_filter(f"{place}.fields[{number}]", one, depth + 1)


def _expression(place: str, owner: object, *, condition: bool) -> Iterator[tuple[str, str]]:
    expression = _inner(owner, "expression")
    if not isinstance(expression, str) or not expression.strip():
        return
    try:
        yield f"{place}.expression", as_spark_sql(expression, condition=condition)
    except InvalidRequest:
        return  # The overlord reports it with the other errors.


def _inner(node: object, *names: str) -> object:
    for name in names:
        node = node.get(name) if isinstance(node, Mapping) else None
    return node
