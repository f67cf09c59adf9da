"""Calls that the compiler of the fast path covers, found by asking it.

Owns templates of calls: `substring({string}, {n})`, by the kind of the result and the function. A
call is one if the compiler takes it with arguments of these kinds. So the generator of statements
knows each function and each aggregate of the compiler without a list of its own.
"""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from penstock.core.errors import InvalidRequest
from penstock.core.sql.checked_query import checked_query
from penstock.fastpath import literals
from penstock.fastpath.aggregates import AGGREGATES
from penstock.fastpath.compiled_query import NotCompiled
from penstock.fastpath.compiler import compile_query
from penstock.fastpath.fragments import Fragment, of_column
from penstock.fastpath.functions import FUNCTIONS, called
from tests.kits.fast_rows_kit import COLUMNS, DATASOURCE

Calls = Mapping[str, Sequence[str]]
"""Templates by function."""

_ARGUMENTS_MAX: Final = 3
# Templates of one function with one kind of result.
_CALLS_MAX: Final = 16
# A kind of values, and columns of the types that it has.
_COLUMNS: Final = {
    "{whole}": "added",
    "small": "small",
    "{real}": "price",
    "ratio": "ratio",
    "{string}": "channel",
    "{timestamp}": "__time",
    "{date}": "day",
    "{boolean}": "flag",
    "cost": "cost",
    "worth": "worth",
}
_NUMBERS: Final = ("0", "1", "2", "3", "-2", "2.5", "0.5D")
_TEXTS: Final = (
    *("a", "-", "", "%", "month", "DAY", "hour", "week", "quarter", "year", "UTC", "both"),
    *("yyyy-MM-dd", "yyyy-MM-dd HH:mm:ss", "yyyyMM", "MMMM", "[a-c]", "1 day"),
)
_KIND_OF: Final = {
    **dict.fromkeys(("bigint", "int"), "whole"),
    **dict.fromkeys(("double", "float"), "real"),
    **{type_: type_ for type_ in ("string", "boolean", "timestamp", "date")},
}


@functools.cache
def function_calls(*, may_raise: bool) -> Mapping[str, Calls]:
    """Return calls of functions by the kind of their result.

    Args:
        may_raise: Whether with those that may raise.
    """
    found: dict[str, dict[str, list[str]]] = {}
    for function in sorted(FUNCTIONS):
        for template, piece in _covered(function):
            kind = _KIND_OF.get(piece.type, "exact" if piece.type.startswith("decimal") else "")
            if kind and (may_raise or not piece.raises):
                found.setdefault(kind, {}).setdefault(function, []).append(template)
    return {
        kind: {name: _some(f"{kind} {name}", calls) for name, calls in of_kind.items()}
        for kind, of_kind in found.items()
    }


@functools.cache
def aggregate_calls() -> Calls:
    """Return calls of aggregates."""
    found: dict[str, list[str]] = {}
    for function in sorted(AGGREGATES):
        for count in (0, 1, 2):
            some = list(itertools.product([*_COLUMNS, *_NUMBERS[:2]], repeat=count))
            for kinds in some:
                shown = ", ".join(kinds)
                for form in (f"{function}({shown})", f"{function}(DISTINCT {shown})"):
                    if _is_compiled(form):
                        found.setdefault(function, []).append(form)
    return {name: _some(name, calls) for name, calls in found.items()}


def _is_compiled(call: str) -> bool:
    for kind, name in _COLUMNS.items():
        call = call.replace(kind, name)
    try:
        root = checked_query(f"SELECT {call} AS x FROM {DATASOURCE} GROUP BY flag").root
        compile_query(root, DATASOURCE, COLUMNS)
    except (InvalidRequest, NotCompiled):
        return False
    return True


def _some(seed: str, calls: Sequence[str]) -> Sequence[str]:
    """Return some calls of a function, because some functions take nearly all arguments."""
    if len(calls) <= _CALLS_MAX:
        return tuple(calls)
    return tuple(random.Random(seed).sample(calls, _CALLS_MAX))


def _covered(function: str) -> Iterator[tuple[str, Fragment]]:
    pool = _pool()
    constants = [one for one in pool if pool[one].constant is not None]
    columns = [one for one in pool if pool[one].constant is None]
    for count in range(_ARGUMENTS_MAX + 1):
        choices: list[Sequence[str]] = [list(pool)] * count
        if count == _ARGUMENTS_MAX:
            choices = [columns, list(pool), [*constants[: len(_NUMBERS)], "'a'", *columns[:5]]]
        for kinds in itertools.product(*choices):
            try:
                piece = called(function, [pool[kind] for kind in kinds])
            except NotCompiled:
                continue
            if count and all(pool[kind].constant is not None for kind in kinds):
                continue  # a constant, which cannot be a key
            yield f"{function}({', '.join(kinds)})", piece


@functools.cache
def _pool() -> dict[str, Fragment]:
    """Return arguments that are tried, by their templates."""
    types = dict(COLUMNS)
    found = {kind: of_column(name, types[name]) for kind, name in _COLUMNS.items() if name in types}
    for number in _NUMBERS:
        found[number] = literals.number(number.lstrip("-"), is_negative=number.startswith("-"))
    for text in _TEXTS:
        found[f"'{text}'"] = literals.text(text)
    return found
