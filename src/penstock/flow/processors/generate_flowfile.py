"""GenerateFlowFile: creates FlowFiles for tests of flows, for load, and as a timer."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import ClassVar, Final

from penstock.core.errors import InvalidRequest
from penstock.flow.flowfile import FILENAME, MIME_TYPE, UUID
from penstock.flow.processor import (
    BOOL,
    INT,
    SIZE,
    STR,
    DynamicExpressions,
    ExpressionProperty,
    FlowFile,
    InputRequirement,
    ProcessContext,
    Processor,
    ProcessSession,
    Property,
    Relationship,
    choice,
)

_PIECE_BYTES: Final = 1 << 20
_BATCH_MAX: Final = 10_000
_LETTERS: Final = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 \n"
_TO_LETTERS: Final = bytes(_LETTERS[byte % len(_LETTERS)] for byte in range(256))


def _check_batch(count: int) -> None:
    if not 0 < count <= _BATCH_MAX:
        raise InvalidRequest(f"{count:,} FlowFiles at once: use 1 to {_BATCH_MAX:,}")


class GenerateFlowFile(Processor):
    """Creates FlowFiles with random or given content at each scheduled run.

    Give it a timer or CRON schedule: if event driven, it creates them as fast as there is room.
    FlowFiles of one trigger share their content unless `unique_content` is set.
    """

    input = InputRequirement.FORBIDDEN
    supports_batching = True
    tags = ("test", "random", "generate", "load")
    writes_attributes: ClassVar = {
        "mime.type": "Value of the property `mime_type`, if it is set.",
        "any": "Each dynamic property sets an attribute.",
    }

    success = Relationship("Created FlowFiles.")

    file_size = Property(SIZE, default="0 B", about="Size of the random content.")
    batch_size = Property(
        INT,
        default=1,
        about="Number of FlowFiles per trigger.",
        validator=_check_batch,
    )
    data_format = Property(
        choice("text", "binary"), default="text", about="Kind of the random content."
    )
    unique_content = Property(
        BOOL, default=False, about="Whether each FlowFile of a trigger has its own content."
    )
    custom_text = ExpressionProperty(
        STR, default="", about="Fixed content; if it is set, no random content is used."
    )
    mime_type = Property(STR, default="", about="Value of attribute `mime.type`.")
    attributes = DynamicExpressions(STR, about="Attribute with this name and value.")

    def on_trigger(self, context: ProcessContext, session: ProcessSession) -> None:
        """Create one batch."""
        now_ms = context.clock.now_ms()
        first = self._named(session, session.create(), now_ms)
        made = [self._with_content(session, first, now_ms)]
        for _ in range(self.batch_size - 1):
            if self.unique_content:
                another = self._named(session, session.create(), now_ms)
                made.append(self._with_content(session, another, now_ms))
            else:
                made.append(self._named(session, session.clone(made[0]), now_ms))
        session.transfer(made, self.success)

    def _named(self, session: ProcessSession, flowfile: FlowFile, now_ms: int) -> FlowFile:
        attributes = {FILENAME: flowfile.attributes[UUID]}
        if self.mime_type:
            attributes[MIME_TYPE] = self.mime_type
        for name, value in self.attributes.items():
            attributes[name] = value.of(flowfile, now_ms=now_ms)
        return session.put_attributes(flowfile, attributes)

    def _with_content(self, session: ProcessSession, flowfile: FlowFile, now_ms: int) -> FlowFile:
        text = self.custom_text.of(flowfile, now_ms=now_ms)
        if text:
            return session.write(flowfile, text.encode())
        return session.import_from(flowfile, self._random())

    def _random(self) -> Iterator[bytes]:
        left = self.file_size
        while left:
            piece = secrets.token_bytes(min(left, _PIECE_BYTES))
            left -= len(piece)
            yield piece if self.data_format == "binary" else piece.translate(_TO_LETTERS)
