"""DetectDuplicate: a processor that routes FlowFiles whose key was seen before.

Owns the key of a FlowFile and `SeenKeys`, the recently seen keys, which are bounded in number
and age, stored as text in the processor's state, and pure.

Invariants: a key is recorded by the commit that transfers its first FlowFile, so a FlowFile
that is processed again after a crash is not its own duplicate. Keys expire in the order in
which they were first seen; a repeated key keeps its position. The text of a full window fits
the size limit of a processor's state.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Iterator, Mapping
from typing import ClassVar, Final

from penstock.core.errors import CorruptData
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
from penstock.flow.processors.failure import WRITES_REASON, fail
from penstock.flow.processors.routing.named_relationships import BATCH_FLOWFILES

KEY_BYTES: Final = 16
KEYS_MAX: Final = 30_000
_TIME_BYTES: Final = 6
_ENTRY_BYTES: Final = KEY_BYTES + _TIME_BYTES


class SeenKeys:
    """Keys of `KEY_BYTES` bytes, with the time when each was first seen.

    Args:
        most: Maximum number of keys, up to `KEYS_MAX`.
        forget_after_ms: How long a key is remembered; None: as long as there is room.
        text: Result of `encode`; empty: no keys.

    Raises:
        CorruptData: The text is invalid.
    """

    def __init__(self, most: int, forget_after_ms: int | None, text: str = "") -> None:
        self._most = most
        self._forget_after_ms = forget_after_ms
        self._times = dict(_entries(text))

    def __len__(self) -> int:
        return len(self._times)

    def add(self, key: bytes, now_ms: int) -> bool:
        """Add a key; return False if it is already remembered."""
        self._forget(now_ms)
        if key in self._times:
            return False
        if len(self._times) >= self._most:
            del self._times[next(iter(self._times))]
        self._times[key] = now_ms
        return True

    def encode(self) -> str:
        """Return the window as text."""
        data = b"".join(
            key + time_ms.to_bytes(_TIME_BYTES, "big") for key, time_ms in self._times.items()
        )
        return base64.b64encode(data).decode("ascii")

    def _forget(self, now_ms: int) -> None:
        # Also drops keys that are too many, if the limit was lowered since the text was written.
        excess = len(self._times) - self._most
        for key in list(self._times) if excess > 0 else ():
            if len(self._times) <= self._most:
                break
            del self._times[key]
        if self._forget_after_ms is None:
            return
        while self._times:
            oldest = next(iter(self._times))
            if self._times[oldest] > now_ms - self._forget_after_ms:
                return
            del self._times[oldest]


def _entries(text: str) -> list[tuple[bytes, int]]:
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise CorruptData("the state of recent keys", 0, str(error)) from None
    if len(data) % _ENTRY_BYTES:
        raise CorruptData("the state of recent keys", len(data), "the last key is incomplete")
    return [
        (
            data[at : at + KEY_BYTES],
            int.from_bytes(data[at + KEY_BYTES : at + _ENTRY_BYTES], "big"),
        )
        for at in range(0, len(data), _ENTRY_BYTES)
    ]


_PIECE_BYTES: Final = 1 << 20
_STATE: Final = "seen"


class DetectDuplicate(Processor):
    """Detects FlowFiles whose key was seen before.

    The key is a text with expressions or, without one, the content. The number of remembered keys
    is limited, and the oldest is forgotten first, so that a very late duplicate is not detected.
    """

    input = InputRequirement.REQUIRED
    triggers_serially = True
    supports_batching = True
    state = "Hashes of recent keys, with their times: 30 bytes per key."
    tags = ("duplicate", "distinct", "hash")
    reads_attributes: ClassVar[Mapping[str, str]] = {"of the key": "Attributes in `key`."}
    writes_attributes: ClassVar[Mapping[str, str]] = WRITES_REASON

    key = ExpressionProperty(
        str, default="", about="Text that is equal for duplicates; empty: the content is compared."
    )
    remember = Property(
        int,
        default=10_000,
        about="Number of remembered keys, at most 30,000. All are written with each commit.",
    )
    forget_after = Property(PERIOD, about="How long a key is remembered, if there is room.")

    unique = Relationship("Not seen before.", name="non-duplicate")
    duplicate = Relationship("Its key was seen before.")
    failure = Relationship("The expression of the key fails, or the key is empty.")

    def __init__(self, /, **properties: PropertyValue) -> None:
        super().__init__(**properties)
        self._seen: SeenKeys | None = None
        self._text = ""

    def check(self) -> Iterator[Problem]:
        """Yield errors that involve several properties."""
        if not 0 < self.remember <= KEYS_MAX:
            yield Problem("remember", f"must be at least 1 and at most {KEYS_MAX:,}")

    def on_trigger(self, context: ProcessContext, session: ProcessSession) -> None:
        """Check a batch."""
        flowfiles = session.get_many(BATCH_FLOWFILES)
        if not flowfiles:
            return
        now_ms = context.clock.now_ms()
        seen = self._known(session)
        # Keys added now do not count until the commit.
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

    def _known(self, session: ProcessSession) -> SeenKeys:
        text = session.state.get().get(_STATE, "")
        # The text differs after a rollback of the last trigger, or after a restart.
        if self._seen is None or text != self._text:
            self._text = text
            return SeenKeys(self.remember, self.forget_after, text)
        return self._seen

    def _key(self, session: ProcessSession, flowfile: FlowFile, now_ms: int) -> bytes:
        if self.key.text:
            text = self.key.of(flowfile, now_ms=now_ms)
            if not text:
                raise ProcessError(f"the key {self.key.text!r} is empty for this FlowFile")
            # A text may contain an unpaired surrogate, which strict UTF-8 cannot encode.
            data = text.encode("utf-8", "surrogatepass")
            return hashlib.blake2b(data, digest_size=KEY_BYTES, person=b"key").digest()
        digest = hashlib.blake2b(digest_size=KEY_BYTES, person=b"content")
        with session.read(flowfile) as content:
            while piece := content.read(_PIECE_BYTES):
                digest.update(piece)
        return digest.digest()
