"""Liveness of a child process: it is asked at intervals, and its silence is measured.

Owns the rule and the state of one child's questions. The caller asks the question and ends a child
that hangs. Time is passed in.

Invariants: one question at a time; only questions that were sent and awaited count, so a machine
that slept, or a parent that was stopped, does not make a child count as hung; one answer resets all
earlier failures.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class PulseOptions:
    """Intervals of questions. A full garbage collection may silence a JVM for many seconds.

    Attributes:
        every_s: Pause between an answer and the next question.
        answer_s: Time limit of an answer.
        look_s: Interval of checks for an answer.
        failures_max: Number of consecutive failures after which the child counts as hung.
    """

    every_s: float = 10.0
    answer_s: float = 10.0
    look_s: float = 1.0
    failures_max: int = 6


class Question(Protocol):
    """One question that is in progress."""

    def answered(self) -> bool | None:
        """Return whether there was an answer, None while there may still be one; never waits."""
        ...

    def close(self) -> None:
        """Abandon the question."""
        ...


class Pulse:
    """Liveness of one child.

    Args:
        ask: Sends a question; returns None if it cannot be sent.
        options: Intervals and limits.
    """

    def __init__(
        self, ask: Callable[[], Question | None], options: PulseOptions | None = None
    ) -> None:
        self._ask = ask
        self._options = options or PulseOptions()
        self._question: Question | None = None
        self._asked_s = 0.0
        self._next_s: float | None = None
        self._failures = 0

    @property
    def next_s(self) -> float | None:
        """Return when `hangs` is due next, None while the child is not watched."""
        return self._next_s

    @property
    def silence_s(self) -> float:
        """Return the time of silence after which a child counts as hung."""
        return self._options.answer_s * self._options.failures_max

    def begin(self, now_s: float) -> None:
        """Watch the child from now on; it has just answered."""
        self.end()
        self._next_s = now_s + self._options.every_s

    def end(self) -> None:
        """Stop watching the child."""
        self._drop()
        self._next_s, self._failures = None, 0

    def hangs(self, now_s: float) -> bool:
        """Do what is due, and return whether the child counts as hung."""
        if self._next_s is None or now_s < self._next_s:
            return False
        if self._question is None:
            self._put(now_s)
        else:
            self._look(now_s)
        return self._failures >= self._options.failures_max

    def _put(self, now_s: float) -> None:
        self._question = self._ask()
        self._asked_s = now_s
        if self._question is None:
            self._fail(now_s, self._options.answer_s)
        else:
            self._next_s = now_s + self._options.look_s

    def _look(self, now_s: float) -> None:
        assert self._question is not None
        answered = self._question.answered()
        if answered:
            self._drop()
            self._failures, self._next_s = 0, now_s + self._options.every_s
        elif answered is not None:
            self._fail(now_s, self._options.answer_s)
        elif now_s - self._asked_s >= self._options.answer_s:
            self._fail(now_s, 0.0)
        else:
            self._next_s = now_s + self._options.look_s

    def _fail(self, now_s: float, pause_s: float) -> None:
        """Count a failure; an immediate failure does not shorten the interval."""
        self._drop()
        self._failures += 1
        self._next_s = now_s + pause_s

    def _drop(self) -> None:
        if self._question is not None:
            self._question.close()
            self._question = None
