"""The functions of Druid's expressions that have an exact counterpart in Spark SQL. Plain data.

A template has `{0}`, `{1}` … for arguments that are parsed already and in parentheses where needed.
Functions that need more than a template are in `translation` and `time_functions`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from penstock.indexing.specs.druid_expressions.tree import Type


@dataclass(frozen=True, slots=True)
class Template:
    """A function by its text in Spark SQL, for each number of arguments; None: any number."""

    texts: Mapping[int | None, str]
    gives: Type | None = None


def _one(text: str, gives: Type | None = None) -> Template:
    return Template({1: text}, gives)


def _two(text: str, gives: Type | None = None) -> Template:
    return Template({2: text}, gives)


TEMPLATES: Final[Mapping[str, Template]] = {
    # text
    "concat": Template({None: "CONCAT({all})"}, "STRING"),
    "strlen": _one("LENGTH({0})", "LONG"),
    "lower": _one("LOWER({0})", "STRING"),
    "upper": _one("UPPER({0})", "STRING"),
    "reverse": _one("REVERSE({0})", "STRING"),
    "trim": Template({1: "TRIM({0})", 2: "TRIM(BOTH {1} FROM {0})"}, "STRING"),
    "ltrim": Template({1: "LTRIM({0})", 2: "TRIM(LEADING {1} FROM {0})"}, "STRING"),
    "rtrim": Template({1: "RTRIM({0})", 2: "TRIM(TRAILING {1} FROM {0})"}, "STRING"),
    "replace": Template({3: "REPLACE({0}, {1}, {2})"}, "STRING"),
    "left": _two("LEFT({0}, {1})", "STRING"),
    "right": _two("RIGHT({0}, {1})", "STRING"),
    "repeat": _two("REPEAT({0}, {1})", "STRING"),
    "lpad": Template({3: "LPAD({0}, {1}, {2})"}, "STRING"),
    "rpad": Template({3: "RPAD({0}, {1}, {2})"}, "STRING"),
    "strpos": _two("(INSTR({0}, {1}) - 1)", "LONG"),
    "contains_string": _two("CONTAINS({0}, {1})", "BOOLEAN"),
    "icontains_string": _two("CONTAINS(LOWER({0}), LOWER({1}))", "BOOLEAN"),
    "regexp_like": _two("({0} RLIKE {1})", "BOOLEAN"),
    "regexp_replace": Template({3: "REGEXP_REPLACE({0}, {1}, {2})"}, "STRING"),
    # null
    "nvl": _two("COALESCE({0}, {1})"),
    "coalesce": Template({None: "COALESCE({all})"}),
    "isnull": _one("({0} IS NULL)", "BOOLEAN"),
    "notnull": _one("({0} IS NOT NULL)", "BOOLEAN"),
    # numbers
    "abs": _one("ABS({0})"),
    "ceil": _one("CEIL({0})"),
    "floor": _one("FLOOR({0})"),
    "round": Template({1: "ROUND({0})", 2: "ROUND({0}, {1})"}),
    "signum": _one("SIGN({0})", "DOUBLE"),
    "sqrt": _one("SQRT({0})", "DOUBLE"),
    "cbrt": _one("CBRT({0})", "DOUBLE"),
    "exp": _one("EXP({0})", "DOUBLE"),
    "log": _one("LN({0})", "DOUBLE"),
    "log10": _one("LOG10({0})", "DOUBLE"),
    "sin": _one("SIN({0})", "DOUBLE"),
    "cos": _one("COS({0})", "DOUBLE"),
    "tan": _one("TAN({0})", "DOUBLE"),
    "asin": _one("ASIN({0})", "DOUBLE"),
    "acos": _one("ACOS({0})", "DOUBLE"),
    "atan": _one("ATAN({0})", "DOUBLE"),
    "atan2": _two("ATAN2({0}, {1})", "DOUBLE"),
    "pow": _two("POWER({0}, {1})", "DOUBLE"),
    "div": _two("({0} DIV {1})", "LONG"),
    "remainder": _two("({0} % {1})"),
    "mod": _two("({0} % {1})"),
    "greatest": Template({None: "GREATEST({all})"}),
    "least": Template({None: "LEAST({all})"}),
    "parse_long": _one("CAST({0} AS BIGINT)", "LONG"),
    "bitwiseand": _two("({0} & {1})", "LONG"),
    "bitwiseor": _two("({0} | {1})", "LONG"),
    "bitwisexor": _two("({0} ^ {1})", "LONG"),
}

TIME_FUNCTIONS: Final = frozenset(
    {"timestamp_ceil", "timestamp_extract", "timestamp_floor", "timestamp_format"}
    | {"timestamp_parse", "timestamp_shift"}
)

SPECIAL: Final = frozenset(
    {"case_searched", "case_simple", "cast", "if", "like", "regexp_extract", "substring"}
)

REFUSED: Final[Mapping[str, str]] = {
    "lookup": "Penstock has no lookups: join with a table in the query",
    "bloom_filter_test": "compare with values instead",
    "ipv4_match": "compare the text of the address",
    "ipv4_parse": "keep the address as text",
    "ipv4_stringify": "send the address as text",
    "human_readable_binary_byte_format": "format numbers in the query",
    "human_readable_decimal_byte_format": "format numbers in the query",
    "human_readable_decimal_format": "format numbers in the query",
}

# Names that no function of Spark has: an expression with one of them is Druid's.
DRUIDS_ALONE: Final = (
    frozenset(
        {"case_searched", "case_simple", "contains_string", "icontains_string", "notnull"}
        | {"bitwiseand", "bitwiseor", "bitwisexor", "parse_long", "remainder", "strlen", "strpos"}
    )
    | TIME_FUNCTIONS
    | frozenset(REFUSED)
)
