"""RetryFlowFile: how often a FlowFile may go around a loop.

Owns the counting in an attribute. Waiting between two tries is the session's penalty.
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
from penstock.flow.processors.failing import WRITES_REASON, fail
from penstock.flow.processors.routing.routes import BATCH_FLOWFILES

_BY_SUFFIX: Final = ".by"


class Reuse(enum.Enum):
    """What happens to a FlowFile that another RetryFlowFile counted with the same attribute."""

    FAIL = "fail"
    RESET = "reset"


class RetryFlowFile(Processor):
    """Lets a FlowFile pass to be tried again, so many times and no more.

    Connect the failure of a processor to this one, and `retry` back to that processor. The tries
    are counted in an attribute. Properties that are not named here are attributes that are set on
    FlowFiles whose tries are over.
    """

    input = InputRequirement.REQUIRED
    supports_batching = True
    tags = ("retry", "loop", "failure")
    reads_attributes: ClassVar[Mapping[str, str]] = {
        "flowfile.retries": "How often it was tried again; the name is a property."
    }
    writes_attributes: ClassVar[Mapping[str, str]] = {
        "flowfile.retries": "One more; removed when the tries are over.",
        "flowfile.retries.by": "Id of the processor that counts.",
        **WRITES_REASON,
    }

    attribute = Property(str, default="flowfile.retries", about="The attribute that counts.")
    most = Property(int, default=3, about="How often a FlowFile is tried again.")
    penalize = Property(
        bool, default=True, about="Whether a FlowFile waits for the penalty period before a try."
    )
    reuse = Property(
        Reuse,
        default="fail",
        about="If another RetryFlowFile counted with this attribute: fail, or reset and begin.",
    )
    attributes = DynamicExpressions(str, about="An attribute that is set when the tries are over.")

    retry = Relationship("To be tried again.")
    exceeded = Relationship("Was tried often enough.")
    failure = Relationship("The attribute is no number, or another processor counts with it.")

    def check(self) -> Iterator[Problem]:
        """Yield what is wrong between properties."""
        if self.most < 0:
            yield Problem("most", f"{self.most} is no number of tries: give 0 or more")
        if self.attribute in {"", UUID}:
            yield Problem("attribute", f"{self.attribute!r} cannot count: use another name")
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
        told = {name: v.of(flowfile, now_ms=now_ms) for name, v in self.attributes.items()}
        session.remove_attributes(flowfile, (self.attribute, self.attribute + _BY_SUFFIX))
        session.put_attributes(flowfile, told)
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
                f"attribute {self.attribute!r} counts the tries of processor {counted_by}: give "
                "this one another attribute, or set reuse to reset"
            )
        if not (text.isascii() and text.isdigit() and len(text) < 10):
            raise ProcessError(
                f"attribute {self.attribute!r} is {text[:100]!r}, which is no number of tries: "
                "remove it, or count with another attribute"
            )
        return int(text)
