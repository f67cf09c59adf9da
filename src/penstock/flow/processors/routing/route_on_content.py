"""RouteOnContent: routes FlowFiles by their content.

Owns the search in a limited part of the content. Does not own regular expressions, which are
Python's: a pattern with excessive backtracking can still take long on that part.
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
from penstock.flow.processors.failure import WRITES_REASON, fail
from penstock.flow.processors.routing.named_relationships import name_problems, send_to_all

_BATCH_FLOWFILES: Final = 50
_BUFFER_MAX_BYTES: Final = 64 << 20


class MatchMode(enum.Enum):
    """Part of the content that a pattern must match."""

    FIND = "find"
    WHOLE = "whole"


def _decoder(name: str) -> codecs.IncrementalDecoder:
    try:
        b"-".decode(name, "replace")  # refuses codecs from bytes to bytes
        return codecs.getincrementaldecoder(name)("replace")
    except (LookupError, ValueError):
        raise InvalidRequest(
            f"unknown character set {name!r}: write one such as utf-8 or latin-1"
        ) from None


class RouteOnContent(Processor):
    """Routes FlowFiles by regular expressions on their content.

    Each dynamic property is a pattern and adds a relationship with its name. A FlowFile goes to
    every relationship whose pattern matches. Only the beginning of the content is read.
    """

    input = InputRequirement.REQUIRED
    supports_batching = True
    tags = ("content", "route", "regex", "filter")
    writes_attributes: ClassVar[Mapping[str, str]] = WRITES_REASON

    match = Property(
        MatchMode,
        default="find",
        about="find: the pattern occurs anywhere in the part that is read; whole: it matches "
        "all of it.",
    )
    buffer_size = Property(
        SIZE, default="1 MB", about="Number of bytes read from the beginning, up to 64 MB."
    )
    character_set = Property(
        str,
        default="utf-8",
        about="Character set of the content; invalid bytes are read as U+FFFD.",
        validator=_decoder,
    )
    patterns = DynamicProperties(
        REGEX, about="Name of a relationship, and its pattern.", relationships=True
    )

    unmatched = Relationship("No pattern matches.")
    failure = Relationship("`whole` is set, and the content is longer than the part that is read.")

    def check(self) -> Iterator[Problem]:
        """Yield errors that involve several properties."""
        if not self.patterns:
            yield Problem("", "there are no patterns: add a property such as error=ERROR|FATAL")
        if not 0 < self.buffer_size <= _BUFFER_MAX_BYTES:
            yield Problem("buffer_size", "must be more than 0 and at most 64 MB")
        yield from name_problems(self)

    def on_trigger(self, context: ProcessContext, session: ProcessSession) -> None:
        """Route a batch."""
        for flowfile in session.get_many(_BATCH_FLOWFILES):
            if self.match is MatchMode.WHOLE and flowfile.size > self.buffer_size:
                reason = (
                    f"the content has {flowfile.size:,} bytes, but only {self.buffer_size:,} are "
                    "read: raise buffer_size, or match by find"
                )
                fail(context, session, flowfile, self.failure, reason)
                continue
            names = self._names(self._beginning(session, flowfile))
            send_to_all(session, flowfile, names or [self.unmatched.name])

    def _names(self, text: str) -> list[str]:
        whole = self.match is MatchMode.WHOLE
        return [
            name
            for name, pattern in self.patterns.items()
            if (pattern.fullmatch(text) if whole else pattern.search(text)) is not None
        ]

    def _beginning(self, session: ProcessSession, flowfile: FlowFile) -> str:
        with session.read(flowfile) as content:
            data = content.read(self.buffer_size)
        # A character that the limit cuts is dropped, not replaced.
        return _decoder(self.character_set).decode(data, final=len(data) == flowfile.size)
