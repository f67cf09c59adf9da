"""Words of Spark SQL that are allowed in a query over a projection.

Plain data. Words that are not listed may mean something else over groups than over rows. A function
is listed if its result depends only on its arguments.
"""

from __future__ import annotations

from typing import Final


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


CLAUSES: Final = ("FROM", "WHERE", "GROUP", "HAVING", "ORDER", "LIMIT", "OFFSET")
"""First words of the clauses after SELECT, in their order."""

OPERATORS: Final = _words(
    "AND OR NOT IN IS NULL LIKE ILIKE RLIKE BETWEEN ESCAPE DIV CASE WHEN THEN ELSE END TRUE FALSE"
    " ASC DESC NULLS FIRST LAST"
)
KEYWORDS: Final = OPERATORS | {"SELECT", "BY", "AS", "ALL", *CLAUSES}
BEFORE_PARENTHESIS: Final = _words("AND OR NOT IN LIKE ILIKE RLIKE BETWEEN DIV CASE WHEN THEN ELSE")
"""Operators that may precede a parenthesis, which is not a call then."""

RESERVED: Final = _words("""
    AGGREGATE ANTI ANY ARRAY AT CLUSTER COLLATE CROSS CUBE DISTINCT DISTRIBUTE EXCEPT EXCLUDE EXISTS
    EXTEND FETCH FILTER FOR FULL GROUPING IGNORE INNER INTERSECT INTERVAL INTO JOIN LATERAL LEFT MAP
    MATCH MINUS NATURAL ON OVER PIVOT QUALIFY RESPECT RIGHT ROLLUP SEMI SET SETS SOME SORT STRUCT
    TABLE TABLESAMPLE UNION UNPIVOT USING VALUES WATERMARK WINDOW WITH WITHIN
    """)
"""Words that may be more than a name without quotes; columns of such names must be quoted."""

ENDING: Final = frozenset({"NULL", "TRUE", "FALSE", "END"})
"""The keywords that end an expression."""

AGGREGATES: Final = frozenset({"COUNT", "SUM", "MIN", "MAX", "AVG", "MEAN"})
TYPES: Final = _words(
    "STRING BIGINT LONG INT INTEGER SMALLINT TINYINT DOUBLE FLOAT DATE TIMESTAMP BOOLEAN"
)
LITERALS: Final = frozenset({"DATE", "TIMESTAMP"})
"""Words that form a literal with the text after them."""

FUNCTIONS: Final = _words("""
    ABS CEIL CEILING EXP FLOOR GREATEST LEAST LN LOG10 MOD POW POWER ROUND SIGN SQRT
    COALESCE IF IFNULL ISNOTNULL ISNULL NULLIF NVL CAST TRY_CAST TRY_DIVIDE
    BTRIM CHAR_LENGTH CONCAT CONCAT_WS CONTAINS ENDSWITH GET_JSON_OBJECT INSTR LEFT LENGTH LOWER
    LPAD LTRIM REGEXP_EXTRACT REGEXP_LIKE REGEXP_REPLACE REPLACE REVERSE RIGHT RPAD RTRIM
    STARTSWITH SUBSTR SUBSTRING TRANSLATE TRIM UPPER
    DATE DATE_ADD DATE_FORMAT DATE_SUB DATE_TRUNC DATEDIFF DAY DAYOFMONTH DAYOFWEEK DAYOFYEAR HOUR
    MINUTE MONTH QUARTER SECOND TIMESTAMP_MILLIS TO_DATE TO_TIMESTAMP UNIX_MILLIS WEEKDAY WEEKOFYEAR
    YEAR
    """)

WITHOUT_ZERO: Final = _words("""
    CHAR_LENGTH CONCAT_WS DATE DATE_FORMAT DATE_TRUNC DAY GET_JSON_OBJECT HOUR LENGTH LOWER MINUTE
    MONTH QUARTER SECOND SUBSTR SUBSTRING TO_DATE TRIM UNIX_MILLIS UPPER YEAR
    """)
"""Functions that return text, times or whole numbers, which have a single zero. CONCAT also
returns arrays."""

TRUNCATED: Final = _words("SECOND MINUTE HOUR DAY WEEK MONTH QUARTER YEAR")
"""Units to which `date_trunc` truncates."""

PARTS: Final = {
    **{part: part for part in _words("SECOND MINUTE HOUR DAY MONTH QUARTER YEAR")},
    **dict.fromkeys(("DAYOFMONTH", "DAYOFWEEK", "DAYOFYEAR", "WEEKDAY", "DATE", "TO_DATE"), "DAY"),
    "WEEKOFYEAR": "WEEK",
}
"""Functions that return a part of a time, with the unit by which they change."""
