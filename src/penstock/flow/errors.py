"""Errors while FlowFiles are processed, and their consequences.

ProcessError        expected by the processor: rollback, FlowFiles penalized, no yield
SessionMisuse       mistake in the processor: rollback, FlowFiles penalized, processor yields
ContentMissing      content of a FlowFile is missing: rollback, the FlowFile is removed
Terminated          thread was abandoned: release all resources, every further call fails
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
