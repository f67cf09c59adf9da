"""The words of Spark SQL that a query of a projection may have. Plain data.

What is not listed is not known to mean the same over groups as over rows. A function is listed if
it sees nothing but its arguments.
"""

from __future__ import annotations

from typing import Final


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


CLAUSES: Final = ("FROM", "WHERE", "GROUP", "HAVING", "ORDER", "LIMIT", "OFFSET")
"""What begins the parts of a query after SELECT, in their order."""

OPERATORS: Final = _words(
    "AND OR NOT IN IS NULL LIKE ILIKE RLIKE BETWEEN ESCAPE DIV CASE WHEN THEN ELSE END TRUE FALSE"
    " ASC DESC NULLS FIRST LAST"
)
KEYWORDS: Final = OPERATORS | {"SELECT", "BY", "AS", "ALL", *CLAUSES}
BEFORE_PARENTHESIS: Final = _words("AND OR NOT IN LIKE ILIKE RLIKE BETWEEN DIV CASE WHEN THEN ELSE")
"""Which operators may stand before a parenthesis, which is no call then."""

RESERVED: Final = _words("""
    AGGREGATE ANTI ANY ARRAY AT CLUSTER COLLATE CROSS CUBE DISTINCT DISTRIBUTE EXCEPT EXCLUDE EXISTS
    EXTEND FETCH FILTER FOR FULL GROUPING IGNORE INNER INTERSECT INTERVAL INTO JOIN LATERAL LEFT MAP
    MATCH MINUS NATURAL ON OVER PIVOT QUALIFY RESPECT RIGHT ROLLUP SEMI SET SETS SOME SORT STRUCT
    TABLE TABLESAMPLE UNION UNPIVOT USING VALUES WATERMARK WINDOW WITH WITHIN
    """)
"""What may be more than a name where it stands without quotes; columns of such names are quoted."""

ENDING: Final = frozenset({"NULL", "TRUE", "FALSE", "END"})
"""The keywords that end an expression."""

AGGREGATES: Final = frozenset({"COUNT", "SUM", "MIN", "MAX", "AVG", "MEAN"})
TYPES: Final = _words(
    "STRING BIGINT LONG INT INTEGER SMALLINT TINYINT DOUBLE FLOAT DATE TIMESTAMP BOOLEAN"
)
LITERALS: Final = frozenset({"DATE", "TIMESTAMP"})
"""What makes a literal of the text behind it."""

FUNCTIONS: Final = _words("""
    ABS BROUND CEIL CEILING CBRT EXP FLOOR GREATEST LEAST LN LOG10 LOG2 MOD PMOD POW POWER ROUND
    SIGN SIGNUM SQRT TRY_ADD TRY_DIVIDE TRY_MULTIPLY TRY_SUBTRACT
    COALESCE IF IFNULL ISNOTNULL ISNULL NULLIF NVL NVL2
    ASCII BTRIM CHAR_LENGTH CHARACTER_LENGTH CONCAT CONCAT_WS CONTAINS ENDSWITH GET_JSON_OBJECT
    INITCAP INSTR LCASE LEFT LEN LENGTH LOCATE LOWER LPAD LTRIM MD5 POSITION REGEXP_EXTRACT
    REGEXP_LIKE REGEXP_REPLACE REPEAT REPLACE REVERSE RIGHT RPAD RTRIM SHA2 SPLIT_PART STARTSWITH
    SUBSTR SUBSTRING SUBSTRING_INDEX TRANSLATE TRIM UCASE UPPER
    DATE DATE_ADD DATE_FORMAT DATE_PART DATE_SUB DATE_TRUNC DATEDIFF DAY DAYOFMONTH DAYOFWEEK
    DAYOFYEAR HOUR LAST_DAY MINUTE MONTH QUARTER SECOND TIMESTAMP_MICROS TIMESTAMP_MILLIS
    TIMESTAMP_SECONDS TO_DATE TO_TIMESTAMP TRUNC UNIX_DATE UNIX_MICROS UNIX_MILLIS UNIX_SECONDS
    WEEKDAY WEEKOFYEAR YEAR CAST TRY_CAST
    """)

WITHOUT_ZERO: Final = _words("""
    CHAR_LENGTH CHARACTER_LENGTH CONCAT CONCAT_WS CONTAINS DATE DATE_FORMAT DATE_TRUNC DAY
    DAYOFMONTH DAYOFWEEK DAYOFYEAR ENDSWITH GET_JSON_OBJECT HOUR INITCAP LCASE LENGTH
    LOWER MD5 MINUTE MONTH QUARTER REPLACE SECOND STARTSWITH SUBSTR SUBSTRING TO_DATE TRIM
    UCASE UNIX_MICROS UNIX_MILLIS UNIX_SECONDS UPPER WEEKDAY WEEKOFYEAR YEAR
    """)
"""The functions that give text, times or whole numbers, of which there is but one zero."""

TRUNCATED: Final = {
    **{unit: unit for unit in _words("SECOND MINUTE HOUR DAY WEEK MONTH QUARTER YEAR")},
    **dict.fromkeys(("YYYY", "YY"), "YEAR"),
    **dict.fromkeys(("MM", "MON"), "MONTH"),
    "DD": "DAY",
}
"""What `date_trunc` cuts to, by how it is written."""

PARTS: Final = {
    **{part: part for part in _words("SECOND MINUTE HOUR DAY MONTH QUARTER YEAR")},
    **dict.fromkeys(("DAYOFMONTH", "DAYOFWEEK", "DAYOFYEAR", "WEEKDAY", "DATE", "TO_DATE"), "DAY"),
    "WEEKOFYEAR": "WEEK",
}
"""The functions that take a part of a time, with the unit by which they change."""

EXTRACTED: Final = {
    **{part: part for part in _words("MINUTE HOUR DAY MONTH QUARTER YEAR WEEK")},
    **dict.fromkeys(("DOW", "DAYOFWEEK", "DOY"), "DAY"),
    "YEAROFWEEK": "WEEK",
}
"""What EXTRACT takes, with the unit by which it changes; seconds have a fraction there."""
