"""Alerts: in the log of the process, and to its emitter."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from penstock.services.emitter.emitter import Emitter
from penstock.services.emitter.events import AlertEvent, Severity

_QUIET = frozenset({Severity.ANOMALY, Severity.DEPRECATED})


def send_alert(
    emitter: Emitter,
    logger: logging.Logger,
    description: str,
    severity: Severity = Severity.COMPONENT_FAILURE,
    *,
    data: Mapping[str, str] | None = None,
    error: BaseException | None = None,
) -> None:
    """Log an alert with the trace of its error, and emit it; never blocks, never raises.

    Args:
        emitter: The emitter.
        logger: Logger of the part that detected it.
        description: Description of the problem.
        severity: How bad it is.
        data: Details that help to find the cause.
        error: The exception.
    """
    level = logging.WARNING if severity in _QUIET else logging.ERROR
    logger.log(level, "%s", description, exc_info=error)
    event = (
        AlertEvent(description, severity, data or {})
        if error is None
        else AlertEvent.of_error(description, error, severity, data)
    )
    emitter.emit(event)
