"""Reader of the tokens of a statement, for the parsers. Pure.

Owns the split of a text into numbers, operators, names and words, which words are never names
without quotes, and the errors with places. Source: SqlBaseLexer.g4 of Spark 4.3.
"""

from __future__ import annotations

import bisect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, TypeVar

from penstock.core.errors import InvalidRequest
from penstock.core.sql import tree
from penstock.core.sql_text import Token, each_token, place

N = TypeVar("N", bound=tree.Node)
T = TypeVar("T")

NESTING_MAX: Final = 160
"""Maximum number of parentheses, brackets and CASE within each other."""

# A number as Spark's lexer has it; no letter, digit or underscore may follow.
_NUMBER: Final = re.compile(
    r"(?:[0-9]+[lLsSyY]"
    r"|(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?(?:[bB][dD]|[fFdD])?)(?!\w)"
)
# Marks that belong together if nothing is between them. `>>` is left apart, because it may end
# two types.
_MARKS: Final = re.compile(r"<=>|<>|!=|==|<=|!>|!<|>=|\|\||::|->|=>|\|>|<<|\*/")

# Words that begin or continue clauses and expressions: they are never names without quotes.
RESERVED: Final = frozenset(
    {"ALL", "AND", "AS", "BETWEEN", "CASE", "DISTINCT", "ELSE", "EXCEPT", "FROM", "HAVING", "IN"}
    | {"INTERSECT", "IS", "JOIN", "NOT", "NULL", "ON", "OR", "SELECT", "THEN", "TRUE", "FALSE"}
    | {"UNION", "USING", "WHEN", "WHERE", "WITH"}
)
# Words that are names where a name or a value must come: many tables have a column `offset`.
_CLAUSE_WORDS: Final = frozenset(
    {"BY", "CROSS", "FULL", "GROUP", "INNER", "LATERAL", "LIMIT", "MINUS", "NATURAL", "OFFSET"}
    | {"ORDER", "QUALIFY", "SET", "TABLESAMPLE", "VALUES"}
)
NO_ALIAS: Final = (
    RESERVED
    | _CLAUSE_WORDS
    | {"ANTI", "CLUSTER", "DISTRIBUTE", "LEFT", "PIVOT", "RIGHT", "SEMI", "SORT", "UNPIVOT"}
    | {"WINDOW", "END", "LIKE", "ILIKE", "RLIKE", "REGEXP", "DIV", "ESCAPE", "COLLATE", "FOR"}
    | {"ASOF", "PLACING", "GROUPING", "IGNORE", "RESPECT", "TO"}
)
"""Words that name a column or table only after AS, because they may begin what follows."""

SET_WORDS: Final = frozenset({"UNION", "EXCEPT", "MINUS"})
"""The set operators besides INTERSECT, which is applied before them."""

SORTS: Final = frozenset({"ORDER", "SORT", "CLUSTER", "DISTRIBUTE"})
"""The first words of clauses that order or distribute rows."""


def lexed(sql: str, tokens: Iterable[Token] | None = None) -> list[Token]:
    """Return the tokens of a text, with numbers and operators of several marks as one token.

    Args:
        sql: The text.
        tokens: Its tokens, as `each_token` returns them, if they are known.

    Raises:
        InvalidRequest: A text, a name or a comment is not closed, or a name without quotes has
            letters that Spark accepts only in quotes.
    """
    found: list[Token] = []
    past = 0  # the end of the last token that was joined
    for token in each_token(sql) if tokens is None else tokens:
        at, first, joined = token.position, token.raw[0], None
        if at < past:
            continue
        if first.isdigit() or first == ".":
            joined = _NUMBER.match(sql, at)
        elif token.text and not token.name:
            joined = _MARKS.match(sql, at)
        if joined is not None:
            past = joined.end()
            found.append(Token(joined.group(), joined.group().upper(), at))
        elif first == "+" and sql[at - 2 : at] == "/*":  # the lexer leaves the beginning out
            found.append(Token("/*+", "/*+", at - 2))
        elif token.text and not token.raw.isascii():
            raise _not_ascii(sql, token)
        else:
            found.append(token)
    return found


def _not_ascii(sql: str, token: Token) -> InvalidRequest:
    """Return the error of a word of other letters, which may look like a keyword in upper case."""
    return InvalidRequest(
        f"{token.raw:.60} has characters other than a to z, digits and _,"
        f' {place(sql, token.position)}: write it in double quotes, "{token.raw:.60}"'
    )


class TokenReader:
    """Reads the tokens of one text from its current one on."""

    def __init__(self, sql: str, position: int = 0, tokens: Iterable[Token] | None = None) -> None:
        """Split the text into tokens.

        Args:
            sql: The text.
            position: Where the part begins that is parsed.
            tokens: The tokens of the text, as `each_token` returns them, if they are known.

        Raises:
            InvalidRequest: A text, a name or a comment is not closed.
        """
        self.sql = sql
        self.tokens = lexed(sql, tokens)
        while self.tokens and self.tokens[-1].text == ";":
            self.tokens.pop()
        self._words = [token.text for token in self.tokens] + [""]
        self._at = bisect.bisect_left(self.tokens, position, key=lambda token: token.position)
        self._depth = 0
        self._parameters = 0
        self._last = len(self.tokens)
        # Found once: searching again at each parenthesis takes seconds for a long statement.
        self._closing: Mapping[int, int] | None = None

    @property
    def keyword(self) -> str:
        """Return the word or mark that comes next, in upper case; empty for others."""
        return self._word()

    def whole(self, part: Callable[[], N]) -> N:
        """Read one part, after which the text ends.

        Raises:
            InvalidRequest: The text is not such a part.
        """
        try:
            node = part()
        except RecursionError:
            raise self._nested_too_deeply() from None
        if self._at < self._last:
            raise self._unexpected("the end of the statement")
        return node

    def _word(self, ahead: int = 0) -> str:
        """Return the word or mark of a token in upper case; empty for texts, quoted names, end."""
        at = self._at + ahead
        return self._words[at] if at < self._last else ""

    def _is(self, *words: str) -> bool:
        """Return whether these words come next."""
        return self._words[self._at : self._at + len(words)] == [*words]

    def _take(self, *words: str) -> bool:
        """Skip these words if they come next; return whether they did."""
        if not self._is(*words):
            return False
        self._at += len(words)
        return True

    def _expect(self, *words: str) -> None:
        for word in words:
            if self._words[self._at] != word:
                raise self._unexpected(word)
            self._at += 1

    def _unexpected(self, expected: str) -> InvalidRequest:
        if self._at >= self._last:
            where = place(self.sql, len(self.sql.rstrip()))
            return InvalidRequest(f"the statement ends too early, {where}: expected {expected}")
        token = self.tokens[self._at]
        where = place(self.sql, token.position)
        remedy = ""
        if token.text in RESERVED:
            remedy = f'; a name is written "{token.raw}"'
        elif token.text == ":":
            remedy = "; a value in JSON or a variant is read by get_json_object or variant_get"
        elif token.text == ";":
            remedy = ": write only one statement, and send the others after it"
        # A text with JSON may be an input with its password.
        shown = "a text" if token.is_text and "{" in token.raw else f"{token.raw:.40}"
        return InvalidRequest(f"{shown} is not expected, {where}: expected {expected}{remedy}")

    def _nested_too_deeply(self) -> InvalidRequest:
        at = min(self._at, self._last - 1)
        return InvalidRequest(
            f"nested deeper than {NESTING_MAX} levels, {place(self.sql, self.tokens[at].position)}:"
            " make it flatter"
        )

    def _deeper(self) -> None:
        self._depth += 1
        if self._depth > NESTING_MAX:
            raise self._nested_too_deeply()

    def _open(self) -> None:
        self._expect("(")
        self._deeper()

    def _close(self) -> None:
        self._expect(")")
        self._depth -= 1

    def _list(self, one: Callable[[], T]) -> tuple[T, ...]:
        """Read parts with commas between them."""
        found = [one()]
        while self._take(","):
            found.append(one())
        return tuple(found)

    def _in_parentheses(self, one: Callable[[], T]) -> tuple[T, ...]:
        self._open()
        found = self._list(one)
        self._close()
        return found

    def _can_be_name(self, ahead: int = 0, refused: frozenset[str] = RESERVED) -> bool:
        at = self._at + ahead
        if at >= self._last:
            return False
        token = self.tokens[at]
        if token.text in {"GROUP", "ORDER"} and self._words[at + 1] == "BY" and refused:
            return False
        return bool(token.name) and token.text not in refused

    def _name(self, what: str = "a name") -> str:
        if not self._can_be_name():
            raise self._unexpected(what)
        self._at += 1
        return self.tokens[self._at - 1].name

    def _parts(self) -> tuple[str, ...]:
        found = [self._name()]
        while self._is(".") and self._can_be_name(1, frozenset()):
            self._at += 1
            found.append(self._any_name())
        return tuple(found)

    def _any_name(self) -> str:
        """Read a name after a dot, where every word is one."""
        if not self._can_be_name(0, frozenset()):
            raise self._unexpected("a name")
        self._at += 1
        return self.tokens[self._at - 1].name

    def _text(self) -> tree.Text:
        start = self._at
        values = []
        while self._at < self._last and self.tokens[self._at].is_text:
            values.append(plain_text(self.tokens[self._at].raw))
            self._at += 1
        if start == self._at:
            raise self._unexpected("a text such as 'a'")
        plain = [one for one in values if one is not None]
        value = "".join(plain) if len(plain) == len(values) else None
        raw = self.tokens[start].raw
        is_quoted = value is None and len(values) == 1 and raw[0] == "'" and "\\" not in raw
        quoted = raw[1:-1].replace("''", "'") if is_quoted else ""
        return tree.Text(value=value, quoted=quoted, start=start, end=self._at)

    def _is_text(self, ahead: int = 0) -> bool:
        at = self._at + ahead
        return at < self._last and self.tokens[at].is_text

    def _begins_query(self) -> bool:
        """Return whether a query comes next, in as many parentheses as it may have."""
        ahead = 0
        while self._word(ahead) == "(":
            ahead += 1
        word = self._word(ahead)
        begins = word in {"SELECT", "WITH"} or (
            word in {"VALUES", "TABLE"} and self._word(ahead + 1) != "("
        )
        if word == "VALUES" and self._word(ahead + 1) == "(":
            begins = True
        return begins and (not ahead or self._is_query_within())

    def _is_query_within(self) -> bool:
        """Return whether the first parenthesis from here is a query, not relations.

        After its closing parenthesis, a query ends, or a set operator, an order or a limit
        follows; a relation gets a name or is joined.
        """
        if self._closing is None:
            self._closing = _closing_parentheses(self.tokens)
        closing = self._closing.get(self._at)
        after = "" if closing is None else self._words[closing + 1]
        return after == ")" or after in SET_WORDS | SORTS | {"INTERSECT", "LIMIT", "OFFSET"}


def _closing_parentheses(found: Sequence[Token]) -> Mapping[int, int]:
    """Return the indexes of closing parentheses by those of the opening ones."""
    pairs: dict[int, int] = {}
    opened: list[int] = []
    for at, token in enumerate(found):
        if token.text == "(":
            opened.append(at)
        elif token.text == ")" and opened:
            pairs[opened.pop()] = at
    return pairs


def plain_text(raw: str) -> str | None:
    """Return the value of a text; None if it has escapes, which `writer` repeats as written."""
    if raw[0] in "rR":
        return raw[2:-1]
    body = raw[1:-1]
    # In Spark, two adjacent texts are joined: a doubled quote is none of its characters.
    return None if "\\" in body or "''" in body else body
