"""Errors while FlowFiles are processed, and their consequences.

ProcessError        the processor expected it: rolled back, FlowFiles penalized, no yield
SessionMisuse       the processor is written wrongly: as any other exception
any other           rolled back; a batch is retried in halves, a single FlowFile is penalized; yield
ContentMissing      the content of a FlowFile is lost: rolled back, that FlowFile is removed
Terminated          the thread was abandoned: release everything; all calls of the session raise
"""

from __future__ import annotations

from penstock.core.errors import Closed, NotFound, PenstockError


class ProcessError(PenstockError):
    """Expected failure of a processor.

    If a trigger raises it, the session is rolled back, its FlowFiles are penalized, and other
    FlowFiles are processed at once.
    """


class SessionMisuse(PenstockError):
    """A processor violated the rules of its process session, which was rolled back.

    Fix the processor.
    """


class ContentMissing(NotFound):
    """The content of a FlowFile is missing; the rollback removes the FlowFile from the flow."""


class Terminated(Closed):
    """The processor was terminated while this thread worked for it; its session is rolled back."""


def error_text(error: BaseException) -> str:
    """Return an exception as one line of text; only its type name if `str()` raises."""
    try:
        text = str(error)
    except BaseException:  # noqa: BLE001 - code of a user's exception must not end the caller
        text = ""
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
