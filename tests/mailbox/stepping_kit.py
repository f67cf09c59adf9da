"""Run two threads in a chosen order, switching between them at chosen bytecodes.

A thread runs one operation under a tracer. It stops before each bytecode of the traced modules that
can touch state which another thread sees, once it has used up the steps it was given. A bytecode
that only moves local values commutes with everything, so no cut is lost by leaving it out.
"""

from __future__ import annotations

import dis
import sys
import threading
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType, FrameType

    from _typeshed import TraceFunction

_LOCAL = """
CACHE CHECK_EXC_MATCH COPY EXTENDED_ARG JUMP_BACKWARD JUMP_FORWARD KW_NAMES LOAD_CONST LOAD_DEREF
LOAD_FAST LOAD_FAST_AND_CLEAR LOAD_FAST_LOAD_FAST LOAD_GLOBAL MAKE_FUNCTION NOP POP_EXCEPT POP_TOP
PRECALL PUSH_EXC_INFO PUSH_NULL RERAISE RESUME RETURN_CONST RETURN_VALUE STORE_FAST
STORE_FAST_LOAD_FAST STORE_FAST_STORE_FAST SWAP
"""


@lru_cache
def _shared_places(code: CodeType) -> frozenset[int]:
    local = _LOCAL.split()
    return frozenset(one.offset for one in dis.get_instructions(code) if one.opname not in local)


class SteppedThread:
    """A thread that runs an operation for as many steps as it is given.

    Args:
        operation: Runs under the tracer. Its exception is kept in `error`.
        files: Of the modules whose bytecodes are steps.
        prepare: Runs on the thread before the first step.
    """

    def __init__(
        self,
        operation: Callable[[], object],
        files: frozenset[str],
        prepare: Callable[[], object] = lambda: None,
    ) -> None:
        self.done = False
        self.error: BaseException | None = None
        self._operation, self._files, self._prepare = operation, files, prepare
        self._left = 0
        self._to_end = False
        # Plain locks, each released by the other thread: a semaphore takes ten times as long.
        self._go = threading.Lock()
        self._go.acquire()
        self._stopped = threading.Lock()
        self._stopped.acquire()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        assert self._stopped.acquire(timeout=30)

    def step(self, steps: int) -> bool:
        """Run some steps, fewer if it ends or waits for a mutex; return whether it ended."""
        self._left = steps
        return self._resume()

    def to_end(self) -> bool:
        """Run on until it ends or waits for a mutex; return whether it ended."""
        self._to_end = True
        return self._resume()

    def pause(self) -> None:
        """Give the turn back; called on the thread itself."""
        self._stopped.release()
        self._go.acquire()

    def _resume(self) -> bool:
        if not self.done:
            self._go.release()
            assert self._stopped.acquire(timeout=30)
            self._join_if_done()
        return self.done

    def _join_if_done(self) -> None:
        if self.done:
            self._thread.join(30)

    def _run(self) -> None:
        _current.thread = self
        self._prepare()
        self.pause()
        sys.settrace(self._trace)
        try:
            self._operation()
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            self.error = error
        finally:
            sys.settrace(None)
            self.done = True
            self._stopped.release()

    def _trace(self, frame: FrameType, event: str, arg: object) -> TraceFunction | None:
        if frame.f_code.co_filename not in self._files:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode" and frame.f_lasti in _shared_places(frame.f_code):
            while not (self._to_end or self._left):
                self.pause()
            self._left -= 1
        return self._trace


class _Current(threading.local):
    thread: SteppedThread | None = None


_current = _Current()


class SteppedMutex:
    """A re-entrant mutex at which a stepped thread gives its turn back instead of blocking."""

    def __init__(self) -> None:
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        while not self._lock.acquire(blocking=False):
            thread = _current.thread
            assert thread is not None
            thread.pause()

    def __exit__(self, *error: object) -> None:
        self._lock.release()
