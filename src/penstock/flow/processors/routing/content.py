"""RouteOnContent: where a FlowFile goes by what its content says.

Owns the search in a bounded part of the content. Does not own regular expressions, which are
Python's: a pattern that backtracks without bound can still take long on that part.
"""

from __future__ import annotations

import codecs
import enum
from collections.abc import Iterator, Mapping
from typing import ClassVar, Final

from penstock.core.errors import InvalidRequest
from penstock.flow.processor import (
    REGEX,
    SIZE,
    DynamicProperties,
    FlowFile,
    InputRequirement,
    Problem,
    ProcessContext,
    Processor,
    ProcessSession,
    Property,
    Relationship,
)
from penstock.flow.processors.failing import WRITES_REASON, fail
from penstock.flow.processors.routing.routes import name_problems, send_to_all

_BATCH_FLOWFILES: Final = 50
_BUFFER_MAX_BYTES: Final = 64 << 20


class Matching(enum.Enum):
    """What part of the content a pattern describes."""

    FIND = "find"
    WHOLE = "whole"


def _decoder(name: str) -> codecs.IncrementalDecoder:
    try:
        b"-".decode(name, "replace")  # refuses what turns bytes into bytes
        return codecs.getincrementaldecoder(name)("replace")
    except (LookupError, ValueError):
        raise InvalidRequest(
            f"{name!r} is no character set: write one such as utf-8 or latin-1"
        ) from None


class RouteOnContent(Processor):
    """Sends FlowFiles where regular expressions on their content say.

    Each property that is not named here is a pattern and adds a relationship of its name; a
    FlowFile goes to all whose pattern matches. Only the beginning of the content is looked at.
    """

    input = InputRequirement.REQUIRED
    supports_batching = True
    tags = ("content", "route", "regex", "filter")
    writes_attributes: ClassVar[Mapping[str, str]] = WRITES_REASON

    match = Property(
        Matching,
        default="find",
        about="find: the pattern occurs somewhere; whole: it matches all of the part.",
    )
    buffer_size = Property(
        SIZE, default="1 MB", about="So much of the beginning is looked at, up to 64 MB."
    )
    character_set = Property(
        str,
        default="utf-8",
        about="How bytes are read as text; those that are none match U+FFFD.",
        validator=_decoder,
    )
    patterns = DynamicProperties(
        REGEX, about="Name of a relationship, and the pattern.", relationships=True
    )

    unmatched = Relationship("No pattern matches.")
    failure = Relationship("`whole` is asked for, and the content is longer than what is read.")

    def check(self) -> Iterator[Problem]:
        """Yield what is wrong between properties."""
        if not self.patterns:
            yield Problem("", "there are no patterns: give a property such as error=ERROR|FATAL")
        if not 0 < self.buffer_size <= _BUFFER_MAX_BYTES:
            yield Problem("buffer_size", "is to be more than 0 and at most 64 MB")
        yield from name_problems(self)

    def on_trigger(self, context: ProcessContext, session: ProcessSession) -> None:
        """Route a batch."""
        for flowfile in session.get_many(_BATCH_FLOWFILES):
            if self.match is Matching.WHOLE and flowfile.size > self.buffer_size:
                reason = (
                    f"{flowfile.size:,} bytes are more than the {self.buffer_size:,} that are "
                    "read: raise buffer_size, or match by find"
                )
                fail(context, session, flowfile, self.failure, reason)
                continue
            names = self._names(self._beginning(session, flowfile))
            send_to_all(session, flowfile, names or [self.unmatched.name])

    def _names(self, text: str) -> list[str]:
        whole = self.match is Matching.WHOLE
        return [
            name
            for name, pattern in self.patterns.items()
            if (pattern.fullmatch(text) if whole else pattern.search(text)) is not None
        ]

    def _beginning(self, session: ProcessSession, flowfile: FlowFile) -> str:
        with session.read(flowfile) as content:
            data = content.read(self.buffer_size)
        # A character that the bound cuts in two is left out, not replaced.
        return _decoder(self.character_set).decode(data, final=len(data) == flowfile.size)
