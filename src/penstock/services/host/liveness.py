"""Liveness check of a child process: periodic probes that must be answered.

`LivenessCheck` owns the rule and the state of one child's probes. The caller sends the probe,
ends a child that hangs, and passes in the time. `greet` probes an HTTP/2 server such as Spark
Connect: the client sends the connection preface and its settings, and the server responds with
its own settings (RFC 9113, 3.4 and 6.5). This needs no token and costs the server almost
nothing; a stopped process, or one in a long garbage collection, does not respond although its
kernel still accepts connections.

Invariants: one probe is in progress at a time. Only probes that were sent and waited for count. So
a child does not appear hung after the machine slept, while this process was stopped, or if this
process lacks descriptors for a probe, which is then sent later. One response resets all earlier
failures.
"""

from __future__ import annotations

import errno
import logging
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from penstock.core.clock import Clock
from penstock.core.errors import Unavailable
from penstock.core.rate_limited_log import RateLimitedLog

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LivenessOptions:
    """Intervals of questions. A full garbage collection may silence a JVM for many seconds.

    Attributes:
        every_s: Pause between an answer and the next question.
        answer_s: Time limit of an answer.
        check_s: Interval of checks for an answer.
        failures_max: Number of consecutive failures after which the child counts as hung.
    """

    every_s: float = 10.0
    answer_s: float = 10.0
    check_s: float = 1.0
    failures_max: int = 6


class LivenessQuestion(Protocol):
    """One question that is in progress."""

    def answered(self) -> bool | None:
        """Return whether an answer arrived; None while it may still arrive. Never waits."""
        ...

    def close(self) -> None:
        """Abandon the question."""
        ...


class LivenessCheck:
    """Liveness of one child.

    Args:
        send_question: Sends a question; returns None if the child does not accept it. Raises
            Unavailable if this process cannot send any, although the child may be alive.
        clock: Limits the rate of warnings.
        options: Intervals and limits.
    """

    def __init__(
        self,
        send_question: Callable[[], LivenessQuestion | None],
        clock: Clock,
        options: LivenessOptions | None = None,
    ) -> None:
        self._send_question = send_question
        self._options = options or LivenessOptions()
        self._failure_log = RateLimitedLog(_logger, clock)
        self._question: LivenessQuestion | None = None
        self._sent_s = 0.0
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
        """Send or judge a probe if it is due; return whether the child counts as hung."""
        if self._next_s is None or now_s < self._next_s:
            return False
        if self._question is None:
            self._put(now_s)
        else:
            self._check_answer(now_s)
        return self._failures >= self._options.failures_max

    def _put(self, now_s: float) -> None:
        try:
            self._question = self._send_question()
        except Unavailable as error:
            self._failure_log.warning("a liveness check is postponed: %s", error)
            self._next_s = now_s + self._options.every_s
            return
        self._sent_s = now_s
        if self._question is None:
            self._fail(now_s, self._options.answer_s)
        else:
            self._next_s = now_s + self._options.check_s

    def _check_answer(self, now_s: float) -> None:
        assert self._question is not None
        answered = self._question.answered()
        if answered:
            self._drop()
            self._failures, self._next_s = 0, now_s + self._options.every_s
        elif answered is not None:
            self._fail(now_s, self._options.answer_s)
        elif now_s - self._sent_s >= self._options.answer_s:
            self._fail(now_s, 0.0)
        else:
            self._next_s = now_s + self._options.check_s

    def _fail(self, now_s: float, pause_s: float) -> None:
        """Count a failure; an immediate failure does not shorten the interval."""
        self._drop()
        self._failures += 1
        self._next_s = now_s + pause_s

    def _drop(self) -> None:
        if self._question is not None:
            self._question.close()
            self._question = None


_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_SETTINGS: Final = 4
# Length 0, type, no flags, stream 0.
_NO_SETTINGS: Final = b"\x00\x00\x00" + bytes([_SETTINGS]) + b"\x00" + b"\x00\x00\x00\x00"
_HEADER_BYTES: Final = 9
_TYPE_AT: Final = 3
_CONNECT_S: Final = 0.1


class Greeting:
    """A greeting in progress; a `LivenessQuestion`."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._heard = b""

    def answered(self) -> bool | None:
        """Return whether settings arrived; False if something else did or nothing can arrive."""
        try:
            heard = self._socket.recv(_HEADER_BYTES - len(self._heard))
        except BlockingIOError:
            return None
        except OSError:
            return False
        self._heard += heard
        if not heard:
            return False
        if len(self._heard) < _HEADER_BYTES:
            return None
        return self._heard[_TYPE_AT] == _SETTINGS

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()


_FREE_MEMORY: Final = "free memory of the host"
# Errors of this process or of the machine, not of the server that is greeted, and their remedies.
_SHORTAGES: Final[Mapping[int, str]] = {
    errno.EMFILE: "raise this process's limit of open files (ulimit -n)",
    errno.ENFILE: "close other programs, or raise the host's limit of open files (fs.file-max)",
    errno.ENOBUFS: _FREE_MEMORY,
    errno.ENOMEM: _FREE_MEMORY,
    errno.EADDRNOTAVAIL: (
        "close connections of other programs, or widen the range of local ports"
        " (net.ipv4.ip_local_port_range)"
    ),
}


def greet(port: int) -> Greeting | None:
    """Greet the server at a port of this host; return None if it accepts no connection.

    Raises:
        Unavailable: This process or the machine lacks descriptors, ports or memory for it.
    """
    try:
        connected = socket.socket()
    except OSError as error:
        raise _shortage(port, error) from None
    try:
        connected.settimeout(_CONNECT_S)
        connected.connect(("127.0.0.1", port))
        connected.sendall(_PREFACE + _NO_SETTINGS)
        connected.settimeout(0.0)
    except BaseException as error:
        connected.close()
        if not isinstance(error, OSError):
            raise
        if error.errno in _SHORTAGES:
            raise _shortage(port, error) from None
        return None
    return Greeting(connected)


def _shortage(port: int, error: OSError) -> Unavailable:
    remedy = _SHORTAGES.get(error.errno or 0)
    text = f"port {port} cannot be probed: {error.strerror}"
    return Unavailable(f"{text}; {remedy}" if remedy else text)
