"""Decides whether an expression is Spark SQL or Druid's, and converts it to Spark SQL. Pure.

Owns the rule of the package: Spark SQL first. Syntax of both languages has Spark's meaning, unless
another part of the expression exists only in Druid's language. `||` is the exception: in Spark it
concatenates texts, and a filter that meant "or" would drop every row, so `||` between conditions is
Druid's.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from penstock.core.errors import InvalidRequest
from penstock.core.sql.checked_expression import check_expression
from penstock.core.sql_text import Token, tokens
from penstock.indexing.specs.druid_expressions.functions import DRUIDS_ALONE
from penstock.indexing.specs.druid_expressions.parser import parse
from penstock.indexing.specs.druid_expressions.translation import translate

_CACHED: Final = 1024
_MARKS: Final = re.compile(r"\|\||<=>|[<>=!]=|<>|[=<>!]")
# Syntax that makes its operand a condition, in both languages; of the calls, the common ones.
_COMPARING: Final = frozenset({"==", "!=", "<", "<=", ">", ">=", "!"})
_TRUE_OR_FALSE: Final = frozenset({"isnull", "like", "regexp_like"})
# Operators that are rarely used next to a concatenation.
_DRUIDS_HABIT: Final = frozenset({"==", "!="})
# Syntax that Druid's language lacks: an expression with it uses Spark's `||`.
_SPARKS_ALONE: Final = frozenset({"=", "<>", "<=>"})
_SPARKS_WORDS: Final = frozenset(
    {"CASE", "WHEN", "THEN", "ELSE", "END", "AND", "OR", "NOT", "IN", "IS", "BETWEEN"}
)


@functools.lru_cache(maxsize=_CACHED)
def as_spark_sql(text: str, *, condition: bool = False) -> str:
    """Return the expression in Spark SQL: unchanged, or translated from Druid's language.

    Args:
        text: The expression.
        condition: Whether it must be a condition; otherwise it is a value.

    Raises:
        InvalidRequest: It is invalid in both, runs other code, or has no exact translation.
    """
    if not is_druids(text):
        check_expression(text)
        return text
    translated = translate(parse(text), condition=condition)
    check_expression(translated)
    return translated


def is_druids(text: str) -> bool:
    """Return whether the expression has syntax that exists only in Druid's language."""
    try:
        found = tokens(text)
    except InvalidRequest:
        return False  # Spark reports the errors of invalid expressions.
    for number, (token, following) in enumerate(pairwise(found)):
        if token.text == following.text == "&" and following.position == token.position + 1:
            return True
        if following.text != "(" or not token.text:
            continue
        name = token.name.lower()
        if name in DRUIDS_ALONE or name.startswith("mv_"):
            return True
        if name == "cast" and _has_comma(found[number + 2 :]):
            return True
    return _joins_conditions(text, found)


@dataclass(slots=True)
class _Level:
    """The tokens between two parentheses or commas that were read so far.

    Attributes:
        call: Name of the function whose arguments they are; empty if there is none.
        conditions: For each operand of `||`, whether it is a condition.
        habit: Whether it has a comparison that is unusual in Spark SQL.
        sparks: Whether it has syntax that exists only in Spark SQL.
    """

    call: str = ""
    conditions: list[bool] = field(default_factory=lambda: [False])
    habit: bool = False
    sparks: bool = False

    def joins_conditions(self) -> bool:
        """Return whether `||` is between conditions here."""
        joined = len(self.conditions) > 1
        return joined and not self.sparks and (self.habit or sum(self.conditions) > 1)


def _joins_conditions(text: str, found: list[Token]) -> bool:
    """Return whether a `||` means "or", because an operand is a condition."""
    levels = [_Level()]
    skip_to = 0
    for number, token in enumerate(found):
        level = levels[-1]
        if token.position < skip_to:
            continue
        if token.text == "(":
            levels.append(_Level(found[number - 1].name.lower() if number else ""))
        elif token.text == ")" and len(levels) > 1:
            if level.joins_conditions():
                return True
            levels.pop()
            _close(level, levels[-1])
        elif token.text == ",":
            if level.joins_conditions():
                return True
            levels[-1] = _Level(level.call)
        elif token.text in _SPARKS_WORDS:
            level.sparks = True
        elif mark := _MARKS.match(text, token.position):
            skip_to = mark.end()
            _read_mark(mark.group(), level)
    return any(level.joins_conditions() for level in levels)


def _read_mark(mark: str, level: _Level) -> None:
    if mark == "||":
        level.conditions.append(False)
    elif mark in _SPARKS_ALONE:
        level.sparks = True
    elif mark in _COMPARING:
        level.conditions[-1] = True
        level.habit |= mark in _DRUIDS_HABIT


def _close(inner: _Level, outer: _Level) -> None:
    """Apply a closed parenthesis, or a call, to the level that contains it."""
    if inner.call:
        outer.conditions[-1] |= inner.call in _TRUE_OR_FALSE
    elif not inner.sparks and any(inner.conditions):
        outer.conditions[-1] = True
        outer.habit |= inner.habit


def _has_comma(rest: list[Token]) -> bool:
    """Return whether a call, whose inner tokens these are, has a second argument."""
    depth = 0
    for token in rest:
        if token.text == "(":
            depth += 1
        elif token.text == ")":
            if not depth:
                return False
            depth -= 1
        elif token.text == "," and not depth:
            return True
    return False
