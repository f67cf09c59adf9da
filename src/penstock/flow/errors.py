"""What goes wrong while FlowFiles are processed, named by what happens next.

ProcessError        the processor expected it: rolled back, FlowFiles penalized, no yield
SessionMisuse       the processor is written wrongly: rolled back, penalized, it is yielded
ContentMissing      the content of a FlowFile is gone: rolled back, that FlowFile is taken out
Terminated          the thread was given up: let go of everything, nothing works any more
"""

from __future__ import annotations

from penstock.core.errors import Closed, NotFound, PenstockError


class ProcessError(PenstockError):
    """This could not be processed now, which the processor knows to happen.

    Raised out of a trigger, the session is rolled back, its FlowFiles are penalized, and others are
    processed at once.
    """


class SessionMisuse(PenstockError):
    """A process session was used against its rules; it was rolled back. Mend the processor."""


class ContentMissing(NotFound):
    """The content of a FlowFile is not there; at the rollback the FlowFile is taken out."""


class Terminated(Closed):
    """The processor was terminated while this thread worked for it; its session is rolled back."""
