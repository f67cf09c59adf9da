"""DetectDuplicate: a FlowFile whose key was seen lately goes another way.

Owns what a key is made of. Which keys were seen is `seen`'s.

Invariant: a key is remembered by the commit that sends its first FlowFile on, so that a FlowFile
that comes again after a crash is no duplicate of itself.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import ClassVar, Final

from penstock.flow.processor import (
    PERIOD,
    ExpressionProperty,
    FlowFile,
    InputRequirement,
    Problem,
    ProcessContext,
    ProcessError,
    Processor,
    ProcessSession,
    Property,
    PropertyValue,
    Relationship,
)
from penstock.flow.processors.failing import WRITES_REASON, fail
from penstock.flow.processors.routing.routes import BATCH_FLOWFILES
from penstock.flow.processors.routing.seen import KEY_BYTES, KEYS_MAX, Seen

_PIECE_BYTES: Final = 1 << 20
_STATE: Final = "seen"


class DetectDuplicate(Processor):
    """Sends FlowFiles whose key was seen before another way.

    The key is a text of attributes or, without one, the content. So many keys are remembered, the
    oldest is forgotten first; so a duplicate that comes very late is not noticed.
    """

    input = InputRequirement.REQUIRED
    triggers_serially = True
    supports_batching = True
    state = "Hashes of the keys seen, with the time of each: 30 bytes a key."
    tags = ("duplicate", "distinct", "hash")
    reads_attributes: ClassVar[Mapping[str, str]] = {"of the key": "What `key` names."}
    writes_attributes: ClassVar[Mapping[str, str]] = WRITES_REASON

    key = ExpressionProperty(
        str, default="", about="What is the same in duplicates; empty: the content is."
    )
    remember = Property(
        int,
        default=10_000,
        about="How many keys are remembered, at most 30,000. All are written with each commit.",
    )
    forget_after = Property(PERIOD, about="For how long a key is remembered, if there is room.")

    unique = Relationship("Not seen before.", name="non-duplicate")
    duplicate = Relationship("Its key was seen before.")
    failure = Relationship("The key does not work out, or is empty.")

    def __init__(self, /, **properties: PropertyValue) -> None:
        super().__init__(**properties)
        self._seen: Seen | None = None
        self._text = ""

    def check(self) -> Iterator[Problem]:
        """Yield what is wrong between properties."""
        if not 0 < self.remember <= KEYS_MAX:
            yield Problem("remember", f"is to be at least 1 and at most {KEYS_MAX:,}")

    def on_trigger(self, context: ProcessContext, session: ProcessSession) -> None:
        """Judge a batch."""
        flowfiles = session.get_many(BATCH_FLOWFILES)
        if not flowfiles:
            return
        now_ms = context.clock.now_ms()
        seen = self._known(session)
        # Whatever happens before the commit, what is added now does not count until then.
        self._seen = None
        first: list[FlowFile] = []
        again: list[FlowFile] = []
        for flowfile in flowfiles:
            try:
                key = self._key(session, flowfile, now_ms)
            except ProcessError as error:
                fail(context, session, flowfile, self.failure, error)
            else:
                (first if seen.add(key, now_ms) else again).append(flowfile)
        session.transfer(first, self.unique)
        session.transfer(again, self.duplicate)
        if first:
            self._text = seen.encode()
            session.state.set({_STATE: self._text})
        self._seen = seen

    def _known(self, session: ProcessSession) -> Seen:
        text = session.state.get().get(_STATE, "")
        # It is another text if the last trigger was rolled back, or after a restart.
        if self._seen is None or text != self._text:
            self._text = text
            return Seen(self.remember, self.forget_after, text)
        return self._seen

    def _key(self, session: ProcessSession, flowfile: FlowFile, now_ms: int) -> bytes:
        if self.key.text:
            text = self.key.of(flowfile, now_ms=now_ms)
            if not text:
                raise ProcessError(f"the key {self.key.text!r} is empty for this FlowFile")
            # A text may hold half of a surrogate pair, which UTF-8 has no bytes for.
            data = text.encode("utf-8", "surrogatepass")
            return hashlib.blake2b(data, digest_size=KEY_BYTES, person=b"key").digest()
        digest = hashlib.blake2b(digest_size=KEY_BYTES, person=b"content")
        with session.read(flowfile) as content:
            while piece := content.read(_PIECE_BYTES):
                digest.update(piece)
        return digest.digest()
