"""How processors say why a FlowFile failed.

Owns the attribute `error.reason` and its bound. Does not own where failed FlowFiles go.
"""

from __future__ import annotations

from typing import Final

from penstock.flow.flowfile import FlowFile
from penstock.flow.processor import ProcessContext, ProcessSession, Relationship

ERROR_REASON: Final = "error.reason"
REASON_MAX_CHARS: Final = 1_000

WRITES_REASON: Final = {ERROR_REASON: "Why it failed; only on what failed."}


def fail(
    context: ProcessContext,
    session: ProcessSession,
    flowfile: FlowFile,
    relationship: Relationship,
    reason: object,
) -> None:
    """Send a FlowFile away with the reason in `error.reason`, and log it.

    Args:
        context: Whose log it is.
        session: The FlowFile's.
        flowfile: What failed.
        relationship: Where it goes.
        reason: An error or a sentence; cut after `REASON_MAX_CHARS`.
    """
    text = str(reason) or type(reason).__name__
    if len(text) > REASON_MAX_CHARS:
        text = text[: REASON_MAX_CHARS - 1] + "…"
    failed = session.put_attributes(flowfile, {ERROR_REASON: text})
    session.transfer(failed, relationship)
    context.log.warning("%s: %s", flowfile.attributes.get("filename", flowfile.id), text)
