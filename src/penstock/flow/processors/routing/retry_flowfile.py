"""RetryFlowFile: limits how many times a FlowFile passes through a loop.

Owns the count in an attribute. The delay between two retries is the session's penalty.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from typing import ClassVar, Final

from penstock.flow.flowfile import UUID
from penstock.flow.processor import (
    DynamicExpressions,
    FlowFile,
    InputRequirement,
    Problem,
    ProcessContext,
    ProcessError,
    Processor,
    ProcessSession,
    Property,
    Relationship,
)
from penstock.flow.processors.failure import WRITES_REASON, fail
from penstock.flow.processors.routing.named_relationships import BATCH_FLOWFILES

_BY_SUFFIX: Final = ".by"


class Reuse(enum.Enum):
    """Handling of a FlowFile that another RetryFlowFile counted with the same attribute."""

    FAIL = "fail"
    RESET = "reset"


class RetryFlowFile(Processor):
    """Routes a FlowFile to a retry, up to a number of times.

    Connect the failure of a processor to this one, and `retry` back to that processor. The retries
    are counted in an attribute. Dynamic properties are attributes that are set on FlowFiles when
    the retries are exhausted.
    """

    input = InputRequirement.REQUIRED
    supports_batching = True
    tags = ("retry", "loop", "failure")
    reads_attributes: ClassVar[Mapping[str, str]] = {
        "flowfile.retries": "Number of retries so far; the name of the attribute is a property."
    }
    writes_attributes: ClassVar[Mapping[str, str]] = {
        "flowfile.retries": "Incremented; removed when the retries are exhausted.",
        "flowfile.retries.by": "Id of the processor that counts.",
        **WRITES_REASON,
    }

    attribute = Property(str, default="flowfile.retries", about="Attribute with the count.")
    most = Property(int, default=3, about="Maximum number of retries of a FlowFile.")
    penalize = Property(bool, default=True, about="Whether a FlowFile is penalized before a retry.")
    reuse = Property(
        Reuse,
        default="fail",
        about="If another RetryFlowFile counted with this attribute: fail, or reset the count.",
    )
    attributes = DynamicExpressions(
        str, about="Attribute that is set when the retries are exhausted."
    )

    retry = Relationship("FlowFiles to retry.")
    exceeded = Relationship("FlowFiles whose retries are exhausted.")
    failure = Relationship("The attribute is not a number, or another processor counts with it.")

    def check(self) -> Iterator[Problem]:
        """Yield errors that involve several properties."""
        if self.most < 0:
            yield Problem("most", f"{self.most} is not a number of retries: use 0 or more")
        if self.attribute in {"", UUID}:
            yield Problem(
                "attribute", f"{self.attribute!r} cannot be used for counting: use another name"
            )
        if UUID in self.attributes:
            yield Problem(UUID, "never changes: use another name")

    def on_trigger(self, context: ProcessContext, session: ProcessSession) -> None:
        """Count for a batch."""
        now_ms = context.clock.now_ms()
        for flowfile in session.get_many(BATCH_FLOWFILES):
            try:
                self._count(context, session, flowfile, now_ms)
            except ProcessError as error:
                fail(context, session, flowfile, self.failure, error)

    def _count(
        self, context: ProcessContext, session: ProcessSession, flowfile: FlowFile, now_ms: int
    ) -> None:
        tried = self._tried(context.id, flowfile)
        if tried < self.most:
            marks = {self.attribute: str(tried + 1), self.attribute + _BY_SUFFIX: context.id}
            session.put_attributes(flowfile, marks)
            if self.penalize:
                session.penalize(flowfile)
            session.transfer(flowfile, self.retry)
            return
        computed = {name: v.of(flowfile, now_ms=now_ms) for name, v in self.attributes.items()}
        session.remove_attributes(flowfile, (self.attribute, self.attribute + _BY_SUFFIX))
        session.put_attributes(flowfile, computed)
        session.transfer(flowfile, self.exceeded)

    def _tried(self, own_id: str, flowfile: FlowFile) -> int:
        text = flowfile.attributes.get(self.attribute)
        if text is None:
            return 0
        counted_by = flowfile.attributes.get(self.attribute + _BY_SUFFIX, own_id)
        if counted_by != own_id:
            if self.reuse is Reuse.RESET:
                return 0
            raise ProcessError(
                f"attribute {self.attribute!r} counts the retries of processor {counted_by}: use "
                "another attribute, or set reuse to reset"
            )
        if not (text.isascii() and text.isdigit() and len(text) < 10):
            raise ProcessError(
                f"attribute {self.attribute!r} is {text[:100]!r}, which is not a number of "
                "retries: remove it, or use another attribute"
            )
        return int(text)
