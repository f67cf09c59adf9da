"""Druid's functions that Spark can express exactly, as texts of Spark SQL. Pure.

Owns the translation of a call. The functions and their forms are in `druid_function_table`, times
in `druid_times`. A call in another form is not translated: `druid_hints` has hints for those. A
name that Spark has too keeps Spark's meaning for the calls that Spark accepts.

A form is a text with slots. A slot has a letter and the number of an argument:

- `v`: the argument; `j`: it as JSON text; `l`: it as an array of texts, if it is a column, or `c`,
  of the type of the values with which the call compares it;
- `p`: a path of JSON, `i`: a whole number, `d`: a number as `double`, all written out;
- `g`: the logarithm to base 2 of a number of entries; `f`: 10 to the power of a number of digits;
- `t`: nothing, but the argument is a limit or a kind that is written out; `true`: nothing, but it
  is TRUE;
- `time`: the column `__time` of the argument's table;
- `filter`: the clause FILTER of the call; `and`: its condition after another one.

Variables of lambda functions are named `~1` and `~2`: within them, an argument that is a column of
the same name would mean the variable.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeGuard

from penstock.core.errors import InvalidRequest
from penstock.core.sql import tree
from penstock.core.sql.druid_function_table import AGGREGATES, FUNCTIONS
from penstock.core.sql.druid_times import UNITS, extracted, integer, literal, rounded, time_function

_SLOT: Final = re.compile(r"\{(v|l|c|j|p|i|d|g|f|true|time|t|filter|and)(\d?)\}")
_NUMBER: Final = re.compile(r"[+-]?[0-9]+(?:\.[0-9]*)?")
_PATH: Final = re.compile(r"\$(?:\.\w[\w-]*|\[\d+\]|\['[^'\"\\\]]+'\])*\.?")
_ENTRIES_LG: Final = range(4, 27)
_DIGITS_MAX: Final = 18
# Functions whose result is an array, besides those of Druid that return one.
_ARRAYS: Final = frozenset(
    {"ARRAY", "SPLIT", "TRANSFORM", "FILTER", "COLLECT_LIST", "COLLECT_SET", "SORT_ARRAY", "SLICE"}
    | {"FLATTEN", "FROM_JSON", "SEQUENCE", "MAP_KEYS", "MAP_VALUES", "JSON_OBJECT_KEYS"}
    | {"MV_TO_ARRAY", "MV_APPEND", "MV_PREPEND", "MV_CONCAT", "MV_SLICE", "MV_FILTER_ONLY"}
    | {"MV_FILTER_NONE", "STRING_TO_MV", "STRING_TO_ARRAY", "JSON_KEYS", "JSON_QUERY_ARRAY"}
    | {"REGEXP_EXTRACT_ALL", "JSON_VALUE"}
)
_NO_ARRAYS: Final = frozenset(
    {"ARRAY_CONTAINS", "ARRAY_JOIN", "ARRAY_MAX", "ARRAY_MIN", "ARRAY_POSITION", "ARRAY_SIZE"}
    | {"ARRAY_LENGTH", "ARRAY_OFFSET", "ARRAY_OFFSET_OF", "ARRAY_ORDINAL", "ARRAY_ORDINAL_OF"}
    | {"ARRAY_OVERLAP", "ARRAY_TO_STRING"}
)
_VARIANTS: Final = frozenset({"PARSE_JSON", "TRY_PARSE_JSON"})
_JSON_TEXTS: Final = frozenset({"JSON_QUERY", "JSON_OBJECT", "TO_JSON_STRING", "TO_JSON"})
_WITH_NULLS: Final = "map('ignoreNullFields', 'false')"
_OCTET: Final = "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
_IPV4: Final = f"^{_OCTET}" + f"[.]{_OCTET}" * 3 + "$"
# By the name of the type: how a value of JSON becomes one.
_RETURNED: Final[Mapping[str, str]] = {
    **dict.fromkeys(("VARCHAR", "CHAR", "STRING"), "{}"),
    # A number with a fraction is cut, as in Druid.
    **dict.fromkeys(
        ("BIGINT", "INTEGER", "INT"),
        "coalesce(TRY_CAST({0} AS BIGINT), TRY_CAST(TRY_CAST({0} AS DOUBLE) AS BIGINT))",
    ),
    **dict.fromkeys(("DOUBLE", "FLOAT", "DECIMAL"), "TRY_CAST({} AS DOUBLE)"),
    "BOOLEAN": "TRY_CAST({} AS BOOLEAN)",
    **dict.fromkeys(("VARCHAR ARRAY", "STRING ARRAY"), "from_json({}, 'ARRAY<STRING>')"),
    "BIGINT ARRAY": "from_json({}, 'ARRAY<BIGINT>')",
    "DOUBLE ARRAY": "from_json({}, 'ARRAY<DOUBLE>')",
}


class _Call:
    """A call with the texts of its parts in Spark SQL."""

    def __init__(self, call: tree.Call, texts: Sequence[str], condition: str = "") -> None:
        """Keep the parts of a call.

        Args:
            call: The call.
            texts: Its arguments; each can stand on either side of an operator.
            condition: The condition of its clause FILTER; empty if it has none.
        """
        self.arguments = call.arguments
        self.texts = texts
        self.condition = condition
        self.is_distinct = call.is_distinct

    def __len__(self) -> int:
        return len(self.texts)

    def filled(self, form: str) -> str:
        """Return a form with its slots filled.

        Raises:
            ValueError: An argument is not of the kind that its slot needs.
        """
        if self.condition and "{filter}" not in form and "{and}" not in form:
            raise ValueError("a condition, but no aggregate")
        return _SLOT.sub(lambda match: self._slot(match[1], int(match[2] or 0)), form)

    def _slot(self, kind: str, at: int) -> str:
        match kind:
            case "filter":
                return self.filter()
            case "and":
                return f" AND ({self.condition})" if self.condition else ""
            case "time":
                argument = self.arguments[at]
                table = argument.parts[:-1] if isinstance(argument, tree.Name) else ()
                return ".".join(f"`{part.replace('`', '``')}`" for part in (*table, "__time"))
            case "l" | "c":
                return self.array(at, self._compared_type(at) if kind == "c" else "STRING")
            case "j":
                return self.json(at)
            case "p":
                return self.path(at)
            case _:
                return self._constant(kind, at)

    def _constant(self, kind: str, at: int) -> str:
        argument, text = self.arguments[at], self.texts[at]
        match kind:
            case "v":
                return text
            case "i":
                return str(integer(argument))
            case "d":
                return _double(text)
            case "g":
                return str(_logarithm(integer(argument)))
            case "f" if abs(digits := integer(argument)) <= _DIGITS_MAX:
                return f"{float(10**digits)!r}D"
            case "true" if isinstance(argument, tree.Constant) and argument.word == "TRUE":
                return ""
            case "t" if isinstance(argument, tree.Number | tree.Text):
                return ""
            case _:
                raise ValueError("another argument than one that is written out")

    def filter(self) -> str:
        """Return its clause FILTER, or an empty text."""
        return f" FILTER (WHERE {self.condition})" if self.condition else ""

    def array(self, at: int, kind: str = "STRING") -> str:
        """Return an argument as an array: a column has a list, of a kind of values, as JSON text.

        Any other text is a list of one value: so a message with one value of a multi-value
        dimension is stored, and so Druid reads it.

        Raises:
            ValueError: It is neither a column nor a call of a function that returns an array.
        """
        argument = self.arguments[at]
        if isinstance(argument, tree.Name):
            text = self.texts[at]
            values = f"from_json({text}, 'ARRAY<{kind}>')"
            if kind != "STRING":
                return values
            return f"coalesce({values}, CASE WHEN {text} IS NOT NULL THEN array({text}) END)"
        if _is_array(argument):
            return self.texts[at]
        raise ValueError("another expression than a list")

    def _compared_type(self, at: int) -> str:
        """Return the type of the constants in the other arguments."""
        others = [one for number, one in enumerate(self.arguments) if number != at]
        wanted = [
            one for other in others for one in (other.arguments if _is_array(other) else (other,))
        ]
        numbers = [one.text for one in wanted if isinstance(one, tree.Number)]
        if not numbers or len(numbers) < len(wanted):
            return "STRING"
        return "BIGINT" if all(map(str.isdecimal, numbers)) else "DOUBLE"

    def json(self, at: int) -> str:
        """Return an argument as JSON text."""
        is_variant = _name_of(self.arguments[at]) in _VARIANTS
        return f"to_json({self.texts[at]})" if is_variant else self.texts[at]

    def path(self, at: int) -> str:
        """Return a path of JSON, as a text in quotes.

        Raises:
            ValueError: It is not written out, or Spark has no such path.
        """
        path = literal(self.arguments[at], self.texts[at])
        if not _PATH.fullmatch(path):
            raise ValueError("another path than names and numbers")
        doubled = path.removesuffix(".").replace("'", "''")
        return f"'{doubled}'"

    def plain(self) -> None:
        """Refuse DISTINCT and FILTER; raises ValueError."""
        if self.condition or self.is_distinct:
            raise ValueError("not an aggregate")


def translated(call: tree.Call, texts: Sequence[str], condition: str = "") -> str:
    """Return a call of Druid's function in Spark SQL; empty if it is not one, or not exactly.

    The text can stand on either side of an operator.

    Args:
        call: The call.
        texts: Its arguments in Spark SQL; each can stand on either side of an operator.
        condition: The condition of its clause FILTER in Spark SQL.
    """
    name = call.name[-1].upper()
    if len(call.name) > 1 or call.over is not None or call.within or call.nulls:
        return ""
    given = _Call(call, texts, condition)
    try:
        if call.form:
            given.plain()
            return _in_other_syntax(name, call, given)
        if write := _WRITERS.get(name):
            return write(given)
        if found := time_function(name, call.arguments, texts):
            given.plain()
            return found
        form = FUNCTIONS[name].forms.get(len(texts), "") if name in FUNCTIONS else ""
        return "" if call.is_distinct or not form else given.filled(form)
    except (InvalidRequest, ValueError, IndexError):
        return ""


def unnested(call: tree.Call, texts: Sequence[str]) -> str:
    """Return `UNNEST(list)` as a relation in Spark SQL; empty if it is another call."""
    try:
        given = _Call(call, texts)
        return f"LATERAL explode({given.array(0)})" if len(given) == 1 else ""
    except ValueError:
        return ""


def is_unnest(call: tree.Call) -> bool:
    """Return whether a call is Druid's UNNEST."""
    return call.name[-1].upper() == "UNNEST" and len(call.name) == 1


def reorders(call: tree.Call) -> bool:
    """Return whether the translation of a call may have its arguments in another order."""
    name = call.name[-1].upper()
    form = FUNCTIONS[name].forms.get(len(call.arguments), "") if name in FUNCTIONS else ""
    order = [match[2] for match in _SLOT.finditer(form) if match[2] and match[1] != "time"]
    return order != sorted(order) or name == "MV_CONTAINS"


def is_translated(call: tree.Call) -> bool:
    """Return whether a call may be translated."""
    return bool(call.form) or call.name[-1].upper() in DRUID_FUNCTIONS


def _in_other_syntax(name: str, call: tree.Call, given: _Call) -> str:
    """Return a call with words between its arguments; empty if Spark has it, too."""
    match call.form:
        case ("TO",) if len(given) == 2:
            unit = call.arguments[1]
            word = unit.parts[0].upper() if isinstance(unit, tree.Name) else ""
            return rounded(name, word, given.texts[0]) if word in UNITS else ""
        case ("FROM",) if name == "EXTRACT":
            return extracted(call.arguments[0], given.texts[1])
        case ("IN", "FROM") if name == "POSITION":
            return f"locate({', '.join(given.texts)})"
        case ("[",):
            return f"array({', '.join(given.texts)})"
        case ("RETURNING",):
            found = f"get_json_object({given.json(0)}, {given.path(1)})"
            kind = "" if call.returned is None else call.returned.name
            return _RETURNED.get(kind, "").format(found) if len(given) == 2 else ""
        case _ if name == "JSON_OBJECT":
            return _json_object(given)
        case _:
            return ""


def _json_object(given: _Call) -> str:
    parts: list[str] = []
    for at in range(0, len(given), 2):
        key = literal(given.arguments[at], given.texts[at])
        name = _name_of(given.arguments[at + 1])
        value = given.texts[at + 1]
        is_json = name in _JSON_TEXTS or name == "JSON_QUERY_ARRAY"
        if name == "JSON_QUERY_ARRAY":
            raise ValueError("an array of texts, which would be written with quotes")
        doubled = key.replace("'", "''")
        parts += [f"'{doubled}'", f"parse_json({value})" if is_json else value]
    return f"to_json(named_struct({', '.join(parts)}), {_WITH_NULLS})"


def _json_value(given: _Call) -> str:
    given.plain()
    return f"get_json_object({given.json(0)}, {given.path(1)})" if len(given) == 2 else ""


def _to_json_string(given: _Call) -> str:
    given.plain()
    (argument,) = given.arguments
    name = _name_of(argument)
    if name in _VARIANTS:
        return f"to_json({given.texts[0]})"
    if name in _JSON_TEXTS:
        return given.texts[0]
    if not name:
        return ""  # a column may have JSON text
    whole = f"to_json(named_struct('v', {given.texts[0]}), {_WITH_NULLS})"
    return f"regexp_extract({whole}, '(?s)^.....(.*).$', 1)"


def _string_format(given: _Call) -> str:
    given.plain()
    return f"format_string({', '.join(given.texts)})" if given.texts else ""


def _slice(given: _Call) -> str:
    """Return the values from an index up to another one; Druid fills missing ones with null."""
    given.plain()
    start, end = integer(given.arguments[1]), integer(given.arguments[2])
    values = given.filled("{l0}") if len(given) == 3 else ""
    if not values or not 0 <= start <= end:
        return ""
    found = f"transform(sequence({start}, {end - 1}), `~1` -> get({values}, `~1`))"
    if start == end:
        found = f"slice({values}, 1, 0)"
    return f"CASE WHEN size({values}) >= {start} THEN {found} END"


def _mv_contains(given: _Call) -> str:
    given.plain()
    if len(given) != 2:
        return ""
    if _is_array(given.arguments[1]):
        return given.filled("coalesce(size(array_except({l1}, {l0})) = 0, false)")
    return given.filled("coalesce(array_contains(array_compact({l0}), {v1}), false)")


def _array_concat_agg(given: _Call) -> str:
    form = "flatten(collect_list({l0}){filter})"
    if given.is_distinct:
        form = f"sort_array(array_distinct({form}))"
    return given.filled(form + ("{t1}" if len(given) == 2 else "")) if len(given) < 3 else ""


def _grouping(given: _Call) -> str:
    given.plain()
    if len(given) < 2:
        return ""
    top = len(given) - 1
    bits = [f"grouping({text}) * {1 << (top - at)}L" for at, text in enumerate(given.texts)]
    return f"({' + '.join(bits)})"


def _ipv4_number(address: str) -> str:
    """Return an address as a number, if it is one or a text of four numbers, else null."""
    text, number = f"CAST({address} AS STRING)", f"TRY_CAST({address} AS BIGINT)"
    return (
        f"CASE WHEN {text} RLIKE '{_IPV4}' THEN aggregate(split({text}, '[.]'), 0L,"
        f" (`~1`, `~2`) -> `~1` * 256 + CAST(`~2` AS BIGINT))"
        f" WHEN typeof({address}) <> 'string' AND {number} BETWEEN 0 AND 4294967295"
        f" THEN {number} END"
    )


def _ipv4_parse(given: _Call) -> str:
    given.plain()
    return f"({_ipv4_number(given.texts[0])})" if len(given) == 1 else ""


def _ipv4_match(given: _Call) -> str:
    given.plain()
    network = ipaddress.IPv4Network(literal(given.arguments[1], given.texts[1]), strict=False)
    low, high = int(network.network_address), int(network.broadcast_address)
    number = _ipv4_number(given.texts[0])
    return f"coalesce(({number}) BETWEEN {low}L AND {high}L, false)" if len(given) == 2 else ""


def _ipv4_stringify(given: _Call) -> str:
    given.plain()
    (address,) = given.texts
    text, number = f"CAST({address} AS STRING)", f"TRY_CAST({address} AS BIGINT)"
    octets = ", ".join(f"shiftright({number}, {bits}) & 255" for bits in (24, 16, 8, 0))
    return (
        f"(CASE WHEN {text} RLIKE '{_IPV4}' THEN {text}"
        f" WHEN typeof({address}) <> 'string' AND {number} BETWEEN 0 AND 4294967295"
        f" THEN concat_ws('.', {octets}) END)"
    )


def _quantiles(given: _Call) -> str:
    given.plain()
    return f"to_json(kll_sketch_get_quantile_double({given.texts[0]}, {_doubles(given)}))"


def _ranks(given: _Call) -> str:
    """Return the ranks of split points, and 1 at the end, as an array."""
    given.plain()
    return f"concat(kll_sketch_get_rank_double({given.texts[0]}, {_doubles(given)}), array(1D))"


def _cdf(given: _Call) -> str:
    return f"to_json({_ranks(given)})"


def _histogram(given: _Call) -> str:
    ranks, count = _ranks(given), f"kll_sketch_get_n_double({given.texts[0]})"
    below = f"concat(array(0D), {ranks})"
    # Without its last value, which is 1, the second array has the ranks where each part begins.
    return (
        f"to_json(zip_with({ranks}, slice({below}, 1, {len(given)}),"
        f" (`~1`, `~2`) -> round((`~1` - `~2`) * {count}, 6)))"
    )


def _doubles(given: _Call) -> str:
    if len(given) < 2:
        raise ValueError("no numbers")
    return f"array({', '.join(map(_double, given.texts[1:]))})"


def _tuple_sketch(given: _Call) -> str:
    """Return a sketch of a key and one metric, or of sketches; a number is that of entries."""
    entries, parts = _entries(given, at=-1)
    lg = "" if entries is None else f", {entries}"
    if len(parts) == 1:
        return f"tuple_union_agg_double({parts[0]}{lg}){given.filter()}"
    if len(parts) == 2:
        metric = f"CAST({parts[1]} AS DOUBLE)"
        return f"tuple_sketch_agg_double({parts[0]}, {metric}{lg}){given.filter()}"
    return ""


def _entries(given: _Call, *, at: int) -> tuple[int | None, Sequence[str]]:
    """Return the logarithm of a number of entries at the start or end, and the other arguments."""
    if isinstance(given.arguments[at], tree.Number):
        rest = given.texts[1:] if at == 0 else given.texts[:-1]
        return _logarithm(integer(given.arguments[at])), rest
    return None, given.texts


def _logarithm(entries: int) -> int:
    """Return the logarithm to base 2 of a number of entries, which is rounded up as in Druid.

    Raises:
        ValueError: Spark has no such sketches.
    """
    found = (entries - 1).bit_length() if entries > 0 else -1
    if found not in _ENTRIES_LG:
        raise ValueError("a number of entries that Spark lacks")
    return found


def _double(text: str) -> str:
    compact = text.strip("()").replace(" ", "")
    if not _NUMBER.fullmatch(compact):
        raise ValueError("another expression than a number")
    return f"{float(compact)!r}D"


def _combined(function: str, sketches: Sequence[str], last: str = "") -> str:
    """Return a function of two sketches over two or more of them."""
    if len(sketches) < 2:
        return ""
    found = sketches[0]
    for one in sketches[1:]:
        found = f"{function}({found}, {one}{last})"
    return found


def _hll_union(given: _Call) -> str:
    given.plain()
    has_size = isinstance(given.arguments[0], tree.Number)  # and the kind of the sketch after it
    return _combined("hll_union", given.texts[2 * has_size :], ", true")


def _of_sketches(function: str, *, at: int, has_size: bool) -> Callable[[_Call], str]:
    def write(given: _Call) -> str:
        given.plain()
        entries, sketches = _entries(given, at=at)
        size = f", {14 if entries is None else entries}" if has_size else ""
        return _combined(function, sketches, size)

    return write


_WRITERS: Final[Mapping[str, Callable[[_Call], str]]] = {
    "ARRAY_CONCAT_AGG": _array_concat_agg,
    "ARRAY_SLICE": _slice,
    "DS_CDF": _cdf,
    "DS_GET_QUANTILES": _quantiles,
    "DS_HISTOGRAM": _histogram,
    "DS_TUPLE_DOUBLES": _tuple_sketch,
    "DS_TUPLE_DOUBLES_INTERSECT": _of_sketches("tuple_intersection_double", at=-1, has_size=False),
    "DS_TUPLE_DOUBLES_NOT": _of_sketches("tuple_difference_double", at=-1, has_size=False),
    "DS_TUPLE_DOUBLES_UNION": _of_sketches("tuple_union_double", at=-1, has_size=True),
    "GROUPING": _grouping,
    "HLL_SKETCH_UNION": _hll_union,
    "IPV4_MATCH": _ipv4_match,
    "IPV4_PARSE": _ipv4_parse,
    "IPV4_STRINGIFY": _ipv4_stringify,
    "JSON_VALUE": _json_value,
    "MV_CONTAINS": _mv_contains,
    "MV_SLICE": _slice,
    "STRING_FORMAT": _string_format,
    "THETA_SKETCH_INTERSECT": _of_sketches("theta_intersection", at=0, has_size=False),
    "THETA_SKETCH_NOT": _of_sketches("theta_difference", at=0, has_size=False),
    "THETA_SKETCH_UNION": _of_sketches("theta_union", at=0, has_size=True),
    "TO_JSON_STRING": _to_json_string,
}


DRUID_FUNCTIONS: Final = frozenset(
    {name for name, one in FUNCTIONS.items() if one.forms or one.state == "translated"}
    | _WRITERS.keys()
) - {"ARRAY", "CEIL(… TO …)", "FLOOR(… TO …)", "JSON_OBJECT", "LOOKUP", "POSITION", "UNNEST"}
"""The names of functions whose plain calls may be translated, in upper case."""

DRUID_AGGREGATES: Final = AGGREGATES & DRUID_FUNCTIONS
"""The aggregate functions among them."""


def _name_of(node: tree.Expression) -> str:
    """Return the name of a function that an expression calls, in upper case, or an empty text."""
    return node.name[-1].upper() if isinstance(node, tree.Call) else ""


def _is_array(node: tree.Expression) -> TypeGuard[tree.Call]:
    """Return whether an expression surely returns an array."""
    if not isinstance(node, tree.Call):
        return False
    name = _name_of(node)
    if name == "JSON_VALUE":
        return node.returned is not None and node.returned.name.endswith(" ARRAY")
    return (name in _ARRAYS or name.startswith("ARRAY_")) and name not in _NO_ARRAYS
