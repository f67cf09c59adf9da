"""Whether an expression is Spark SQL or Druid's, and what Spark is given. Pure.

Owns the rule of the package: Spark SQL first. What both languages have means what Spark means by
it, unless something else in the expression is Druid's alone.
"""

from __future__ import annotations

import functools
from itertools import pairwise
from typing import Final

from penstock.core.errors import InvalidRequest
from penstock.core.sqltext import Token, check_expression, tokens
from penstock.indexing.spec.druidexpr.functions import DRUIDS_ALONE
from penstock.indexing.spec.druidexpr.parser import parse
from penstock.indexing.spec.druidexpr.translation import translate

_CACHED: Final = 1024


@functools.lru_cache(maxsize=_CACHED)
def as_spark_sql(text: str, *, condition: bool = False) -> str:
    """Return the expression in Spark SQL: as it is, or translated from Druid's language.

    Args:
        text: The expression.
        condition: Whether it is to be true or false; otherwise a value.

    Raises:
        InvalidRequest: It is neither, runs other code, or has no exact translation.
    """
    if not is_druids(text):
        check_expression(text)
        return text
    translated = translate(parse(text), condition=condition)
    check_expression(translated)
    return translated


def is_druids(text: str) -> bool:
    """Tell whether the expression holds something that only Druid's language has."""
    try:
        found = tokens(text)
    except InvalidRequest:
        return False  # What Spark cannot take apart is told in Spark's terms.
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
    return False


def _has_comma(rest: list[Token]) -> bool:
    """Tell whether a call, whose inner tokens these are, has a second argument."""
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
