"""Expressions of a statement as pieces of DuckDB's SQL. Pure.

Owns operators, conditions and conversions; `functions` has the functions. An expression that is not
listed here is not compiled. An expression that may raise is not compiled below AND and OR, because
Spark evaluates their operands from the left and DuckDB in any order, and not in comparisons,
because DuckDB computes `a = 4` for `a + 1 = 5`.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from typing import Final

from penstock.core.sql import tree
from penstock.fastpath import literals
from penstock.fastpath.casts import cast_to
from penstock.fastpath.compiled_query import NotCompiled
from penstock.fastpath.decimals import computed_decimal
from penstock.fastpath.fragments import (
    DUCKDB_TYPES,
    INT_MAX,
    INTEGERS,
    LONG_MAX,
    VOID,
    Fragment,
    TimeBounds,
    column_sql,
    constant,
    converted,
    duckdb_type,
    is_decimal,
    is_number,
    made,
    named,
    shared_type,
)
from penstock.fastpath.functions import (
    called,
    cased,
    extracted,
    floored,
    is_null,
    joined_texts,
)

_COMPARED: Final = {
    "=": "=",
    "==": "=",
    "<>": "<>",
    "!=": "<>",
    "<": "<",
    "<=": "<=",
    ">": ">",
    ">=": ">=",
    "!>": "<=",
    "!<": ">=",
    "<=>": "IS NOT DISTINCT FROM",
}
_MIRRORED: Final = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
_NULL_TESTS: Final = frozenset({"IS NULL", "IS UNKNOWN"})
_ARITHMETIC: Final = frozenset({"+", "-", "*"})
# Names of three operands are known; Spark makes a balanced tree of more.
_CHAIN_NAMED_MAX: Final = 3
_PERIOD: Final = re.compile(r"[1-9][0-9]{0,11}")
_NOW: Final = frozenset({"current_timestamp", "now"})
# Spark looks up longer lists in a set, where 0.0 and -0.0 are not equal.
_LISTED_REALS_MAX: Final = 10
_CASTS: Final = {
    "INTEGER": "int",
    "LONG": "bigint",
    "REAL": "float",
    **dict.fromkeys(("DEC", "NUMERIC"), "decimal"),
}
_SIZE: Final = re.compile(r"[0-9]{1,2}")
# Length of all pieces of a query together, of which many are parts of others.
_PIECES_CHARACTERS_MAX: Final = 10_000_000


class Expressions(ABC):
    """Compiles expressions; a subclass knows which names they may have.

    Args:
        parameters: The values of each `?`.
        now_us: The time of the query, in microseconds since the epoch; None: it is not known.
    """

    def __init__(self, parameters: Sequence[object], now_us: int | None = None) -> None:
        self.parameters = parameters
        self.now_us = now_us
        self._characters = 0

    @abstractmethod
    def _name(self, node: tree.Name) -> Fragment:
        """Return the value of a name.

        Raises:
            NotCompiled: There is no such name.
        """

    @abstractmethod
    def _replaced(self, node: tree.Expression) -> Fragment | None:
        """Return the piece of an expression that was computed before; None: it was not.

        Raises:
            NotCompiled: The expression must not be here.
        """

    def compile(self, node: tree.Expression) -> Fragment:
        """Return the piece of an expression.

        Raises:
            NotCompiled: It is not covered.
        """
        found = self._replaced(node)
        if found is not None:
            return found
        piece = self._of_node(node)
        self._characters += len(piece.sql)
        if self._characters > _PIECES_CHARACTERS_MAX:
            raise NotCompiled("size")
        if piece.raises and not _reads_rows(node):
            # Spark raises while it plans, even if there is no row for which to compute it.
            raise NotCompiled("error of constants")
        return piece

    def _of_node(self, node: tree.Expression) -> Fragment:
        match node:
            case tree.Name():
                return self._name(node)
            case tree.Number():
                return literals.number(node.text)
            case tree.Text():
                return literals.text(node.value if node.value is not None else node.quoted or None)
            case tree.Constant():
                return self._constant(node)
            case tree.TypedText():
                return self._typed_text(node)
            case tree.Parameter():
                if node.number >= len(self.parameters):
                    raise NotCompiled("parameter")
                return literals.parameter(self.parameters[node.number])
            case tree.Row(items=(item,)):
                return self.compile(item)
            case tree.Unary():
                return self._unary(node)
            case tree.Operation():
                return self._operation(node)
            case tree.Predicate():
                return self._predicate(node)
            case tree.Case():
                return self._case(node)
            case tree.Cast():
                return self._cast(node)
            case tree.Call():
                return self._call(node)
        raise NotCompiled(type(node).__name__.lower())

    def settled(self, piece: Fragment, reason: str) -> Fragment:
        """Return a piece that the engine evaluates wherever Spark does.

        Raises:
            NotCompiled: It may raise, and the engine could leave it out.
        """
        if piece.raises:
            raise NotCompiled(reason)
        return piece

    def _compared(self, left: Fragment, operator: str, right: Fragment) -> Fragment:
        reason = "error in a comparison"
        return compared(self.settled(left, reason), operator, self.settled(right, reason))

    def condition(self, node: tree.Expression) -> Fragment:
        """Return the piece of a condition.

        Raises:
            NotCompiled: It is not covered, or not a condition.
        """
        found = self.compile(node)
        if found.type != "boolean":
            raise NotCompiled("condition")
        return found

    def _constant(self, node: tree.Constant) -> Fragment:
        if node.word == "NULL":
            return literals.null()
        if node.word in {"TRUE", "FALSE"}:
            return constant(node.word == "TRUE", "boolean", node.word.lower())
        raise NotCompiled("constant")

    def _typed_text(self, node: tree.TypedText) -> Fragment:
        if node.type in {"TIMESTAMP", "TIMESTAMP_LTZ"}:
            return literals.time(node.text.value)
        if node.type == "DATE":
            return literals.date(node.text.value)
        raise NotCompiled("typed text")

    def _unary(self, node: tree.Unary) -> Fragment:
        if node.operator in {"NOT", "!"}:
            value = self.condition(node.operand)
            return _with_name("(NOT {})", made("(NOT {})", "boolean", (value,)), value)
        if node.operator == "-" and isinstance(node.operand, tree.Number):
            return literals.number(node.operand.text, is_negative=True)
        if _begins_with_number(node.operand):
            raise NotCompiled("operator")  # Spark takes -1::DOUBLE for (-1)::DOUBLE
        value = self.compile(node.operand)
        if not is_number(value.type):
            raise NotCompiled("operator")
        if node.operator == "+":
            return _with_name("(+ {})", made("(+{})", value.type, (value,)), value)
        if node.operator != "-":
            raise NotCompiled("operator")
        sql = f"CAST((-{{}}) AS {duckdb_type(value.type)})"
        piece = made(sql, value.type, (value,), raises=value.type in INTEGERS)
        return _with_name("(- {})", piece, value)

    def _operation(self, node: tree.Operation) -> Fragment:
        if node.operators[0] in {"AND", "OR"}:
            return self._logical(node)
        found = self.compile(node.operands[0])
        for operator, operand in zip(node.operators, node.operands[1:], strict=True):
            if isinstance(operand, tree.Interval):
                found = _moved(found, operator, *literals.interval_of(operand))
                continue
            other = self.compile(operand)
            if operator in _COMPARED:
                found = self._compared(found, operator, other)
            elif operator == "||":
                found = joined_texts((found, other))
            else:
                found = _computed(found, operator, other)
        return found

    def _logical(self, node: tree.Operation) -> Fragment:
        operator = node.operators[0]
        reason = "error below AND or OR"
        parts = [self.settled(self.condition(one), reason) for one in node.operands]
        piece = made(f"({f' {operator} '.join(['{}'] * len(parts))})", "boolean", parts)
        name = ""
        if len(parts) <= _CHAIN_NAMED_MAX and all(part.name for part in parts):
            name = parts[0].name
            for part in parts[1:]:
                name = f"({name} {operator} {part.name})"
        bounds = None
        if operator == "AND":
            for part in parts:
                if part.bounds is not None:
                    bounds = part.bounds if bounds is None else bounds.within(part.bounds)
        return Fragment(piece.sql, "boolean", piece.parameters, name=name, bounds=bounds)

    def _predicate(self, node: tree.Predicate) -> Fragment:
        value = self.compile(node.operand)
        others = [self.compile(one) for one in node.others]
        if node.operator in _NULL_TESTS:
            value = self.settled(value, "error in a test for null")
        elif node.operator not in {"LIKE", "ILIKE"}:
            value, *others = (
                self.settled(one, "error in a comparison") for one in (value, *others)
            )
        parts = [value, *others]
        match node.operator:
            case "IS NULL":
                return is_null(parts, "IS NOT NULL" if node.is_negated else "IS NULL")
            case "IS TRUE" | "IS FALSE" | "IS UNKNOWN":
                return _truth(node, value)
            case "IS DISTINCT FROM":
                equal = compared(value, "<=>", others[0])
                return equal if node.is_negated else _negated(equal)
            case "BETWEEN":
                found = _between(value, *others)
            case "IN":
                found = _listed(value, others)
            case "LIKE":
                found = _like(value, others[0], _escape(node))
            case "ILIKE":
                escape = _escape(node)
                found = _like(cased("lower", value), cased("lower", others[0]), escape)
                name = f"ilike({value.name}, {others[0].name}{_shown_escape(escape, 'ilike')})"
                found = named(found, name, parts)
            case _:
                raise NotCompiled("operator")
        return _negated(found) if node.is_negated else found

    def _case(self, node: tree.Case) -> Fragment:
        operand = None if node.operand is None else self.compile(node.operand)
        conditions: list[Fragment] = []
        for one in node.branches[::2]:
            if operand is None:
                conditions.append(self.condition(one))
            else:
                conditions.append(self._compared(operand, "=", self.compile(one)))
        results = [self.compile(one) for one in node.branches[1::2]]
        if node.otherwise is not None:
            results.append(self.compile(node.otherwise))
        type_ = shared_type(one.type for one in results)
        values = [converted(one, type_) for one in results]
        parts: list[Fragment] = []
        shown: list[str] = []
        for condition, value in zip(conditions, values, strict=False):
            parts += [condition, value]
        for condition, value in zip(conditions, results, strict=False):
            shown.append(f" WHEN {condition.name} THEN {value.name}")
        sql = "".join([" WHEN {} THEN {}"] * len(conditions))
        if node.otherwise is not None:
            parts.append(values[-1])
            sql += " ELSE {}"
            shown.append(f" ELSE {results[-1].name}")
        found = made(f"(CASE{sql} END)", type_, parts)
        return named(found, f"CASE{''.join(shown)} END", parts)

    def _cast(self, node: tree.Cast) -> Fragment:
        name = _type_name(node.type)
        value = self.compile(node.value)
        if node.is_try and not (value.constant and (value.type, name) == ("string", "timestamp")):
            raise NotCompiled("cast")
        shown = f"CAST({value.name} AS {name.upper()})"
        if value.type == "string" and isinstance(value.constant, str):
            if name == "timestamp":
                return named(literals.time(value.constant), shown, (value,))
            if name == "date":
                return named(literals.date(value.constant), shown, (value,))
        found = named(cast_to(value, name), shown, (value,))
        if value.type == name == "timestamp":
            # Tools write CAST(__time AS TIMESTAMP), by which files are chosen, too.
            return replace(found, column=value.column, is_time=value.is_time)
        return found

    def _call(self, node: tree.Call) -> Fragment:
        if len(node.name) > 1 or node.is_distinct or node.within or node.nulls:
            raise NotCompiled("form of a call")
        if node.over is not None:
            raise NotCompiled("window")
        if node.condition is not None:
            raise NotCompiled("form of a call")
        function = node.name[0].lower()
        if function == "extract" and node.form == ("FROM",):
            unit, value = node.arguments
            if not isinstance(unit, tree.Name) or len(unit.parts) != 1:
                raise NotCompiled("form of a call")
            return extracted(unit.parts[0], self.compile(value))
        if function == "timestampadd" and len(node.arguments) == 3:
            return self._timestamp_add(*node.arguments)
        if function in _NOW and not node.arguments and node.form in {(), ("",)}:
            if self.now_us is None:
                raise NotCompiled("current time")
            return constant(self.now_us, "timestamp")
        if (function, node.form) == ("position", ("IN",)):
            function = "locate"  # Spark shows it by this name
        elif node.form:
            raise NotCompiled("form of a call")
        if function == "timestamp_millis" and (period := _floored(node)) is not None:
            time, ms = self.compile(period[0]), period[1]
            if time.type == "timestamp":
                return floored(time, ms)
        return called(function, [self.compile(one) for one in node.arguments])

    def _timestamp_add(
        self, unit: tree.Expression, count: tree.Expression, time: tree.Expression
    ) -> Fragment:
        if not isinstance(unit, tree.Name) or len(unit.parts) != 1:
            raise NotCompiled("form of a call")
        interval = tree.Interval(values=(count,), units=(unit.parts[0].upper(),))
        return _moved(self.compile(time), "+", *literals.interval_of(interval))


def _begins_with_number(node: tree.Expression) -> bool:
    """Return whether an expression is a number with conversions after it, such as `1::DOUBLE`."""
    first = node
    while isinstance(first, tree.Cast) and first.value.start == first.start:
        first = first.value
    return first is not node and isinstance(first, tree.Number)


def _reads_rows(node: tree.Expression) -> bool:
    """Return whether an expression depends on rows; `count(1)` does."""
    return any(
        isinstance(one, tree.Name | tree.Star)
        or (isinstance(one, tree.Call) and one.name[-1].lower() == "count")
        for one in tree.walk(node)
    )


def _type_name(type_: tree.DataType) -> str:
    """Return Spark's name of a type.

    Raises:
        NotCompiled: It is written with other parts than its name and the sizes of a decimal.
    """
    name = _CASTS.get(type_.name, type_.name.lower())
    if name == "decimal" and len(type_.sizes) == 2 and all(map(_SIZE.fullmatch, type_.sizes)):
        return f"decimal({int(type_.sizes[0])},{int(type_.sizes[1])})"
    if type_.end - type_.start != 1:
        raise NotCompiled("cast")
    return "decimal(10,0)" if name == "decimal" else name


def _floored(call: tree.Call) -> tuple[tree.Expression, int] | None:
    """Return the time and the period of TIME_FLOOR as it is written in Spark SQL.

    It is `timestamp_millis(unix_millis(t) - pmod(unix_millis(t), 300000))`; None: it is another
    call.
    """
    match call.arguments:
        case (
            tree.Operation(
                operators=("-",),
                operands=(
                    tree.Call(arguments=(time,)) as millis,
                    tree.Call(arguments=(other, tree.Number(text=period))) as remainder,
                ),
            ),
        ) if millis == other and _is_plain(millis, "unix_millis") and _is_plain(remainder, "pmod"):
            return (time, int(period)) if _PERIOD.fullmatch(period) else None
    return None


def _is_plain(call: tree.Call, function: str) -> bool:
    """Return whether a call is one of a function without further clauses."""
    return call == tree.Call(name=call.name, arguments=call.arguments) and (
        [one.lower() for one in call.name] == [function]
    )


def compared(left: Fragment, operator: str, right: Fragment) -> Fragment:
    """Return a comparison.

    Raises:
        NotCompiled: The types are not compared here.
    """
    written = _COMPARED[operator]
    name = f"({left.name} {written} {right.name})"
    if written == "<>":
        name = f"(NOT ({left.name} = {right.name}))"
    elif operator == "<=>":
        name = f"({left.name} <=> {right.name})"
    if isinstance(left.constant, Decimal) and right.type in INTEGERS:
        return _compared_whole(right, _MIRRORED.get(written, written), left)
    if isinstance(right.constant, Decimal) and left.type in INTEGERS:
        return _compared_whole(left, written, right)
    _check_errors(left, right)
    left, right = _alike(left, right)
    if left.type == "timestamp":
        if left.column and isinstance(right.constant, int):
            return _compared_time(left, written, right, name)
        if right.column and isinstance(left.constant, int):
            return _compared_time(right, _MIRRORED.get(written, written), left, name)
    found = made(f"({{}} {written} {{}})", "boolean", (left, right))
    return named(found, name, (left, right))


def _check_errors(*parts: Fragment) -> None:
    if any(part.raises for part in parts):
        raise NotCompiled("error in a comparison")


def _alike(left: Fragment, right: Fragment) -> tuple[Fragment, Fragment]:
    """Return the sides of a comparison in one type."""
    if VOID in {left.type, right.type}:
        raise NotCompiled("null")
    for one, other in ((left, right), (right, left)):
        if one.type == "string" and other.type in {"timestamp", "date"}:
            if not isinstance(one.constant, str):
                raise NotCompiled("types of operands")
            read = literals.time if other.type == "timestamp" else literals.date
            value = named(read(one.constant), one.name, (one,))
            return (value, other) if one is left else (other, value)
    type_ = shared_type((left.type, right.type))
    return converted(left, type_), converted(right, type_)


def _compared_time(column: Fragment, operator: str, time: Fragment, name: str) -> Fragment:
    """Return the comparison of a column with a time, as DuckDB needs it to skip row groups."""
    us = time.constant
    if not isinstance(us, int):
        raise NotCompiled("types of operands")
    sql = f"({column_sql(column.column)} {operator} make_timestamptz({time.sql}))"
    bounds = None
    if column.is_time:
        bounds = {
            "=": TimeBounds(us, us + 1),
            "IS NOT DISTINCT FROM": TimeBounds(us, us + 1),
            "<": TimeBounds(None, us),
            "<=": TimeBounds(None, us + 1),
            ">": TimeBounds(us + 1, None),
            ">=": TimeBounds(us, None),
        }.get(operator)
    found = Fragment(sql, "boolean", (*column.parameters, *time.parameters), bounds=bounds)
    return named(found, name, (column, time))


def _compared_whole(value: Fragment, operator: str, number: Fragment) -> Fragment:
    """Return the comparison of an integer with a number that has a fraction."""
    exact = number.constant
    if not isinstance(exact, Decimal):
        raise NotCompiled("types of operands")
    _check_errors(value)
    if operator in {"<", ">="}:
        whole = int(exact.to_integral_value(ROUND_CEILING))
    elif operator in {"<=", ">"} or exact == exact.to_integral_value():
        whole = int(exact.to_integral_value(ROUND_FLOOR))
    else:
        raise NotCompiled("types of operands")
    if abs(whole) > LONG_MAX:
        raise NotCompiled("number")
    parts = (converted(value, "bigint"), constant(whole, "bigint"))
    return made(f"({{}} {operator} {{}})", "boolean", parts)


def _computed(left: Fragment, operator: str, right: Fragment) -> Fragment:
    """Return arithmetic of two numbers."""
    name = f"({left.name} {operator.lower()} {right.name})"
    shown = (left, right)
    if not is_number(left.type) or not is_number(right.type):
        raise NotCompiled("operator")
    types = {left.type, right.type}
    if any(map(is_decimal, types)) and not types & {"float", "double"}:
        return named(computed_decimal(left, operator, right), name, shown)
    type_ = shared_type(types)
    is_zero_possible = not right.is_never_zero and not right.constant
    is_whole = type_ in INTEGERS
    if operator in _ARITHMETIC:
        if type_ == "float":
            raise NotCompiled("operator")
        parts = (converted(left, type_), converted(right, type_))
        sql = f"CAST(({{}} {operator} {{}}) AS {DUCKDB_TYPES[type_]})"
        found = _folded(parts, operator) or made(sql, type_, parts, raises=is_whole)
    elif operator == "/":
        parts = (converted(left, "double"), converted(right, "double"))
        if not is_zero_possible:
            found = made("({} / {})", "double", parts)
        else:
            checked = f"(CASE WHEN {parts[1].sql} = 0 THEN error('division by zero')"
            sql = f"{checked} ELSE {parts[0].sql} / {parts[1].sql} END)"
            values = (*parts[1].parameters, *parts[0].parameters, *parts[1].parameters)
            found = Fragment(sql, "double", values, raises=True)
    elif operator == "DIV" and is_whole:
        parts = (converted(left, "bigint"), converted(right, "bigint"))
        found = made("({} // {})", "bigint", parts, raises=is_zero_possible or right.constant == -1)
    elif operator == "%" and is_whole:
        parts = (converted(left, type_), converted(right, type_))
        sql = f"CAST(({{}} % {{}}) AS {DUCKDB_TYPES[type_]})"
        found = made(sql, type_, parts, raises=is_zero_possible)
    else:
        raise NotCompiled("operator")
    return named(found, name, shown)


def _folded(parts: Sequence[Fragment], operator: str) -> Fragment | None:
    """Return a result of constant integers of one type; None: others, or an overflow."""
    left, right = (part.constant for part in parts)
    type_ = parts[0].type
    if not isinstance(left, int) or not isinstance(right, int) or type_ not in INTEGERS:
        return None
    result = {"+": left + right, "-": left - right, "*": left * right}[operator]
    largest = INT_MAX if type_ == "int" else LONG_MAX
    return constant(result, type_) if -largest - 1 <= result <= largest else None


def _moved(time: Fragment, operator: str, months: int, us: int) -> Fragment:
    """Return a time some months or microseconds later or earlier."""
    if time.type != "timestamp" or operator not in {"+", "-"}:
        raise NotCompiled("interval")
    if operator == "-":
        months, us = -months, -us
    if abs(us) > LONG_MAX:
        raise NotCompiled("interval")
    if isinstance(time.constant, int):
        start = literals.months_later(time.constant, months) if months else time.constant
        return constant(start + us, "timestamp")
    if months:
        moved = f"epoch_us(make_timestamp({{}}) + to_months({months}))"
        return made(moved, "timestamp", (time,), raises=True)
    return made(f"({{}} + CAST({us} AS BIGINT))", "timestamp", (time,), raises=True)


def _negated(piece: Fragment) -> Fragment:
    return _with_name("(NOT {})", made("(NOT {})", "boolean", (piece,)), piece)


def _with_name(template: str, piece: Fragment, value: Fragment) -> Fragment:
    return named(piece, template.format(value.name), (value,))


def _truth(node: tree.Predicate, value: Fragment) -> Fragment:
    if value.type != "boolean":
        raise NotCompiled("condition")
    if node.operator == "IS UNKNOWN":
        return is_null((value,), "IS NOT NULL" if node.is_negated else "IS NULL")
    word = node.operator.removeprefix("IS ").lower()
    found = compared(value, "<=>", constant(word == "true", "boolean", word))
    return _negated(found) if node.is_negated else found


def _between(value: Fragment, low: Fragment, high: Fragment) -> Fragment:
    above, below = compared(value, ">=", low), compared(value, "<=", high)
    bounds = None
    if above.bounds is not None and below.bounds is not None:
        bounds = above.bounds.within(below.bounds)
    parts = (above, below)
    found = made("({} AND {})", "boolean", parts)
    name = f"between({value.name}, {low.name}, {high.name})"
    piece = Fragment(found.sql, "boolean", found.parameters, bounds=bounds)
    return named(piece, name, (value, low, high))


def _listed(value: Fragment, others: Sequence[Fragment]) -> Fragment:
    types = {value.type, *(one.type for one in others)}
    if VOID in types:
        raise NotCompiled("types of operands")
    shown = (value, *others)
    _check_errors(*shown)
    if "string" in types and types & {"timestamp", "date"}:
        raise NotCompiled("types of operands")
    type_ = shared_type(types)
    if type_ in {"float", "double"} and len(others) > _LISTED_REALS_MAX:
        raise NotCompiled("types of operands")
    parts = [converted(one, type_) for one in (value, *others)]
    found = made(f"({{}} IN ({', '.join(['{}'] * len(others))}))", "boolean", parts)
    name = f"({value.name} IN ({', '.join(one.name for one in others)}))"
    return named(found, name, shown)


def _escape(node: tree.Predicate) -> str:
    """Return the character before those that a pattern has as they are."""
    escape = "\\" if node.escape is None else node.escape.value
    if escape is None or len(escape) != 1 or escape in {"%", "_", "\0"}:
        raise NotCompiled("pattern")
    return escape


def _shown_escape(escape: str, function: str) -> str:
    """Return the escape character in the name of a result."""
    if escape == "\\":
        return ""
    return f", {escape}" if function == "ilike" else f" ESCAPE '{escape}'"


def _like(value: Fragment, pattern: Fragment, escape: str) -> Fragment:
    if value.type != "string" or pattern.type != "string":
        raise NotCompiled("pattern")
    if not isinstance(pattern.constant, str):
        raise NotCompiled("pattern")
    # Spark reports other characters after it, and a pattern that ends with it.
    plain = re.sub(f"{re.escape(escape)}[%_{re.escape(escape)}]", "", pattern.constant)
    if escape in plain:
        raise NotCompiled("pattern")
    if escape in pattern.constant:
        parts = (value, pattern, constant(escape, "string"))
        found = made("({} LIKE {} ESCAPE {})", "boolean", parts)
    else:
        found = made("({} LIKE {})", "boolean", (value, pattern))
    name = f"{value.name} LIKE {pattern.name}{_shown_escape(escape, 'like')}"
    return named(found, name, (value, pattern))
