"""What only Spark can tell of a supervisor's spec: whether its expressions are SQL.

Owns where expressions stand in the JSON. Everything else about a spec is the overlord's to judge,
which has no Spark; so the router, which has, looks before it passes a spec on. Whatever has not the
shape of a spec is left for the overlord to refuse.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence

import orjson

from penstock.core.errors import InvalidRequest, Unavailable
from penstock.indexing.spec.druidexpr import as_spark_sql

logger = logging.getLogger(__name__)

SUPERVISOR_PATH = "/druid/indexer/v1/supervisor"
_TRANSFORMS = ("spec", "dataSchema", "transformSpec", "transforms")

# Gives for each expression what is wrong with it, or empty text.
Mistakes = Callable[[Sequence[str]], Sequence[str]]


def check_expressions(body: bytes, mistakes: Mistakes) -> None:
    """Refuse a spec with an expression that no task could compute.

    Without Spark nothing is refused: the task will meet the mistake and say the same.

    Raises:
        InvalidRequest: Expressions are wrong; all of them are named.
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
        head = "" if len(lines) == 1 else f"{len(lines)} mistakes in the spec:\n  "
        raise InvalidRequest(head + "\n  ".join(lines))


def _expressions(body: bytes) -> Iterator[tuple[str, str]]:
    """Yield (place, expression in Spark SQL) of the transforms."""
    try:
        node: object = orjson.loads(body)
    except orjson.JSONDecodeError:
        return
    for name in _TRANSFORMS:
        node = node.get(name) if isinstance(node, dict) else None
    for number, transform in enumerate(node if isinstance(node, list) else []):
        expression = transform.get("expression") if isinstance(transform, dict) else None
        if isinstance(expression, str) and expression.strip():
            try:
                sql = as_spark_sql(expression)
            except InvalidRequest:
                continue  # The overlord says the same, with the other mistakes.
            yield f"{'.'.join(_TRANSFORMS)}[{number}].expression", sql
