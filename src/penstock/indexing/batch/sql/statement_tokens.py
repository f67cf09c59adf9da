"""A reader of the tokens of a statement, and its syntax errors. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.core.errors import InvalidRequest
from penstock.core.sql_text import Token, place

if TYPE_CHECKING:
    from collections.abc import Sequence

_SHOWN: Final = 60


@dataclass(slots=True)
class StatementTokens:
    """Reads the tokens of a statement in order."""

    sql: str
    found: Sequence[Token]
    at: int = 0

    @property
    def token(self) -> Token:
        """The next token; after the last an empty one."""
        if self.at < len(self.found):
            return self.found[self.at]
        return Token("the end of the statement", "", len(self.sql))

    @property
    def end(self) -> int:
        """The position after the last token that was taken."""
        last = self.found[self.at - 1]
        return last.position + len(last.raw)

    def sees(self, *words: str) -> bool:
        """Return whether these words come next."""
        following = [token.text for token in self.found[self.at : self.at + len(words)]]
        return following == list(words)

    def skip(self, *words: str) -> bool:
        """Skip these words if they come next; return whether they did."""
        seen = self.sees(*words)
        self.at += len(words) if seen else 0
        return seen

    def take(self, *words: str) -> Token:
        """Return the next token, which must be one of the words."""
        token = self.token
        if token.text not in words:
            raise self.wrong(f"{' or '.join(words)} is expected")
        self.at += 1
        return token

    def name(self, what: str) -> str:
        """Return the next token, which must be a name."""
        token = self.token
        if not token.name:
            raise self.wrong(f"{what} is expected")
        self.at += 1
        return token.name

    def text(self, what: str) -> str:
        """Return the content of the next token, which must be a text in quotes."""
        token = self.token
        if not token.is_text:
            raise self.wrong(f"{what} is expected, in single quotes")
        self.at += 1
        return token.raw[2:-1] if token.raw[0] in "rR" else token.raw[1:-1]

    def is_query(self) -> bool:
        """Return whether a parenthesis that comes next encloses a query."""
        following = self.found[self.at + 1 : self.at + 2]
        return bool(following) and following[0].text in {"SELECT", "WITH", "VALUES", "TABLE", "("}

    def wrong(self, message: str) -> InvalidRequest:
        """Return the syntax error for the next token."""
        token = self.token
        shown = token.raw if len(token.raw) <= _SHOWN else f"{token.raw[:_SHOWN]}…"
        if token.is_text and (len(token.raw) > _SHOWN or "{" in token.raw):
            shown = "a text"  # it may be an input with its password
        where = place(self.sql, token.position)
        return InvalidRequest(f"{message}, not {shown}, {where}", place="query")
