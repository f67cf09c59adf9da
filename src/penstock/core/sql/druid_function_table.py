"""The functions of Druid's SQL: which of them work, with an example of each. Pure.

Owns the list, which the translation, the hints in errors, the reference page and the tests share.
`druid_functions` reads the forms; a translated function without forms is written by its code.

Source of names and meanings: Druid's documentation of its SQL functions, releases 33 to 35. The
values of the examples are Druid's, except where the note says how they differ.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

State = Literal["works", "translated", "differs", "absent"]

EVENTS: Final = """\
WITH events AS (
  SELECT * FROM VALUES
    (TIMESTAMP '2013-08-01 08:14:37', 'San Juan, PR', 7, '["t1","t2","t3"]',
      '{"city": "Taipei", "size": 7, "list": [1, "x"]}'),
    (TIMESTAMP '2013-08-01 09:13:00', 'Boston, MA', 3, '["t3","t4"]', '{"city": "Bangkok"}'),
    (TIMESTAMP '2013-08-02 00:00:00', 'Boston, MA', 5, '["t5"]', NULL)
  AS rows (__time, city, added, tags, json)
)"""
"""The rows of the examples, as the beginning of a statement. Lists and nested values are text."""


@dataclass(frozen=True, slots=True)
class DruidFunction:
    """A function of Druid's SQL.

    Attributes:
        state: `works`: the same in Spark SQL; `translated`; `differs`: accepted, and the note says
            what is different; `absent`: refused.
        example: A call, or a whole statement; it is refused if the function is absent.
        value: JSON text of the result for the first row; for an absent function that of `sql`.
            Empty if the example needs more than these rows.
        note: The difference, or what to do instead.
        sql: Spark SQL instead of the example of an absent function; empty if there is none.
        forms: Spark SQL by the number of arguments, as `druid_functions` describes it.
    """

    state: State
    example: str
    value: str
    note: str = ""
    sql: str = ""
    forms: Mapping[int, str] = field(default_factory=dict)


def _works(example: str, value: str, note: str = "") -> DruidFunction:
    return DruidFunction("works", example, value, note)


def _differs(
    example: str, value: str, note: str, forms: Mapping[int, str] | None = None
) -> DruidFunction:
    return DruidFunction("differs", example, value, note, forms=forms or {})


def _becomes(
    example: str, value: str, forms: Mapping[int, str] | None = None, note: str = ""
) -> DruidFunction:
    return DruidFunction("translated", example, value, note, forms=forms or {})


def _absent(example: str, note: str = "", sql: str = "", value: str = "") -> DruidFunction:
    return DruidFunction("absent", example, value, note, sql)


_PER_CHARACTER: Final = "Counts characters; Druid counts an emoji as two."
_BACKSLASH: Final = "A backslash in a text is written twice: `'\\\\s'`."
_TRIMMED: Final = "The characters come first, or `TRIM(LEADING '_' FROM city)`, as in Druid."
_OWN_DIGEST: Final = "Spark's approximation: the result is a value of the column."
_NO_LIMIT: Final = "A limit of bytes is ignored: values are never cut."
_OF_LISTS: Final = "A list in a column is text: write `MV_TO_ARRAY(tags)`."
_EMPTY_ENDS: Final = "Empty values at the end are kept."
_KLL: Final = "The sketch is Spark's KLL sketch, of the same purpose."
_ROUNDED: Final = "Rounded to a whole number, as with `true` as second argument in Druid."
_NO_SPELLING: Final = "Nothing in Spark SQL replaces it."
_TEXT_OF: Final = "CAST({v0} AS STRING)"
_IS_SKETCH: Final = "typeof({v0}) = 'binary'{and}"
_IS_VALUE: Final = "typeof({v0}) <> 'binary'{and}"
_BYTES: Final = f"CAST({_TEXT_OF} AS BINARY)"


def _hll(size: str) -> str:
    """Return a sketch of a column of values or of sketches, whose type only Spark knows."""
    return (
        f"hll_union(hll_union_agg({_BYTES}, true) FILTER (WHERE {_IS_SKETCH}),"
        f" hll_sketch_agg({_TEXT_OF}, {size}) FILTER (WHERE {_IS_VALUE}), true)"
    )


def _theta(size: str) -> str:
    return (
        f"theta_union(theta_union_agg({_BYTES}, {size}) FILTER (WHERE {_IS_SKETCH}),"
        f" theta_sketch_agg({_TEXT_OF}, {size}) FILTER (WHERE {_IS_VALUE}), {size})"
    )


def _kll(size: str) -> str:
    return (
        f"kll_sketch_merge_double(kll_merge_agg_double({_BYTES}) FILTER (WHERE {_IS_SKETCH}),"
        f" kll_sketch_agg_double(CAST({_TEXT_OF} AS DOUBLE){size}) FILTER (WHERE {_IS_VALUE}))"
    )


_HLL: Final = {1: _hll("12"), 2: _hll("{i1}"), 3: _hll("{i1}") + "{t2}"}
_THETA: Final = {1: _theta("14"), 2: _theta("{g1}")}
_OVERLAP: Final = "(size(array_intersect({c0}, {c1})) > 0)"
_OF_JSON: Final = "try_variant_get(try_parse_json({{j0}}), {{p1}}, '{}')"
_TRUNCATED: Final = {
    1: "(CAST(CAST({v0} * 1D AS BIGINT) AS DOUBLE) / 1D)",
    2: "(CAST(CAST({v0} * {f1} AS BIGINT) AS DOUBLE) / {f1})",
}

GROUPS: Final[Mapping[str, Mapping[str, DruidFunction]]] = {
    "Numbers": {
        "ABS": _works("ABS(-27)", "27"),
        "ACOS": _works("ACOS(0)", "1.5707963267948966"),
        "ASIN": _works("ASIN(1)", "1.5707963267948966"),
        "ATAN": _works("ATAN(1)", "0.7853981633974483"),
        "ATAN2": _works("ATAN2(1, -1)", "2.356194490192345"),
        "BITWISE_AND": _becomes(
            "BITWISE_AND(12, 10)", "8", {2: "(CAST({v0} AS BIGINT) & CAST({v1} AS BIGINT))"}
        ),
        "BITWISE_COMPLEMENT": _becomes(
            "BITWISE_COMPLEMENT(12)", "-13", {1: "(~ CAST({v0} AS BIGINT))"}
        ),
        "BITWISE_CONVERT_DOUBLE_TO_LONG_BITS": _absent(
            "BITWISE_CONVERT_DOUBLE_TO_LONG_BITS(255)", _NO_SPELLING
        ),
        "BITWISE_CONVERT_LONG_BITS_TO_DOUBLE": _absent(
            "BITWISE_CONVERT_LONG_BITS_TO_DOUBLE(4643176031446892544)", _NO_SPELLING
        ),
        "BITWISE_OR": _becomes(
            "BITWISE_OR(12, 10)", "14", {2: "(CAST({v0} AS BIGINT) | CAST({v1} AS BIGINT))"}
        ),
        "BITWISE_SHIFT_LEFT": _becomes(
            "BITWISE_SHIFT_LEFT(2, 3)",
            "16",
            {2: "shiftleft(CAST({v0} AS BIGINT), CAST({v1} AS INT))"},
        ),
        "BITWISE_SHIFT_RIGHT": _becomes(
            "BITWISE_SHIFT_RIGHT(16, 3)",
            "2",
            {2: "shiftright(CAST({v0} AS BIGINT), CAST({v1} AS INT))"},
        ),
        "BITWISE_XOR": _becomes(
            "BITWISE_XOR(12, 10)", "6", {2: "(CAST({v0} AS BIGINT) ^ CAST({v1} AS BIGINT))"}
        ),
        "CEIL": _works("CEIL(21.25)", "22"),
        "COS": _works("COS(PI() / 3)", "0.5000000000000001"),
        "COT": _works("COT(PI() / 3)", "0.577350269189626"),
        "DEGREES": _works("DEGREES(PI())", "180.0"),
        "DIV": _works("DIV(78, 10)", "7"),
        "EXP": _works("EXP(1)", "2.718281828459045"),
        "FLOOR": _works("FLOOR(21.25)", "21"),
        "GREATEST": _works("GREATEST(PI(), 4, -5.0)", "4.0", "It needs two arguments or more."),
        "HUMAN_READABLE_BINARY_BYTE_FORMAT": _absent(
            "HUMAN_READABLE_BINARY_BYTE_FORMAT(1000000, 2)",
            sql="format_string('%.2f KiB', 1000000 / 1024)",
            value='"976.56 KiB"',
        ),
        "HUMAN_READABLE_DECIMAL_BYTE_FORMAT": _absent(
            "HUMAN_READABLE_DECIMAL_BYTE_FORMAT(1000000, 2)",
            sql="format_string('%.2f MB', 1000000 / 1000000)",
            value='"1.00 MB"',
        ),
        "HUMAN_READABLE_DECIMAL_FORMAT": _absent(
            "HUMAN_READABLE_DECIMAL_FORMAT(1000000, 2)",
            sql="format_string('%.2f M', 1000000 / 1000000)",
            value='"1.00 M"',
        ),
        "LEAST": _works(
            "LEAST('apple', 'orange', 'pear')", '"apple"', "It needs two arguments or more."
        ),
        "LN": _works("LN(76)", "4.330733340286331"),
        "LOG10": _works("LOG10(76)", "1.8808135922807914"),
        "MOD": _works("MOD(78, 10)", "8"),
        "PI": _differs("PI()", "3.141592653589793", "Druid has it without parentheses, too."),
        "POWER": _works("POWER(5, 2)", "25.0"),
        "RADIANS": _works("RADIANS(180)", "3.141592653589793"),
        "ROUND": _works("ROUND(-73.9377670288086, 0)", "-74"),
        "SAFE_DIVIDE": _differs(
            "SAFE_DIVIDE(78, 10)",
            "7.8",
            "Divides whole numbers as fractions, like `/`; Druid returns 7.",
            {2: "try_divide({v0}, {v1})"},
        ),
        "SIN": _works("SIN(PI() / 3)", "0.8660254037844386"),
        "SQRT": _works("SQRT(25)", "5.0"),
        "TAN": _works("TAN(PI() / 3)", "1.7320508075688767"),
        "TRUNC": _differs(
            "TRUNC(-73.9377670288086)",
            "-73.0",
            "Whole numbers become `double`. With a text, it is Spark's function of dates.",
            _TRUNCATED,
        ),
        "TRUNCATE": _differs(
            "TRUNCATE(-73.9377670288086, 1)", "-73.9", "Whole numbers become `double`.", _TRUNCATED
        ),
    },
    "Texts": {
        "BTRIM": _works("BTRIM('___abc___', '_')", '"abc"'),
        "CHARACTER_LENGTH": _differs("CHARACTER_LENGTH(city)", "12", _PER_CHARACTER),
        "CHAR_LENGTH": _differs("CHAR_LENGTH(city)", "12", _PER_CHARACTER),
        "CONCAT": _works("CONCAT(city, ' to ', 'Washington')", '"San Juan, PR to Washington"'),
        "CONTAINS_STRING": _becomes(
            "CONTAINS_STRING(city, 'San')", "true", {2: "contains({v0}, {v1})"}
        ),
        "DECODE_BASE64_UTF8": _becomes(
            "DECODE_BASE64_UTF8('SGVsbG8gV29ybGQhCg==')",
            '"Hello World!\\n"',
            {1: "decode(unbase64({v0}), 'UTF-8')"},
        ),
        "ICONTAINS_STRING": _becomes(
            "ICONTAINS_STRING(city, 'san')", "true", {2: "contains(lower({v0}), lower({v1}))"}
        ),
        "LEFT": _works("LEFT('ABCDEFG', 3)", '"ABC"'),
        "LENGTH": _differs("LENGTH(city)", "12", _PER_CHARACTER),
        "LOOKUP": _becomes(
            "LOOKUP(city, 'names')", "", note="See [lookups](../howto/join-a-lookup.md)."
        ),
        "LOWER": _works("LOWER(city)", '"san juan, pr"'),
        "LPAD": _works("LPAD('Florida', 11, '+')", '"++++Florida"'),
        "LTRIM": _differs("LTRIM('_', '___abc___')", '"abc___"', _TRIMMED),
        "PARSE_LONG": _becomes(
            "PARSE_LONG('14')",
            "14",
            {1: "TRY_CAST({v0} AS BIGINT)"},
            "With another base: `CAST(conv('1110', 2, 10) AS BIGINT)`.",
        ),
        "POSITION": _becomes("POSITION('PR' IN city FROM 5)", "11"),
        "REGEXP_EXTRACT": _differs(
            "REGEXP_EXTRACT(city, '([^,]+)', 0)",
            '"San Juan"',
            "Without an index it returns group 1, not 0; without a match an empty text, not null.",
        ),
        "REGEXP_LIKE": _works("REGEXP_LIKE(city, '[A-Za-z]+ [A-Za-z]+')", "true", _BACKSLASH),
        "REGEXP_REPLACE": _works(
            "REGEXP_REPLACE('foo bar baz', '([a-z]+) ([a-z]+) ([a-z]+)', '$2!')",
            '"bar!"',
            _BACKSLASH,
        ),
        "REPEAT": _works("REPEAT('abc', 3)", '"abcabcabc"'),
        "REPLACE": _works("REPLACE('abc 123 abc 123', 'abc', 'XYZ')", '"XYZ 123 XYZ 123"'),
        "REVERSE": _works("REVERSE('abc')", '"cba"'),
        "RIGHT": _works("RIGHT('ABCDEFG', 3)", '"EFG"'),
        "RPAD": _works("RPAD('Florida', 11, '+')", '"Florida++++"'),
        "RTRIM": _differs(
            "RTRIM('_', '___abc___')", '"___abc"', _TRIMMED.replace("LEADING", "TRAILING")
        ),
        "STRING_FORMAT": _becomes(
            "STRING_FORMAT('Flight No.%d departing from %s', 314, 'SJU')",
            '"Flight No.314 departing from SJU"',
        ),
        "STRLEN": _differs("STRLEN(city)", "12", _PER_CHARACTER, {1: "length({v0})"}),
        "STRPOS": _becomes("STRPOS('Hello World!', 'World')", "7", {2: "instr({v0}, {v1})"}),
        "SUBSTR": _works("SUBSTR('abcdefghi', 4, 3)", '"def"'),
        "SUBSTRING": _works("SUBSTRING('abcdefghi', 4, 3)", '"def"'),
        "TEXTCAT": _becomes(
            "TEXTCAT(city, ', USA')", '"San Juan, PR, USA"', {2: "concat({v0}, {v1})"}
        ),
        "TRIM": _works("TRIM(BOTH '_' FROM '___abc___')", '"abc"'),
        "UPPER": _works("UPPER(city)", '"SAN JUAN, PR"'),
    },
    "Times": {
        "CEIL(… TO …)": _becomes("CEIL(__time TO YEAR)", '"2014-01-01T00:00:00.000Z"'),
        "CURRENT_DATE": _works("CURRENT_DATE > DATE '2013-08-01'", "true"),
        "CURRENT_TIMESTAMP": _works("CURRENT_TIMESTAMP > __time", "true"),
        "DATE_TRUNC": _differs(
            "DATE_TRUNC('hour', __time)",
            '"2013-08-01T08:00:00.000Z"',
            "`decade`, `century` and `millennium` return null.",
        ),
        "EXTRACT": _differs(
            "EXTRACT(EPOCH FROM __time)",
            "1375344877",
            "`DOW` counts from Sunday, `ISODOW` from Monday, and `SECOND` has a fraction.",
        ),
        "FLOOR(… TO …)": _becomes("FLOOR(__time TO YEAR)", '"2013-01-01T00:00:00.000Z"'),
        "MILLIS_TO_TIMESTAMP": _becomes(
            "MILLIS_TO_TIMESTAMP(1375344877000)",
            '"2013-08-01T08:14:37.000Z"',
            {1: "timestamp_millis({v0})"},
        ),
        "TIMESTAMPADD": _works(
            "TIMESTAMPADD(MONTH, 5, TIMESTAMP '2000-01-01 00:00:00')", '"2000-06-01T00:00:00.000Z"'
        ),
        "TIMESTAMPDIFF": _works(
            "TIMESTAMPDIFF(MINUTE, __time, TIMESTAMP '2013-08-01 09:09:06')", "54"
        ),
        "TIMESTAMP_TO_MILLIS": _becomes(
            "TIMESTAMP_TO_MILLIS(__time)", "1375344877000", {1: "unix_millis({v0})"}
        ),
        "TIME_CEIL": _becomes(
            "TIME_CEIL(__time, 'PT45M', TIMESTAMP '2013-08-01 08:00:00')",
            '"2013-08-01T08:45:00.000Z"',
            note="Like `TIME_FLOOR`.",
        ),
        "TIME_EXTRACT": _becomes("TIME_EXTRACT(__time, 'hour', '-04:00')", "4"),
        "TIME_FLOOR": _becomes(
            "TIME_FLOOR(__time, 'P1D', NULL, 'America/Los_Angeles')",
            '"2013-08-01T07:00:00.000Z"',
            note="Period, origin and zone are written out. Months have no origin.",
        ),
        "TIME_FORMAT": _becomes(
            "TIME_FORMAT(__time, 'dd-MM-YYYY hh:mm aa zzz', '-05:00')",
            '"01-08-2013 03:14 AM -05:00"',
            note="The letters `z` and `Z` need UTC or an offset, not a named zone.",
        ),
        "TIME_IN_INTERVAL": _becomes(
            "TIME_IN_INTERVAL(__time, '2013-08-01T08:00:00/PT1H')", "true"
        ),
        "TIME_PARSE": _becomes(
            "TIME_PARSE('2005-11-01', 'YYYY-MM-dd', '-05:00')",
            '"2005-11-01T05:00:00.000Z"',
            note="Patterns have a year of four letters; weeks such as `2005-W44` give null.",
        ),
        "TIME_SHIFT": _becomes("TIME_SHIFT(__time, 'PT1H', -24)", '"2013-07-31T08:14:37.000Z"'),
    },
    "IP addresses": {
        "IPV4_MATCH": _becomes("IPV4_MATCH('181.13.41.82', '181.13.41.0/24')", "true"),
        "IPV4_PARSE": _becomes("IPV4_PARSE('5.5.5.5')", "84215045"),
        "IPV4_STRINGIFY": _becomes("IPV4_STRINGIFY(84215045)", '"5.5.5.5"'),
        "IPV6_MATCH": _absent(
            "IPV6_MATCH('75e9:efa4:29c6:85f6::232c', '75e9:efa4:29c6:85f6::/64')",
            "Of addresses in one notation:",
            "startswith('75e9:efa4:29c6:85f6::232c', '75e9:efa4:29c6:85f6:')",
            "true",
        ),
    },
    "Arrays": {
        "ARRAY": _becomes(
            "ARRAY['a', 'b']", '["a","b"]', note="An array of one number is written `array(1)`."
        ),
        "ARRAY_APPEND": _differs(
            "ARRAY_APPEND(MV_TO_ARRAY(tags), 't4')", '["t1","t2","t3","t4"]', _OF_LISTS
        ),
        "ARRAY_CONCAT": _becomes(
            "ARRAY_CONCAT(tags, ARRAY['t9', 't0'])",
            '["t1","t2","t3","t9","t0"]',
            {2: "concat({c0}, {c1})"},
        ),
        "ARRAY_CONTAINS": _differs(
            "ARRAY_CONTAINS(MV_TO_ARRAY(tags), 't1')",
            "true",
            f"{_OF_LISTS} For all of several values: `MV_CONTAINS`.",
        ),
        "ARRAY_LENGTH": _becomes("ARRAY_LENGTH(tags)", "3", {1: "size({l0})"}),
        "ARRAY_OFFSET": _becomes("ARRAY_OFFSET(tags, 2)", '"t3"', {2: "get({l0}, {v1})"}),
        "ARRAY_OFFSET_OF": _becomes(
            "ARRAY_OFFSET_OF(tags, 't3')", "2", {2: "(nullif(array_position({c0}, {v1}), 0) - 1)"}
        ),
        "ARRAY_ORDINAL": _becomes("ARRAY_ORDINAL(tags, 2)", '"t2"', {2: "get({l0}, {v1} - 1)"}),
        "ARRAY_ORDINAL_OF": _becomes(
            "ARRAY_ORDINAL_OF(tags, 't3')", "3", {2: "nullif(array_position({c0}, {v1}), 0)"}
        ),
        "ARRAY_OVERLAP": _becomes("ARRAY_OVERLAP(tags, ARRAY['t1', 't9'])", "true", {2: _OVERLAP}),
        "ARRAY_PREPEND": _differs(
            "ARRAY_PREPEND(MV_TO_ARRAY(tags), 't0')",
            '["t0","t1","t2","t3"]',
            f"The array comes first. {_OF_LISTS}",
        ),
        "ARRAY_SLICE": _becomes("ARRAY_SLICE(tags, 0, 2)", '["t1","t2"]'),
        "ARRAY_TO_MV": _becomes(
            "ARRAY_TO_MV(ARRAY['a', 'b'])", '["a","b"]', {1: "{l0}"}, "The list stays an array."
        ),
        "ARRAY_TO_STRING": _becomes(
            "ARRAY_TO_STRING(tags, '-')", '"t1-t2-t3"', {2: "array_join({l0}, {v1}, 'null')"}
        ),
        "SCALAR_IN_ARRAY": _becomes(
            "SCALAR_IN_ARRAY('t2', tags)",
            "true",
            {2: "array_contains(array_compact({c1}), {v0})"},
        ),
        "STRING_TO_ARRAY": _differs(
            "STRING_TO_ARRAY('a,b', ',')",
            '["a","b"]',
            f"{_EMPTY_ENDS} {_BACKSLASH}",
            {2: "split({v0}, {v1})"},
        ),
        "UNNEST": _becomes(
            "SELECT tag FROM events CROSS JOIN UNNEST(tags) AS t (tag) ORDER BY tag", '"t1"'
        ),
    },
    "Multi-value strings": {
        "MV_APPEND": _becomes(
            "MV_APPEND(tags, 'row1')",
            '["t1","t2","t3","row1"]',
            {2: "array_append({l0}, {v1})"},
        ),
        "MV_CONCAT": _becomes(
            "MV_CONCAT(tags, tags)",
            '["t1","t2","t3","t1","t2","t3"]',
            {2: "concat({l0}, {l1})"},
        ),
        "MV_CONTAINS": _becomes("MV_CONTAINS(tags, ARRAY['t1', 't3'])", "true"),
        "MV_FILTER_NONE": _differs(
            "MV_FILTER_NONE(tags, ARRAY['t1', 't3'])",
            '["t2"]',
            "A list of one value stays a list.",
            {2: "nullif(filter({l0}, `~1` -> NOT array_contains({l1}, `~1`)), array())"},
        ),
        "MV_FILTER_ONLY": _differs(
            "MV_FILTER_ONLY(tags, ARRAY['t1', 't3'])",
            '["t1","t3"]',
            "A list of one value stays a list.",
            {2: "nullif(filter({l0}, `~1` -> array_contains({l1}, `~1`)), array())"},
        ),
        "MV_LENGTH": _becomes("MV_LENGTH(tags)", "3", {1: "size({l0})"}),
        "MV_OFFSET": _becomes("MV_OFFSET(tags, 2)", '"t3"', {2: "get({l0}, {v1})"}),
        "MV_OFFSET_OF": _becomes(
            "MV_OFFSET_OF(tags, 't3')", "2", {2: "(nullif(array_position({l0}, {v1}), 0) - 1)"}
        ),
        "MV_ORDINAL": _becomes("MV_ORDINAL(tags, 3)", '"t3"', {2: "get({l0}, {v1} - 1)"}),
        "MV_ORDINAL_OF": _becomes(
            "MV_ORDINAL_OF(tags, 't3')", "3", {2: "nullif(array_position({l0}, {v1}), 0)"}
        ),
        "MV_OVERLAP": _becomes(
            "MV_OVERLAP(tags, ARRAY['t1', 't9'])",
            "true",
            {2: "coalesce(size(array_intersect({l0}, {l1})) > 0, false)"},
        ),
        "MV_PREPEND": _becomes(
            "MV_PREPEND('t0', tags)", '["t0","t1","t2","t3"]', {2: "array_prepend({l1}, {v0})"}
        ),
        "MV_SLICE": _becomes("MV_SLICE(tags, 1, 3)", '["t2","t3"]'),
        "MV_TO_ARRAY": _becomes("MV_TO_ARRAY(tags)", '["t1","t2","t3"]', {1: "{l0}"}),
        "MV_TO_STRING": _becomes(
            "MV_TO_STRING(tags, ' ')", '"t1 t2 t3"', {2: "array_join({l0}, {v1}, 'null')"}
        ),
        "STRING_TO_MV": _differs(
            "STRING_TO_MV('123 Rose Lane', ' +')",
            '["123","Rose","Lane"]',
            f"{_EMPTY_ENDS} {_BACKSLASH}",
            {2: "split({v0}, {v1})"},
        ),
    },
    "JSON": {
        "JSON_KEYS": _becomes(
            "JSON_KEYS(json, '$')",
            '["city","size","list"]',
            {2: "json_object_keys(get_json_object({j0}, {p1}))"},
        ),
        "JSON_MERGE": _absent("JSON_MERGE(json, '{\"a\": 1}')", _NO_SPELLING),
        "JSON_OBJECT": _becomes(
            "JSON_OBJECT(KEY 'a' VALUE added, 'b': PARSE_JSON(json))",
            '"{\\"a\\":7,\\"b\\":{\\"city\\":\\"Taipei\\",\\"list\\":[1,\\"x\\"],\\"size\\":7}}"',
            note="Keys are written out. A nested column is text: write `PARSE_JSON(json)`.",
        ),
        "JSON_PATHS": _absent(
            "JSON_PATHS(json)",
            "Of one object, without those within others:",
            "transform(json_object_keys(json), key -> concat('$.', key))",
            '["$.city","$.size","$.list"]',
        ),
        "JSON_QUERY": _becomes(
            "JSON_QUERY(json, '$.list')",
            '"[1,\\"x\\"]"',
            {2: f"nullif(to_json({_OF_JSON.format('variant')}), 'null')"},
            "Returns text; the keys of objects are in alphabetical order.",
        ),
        "JSON_QUERY_ARRAY": _becomes(
            "JSON_QUERY_ARRAY(json, '$.list')",
            '["1","\\"x\\""]',
            {
                2: f"CASE WHEN {_OF_JSON.format('variant')} IS NOT NULL"
                f" THEN transform(coalesce({_OF_JSON.format('array<variant>')},"
                f" array({_OF_JSON.format('variant')})), `~1` -> to_json(`~1`)) END"
            },
            "Returns texts.",
        ),
        "JSON_VALUE": _differs(
            "JSON_VALUE(json, '$.size' RETURNING BIGINT)",
            "7",
            "Of an object or a list it returns the text, not null.",
        ),
        "PARSE_JSON": _differs(
            'TO_JSON_STRING(PARSE_JSON(\'{"name": "Gus"}\'))',
            '"{\\"name\\":\\"Gus\\"}"',
            "Returns a variant, which the functions of JSON accept.",
        ),
        "TO_JSON_STRING": _becomes(
            "TO_JSON_STRING(ARRAY['a', 'b'])",
            '"[\\"a\\",\\"b\\"]"',
            note="Of a column it is refused, because a nested column is JSON text already.",
        ),
        "TRY_PARSE_JSON": _differs(
            "TRY_PARSE_JSON('{x:x}') IS NULL",
            "true",
            "Returns a variant, which the functions of JSON accept.",
        ),
    },
    "Other functions of values": {
        "BLOOM_FILTER_TEST": _absent("BLOOM_FILTER_TEST(city, 'BAAAJhAAAA==')", _NO_SPELLING),
        "CASE": _works("CASE city WHEN 'Boston, MA' THEN 'east' ELSE 'other' END", '"other"'),
        "CAST": _differs(
            "CAST(1571 AS VARCHAR)",
            '"1571"',
            "A text that is not a number is an error; `TRY_CAST` returns null, as Druid does.",
        ),
        "COALESCE": _works("COALESCE(NULL, NULL, 5)", "5"),
        "DECODE_BASE64_COMPLEX": _absent(
            "DECODE_BASE64_COMPLEX('HLLSketch', 'YWI=')",
            "Of sketches that Spark wrote:",
            "unbase64('YWI=')",
            '"a sketch"',
        ),
        "NULLIF": _works("NULLIF(city, 'San Juan, PR')", "null"),
        "NVL": _works("NVL(NULL, 'No tail number')", '"No tail number"'),
    },
    "Aggregates": {
        "ANY_VALUE": _differs(
            "ANY_VALUE('x', 100)", '"x"', _NO_LIMIT, {2: "any_value({v0}){filter}{t1}"}
        ),
        "APPROX_COUNT_DISTINCT": _differs(
            "APPROX_COUNT_DISTINCT(city)",
            "2",
            "Of values; of stored sketches: `APPROX_COUNT_DISTINCT_DS_HLL`.",
        ),
        "APPROX_COUNT_DISTINCT_BUILTIN": _becomes(
            "APPROX_COUNT_DISTINCT_BUILTIN(city)", "2", {1: "approx_count_distinct({v0}){filter}"}
        ),
        "APPROX_DISTINCT": _becomes(
            "APPROX_DISTINCT(city)",
            "2",
            {1: "approx_count_distinct({v0}){filter}"},
            "Superset writes it instead of `APPROX_COUNT_DISTINCT`.",
        ),
        "APPROX_QUANTILE": _differs(
            "APPROX_QUANTILE(added, 0.5)",
            "5",
            _OWN_DIGEST,
            {
                2: "approx_percentile({v0}, {v1}){filter}",
                3: "approx_percentile({v0}, {v1}){filter}{t2}",
            },
        ),
        "APPROX_QUANTILE_DS": _differs(
            "APPROX_QUANTILE_DS(added, 0.5, 128)",
            "5",
            f"{_OWN_DIGEST} Of sketches: `DS_GET_QUANTILE(DS_QUANTILES_SKETCH(column), 0.5)`.",
            {
                2: "approx_percentile({v0}, {v1}){filter}",
                3: "approx_percentile({v0}, {v1}){filter}{t2}",
            },
        ),
        "APPROX_QUANTILE_FIXED_BUCKETS": _absent(
            "APPROX_QUANTILE_FIXED_BUCKETS(added, 0.5, 10, 0, 2500, 'ignore')",
            sql="approx_percentile(added, 0.5)",
            value="5",
        ),
        "ARRAY_AGG": _differs(
            "SORT_ARRAY(ARRAY_AGG(added))",
            "[3,5,7]",
            "Leaves nulls out; a limit of bytes is refused by Spark.",
        ),
        "ARRAY_CONCAT_AGG": _becomes(
            "ARRAY_CONCAT_AGG(DISTINCT tags)",
            '["t1","t2","t3","t4","t5"]',
            note=f"Without rows it is empty, not null. {_NO_LIMIT}",
        ),
        "AVG": _works("AVG(added)", "5.0"),
        "BIT_AND": _works("BIT_AND(added)", "1"),
        "BIT_OR": _works("BIT_OR(added)", "7"),
        "BIT_XOR": _works("BIT_XOR(added)", "1"),
        "BLOOM_FILTER": _absent("BLOOM_FILTER(city, 100)", _NO_SPELLING),
        "COUNT": _differs(
            "COUNT(DISTINCT city)", "2", "`COUNT(DISTINCT …)` is exact, in Druid approximate."
        ),
        "EARLIEST": _differs(
            "EARLIEST(city, 1024)",
            '"San Juan, PR"',
            _NO_LIMIT,
            {1: "min_by({v0}, {time0}){filter}", 2: "min_by({v0}, {time0}){filter}{t1}"},
        ),
        "EARLIEST_BY": _differs(
            "EARLIEST_BY(added, __time)",
            "7",
            _NO_LIMIT,
            {2: "min_by({v0}, {v1}){filter}", 3: "min_by({v0}, {v1}){filter}{t2}"},
        ),
        "GROUPING": _becomes(
            "SELECT GROUPING(city, added) FROM events GROUP BY GROUPING SETS ((city, added), ())"
            " ORDER BY 1 DESC",
            "3",
        ),
        "LATEST": _differs(
            "LATEST(added) FILTER (WHERE city LIKE 'B%')",
            "5",
            _NO_LIMIT,
            {1: "max_by({v0}, {time0}){filter}", 2: "max_by({v0}, {time0}){filter}{t1}"},
        ),
        "LATEST_BY": _differs(
            "LATEST_BY(city, __time, 1024)",
            '"Boston, MA"',
            _NO_LIMIT,
            {2: "max_by({v0}, {v1}){filter}", 3: "max_by({v0}, {v1}){filter}{t2}"},
        ),
        "LISTAGG": _differs(
            "LISTAGG(city, '; ', 1024) FILTER (WHERE added > 5)",
            '"San Juan, PR"',
            f"Without a separator, nothing stands between the values. {_NO_LIMIT}",
            {3: "listagg({v0}, {v1}){filter}{t2}"},
        ),
        "MAX": _works("MAX(added)", "7"),
        "MIN": _works("MIN(added)", "3"),
        "STDDEV": _works("STDDEV(added)", "2.0"),
        "STDDEV_POP": _works("STDDEV_POP(added)", "1.632993161855452"),
        "STDDEV_SAMP": _works("STDDEV_SAMP(added)", "2.0"),
        "STRING_AGG": _differs(
            "STRING_AGG(city, '; ', 1024) FILTER (WHERE added > 5)",
            '"San Juan, PR"',
            _NO_LIMIT,
            {3: "string_agg({v0}, {v1}){filter}{t2}"},
        ),
        "SUM": _works("SUM(added)", "15"),
        "VARIANCE": _works("VARIANCE(added)", "4.0"),
        "VAR_POP": _works("VAR_POP(added)", "2.6666666666666665"),
        "VAR_SAMP": _works("VAR_SAMP(added)", "4.0"),
    },
    "Sketches": {
        "APPROX_COUNT_DISTINCT_DS_HLL": _becomes(
            "APPROX_COUNT_DISTINCT_DS_HLL(city, 12, 'HLL_4')",
            "2",
            {count: f"hll_sketch_estimate({form})" for count, form in _HLL.items()},
            "Of values, and of sketches that Penstock stored.",
        ),
        "APPROX_COUNT_DISTINCT_DS_THETA": _becomes(
            "APPROX_COUNT_DISTINCT_DS_THETA(city, 4096)",
            "2",
            {count: f"theta_sketch_estimate({form})" for count, form in _THETA.items()},
            "Of values, and of sketches that Penstock stored.",
        ),
        "DS_CDF": _differs(
            "DS_CDF(DS_QUANTILES_SKETCH(added), 4, 8)", '"[0.3333333333333333,1.0,1.0]"', _KLL
        ),
        "DS_GET_QUANTILE": _differs(
            "DS_GET_QUANTILE(DS_QUANTILES_SKETCH(added), 0.5)",
            "5.0",
            f"{_KLL} Without rows it is an error, not NaN.",
            {2: "kll_sketch_get_quantile_double({v0}, {d1})"},
        ),
        "DS_GET_QUANTILES": _differs(
            "DS_GET_QUANTILES(DS_QUANTILES_SKETCH(added), 0.25, 0.5, 0.75)",
            '"[3.0,5.0,7.0]"',
            _KLL,
        ),
        "DS_HISTOGRAM": _differs(
            "DS_HISTOGRAM(DS_QUANTILES_SKETCH(added), 4, 8)", '"[1.0,2.0,0.0]"', _KLL
        ),
        "DS_HLL": _becomes("DS_HLL(city, 12, 'HLL_4')", '"a sketch"', _HLL),
        "DS_QUANTILES_SKETCH": _differs(
            "DS_QUANTILES_SKETCH(added, 128)",
            '"a sketch"',
            _KLL,
            {1: _kll(""), 2: _kll(", {i1}")},
        ),
        "DS_QUANTILE_SUMMARY": _differs(
            "DS_QUANTILE_SUMMARY(DS_QUANTILES_SKETCH(added)) LIKE '%Retained Items%'",
            "true",
            _KLL,
            {1: "kll_sketch_to_string_double({v0})"},
        ),
        "DS_RANK": _differs(
            "DS_RANK(DS_QUANTILES_SKETCH(added), 6)",
            "0.6666666666666666",
            _KLL,
            {2: "kll_sketch_get_rank_double({v0}, {d1})"},
        ),
        "DS_THETA": _becomes("DS_THETA(city, 4096)", '"a sketch"', _THETA),
        "DS_TUPLE_DOUBLES": _becomes(
            "DS_TUPLE_DOUBLES(city, added)", '"a sketch"', note="Of one metric."
        ),
        "DS_TUPLE_DOUBLES_INTERSECT": _becomes(
            "DS_TUPLE_DOUBLES_METRICS_SUM_ESTIMATE(DS_TUPLE_DOUBLES_INTERSECT("
            "DS_TUPLE_DOUBLES(city, added),"
            " DS_TUPLE_DOUBLES(city, added) FILTER (WHERE added > 5)))",
            "[14.0]",
        ),
        "DS_TUPLE_DOUBLES_METRICS_SUM_ESTIMATE": _becomes(
            "DS_TUPLE_DOUBLES_METRICS_SUM_ESTIMATE(DS_TUPLE_DOUBLES(city, added))",
            "[15.0]",
            {1: "array(tuple_sketch_summary_double({v0}))"},
        ),
        "DS_TUPLE_DOUBLES_NOT": _becomes(
            "DS_TUPLE_DOUBLES_METRICS_SUM_ESTIMATE(DS_TUPLE_DOUBLES_NOT("
            "DS_TUPLE_DOUBLES(city, added),"
            " DS_TUPLE_DOUBLES(city, added) FILTER (WHERE added > 5)))",
            "[8.0]",
        ),
        "DS_TUPLE_DOUBLES_UNION": _becomes(
            "DS_TUPLE_DOUBLES_METRICS_SUM_ESTIMATE(DS_TUPLE_DOUBLES_UNION("
            "DS_TUPLE_DOUBLES(city, added),"
            " DS_TUPLE_DOUBLES(city, added) FILTER (WHERE added > 5)))",
            "[22.0]",
        ),
        "HLL_SKETCH_ESTIMATE": _differs(
            "HLL_SKETCH_ESTIMATE(DS_HLL(city), true)",
            "2",
            _ROUNDED,
            {2: "hll_sketch_estimate({v0}){true1}"},
        ),
        "HLL_SKETCH_ESTIMATE_WITH_ERROR_BOUNDS": _absent(
            "HLL_SKETCH_ESTIMATE_WITH_ERROR_BOUNDS(DS_HLL(city))",
            sql="hll_sketch_estimate(hll_sketch_agg(city))",
            value="2",
        ),
        "HLL_SKETCH_TO_STRING": _absent("HLL_SKETCH_TO_STRING(DS_HLL(city))", _NO_SPELLING),
        "HLL_SKETCH_UNION": _becomes(
            "HLL_SKETCH_ESTIMATE(HLL_SKETCH_UNION(DS_HLL(city), DS_HLL(added)))", "5"
        ),
        "TDIGEST_GENERATE_SKETCH": _absent(
            "TDIGEST_GENERATE_SKETCH(added)", sql="kll_sketch_agg_bigint(added)", value='"a sketch"'
        ),
        "TDIGEST_QUANTILE": _absent(
            "TDIGEST_QUANTILE(added, 0.5)", sql="approx_percentile(added, 0.5)", value="5"
        ),
        "THETA_SKETCH_ESTIMATE": _differs(
            "THETA_SKETCH_ESTIMATE(DS_THETA(city))", "2", "Rounded to a whole number."
        ),
        "THETA_SKETCH_ESTIMATE_WITH_ERROR_BOUNDS": _absent(
            "THETA_SKETCH_ESTIMATE_WITH_ERROR_BOUNDS(DS_THETA(city), 1)",
            sql="theta_sketch_estimate(theta_sketch_agg(city))",
            value="2",
        ),
        "THETA_SKETCH_INTERSECT": _becomes(
            "THETA_SKETCH_ESTIMATE(THETA_SKETCH_INTERSECT(DS_THETA(city),"
            " DS_THETA(city) FILTER (WHERE added > 5)))",
            "1",
        ),
        "THETA_SKETCH_NOT": _becomes(
            "THETA_SKETCH_ESTIMATE(THETA_SKETCH_NOT(DS_THETA(city),"
            " DS_THETA(city) FILTER (WHERE added > 5)))",
            "1",
        ),
        "THETA_SKETCH_UNION": _becomes(
            "THETA_SKETCH_ESTIMATE(THETA_SKETCH_UNION(16384, DS_THETA(city), DS_THETA(added)))",
            "5",
        ),
    },
    "Windows": {
        name: _works(f"{call} OVER (ORDER BY __time)", value)
        for name, call, value in (
            ("CUME_DIST", "CUME_DIST()", "0.3333333333333333"),
            ("DENSE_RANK", "DENSE_RANK()", "1"),
            ("FIRST_VALUE", "FIRST_VALUE(added)", "7"),
            ("LAG", "LAG(added, 1, 0)", "0"),
            ("LAST_VALUE", "LAST_VALUE(added)", "7"),
            ("LEAD", "LEAD(added, 1, 0)", "3"),
            ("NTILE", "NTILE(2)", "1"),
            ("PERCENT_RANK", "PERCENT_RANK()", "0.0"),
            ("RANK", "RANK()", "1"),
            ("ROW_NUMBER", "ROW_NUMBER()", "1"),
        )
    },
}
"""The functions by the group in which Druid's documentation has them, and by name."""

FUNCTIONS: Final[Mapping[str, DruidFunction]] = {
    name: one for group in GROUPS.values() for name, one in group.items()
}
"""All functions by their names."""

AGGREGATES: Final = frozenset({*GROUPS["Aggregates"]}) | {
    *("APPROX_COUNT_DISTINCT_DS_HLL", "APPROX_COUNT_DISTINCT_DS_THETA", "DS_HLL", "DS_THETA"),
    *("DS_QUANTILES_SKETCH", "DS_TUPLE_DOUBLES"),
}
"""The names of the aggregate functions among them."""
