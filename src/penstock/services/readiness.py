"""Readiness: whether a process can work now, checked by trying a small part of its work.

Owns the threads that try, one for each check, and the answer of ``/status/ready``. Liveness is
different (``/status/health``): a process that is alive but not ready must not be restarted, because
it waits for something else.

A check that fails is recorded as a `DependencyWait` with its first failure, the number of tries and
the last error. A check that hangs fails too: its last result counts for `ANSWER_S` only.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, Protocol

from penstock.core.clock import Clock
from penstock.core.errors import Dependency, PenstockError, Unavailable
from penstock.core.metrics import Sample
from penstock.core.threads import DEATHS, OnDeath, OwnedThread
from penstock.core.waits import DependencyWait, WaitTable, merged, wait_samples

logger = logging.getLogger(__name__)

EVERY_S: Final = 5.0
"""Pause between a successful attempt and the next one."""
AGAIN_S: Final = 0.3
"""Pause after a failed attempt before the first readiness; later `EVERY_S`."""
ANSWER_S: Final = 20.0
"""An attempt that takes longer counts as failed until it ends."""
START_S: Final = 180.0
"""Time from the start of a process in which it is starting if it is unready; Spark may take most of
it on a busy host. Later, or once it was ready, it has failed."""
# Time limit at the stop, for all threads together.
_JOIN_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class Check:
    """One part of the work that is tried repeatedly.

    Attributes:
        work: Name of the attempt, for messages.
        dependency: The dependency to blame if the error names none.
        attempt: Makes the attempt; raises `PenstockError` if it fails.
    """

    work: str
    dependency: Dependency
    attempt: Callable[[], object]


class StartListener(Protocol):
    """Receives the progress of a process's start, on any thread."""

    def ready(self) -> None:
        """Every check has succeeded for the first time; repeated if it raises."""
        ...

    def waiting(self, text: str) -> None:
        """A check has not succeeded yet, for this reason."""
        ...


@dataclass(frozen=True, slots=True)
class ReadyState:
    """Whether a process is ready, and the waits of the process and of its work.

    Attributes:
        role: The process's role.
        reasons: Dependencies that the process itself waits for.
        waits: Dependencies that its work waits for, such as its tasks; they do not make it unready.
        pending: Other reasons why it is unready: a thread that ended unexpectedly, a check that was
            not tried yet, or a process that stops.
        is_young: Whether it was never ready, and started less than `START_S` ago.
    """

    role: str
    reasons: tuple[DependencyWait, ...] = ()
    waits: tuple[DependencyWait, ...] = ()
    pending: tuple[str, ...] = ()
    is_young: bool = False

    @property
    def ready(self) -> bool:
        """Return whether the process can work."""
        return not self.texts()

    @property
    def is_starting(self) -> bool:
        """Return whether the process is unready only because it has just started."""
        return self.is_young and not self.ready

    def texts(self) -> list[str]:
        """Return why the process is not ready; empty if it is ready."""
        return [*map(str, self.reasons), *self.pending]

    def to_json(self) -> dict[str, object]:
        """Return the body of ``/status/ready``."""
        return {
            "ready": self.ready,
            "starting": self.is_starting,
            "role": self.role,
            "reasons": self.texts(),
            "waits": [one.to_json() for one in merged([self.reasons, self.waits])],
        }


def resident_bytes() -> int:
    """Return the memory of this process that is in RAM, 0 if unknown."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except (OSError, IndexError, ValueError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


class Readiness:
    """Readiness of one process. Thread-safe.

    The condition's mutex guards the start times of tries and the stop flag, which several threads
    read.

    Args:
        role: The process's role.
        checks: Checks of its parts.
        clock: Time.
        listener: Receives the progress until the first readiness.
        waits: Returns the waits of the process's work.
    """

    def __init__(
        self,
        role: str,
        checks: Sequence[Check],
        clock: Clock,
        listener: StartListener,
        waits: Callable[[], Sequence[DependencyWait]] = tuple,
    ) -> None:
        self._role = role
        self._checks = tuple(checks)
        self._clock = clock
        self._listener = listener
        self._work_waits = waits
        self._failures = WaitTable(clock)
        self._changed = threading.Condition()
        self._stopped = False
        self._was_ready = False
        self._created_s = clock.monotonic_s()
        self._untried = {one.work for one in self._checks}
        self._begun_s: dict[str, float] = {}
        self._threads = [
            OwnedThread(
                f"readiness: {one.work}",
                partial(self._keep_trying, one),
                on_death=OnDeath.RESTART,
            )
            for one in self._checks
        ]

    def start(self) -> None:
        """Start to try."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Stop trying; an attempt that hangs ends with the process."""
        for thread in self._threads:
            thread.expect_end()
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join(_JOIN_S / len(self._threads))

    def state(self) -> ReadyState:
        """Return the current state of the process."""
        waits = tuple(self._work_waits())
        if self._stopped:
            return ReadyState(self._role, (), waits, ("the process stops",))
        return self._state(waits)

    def samples(self) -> list[Sample]:
        """Return the metrics: readiness and waits."""
        state = self.state()
        labels = (("role", self._role),)
        ready = Sample(
            *("penstock_ready", "gauge", "Whether the process can work", labels),
            float(state.ready),
        )
        found = merged([state.reasons, state.waits])
        return [ready, *wait_samples(found, self._clock.now_ms())]

    def _state(self, waits: tuple[DependencyWait, ...]) -> ReadyState:
        now_s = self._clock.monotonic_s()
        with self._changed:
            untried, begun_s = set(self._untried), dict(self._begun_s)
        reasons, pending = list(self._failures.all()), DEATHS.down()
        failed = {one.work for one in reasons}
        for one in self._checks:
            took_s = now_s - begun_s.get(one.work, now_s)
            if one.work in failed:
                continue
            if took_s > ANSWER_S:
                since_ms = self._clock.now_ms() - int(took_s * 1000)
                text = f"no answer for {took_s:.0f} s"
                reasons.append(DependencyWait(one.dependency, one.work, since_ms, 1, text))
            elif one.work in untried:
                pending.append(f"not tried yet: {one.work}")
        is_young = not self._was_ready and now_s - self._created_s <= START_S
        is_young = is_young and not DEATHS.down()
        return ReadyState(self._role, tuple(reasons), waits, tuple(pending), is_young)

    def _keep_trying(self, check: Check) -> None:
        while not self._stopped:
            with self._changed:
                self._begun_s[check.work] = self._clock.monotonic_s()
            self._try(check)
            with self._changed:
                self._begun_s.pop(check.work, None)
            self._report()
            with self._changed:
                if not self._stopped:
                    pause_s = EVERY_S if self._was_ready or self._is_good(check) else AGAIN_S
                    self._clock.wait(self._changed, pause_s)

    def _is_good(self, check: Check) -> bool:
        return self._failures.get(check.work) is None

    def _try(self, check: Check) -> None:
        try:
            check.attempt()
        except PenstockError as error:
            self._failures.failed(check.work, error, dependency=check.dependency)
            return
        # The documented top-level boundary: without this thread, the readiness would never change
        # again.
        except Exception as error:
            logger.exception("the check of readiness %r failed", check.work)
            unforeseen = Unavailable(f"unexpected {error!r}")
            self._failures.failed(check.work, unforeseen, dependency=check.dependency)
            return
        with self._changed:
            self._untried.discard(check.work)
        self._failures.ended(check.work)

    def _report(self) -> None:
        with self._changed:
            if self._was_ready or self._stopped:
                return
            is_ready = not self._untried
        reasons = self._failures.all()
        if reasons or not is_ready:
            self._listener.waiting("; ".join(str(one) for one in reasons) or "not tried yet")
            return
        if self._becomes_ready():
            try:
                self._listener.ready()
            except BaseException:
                with self._changed:
                    self._was_ready = False  # reported after the next try
                raise

    def _becomes_ready(self) -> bool:
        """Record the first readiness; true for only one of concurrent threads."""
        with self._changed:
            is_first, self._was_ready = not self._was_ready, True
        return is_first
