"""Adapter of indexing's events to the emitter of the process."""

from __future__ import annotations

import logging

from penstock.services.emitter.alerts import send_alert
from penstock.services.emitter.emitter import Emitter
from penstock.services.emitter.events import MetricEvent

logger = logging.getLogger(__name__)


class EmittedEvents:
    """`penstock.indexing.events.Events` over an emitter."""

    def __init__(self, emitter: Emitter) -> None:
        self._emitter = emitter

    def measured(self, metric: str, value: float, **dimensions: str) -> None:
        """Emit a metric."""
        self._emitter.emit(MetricEvent(metric, value, dimensions))

    def alert(self, description: str, **data: str) -> None:
        """Log an alert and emit it."""
        send_alert(self._emitter, logger, description, data=data)
