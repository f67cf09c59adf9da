"""A processor that ends the process of its flow at each start."""

from __future__ import annotations

import os

from penstock.flow.processor import InputRequirement, ProcessContext, Processor, ProcessSession


class Ends(Processor):
    """Ends the process as a crash in native code does."""

    input = InputRequirement.FORBIDDEN

    def on_trigger(self, context: ProcessContext, session: ProcessSession) -> None:
        os._exit(11)


class Works(Processor):
    """Does nothing."""

    input = InputRequirement.FORBIDDEN

    def on_trigger(self, context: ProcessContext, session: ProcessSession) -> None:
        context.yield_(60_000)
