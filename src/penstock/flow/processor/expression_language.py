"""Expressions, which depend on the FlowFile: ``${attribute:function(argument)}`` within text.

Owns parsing and evaluation. Does not own the functions (`expression_functions`).

    text        any text; ``$$`` before a brace is a literal dollar sign
    expression  ``${`` subject (``:`` function)* ``}``
    subject     a name, a quoted name, or a function without subject, such as ``now()``
    function    name ``(`` arguments separated by commas ``)``
    argument    a quoted text, a number, true, false, or an expression

A missing attribute has the empty string as its value. ``fileSize``, ``flowFileId``, ``entryDate``
and ``lineageStartDate`` exist for every FlowFile.

Invariants: a text is parsed once, into functions. Evaluation has no side effects and does not read
a clock. An error names the position in the text.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Generic, TypeAlias, TypeVar

from penstock.core.errors import InvalidRequest
from penstock.flow.errors import ProcessError
from penstock.flow.flowfile import UUID, FlowFile
from penstock.flow.processor.expression_functions import FUNCTIONS, SUBJECTLESS, Value, as_text

T = TypeVar("T")

_MAX_DEPTH: Final = 20
_NAME: Final = re.compile(r"[A-Za-z_][\w.\-]*", re.ASCII)
_NUMBER: Final = re.compile(r"-?\d{1,18}(?:\.\d{1,18})?", re.ASCII)
_BLANKS: Final = re.compile(r"\s*")
_OF_EVERY_FLOWFILE: Final[dict[str, Callable[[FlowFile], Value]]] = {
    "fileSize": lambda flowfile: flowfile.size,
    "flowFileId": lambda flowfile: flowfile.id,
    "entryDate": lambda flowfile: flowfile.entry_ms,
    "lineageStartDate": lambda flowfile: flowfile.lineage_start_ms,
}


@dataclass(frozen=True, slots=True)
class ExpressionScope:
    """Names that an expression can refer to.

    Attributes:
        flowfile: FlowFile whose attributes the expression reads; None if there is no FlowFile.
        now_ms: The time that ``now()`` returns, epoch milliseconds.
    """

    flowfile: FlowFile | None
    now_ms: int


_Part: TypeAlias = Callable[[ExpressionScope], Value]


class Expression(Generic[T]):
    """Parsed text that may contain expressions. Made by `parse_expression`."""

    __slots__ = ("_constant", "_parts", "_read", "text")

    def __init__(self, text: str, parts: tuple[_Part | str, ...], read: Callable[[str], T]) -> None:
        self.text = text
        self._parts = parts
        self._read = read
        # A text without expressions is evaluated once, so that its errors are reported at once.
        self._constant: tuple[T] | None = None
        if all(isinstance(part, str) for part in parts):
            self._constant = (read("".join(part for part in parts if isinstance(part, str))),)

    @property
    def is_constant(self) -> bool:
        """Return whether its value is the same for every FlowFile."""
        return self._constant is not None

    def of(self, flowfile: FlowFile | None = None, *, now_ms: int = 0) -> T:
        """Return the value for a FlowFile.

        Args:
            flowfile: FlowFile whose attributes the expression reads.
            now_ms: The time that ``now()`` returns, epoch milliseconds.

        Raises:
            ProcessError: The evaluation fails for this FlowFile, or the result has the wrong type.
        """
        if self._constant is not None:
            return self._constant[0]
        scope = ExpressionScope(flowfile, now_ms)
        try:
            text = "".join(
                part if isinstance(part, str) else as_text(part(scope)) for part in self._parts
            )
            return self._read(text)
        except (InvalidRequest, ArithmeticError, ValueError) as error:
            # Numbers of attributes may be infinite, not a number, or longer than Python writes.
            raise ProcessError(f"{self.text!r} of {_named(flowfile)}: {error}") from None

    def __repr__(self) -> str:
        return f"Expression({self.text!r})"


def parse_expression(
    text: str, read: Callable[[str], T], validator: Callable[[T], object] | None = None
) -> Expression[T]:
    """Parse a text that may hold expressions.

    Args:
        text: Text that a user wrote.
        read: Parses the result, such as `Kind.parse`.
        validator: Raises `InvalidRequest` for a result that is not allowed.

    Raises:
        InvalidRequest: Syntax error; the message names the position.
    """

    def checked(result: str) -> T:
        value = read(result)
        if validator is not None:
            validator(value)
        return value

    return Expression(text, tuple(_Parser(text).parts()), checked)


class _Parser:
    """Parser of one text, from left to right."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._depth = 0

    def parts(self) -> list[_Part | str]:
        parts: list[_Part | str] = []
        literal: list[str] = []
        while self._at < len(self._text):
            dollar = self._text.find("$", self._at)
            end = len(self._text) if dollar < 0 else dollar
            literal.append(self._text[self._at : end])
            self._at = end
            if self._text.startswith("$${", end):
                literal.append("${")
                self._at += 3
            elif self._text.startswith("${", end):
                if any(literal):
                    parts.append("".join(literal))
                literal = []
                parts.append(self._expression())
            elif dollar >= 0:
                literal.append("$")
                self._at += 1
        if any(literal) or not parts:
            parts.append("".join(literal))
        return parts

    def _expression(self) -> _Part:
        opened = self._at
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise self._wrong(f"expressions nest deeper than {_MAX_DEPTH}; simplify")
        self._at += 2
        value = self._subject()
        while self._skip(":"):
            value = self._call(value)
        if not self._skip("}"):
            if self._at >= len(self._text):
                self._at = opened
                raise self._wrong("this expression is not closed; add }")
            raise self._wrong(f"unexpected {self._text[self._at]!r}: write :function() or }}")
        self._depth -= 1
        return value

    def _subject(self) -> _Part:
        self._blanks()
        if self._at < len(self._text) and self._text[self._at] in "'\"":
            return _attribute(self._quoted())
        start = self._at
        name = self._name("the name of an attribute")
        if not self._skip("("):
            return _attribute(name)
        function = SUBJECTLESS.get(name)
        if function is None:
            self._at = start
            raise self._wrong(
                f"unknown function {name}() without a subject: use one of "
                f"{', '.join(sorted(SUBJECTLESS))}"
            )
        arguments = self._arguments()
        _check_count(function.least, function.most, len(arguments), lambda: self._wrong_at(start))
        return _bound(function.run, (), arguments)

    def _call(self, subject: _Part) -> _Part:
        self._blanks()
        start = self._at
        name = self._name("the name of a function")
        function = FUNCTIONS.get(name)
        if function is None:
            self._at = start
            raise self._wrong(
                f"unknown function {name}(): `penstock processor list` shows where the functions "
                "are documented"
            )
        if not self._skip("("):
            raise self._wrong(f"{name} is a function: write {name}()")
        arguments = self._arguments()
        _check_count(function.least, function.most, len(arguments), lambda: self._wrong_at(start))
        return _bound(function.run, (subject,), arguments)

    def _arguments(self) -> tuple[_Part, ...]:
        arguments: list[_Part] = []
        if self._skip(")"):
            return ()
        while True:
            arguments.append(self._argument())
            if self._skip(")"):
                return tuple(arguments)
            if not self._skip(","):
                raise self._wrong("a comma or ) is expected")

    def _argument(self) -> _Part:
        self._blanks()
        text, at = self._text, self._at
        if text.startswith("${", at):
            return self._expression()
        if at < len(text) and text[at] in "'\"":
            return _constant(self._quoted())
        number = _NUMBER.match(text, at)
        if number is not None:
            self._at = number.end()
            digits = number[0]
            return _constant(float(digits) if "." in digits else int(digits))
        for word, value in (("true", True), ("false", False)):
            if text.startswith(word, at):
                self._at += len(word)
                return _constant(value)
        raise self._wrong("an argument must be a quoted text, a number, true, false or ${...}")

    def _quoted(self) -> str:
        opened, quote = self._at, self._text[self._at]
        taken: list[str] = []
        self._at += 1
        while self._at < len(self._text):
            char = self._text[self._at]
            if char == quote:
                self._at += 1
                return "".join(taken)
            if char == "\\" and self._at + 1 < len(self._text):
                self._at += 1
                escaped = self._text[self._at]
                known = {"n": "\n", "t": "\t", "r": "\r", quote: quote, "\\": "\\"}
                # Other escapes are kept, so that regular expressions need no doubled backslashes.
                taken.append(known.get(escaped, "\\" + escaped))
            else:
                taken.append(char)
            self._at += 1
        self._at = opened
        raise self._wrong("this quote is not closed")

    def _name(self, what: str) -> str:
        self._blanks()
        match = _NAME.match(self._text, self._at)
        if match is None:
            raise self._wrong(f"{what} is expected; put names with special characters in quotes")
        self._at = match.end()
        return match[0]

    def _skip(self, mark: str) -> bool:
        self._blanks()
        if self._text.startswith(mark, self._at):
            self._at += len(mark)
            return True
        return False

    def _blanks(self) -> None:
        match = _BLANKS.match(self._text, self._at)
        if match is not None:
            self._at = match.end()

    def _wrong(self, message: str) -> InvalidRequest:
        return InvalidRequest(f"{self._text!r}, character {self._at + 1}: {message}")

    def _wrong_at(self, place: int) -> InvalidRequest:
        self._at = place
        return self._wrong("")


def _check_count(least: int, most: int, count: int, wrong: Callable[[], InvalidRequest]) -> None:
    if least <= count <= most:
        return
    wanted = str(least) if least == most else f"{least} to {most}"
    raise InvalidRequest(f"{wrong()}this function takes {wanted} arguments, not {count}")


def _attribute(name: str) -> _Part:
    special = _OF_EVERY_FLOWFILE.get(name)

    def value(scope: ExpressionScope) -> Value:
        if scope.flowfile is None:
            return ""
        if special is not None and name not in scope.flowfile.attributes:
            return special(scope.flowfile)
        return scope.flowfile.attributes.get(name, "")

    return value


def _constant(value: Value) -> _Part:
    return lambda _scope: value


def _bound(
    run: Callable[..., Value], subject: tuple[_Part, ...], arguments: tuple[_Part, ...]
) -> _Part:
    parts = subject + arguments
    if not subject:
        return lambda scope: run(scope.now_ms, *(part(scope) for part in parts))
    return lambda scope: run(*(part(scope) for part in parts))


def _named(flowfile: FlowFile | None) -> str:
    return "no FlowFile" if flowfile is None else f"FlowFile {flowfile.attributes.get(UUID, '')}"
