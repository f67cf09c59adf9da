"""Keeps the progress of a process's start."""

from __future__ import annotations

import threading


class Start:
    """Listener of a start that keeps its reports."""

    def __init__(self) -> None:
        self.is_ready = threading.Event()
        self.reasons: list[str] = []

    def ready(self) -> None:
        self.is_ready.set()

    def waiting(self, text: str) -> None:
        self.reasons.append(text)
