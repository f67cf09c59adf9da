"""Waits for children to end, or to write to their pipes, on one thread for all of them.

Owns the thread, a pidfd and the reading end of a pipe for each watched child. It reaps nothing: the
owner of a child reads its exit code. If the kernel has no pidfd, ends are not reported, and owners
must poll. A descriptor that the kernel refuses to watch is closed, and its owner is called once, so
that it polls, too. A call that raises is repeated; when it has raised three times, it is repeated
after other events, and each second.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import selectors
import threading
from collections.abc import Callable
from dataclasses import dataclass

from penstock.core.errors import Unavailable
from penstock.core.threads import OnDeath, OwnedThread

_logger = logging.getLogger(__name__)

_READ_BYTES = 4_096
_CALLS_MAX = 3
_LATER_S = 1.0
_SHORTAGES = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)


@dataclass(frozen=True, slots=True)
class _Watched:
    """One descriptor, and the function to call."""

    fd: int
    notify: Callable[[], None]
    is_pipe: bool


class ChildWatch:
    """Reports ends and messages of children; `watch` is thread-safe.

    Calls are made on the watch's own thread and must not block. Its mutex guards the selector's
    table, which `watch` changes while the thread reads it, and is held for a few lines.
    """

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._mutex = threading.Lock()
        self._wake_reader, self._wake_writer = os.pipe()
        os.set_blocking(self._wake_writer, False)
        self._selector.register(self._wake_reader, selectors.EVENT_READ)
        self._fresh: list[_Watched] = []
        # A call that is due, and that raised if the thread begins again: its event was read.
        self._due: Callable[[], None] | None = None
        self._failed_calls = 0  # how often it raised
        self._postponed: dict[Callable[[], None], None] = {}
        self._stopped = False
        self._thread = OwnedThread("child watch", self._run, on_death=OnDeath.RESTART)

    def start(self) -> None:
        """Start to watch."""
        self._thread.start()

    def stop(self) -> None:
        """Stop watching; no calls are made after this returns."""
        self._thread.expect_end()
        with self._mutex:
            self._stopped = True
        self._wake()
        self._thread.join()
        with contextlib.closing(self._selector):
            for key in list(self._selector.get_map().values()):
                os.close(key.fd)
            for one in self._fresh:
                os.close(one.fd)
        os.close(self._wake_writer)

    def watch(self, pid: int, words: int, notify: Callable[[], None]) -> None:
        """Call a function when a child ends, or writes to its pipe.

        Args:
            pid: A child process whose exit status was not collected yet.
            words: The reading end of the pipe; it is closed here when the child closes its end.
            notify: The function to call.

        Raises:
            Unavailable: No descriptors are left. Nothing is watched, and `words` stays open.
        """
        fresh = [_Watched(words, notify, is_pipe=True)]
        try:
            fresh.append(_Watched(os.pidfd_open(pid), notify, is_pipe=False))
        except AttributeError:  # Python was built without it
            pass
        except OSError as error:
            if error.errno in _SHORTAGES:
                reason = f"process {pid} cannot be watched: {error.strerror}"
                raise Unavailable(reason) from None
            # The kernel has no pidfd, or the process was reaped.
        with self._mutex:
            if self._stopped:
                for one in fresh:
                    os.close(one.fd)
                return
            self._fresh += fresh
        self._wake()

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError, OSError):
            os.write(self._wake_writer, b"\0")

    def _run(self) -> None:
        self._call_due()
        while True:
            ready = self._selector.select(_LATER_S if self._postponed else None)
            self._register_fresh()
            if self._stopped:
                return
            for key, _events in ready:
                if isinstance(key.data, _Watched):
                    self._handle(key.data)
                else:
                    os.read(self._wake_reader, _READ_BYTES)
            self._call_postponed()

    def _register_fresh(self) -> None:
        while True:
            refusal: OSError | None = None
            with self._mutex:
                if self._stopped or not self._fresh:
                    return
                one = self._fresh[0]
                try:
                    self._selector.register(one.fd, selectors.EVENT_READ, one)
                except OSError as error:  # such as ENOSPC: the kernel's limit of watches
                    refusal = error
                # After any other error the thread restarts its loop and tries again.
                del self._fresh[0]
            if refusal is not None:
                os.close(one.fd)
                _logger.warning(
                    "a child's %s cannot be watched (%s): its owner must poll",
                    "pipe" if one.is_pipe else "end",
                    refusal.strerror,
                )
                self._due = one.notify
                self._call_due()

    def _handle(self, one: _Watched) -> None:
        has_message = one.is_pipe and bool(os.read(one.fd, _READ_BYTES))
        if has_message or not one.is_pipe:
            self._due = one.notify
        if not has_message:
            self._selector.unregister(one.fd)
            os.close(one.fd)
        self._call_due()

    def _call_due(self) -> None:
        if self._due is not None and not self._stopped:
            try:
                self._due()
            except Exception:
                self._failed_calls += 1
                if self._failed_calls < _CALLS_MAX:
                    raise  # the thread begins again with this call
                # Otherwise the other children would not be watched any longer.
                self._postponed[self._due] = None
                _logger.exception("an event of a child cannot be reported: it is tried again")
        self._due, self._failed_calls = None, 0

    def _call_postponed(self) -> None:
        for notify in tuple(self._postponed):
            if self._stopped:
                return
            with contextlib.suppress(Exception):  # logged before; the next try is within a second
                notify()
                del self._postponed[notify]
