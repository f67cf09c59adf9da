"""Patterns of names that an authorization server sends, and their matching.

The patterns come from outside. RE2 runs them: its syntax is that of the Go programs that write
them, and its time grows only with the length of the name. But it compiles a pattern at each match,
which can take milliseconds for a short pattern with repetitions. So patterns that are plain text
with ``^``, ``$`` and ``.*`` at the ends, as nearly all are, are matched without RE2, and others
must be matched beside the event loop.

Names are ASCII. So patterns are passed to RE2 as bytes, and Unicode classes, whose tables alone
take tens of milliseconds each, are refused.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Self

import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.errors import InvalidRequest

CHARACTERS_MAX: Final = 1_024

_PLAIN: Final = re.compile(r"(\^?)(\.\*)?((?:[A-Za-z0-9_#-]|\\\.)*)(\.\*)?(\$?)")


@dataclass(frozen=True, slots=True)
class Pattern:
    """A pattern, which may match anywhere in a name, as in NSQ.

    Attributes:
        text: The pattern as sent.
        literal: The text that a name must contain; None: RE2 must search.
        at_start: A name must begin with the literal.
        at_end: A name must end with the literal.
    """

    text: str
    literal: str | None = None
    at_start: bool = False
    at_end: bool = False

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a pattern.

        Raises:
            InvalidRequest: It is too long, or RE2 does not accept it.
        """
        if len(text) > CHARACTERS_MAX:
            raise InvalidRequest(f"a pattern is longer than {CHARACTERS_MAX} characters")
        if plain := _PLAIN.fullmatch(text):
            start, before, literal, behind, end = plain.groups()
            return cls(
                text,
                literal.replace("\\.", "."),
                at_start=bool(start) and not before,
                at_end=bool(end) and not behind,
            )
        if "\\p" in text or "\\P" in text:
            raise InvalidRequest(f"{text!r:.80}: names are ASCII: write [a-z] instead of \\p{{L}}")
        try:
            _search(text, "")
        except pa.ArrowInvalid as error:
            raise InvalidRequest(f"{text!r:.80}: {error}") from error
        return cls(text)

    def matches(self, name: str) -> bool:
        """Return whether a name matches; slow if there is no literal."""
        if self.literal is None:
            return _search(self.text, name)
        if self.at_start and self.at_end:
            return name == self.literal
        if self.at_start:
            return name.startswith(self.literal)
        if self.at_end:
            return name.endswith(self.literal)
        return self.literal in name


def _search(pattern: str, name: str) -> bool:
    found = pc.match_substring_regex(pa.array([name.encode()], pa.binary()), pattern=pattern)
    return bool(found[0].as_py())
