"""Flows with many processors in groups, and a flow without a process of its own."""

from __future__ import annotations

import itertools
from pathlib import Path

from penstock.core.clock import SystemClock
from penstock.flow.controller.controller import FlowController
from penstock.flow.processor.processor_registry import ProcessorRegistry
from penstock.flow.processors.builtin import BUILTIN
from penstock.storage.disk import OsFileSystem

LAST = "P99: {type: LogAttribute, auto_terminated: success}"


def opened(folder: Path) -> FlowController:
    numbers = itertools.count()
    return FlowController.open(
        str(folder),
        fs=OsFileSystem(),
        clock=SystemClock(),
        registry=ProcessorRegistry(BUILTIN),
        new_uuid=lambda: f"u{next(numbers)}",
        environment={},
    )


def large_flow(processors: int) -> str:
    lines = ["name: large", "groups:"]
    for group in range(processors // 100):
        lines += [f"  G{group}:", "    processors:"]
        lines += [
            f"      P{number}: {{type: {'LogAttribute' if number else 'GenerateFlowFile'}}}"
            for number in range(100)
        ]
        lines.append("    connections:")
        lines += [f"      - {{from: P{number}.success, to: P{number + 1}}}" for number in range(99)]
    return "\n".join(lines).replace("P99: {type: LogAttribute}", LAST)
