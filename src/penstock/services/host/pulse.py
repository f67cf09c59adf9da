"""Whether a child that runs still does anything: asked now and then, judged by its silence.

Owns the rule and the state of one child's questions; how it is asked is the caller's, and so is the
end of one that hangs. Time is passed in.

Invariants: one question at a time; only questions that were put and waited for count, so that a
machine that slept, or a parent that was stopped, takes nobody for hung; one answer makes good for
all failures before it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class PulseOptions:
    """How a child is asked. A full garbage collection may silence a JVM for many seconds.

    Attributes:
        every_s: How long after an answer it is asked again.
        answer_s: How long an answer may take.
        look_s: How often it is looked whether there is one.
        failures_max: So many in a row mean that it hangs.
    """

    every_s: float = 10.0
    answer_s: float = 10.0
    look_s: float = 1.0
    failures_max: int = 6


class Question(Protocol):
    """One question that is under way."""

    def answered(self) -> bool | None:
        """Return whether there was an answer, None while there may be one; never waits."""
        ...

    def close(self) -> None:
        """Ask no more."""
        ...


class Pulse:
    """The pulse of one child.

    Args:
        ask: Puts a question; None if it cannot even be put.
        options: How it is asked.
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
        """When `hangs` has something to do, None while the child is not looked after."""
        return self._next_s

    @property
    def silence_s(self) -> float:
        """How long a child is silent that is taken to hang."""
        return self._options.answer_s * self._options.failures_max

    def begin(self, now_s: float) -> None:
        """Look after the child from now on: it was there just now."""
        self.end()
        self._next_s = now_s + self._options.every_s

    def end(self) -> None:
        """Look after it no more."""
        self._drop()
        self._next_s, self._failures = None, 0

    def hangs(self, now_s: float) -> bool:
        """Do what is due, and return whether the child is taken to hang."""
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
        """Count a failure; one that came at once is no reason to ask faster."""
        self._drop()
        self._failures += 1
        self._next_s = now_s + pause_s

    def _drop(self) -> None:
        if self._question is not None:
            self._question.close()
            self._question = None
