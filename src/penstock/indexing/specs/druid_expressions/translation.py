"""Translation of the tree of a Druid expression to Spark SQL. Pure.

Owns the meaning of each operator and function in Spark, if that is exactly the same for every
value. If it depends on types that are unknown, the expression is refused with a remedy. Names are
in double quotes, as everywhere in specs; times are milliseconds, as in Druid.

Every operator's result is in parentheses, so that a part may be used anywhere.
"""

from __future__ import annotations

from typing import Final

from penstock.core.errors import InvalidRequest
from penstock.core.similar_names import most_similar
from penstock.indexing.specs.druid_expressions.functions import (
    REFUSED,
    SPECIAL,
    TEMPLATES,
    TIME_FUNCTIONS,
)
from penstock.indexing.specs.druid_expressions.time_functions import translate_time
from penstock.indexing.specs.druid_expressions.tree import (
    Binary,
    Expression,
    FunctionCall,
    Literal,
    Name,
    Type,
    Unary,
    Written,
    as_text,
)

_TIME_COLUMN: Final = "__time"
_COMPARISONS: Final = {"==": "=", "!=": "<>", "<": "<", "<=": "<=", ">": ">", ">=": ">="}
_LOGIC: Final = {"&&": "AND", "||": "OR"}
_CASTS: Final[dict[str, tuple[str, Type]]] = {
    "LONG": ("BIGINT", "LONG"),
    "DOUBLE": ("DOUBLE", "DOUBLE"),
    "FLOAT": ("FLOAT", "DOUBLE"),
    "STRING": ("STRING", "STRING"),
}
_TEXT_ESCAPES: Final = str.maketrans({"\\": "\\\\", "'": "\\'"})
_TO_THE_END: Final = -1
# A function may repeat its argument, so the text doubles with each level.
_TRANSLATED_MAX: Final = 100_000


def translate(node: Expression, *, condition: bool = False) -> str:
    """Return the expression in Spark SQL.

    Args:
        node: The tree.
        condition: Whether it must be a condition. Otherwise it is a value, in which true is 1 and
            false is 0, as in Druid.

    Raises:
        InvalidRequest: A part of it has no exact counterpart.
    """
    translation = _Translation()
    return translation.condition(node) if condition else translation.value(node)


def type_of(node: Expression) -> Type | None:
    """Return the type of the node's value, or None if that depends on the data."""
    return _Translation().type_of(node)


class _Translation:
    """Translates one tree.

    Each type is found once: of nodes within each other, it would be found again at each level.
    """

    def __init__(self) -> None:
        self._types: dict[int, Type | None] = {}  # by the identity of a node

    def type_of(self, node: Expression) -> Type | None:
        """Return the type of a node's value, or None if that depends on the data."""
        if id(node) not in self._types:
            self._types[id(node)] = self._found_type(node)
        return self._types[id(node)]

    def condition(self, node: Expression) -> str:
        if self.type_of(node) == "BOOLEAN":
            return self._sql(node)
        raise InvalidRequest(
            f"{_shown(node)} is a value, but must be a condition: compare it, such as with > 0"
        )

    def value(self, node: Expression) -> str:
        text = self._sql(node)
        return f"CAST({text} AS BIGINT)" if self.type_of(node) == "BOOLEAN" else text

    def _found_type(self, node: Expression) -> Type | None:
        match node:
            case Literal(value):
                if isinstance(value, str):
                    return "STRING"
                return None if value is None else "LONG" if isinstance(value, int) else "DOUBLE"
            case Name(name):
                return "LONG" if name.lower() == _TIME_COLUMN else None
            case Written():
                return node.type
            case Unary(operator, operand):
                return "BOOLEAN" if operator == "!" else self.type_of(operand)
            case Binary(operator, left, right):
                return _type_of_operator(operator, self.type_of(left), self.type_of(right))
            case FunctionCall():
                return self._type_of_call(node)

    def _type_of_call(self, node: FunctionCall) -> Type | None:
        name, arguments = node.function, node.arguments
        if name in {"nvl", "coalesce"}:
            types = {self.type_of(one) for one in arguments}
            return "STRING" if "STRING" in types else types.pop() if len(types) == 1 else None
        if name in TEMPLATES:
            return TEMPLATES[name].gives
        if name in TIME_FUNCTIONS:
            return "STRING" if name == "timestamp_format" else "LONG"
        if name == "cast" and len(arguments) == 2:
            return _CASTS.get(_literal_text(arguments[1]).upper(), ("", None))[1]
        if name == "like":
            return "BOOLEAN"
        if name in {"substring", "regexp_extract"}:
            return "STRING"
        return None

    def _sql(self, node: Expression) -> str:
        text = self._text_of(node)
        _check_length(len(text))
        return text

    def _text_of(self, node: Expression) -> str:
        match node:
            case Literal(value):
                return _literal(value)
            case Name(name):
                # Within double quotes a backslash would escape the quote after it.
                mark = "`" if "\\" in name else '"'
                quoted = mark + name.replace(mark, mark * 2) + mark
                return f"UNIX_MILLIS({quoted})" if name.lower() == _TIME_COLUMN else quoted
            case Written():
                return node.sql
            case Unary(operator, operand):
                if operator == "!":
                    return f"(NOT {self.condition(operand)})"
                value = self.value(operand)
                # Two signs in a row would begin a comment.
                return f"(- {value})" if value.startswith("-") else f"(-{value})"
            case Binary():
                return self._operator(node)
            case FunctionCall():
                return self._call(node)

    def _operator(self, node: Binary) -> str:
        operator, left, right = node.operator, node.left, node.right
        if operator in _LOGIC:
            return f"({self.condition(left)} {_LOGIC[operator]} {self.condition(right)})"
        if operator in _COMPARISONS:
            return f"({self.value(left)} {_COMPARISONS[operator]} {self.value(right)})"
        types = {self.type_of(left), self.type_of(right)}
        if operator == "+" and "STRING" in types:
            return f"CONCAT({self.value(left)}, {self.value(right)})"
        if operator == "^":
            power = f"POWER({self.value(left)}, {self.value(right)})"
            if "DOUBLE" in types:
                return power
            if types == {"LONG"}:
                return f"CAST({power} AS BIGINT)"
            raise InvalidRequest(
                f"whether {_shown(node)} is a whole number depends on the data: write"
                f" pow({_shown(left)}, {_shown(right)}), or cast both"
            )
        if operator == "/":
            if "DOUBLE" in types:
                return f"({self.value(left)} / {self.value(right)})"
            if types <= {"LONG", "BOOLEAN"}:
                return f"({self.value(left)} DIV {self.value(right)})"
            raise InvalidRequest(
                f"whether {_shown(node)} is a whole number depends on the data: write"
                f" div({_shown(left)}, {_shown(right)}), or cast({_shown(left)}, 'DOUBLE') / …"
            )
        return f"({self.value(left)} {operator} {self.value(right)})"

    def _call(self, node: FunctionCall) -> str:
        name = node.function
        if name in TEMPLATES:
            return self._from_template(node)
        if name in TIME_FUNCTIONS:
            return translate_time(node, self.value)
        if name in SPECIAL:
            return self._special(node)
        if name in REFUSED:
            raise InvalidRequest(f"{name}() of Druid is not supported: {REFUSED[name]}")
        if name.startswith(("mv_", "array")):
            raise InvalidRequest(
                f"{name}() of Druid is not supported: lists are kept as JSON text: use Spark's"
                " functions on from_json(column, 'ARRAY<STRING>')"
            )
        known = [*TEMPLATES, *TIME_FUNCTIONS, *SPECIAL]
        near = most_similar(name, known)
        hint = ": write all of it in Spark SQL" if near is None else f': did you mean "{near}"?'
        raise InvalidRequest(f"{name}() is not a supported function of Druid{hint}")

    def _from_template(self, node: FunctionCall) -> str:
        texts = TEMPLATES[node.function].texts
        count = len(node.arguments)
        text = texts.get(count) or (texts.get(None) if count else None)
        if text is None:
            wanted = " or ".join(str(n) for n in texts if n is not None) or "at least 1"
            raise InvalidRequest(f"{node.function}() takes {wanted} arguments, not {count}")
        values = [self.value(argument) for argument in node.arguments]
        return text.format(*values, all=", ".join(values))

    def _special(self, node: FunctionCall) -> str:
        arguments, count = node.arguments, len(node.arguments)
        match node.function, count:
            case "if", 3:
                return self._case([(self.condition(arguments[0]), arguments[1])], arguments[2])
            case "case_searched", _ if count >= 2:
                pairs = zip(arguments[0 : count - 1 : 2], arguments[1:count:2], strict=False)
                conditions = [(self.condition(when), then) for when, then in pairs]
                return self._case(conditions, arguments[-1] if count % 2 else None)
            case "case_simple", _ if count >= 3:
                subject = self.value(arguments[0])
                _check_length(len(subject) * (count // 2))  # before it is repeated
                pairs = zip(arguments[1 : count - 1 : 2], arguments[2:count:2], strict=False)
                conditions = [(f"{subject} = {self.value(when)}", then) for when, then in pairs]
                return self._case(conditions, None if count % 2 else arguments[-1])
            case "cast", 2:
                kind = _literal_text(arguments[1]).upper()
                if kind not in _CASTS:
                    raise InvalidRequest(
                        f"cast() takes one of {', '.join(_CASTS)}, as text: {kind!r}"
                    )
                return f"CAST({self.value(arguments[0])} AS {_CASTS[kind][0]})"
            case "like", 2 | 3:
                return self._like(arguments)
            case "regexp_extract", 2 | 3:
                index = _whole(arguments[2], "regexp_extract's group") if count == 3 else 0
                subject, pattern = self.value(arguments[0]), self.value(arguments[1])
                found = f"REGEXP_EXTRACT({subject}, {pattern}, {index})"
                return f"(CASE WHEN {subject} RLIKE {pattern} THEN {found} END)"
            case "substring", 2 | 3:
                start = _whole(arguments[1], "substring's start")
                length = _whole(arguments[2], "substring's length") if count == 3 else _TO_THE_END
                if start < 0:
                    raise InvalidRequest("substring() counts from 0: its start cannot be negative")
                rest = "" if length < 0 else f", {length}"
                return f"SUBSTRING({self.value(arguments[0])}, {start + 1}{rest})"
            case _:
                raise InvalidRequest(f"{node.function}() does not take {count} arguments")

    def _case(self, pairs: list[tuple[str, Expression]], otherwise: Expression | None) -> str:
        whens = "".join(f" WHEN {when} THEN {self.value(then)}" for when, then in pairs)
        rest = "" if otherwise is None else f" ELSE {self.value(otherwise)}"
        return f"(CASE{whens}{rest} END)"

    def _like(self, arguments: tuple[Expression, ...]) -> str:
        pattern = _literal_text(arguments[1])
        escape = _literal_text(arguments[2]) if len(arguments) == 3 else ""
        if not isinstance(arguments[1], Literal) or len(escape) > 1:
            raise InvalidRequest(
                "like() takes a pattern, and one character to escape with, as text"
            )
        if not escape:
            # Druid then has no escape character, but Spark has the backslash.
            pattern = pattern.replace("\\", "\\\\")
        rest = f" ESCAPE {_literal(escape)}" if escape else ""
        return f"({self.value(arguments[0])} LIKE {_literal(pattern)}{rest})"


def _check_length(characters: int) -> None:
    if characters > _TRANSLATED_MAX:
        raise InvalidRequest(
            f"the expression takes more than {_TRANSLATED_MAX} characters in Spark SQL, because"
            " some functions repeat their arguments there: nest fewer of them"
        )


def _type_of_operator(operator: str, left: Type | None, right: Type | None) -> Type | None:
    if operator in _COMPARISONS or operator in _LOGIC:
        return "BOOLEAN"
    if operator == "+" and "STRING" in {left, right}:
        return "STRING"
    sides = {"LONG" if side == "BOOLEAN" else side for side in (left, right)}
    if "DOUBLE" in sides:
        return "DOUBLE"
    return "LONG" if sides == {"LONG"} else None


def _literal(value: float | str | None) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, str):
        return f"'{value.translate(_TEXT_ESCAPES)}'"
    if isinstance(value, int):
        # The smallest number has no positive counterpart that could be negated.
        return f"CAST('{value}' AS BIGINT)" if value == -(2**63) else f"{value}L"
    return f"CAST('{value!r}' AS DOUBLE)"


def _literal_text(node: Expression) -> str:
    return node.value if isinstance(node, Literal) and isinstance(node.value, str) else ""


def _whole(node: Expression, what: str) -> int:
    if isinstance(node, Literal) and isinstance(node.value, int):
        return node.value
    raise InvalidRequest(f"{what} must be a whole number, not {_shown(node)}")


def _shown(node: Expression) -> str:
    text = as_text(node)
    return text if len(text) <= 60 else f"{text[:59]}…"
