"""Failure of a FlowFile, with the reason in an attribute.

Owns the attribute `error.reason` and its maximum length. Does not own the relationship.
"""

from __future__ import annotations

from typing import Final

from penstock.flow.flowfile import FlowFile
from penstock.flow.processor import ProcessContext, ProcessSession, Relationship

ERROR_REASON: Final = "error.reason"
REASON_MAX_CHARS: Final = 1_000

WRITES_REASON: Final = {ERROR_REASON: "Reason of the failure; only on failed FlowFiles."}


def fail(
    context: ProcessContext,
    session: ProcessSession,
    flowfile: FlowFile,
    relationship: Relationship,
    reason: object,
) -> None:
    """Transfer a FlowFile with the reason in `error.reason`, and log the reason.

    Args:
        context: Context of the processor, for its log.
        session: Session of the FlowFile.
        flowfile: FlowFile that failed.
        relationship: Relationship for failed FlowFiles.
        reason: An error or a sentence; cut after `REASON_MAX_CHARS`.
    """
    text = str(reason) or type(reason).__name__
    if len(text) > REASON_MAX_CHARS:
        text = text[: REASON_MAX_CHARS - 1] + "…"
    failed = session.put_attributes(flowfile, {ERROR_REASON: text})
    session.transfer(failed, relationship)
    context.log.warning("%s: %s", flowfile.attributes.get("filename", flowfile.id), text)
