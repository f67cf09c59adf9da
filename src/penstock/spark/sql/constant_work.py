"""Work that Spark does with constants while it plans a query, where nothing can interrupt it. Pure.

Spark's optimizer calls functions over constants. A call that takes minutes, or all memory, ends the
JVM for all queries. `core.sql.values` refuses single values that are too large by themselves. This
module refuses smaller ones where the query makes more of them: if it calls a function whose time or
whose result grows faster than its arguments, or if its constants are too large together. It knows
the numbers that a query gives a name itself: `SELECT repeat('x', n) FROM (SELECT 9000000 AS n)`.

Sizes that depend on rows of a datasource are not limited here, because tasks of Spark compute them.
Sizes that a function computes, such as `length`, count as 1.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from penstock.core.errors import InvalidRequest
from penstock.core.sql import tree
from penstock.core.sql.call_check import name_position
from penstock.core.sql_text import Token, place

MADE_MAX: Final = 64_000_000
"""Bytes or elements that all constants of a query have together."""
COSTLY_MAX: Final = 100_000
"""Bytes or elements of each constant in a query that calls a function that makes more of it."""
_MAKERS: Final = frozenset(
    {"repeat", "lpad", "rpad", "space", "sequence", "array_repeat", "randstr"}
)
# Functions that take far longer than their arguments are large, or return far more, and how large
# the constants in a query with one of them may be. Measured with constants of 1 MB: str_to_map
# takes 4 s, split and regexp_replace return 16 to 50 times as much; levenshtein compares each
# character with each.
_COSTLY: Final[Mapping[str, int]] = {
    **dict.fromkeys(("str_to_map", "split", "split_part", "sentences"), COSTLY_MAX),
    **dict.fromkeys(("regexp_replace", "regexp_extract", "regexp_extract_all"), COSTLY_MAX),
    **dict.fromkeys(("regexp_count", "regexp_instr", "regexp_substr", "rlike"), COSTLY_MAX),
    **dict.fromkeys(("regexp", "regexp_like", "replace", "translate", "like", "ilike"), COSTLY_MAX),
    **dict.fromkeys(("from_json", "from_csv", "from_xml", "parse_json", "json_tuple"), COSTLY_MAX),
    **dict.fromkeys(("get_json_object", "schema_of_json", "schema_of_csv"), COSTLY_MAX),
    **dict.fromkeys(("schema_of_xml", "parse_url", "mask", "format_string", "printf"), COSTLY_MAX),
    "levenshtein": 10_000,
}
_PATTERNS: Final = frozenset({"LIKE", "ILIKE", "RLIKE", "REGEXP"})
# Functions whose result is not larger than their first argument.
_NUMBERS: Final = frozenset(
    {"int", "integer", "bigint", "smallint", "tinyint", "double", "float", "decimal", "abs"}
    | {"floor", "ceil", "ceiling", "round", "positive", "negative"}
)
_COLUMNS_MAX: Final = 100
_NAMES_DEPTH_MAX: Final = 60
VISITED_MAX: Final = 1_000_000
"""Nodes that are visited, in about two seconds: those below nested names, once for each name."""


def check_constant_work(
    sql: str, tokens: Sequence[Token], root: tree.Query, parameters: Sequence[object] = ()
) -> None:
    """Refuse a query whose constants may take Spark long before it can be interrupted.

    Args:
        sql: The query, for the places in errors.
        tokens: Its tokens.
        root: Its tree.
        parameters: The known values of each `?`.

    Raises:
        InvalidRequest: It does; the message has the place.
    """
    lowered = sql.lower()
    if not any(name in lowered for name in _MAKERS):
        return  # as nearly all queries
    nodes = [*tree.walk(root)]
    makers = [node for node in nodes if isinstance(node, tree.Call) and _name(node) in _MAKERS]
    sizes = _Sizes(nodes, parameters)
    try:
        made = [(sizes.made(call), call) for call in makers]
    except RecursionError:
        raise _nested_names() from None
    costly, limit = _costly(nodes)
    for size, call in made:
        if costly and size > limit:
            raise InvalidRequest(
                f"{_name(call)}() makes about {size:,.0f} characters or elements,"
                f" {place(sql, name_position(tokens, call))}, and the query calls {costly}(), for"
                f" which there may be {limit:,}: Spark calls it while it plans, and cannot be"
                " interrupted then. Make smaller values, or rows: range(1, 1000000) returns a row"
                " for each number"
            )
    total = sum(size for size, _ in made)
    if total > MADE_MAX:
        raise InvalidRequest(
            f"constants of the query have about {total:,.0f} characters and elements together, more"
            f" than {MADE_MAX:,}: Spark makes them while it plans, and cannot be interrupted then."
            " Make fewer or smaller ones, or rows: range(1, 1000000) returns a row for each number"
        )


def _nested_names() -> InvalidRequest:
    return InvalidRequest(
        "the query gives names to values within each other too deeply for its constants to be"
        " estimated: compute less from one name to the next"
    )


def _costly(nodes: Iterable[tree.Node]) -> tuple[str, int]:
    """Return the function of a query that allows the smallest constants, and how large they are."""
    found = ("", MADE_MAX)
    for node in nodes:
        name = ""
        if isinstance(node, tree.Call):
            name = _name(node)
        elif isinstance(node, tree.Predicate) and node.operator in _PATTERNS:
            name = node.operator.lower()
        if _COSTLY.get(name, MADE_MAX) < found[1]:
            found = (name, _COSTLY[name])
    return found


class _Sizes:
    """Sizes of the constants of a query.

    Args:
        nodes: The nodes of its tree.
        parameters: The known values of each `?`.
    """

    def __init__(self, nodes: Iterable[tree.Node], parameters: Sequence[object]) -> None:
        self._parameters = parameters
        self._named: dict[str, list[tree.Expression]] = {}
        for name, value in _definitions(nodes):
            self._named.setdefault(name.lower(), []).append(value)
        self._known: dict[tuple[str, bool], float | None] = {}
        # By the identity of a call: one within others would be computed again for each of them.
        self._made: dict[int, float] = {}
        self._depth = self._visited = 0

    def made(self, call: tree.Call) -> float:
        """Return how many characters or elements a call of a maker makes."""
        found = self._made.get(id(call))
        if found is None:
            found = self._computed_size(call)
            if not self._depth:  # otherwise a name that stands for itself counts as 1
                self._made[id(call)] = found
        return found

    def _computed_size(self, call: tree.Call) -> float:
        arguments = call.arguments
        match _name(call):
            case "repeat" | "array_repeat" if len(arguments) == 2:
                return self._size(arguments[0]) * (self._number(arguments[1]) or 1.0)
            case "lpad" | "rpad" if len(arguments) > 1:
                return self._number(arguments[1]) or 1.0
            case "space" | "randstr" if arguments:
                return self._number(arguments[0]) or 1.0
            case "sequence" if len(arguments) > 1:
                first, last = map(self._number, arguments[:2])
                return 1.0 if first is None or last is None else abs(last - first)
            case _:
                return 1.0

    def _size(self, node: tree.Node) -> float:
        """Return about how many characters or elements a value has; 1 if it depends on rows."""
        self._visit()
        match node:
            case tree.Text():
                return max(len(node.value or ""), 1.0)
            case tree.Call() if _name(node) in _MAKERS:
                return max(self.made(node), 1.0)
            case tree.Name():
                return self._of_name(node, is_number=False) or 1.0
            case tree.Subquery():
                return 1.0
            case _:
                return max(sum(map(self._size, tree.children(node))), 1.0)

    def _number(self, node: tree.Node) -> float | None:
        """Return a number; None: it depends on rows, or on a function that is not known here."""
        self._visit()
        match node:
            case tree.Number():
                return _float(node.text.upper().rstrip("LSYDFB"))
            case tree.Text():
                return _float(node.value or "")
            case tree.Parameter() if node.number < len(self._parameters):
                return _float(str(self._parameters[node.number]))
            case tree.Name():
                return self._of_name(node, is_number=True)
            case tree.Unary(operator="-"):
                number = self._number(node.operand)
                return None if number is None else -number
            case tree.Unary(operand=only) | tree.Row(items=(only,)) | tree.Named(value=only):
                return self._number(only)
            case tree.Aliased(value=only) | tree.Cast(value=only):
                return self._number(only)
            case tree.Call(arguments=(only, *_)) if _name(node) in _NUMBERS:
                return self._number(only)
            case tree.Operation():
                return self._computed(node)
            case _:
                return None

    def _visit(self) -> None:
        self._visited += 1
        if self._visited > VISITED_MAX:
            raise _nested_names()

    def _computed(self, node: tree.Operation) -> float | None:
        value = self._number(node.operands[0])
        for operator, operand in zip(node.operators, node.operands[1:], strict=True):
            other = self._number(operand)
            if value is None or other is None:
                return None
            match operator:
                case "+":
                    value += other
                case "-":
                    value -= other
                case "*":
                    value *= other
                case "/" | "DIV" if other:
                    value /= other
                case _:
                    return None
        return value

    def _of_name(self, node: tree.Name, *, is_number: bool) -> float | None:
        """Return the largest value that the query gives a name; None: it is not known."""
        key = node.parts[-1].lower(), is_number
        if key not in self._known:
            if self._depth > _NAMES_DEPTH_MAX:
                return MADE_MAX + 1.0  # it is refused, because this function is recursive
            self._known[key] = None  # of a name that stands for itself
            of = self._number if is_number else self._size
            self._depth += 1
            found = [one for one in map(of, self._named.get(key[0], ())) if one is not None]
            self._known[key] = max(found, default=None)
            self._depth -= 1
        return self._known[key]


def _definitions(nodes: Iterable[tree.Node]) -> Iterator[tuple[str, tree.Expression]]:
    """Yield the names that a query gives to values, each with a value."""
    for node in nodes:
        if isinstance(node, tree.Aliased):
            yield from ((name, node.value) for name in node.names)
        elif isinstance(node, tree.InlineTable):
            names = node.columns or [f"col{number}" for number in range(1, _COLUMNS_MAX)]
            for row in _rows(node):
                yield from zip(names, row, strict=False)
        elif isinstance(node, tree.Derived | tree.Definition) and node.columns:
            body = node.query.body
            if isinstance(body, tree.Select):
                yield from zip(node.columns, body.items, strict=False)
            elif isinstance(body, tree.Values):
                for row in _rows(body.table):
                    yield from zip(node.columns, row, strict=False)


def _rows(table: tree.InlineTable) -> Iterator[Sequence[tree.Expression]]:
    for row in table.rows:
        yield row.items if isinstance(row, tree.Row) else (row,)


def _float(text: str) -> float | None:
    try:
        found = float(text)
    except ValueError:
        return None
    return found if math.isfinite(found) else None


def _name(call: tree.Call) -> str:
    return call.name[-1].lower()
