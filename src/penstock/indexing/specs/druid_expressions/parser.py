"""Parser of Druid's expression language: text to tree. Pure.

Owns the grammar: literals, names, calls, and operators with their precedence. Arrays and lambdas
are refused with a remedy. Length and depth are limited, so that parsing is always fast.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from penstock.core.errors import InvalidRequest
from penstock.core.sql_text import place
from penstock.indexing.specs.druid_expressions.tree import (
    Binary,
    Expression,
    FunctionCall,
    Literal,
    Name,
    Unary,
)

_LENGTH_MAX: Final = 20_000
_DEPTH_MAX: Final = 80
_LONG_MAX: Final = 2**63
_SPACE: Final = " \t\r\n"
_TOKEN: Final = re.compile(
    rf"[{_SPACE}]*(?:"
    r"(?P<double>(?:\d+\.\d*|\.\d+)(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+)"
    r"|(?P<long>\d+)"
    r"|(?P<text>'(?:[^'\\]|\\.)*')"
    r'|(?P<quoted>"(?:[^"\\]|\\.)*")'
    r"|(?P<word>[A-Za-z_][A-Za-z0-9_]*)"
    r"|(?P<mark>&&|\|\||->|[<>=!]=|[-+*/%^!<>(),\[\]])"
    r"|(?P<end>$)"
    r")",
    re.ASCII | re.DOTALL,
)
# Operators from the lowest to the highest precedence; `^` is right-associative.
_LEVELS: Final = (
    ("||",),
    ("&&",),
    ("==", "!=", "<", "<=", ">", ">="),
    ("+", "-"),
    ("*", "/", "%"),
    ("^",),
)
_ESCAPED: Final = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"}
_ESCAPE: Final = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))", re.DOTALL)


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    position: int


def parse(text: str) -> Expression:
    """Return the tree of an expression.

    Raises:
        InvalidRequest: It is not an expression; the message has the position.
    """
    if len(text) > _LENGTH_MAX:
        raise InvalidRequest(
            f"the expression has {len(text)} characters, more than the limit of {_LENGTH_MAX}:"
            " split it into several columns"
        )
    parser = _Parser(text, _tokens(text))
    found = parser.expression(0, 0)
    parser.expect("", "end")
    return found


def _tokens(text: str) -> list[_Token]:
    found: list[_Token] = []
    at = 0
    while True:
        match = _TOKEN.match(text, at)
        if match is None:
            at += len(text[at:]) - len(text[at:].lstrip(_SPACE))
            raise InvalidRequest(
                f"{text[at]!r} is not part of Druid's expressions, or is not closed,"
                f" {place(text, at)}"
            )
        kind = match.lastgroup or ""
        found.append(_Token(kind, match[kind], match.start(kind)))
        if kind == "end":
            return found
        at = match.end()


class _Parser:
    """Reads tokens from left to right without backtracking."""

    def __init__(self, text: str, tokens: list[_Token]) -> None:
        self._text = text
        self._tokens = tokens
        self._at = 0

    def expression(self, level: int, depth: int) -> Expression:
        """Parse operators of the precedence `level` or higher."""
        if level == len(_LEVELS):
            return self._unary(depth)
        found = self.expression(level + 1, depth)
        while (token := self._peek()).kind == "mark" and token.text in _LEVELS[level]:
            depth += 1
            self._check_depth(depth)
            self._at += 1
            if token.text == "^":
                return Binary("^", found, self.expression(level, depth))
            found = Binary(token.text, found, self.expression(level + 1, depth))
        return found

    def expect(self, text: str, kind: str = "mark") -> None:
        """Read this token, or raise an error."""
        token = self._peek()
        if token.kind != kind or (text and token.text != text):
            self._refuse(f"expected {text or 'the end'}")
        self._at += 1

    def _unary(self, depth: int) -> Expression:
        self._check_depth(depth)
        token = self._peek()
        if token.kind != "mark" or token.text not in {"-", "!"}:
            return self._single(depth)
        self._at += 1
        following = self._peek()
        if token.text == "-" and following.kind in {"long", "double"}:
            self._at += 1
            return Literal(self._number(following, negative=True))
        return Unary(token.text, self._unary(depth + 1))

    def _single(self, depth: int) -> Expression:
        token = self._peek()
        self._at += 1
        if token.kind in {"long", "double"}:
            return Literal(self._number(token, negative=False))
        if token.kind == "text":
            return Literal(self._unescaped(token))
        if token.kind == "quoted":
            return Name(self._unescaped(token))
        if token.kind == "word":
            return self._word(token, depth)
        if token.text == "(":
            inner = self.expression(0, depth + 1)
            self.expect(")")
            return inner
        self._at -= 1
        if token.text == "[":
            self._refuse("arrays are not supported: lists are kept as JSON text")
        return self._refuse("expected a value")

    def _word(self, token: _Token, depth: int) -> Expression:
        if self._peek().text == "->":
            self._refuse("lambdas are not supported: lists are kept as JSON text")
        if self._peek().text != "(" or self._peek().kind != "mark":
            return Literal(None) if token.text.lower() == "null" else Name(token.text)
        self._at += 1
        arguments: list[Expression] = []
        if self._peek().text != ")" or self._peek().kind != "mark":
            arguments.append(self.expression(0, depth + 1))
            while self._peek().text == "," and self._peek().kind == "mark":
                self._at += 1
                arguments.append(self.expression(0, depth + 1))
        self.expect(")")
        return FunctionCall(token.text.lower(), tuple(arguments))

    def _number(self, token: _Token, *, negative: bool) -> int | float:
        sign = -1 if negative else 1
        if token.kind == "double":
            value = sign * float(token.text)
            if value in {float("inf"), float("-inf")}:
                self._refuse(f"{token.text} is not a number that fits into 64 bits")
            return value
        if len(token.text) > 19 or sign * int(token.text) not in range(-_LONG_MAX, _LONG_MAX):
            self._refuse(f"{token.text} does not fit into 64 bits")
        return sign * int(token.text)

    def _unescaped(self, token: _Token) -> str:
        text = _ESCAPE.sub(_one, token.text[1:-1])
        try:
            # Java's escapes are UTF-16: a character may consist of two of them.
            return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le")
        except UnicodeDecodeError:
            raise InvalidRequest(
                f"{token.text[:40]} holds half of a surrogate pair: write the whole character,"
                f" {place(self._text, token.position)}"
            ) from None

    def _peek(self) -> _Token:
        return self._tokens[self._at]

    def _check_depth(self, depth: int) -> None:
        if depth > _DEPTH_MAX:
            self._refuse(f"nested deeper than {_DEPTH_MAX}: split it into several columns")

    def _refuse(self, reason: str) -> Expression:
        token = self._peek()
        found = repr(token.text[:40]) if token.text else "the end"
        raise InvalidRequest(f"{reason}, found {found}, {place(self._text, token.position)}")


def _one(match: re.Match[str]) -> str:
    """Return the character of an escape."""
    if match[1]:
        return chr(int(match[1], 16))
    return _ESCAPED.get(match[2], match[2])
