"""What only Spark can tell of a spec, whosever it is: whether its expressions are SQL.

Owns where expressions stand in the JSON. Everything else about a spec is the overlord's to judge,
which has no Spark; so the router, which has, looks before it passes a spec on. Whatever has not the
shape of a spec is left for the overlord to refuse. A spec that is refused here is refused with all
that the overlord would have said, too.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

import orjson

from penstock.core.errors import InvalidRequest, Unavailable
from penstock.indexing.spec import parse_supervisor
from penstock.indexing.spec.compaction import parse_compaction
from penstock.indexing.spec.druidexpr import as_spark_sql
from penstock.indexing.spec.errors import SpecError
from penstock.indexing.spec.jsontext import read_object
from penstock.indexing.taskspec import parse_task

logger = logging.getLogger(__name__)

_INDEXER: Final = "/druid/indexer/v1"
_SUPERVISOR: Final = f"{_INDEXER}/supervisor"
_TASK: Final = f"{_INDEXER}/task"
_COMPACTION: Final = f"{_INDEXER}/compaction/config/datasources/"
_DEPTH_MAX: Final = 100

# Gives for each expression what is wrong with it, or empty text.
Mistakes = Callable[[Sequence[str]], Sequence[str]]


def is_checked(path: str) -> bool:
    """Tell whether what is posted to this path is a spec."""
    return path in {_SUPERVISOR, _TASK} or path.startswith(_COMPACTION)


def check_expressions(path: str, body: bytes, mistakes: Mistakes) -> None:
    """Refuse a spec with an expression that no task could compute.

    Without Spark nothing is refused: the task will meet the mistake and say the same.

    Args:
        path: What it is posted to.
        body: The spec.
        mistakes: Asks Spark.

    Raises:
        InvalidRequest: Expressions are wrong; all of them are named, and all other mistakes.
    """
    found = list(_expressions(body))
    if not found:
        return
    try:
        wrong = mistakes([expression for _, expression in found])
    except Unavailable as error:
        logger.info("expressions of a spec are passed on unread: %s", error)
        return
    lines = [f"{place}: {text}" for (place, _), text in zip(found, wrong, strict=True) if text]
    if lines:
        lines = [*_other_mistakes(path, body), *lines]
        head = "" if len(lines) == 1 else f"{len(lines)} mistakes in the spec:\n  "
        raise InvalidRequest(head + "\n  ".join(lines))


def _other_mistakes(path: str, body: bytes) -> list[str]:
    """Return what is wrong with a spec beside what only Spark can tell."""
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
    # The second is a compaction's own place, the third that of its supervisor.
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
    """Yield those of projections, of which no task would tell: nothing else would be said."""
    projections = _inner(owner, "projections")
    for number, one in enumerate(projections if isinstance(projections, list) else ()):
        at = f"{place}projections[{number}]"
        columns = _inner(one, "virtualColumns")
        for count, column in enumerate(columns if isinstance(columns, list) else ()):
            yield from _expression(f"{at}.virtualColumns[{count}]", column, condition=False)
        yield from _of_filter(f"{at}.filter", _inner(one, "filter"), 0)


def _value(body: bytes) -> object:
    """Return the value that a spec is, JSON or YAML; nothing if it is neither."""
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        try:
            return read_object(body)
        except SpecError:
            return None  # The overlord says what is wrong.


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
        return  # The overlord says the same, with the other mistakes.


def _inner(node: object, *names: str) -> object:
    for name in names:
        node = node.get(name) if isinstance(node, Mapping) else None
    return node
