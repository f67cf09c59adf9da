"""Protocol with one nsqlookupd: the topics and channels registered there, and the next commands.

Owns the commands of NSQ's V1 protocol, their order and the parsing of answers. Does not own the
connection, when to connect (`announcer`) nor the topics, whose state it reads when it sends a
command: a topic that appears and disappears in between is never registered.

Invariants: pure; a new connection begins with ``IDENTIFY`` and registers everything; the number of
unanswered commands is bounded, so that neither side buffers many; answers arrive in order.

    closed --opened--> identifying --answer--> telling <--changed-- (any topic)
    any --closed--> closed, and no command is sent
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from typing import TYPE_CHECKING, Final, Protocol

import orjson

from penstock.core.errors import InvalidRequest, Unavailable

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

_MAGIC: Final = b"  V1"
_PING: Final = b"PING\n"
_OK: Final = b"OK"
_WINDOW: Final = 500
_ANSWER_BYTES_MAX: Final = 65_536
_SIZE: Final = struct.Struct(">i")


class RegisteredTopics(Protocol):
    """The topics to register."""

    def names(self) -> Iterable[str]:
        """Return the names of the topics."""
        ...

    def channels(self, topic: str) -> Collection[str] | None:
        """Return a topic's channels, or None if the topic does not exist."""
        ...


class Registration:
    """Registers the topics of this broker at one nsqlookupd.

    Args:
        identity: JSON that describes this broker.
        directory: Its topics.
        ping_interval_s: Maximum time between two commands; a PING fills the gap.
        timeout_s: Longest wait for an answer.
    """

    def __init__(
        self, identity: bytes, directory: RegisteredTopics, ping_interval_s: float, timeout_s: float
    ) -> None:
        self.http_address: str | None = None
        self._identity = identity
        self._directory = directory
        self._ping_interval_s = ping_interval_s
        self._timeout_s = timeout_s
        self._is_open = False
        self._identified = False
        self._told: dict[str, frozenset[str]] = {}
        self._changed: OrderedDict[str, None] = OrderedDict()  # the first goes out first
        self._output: list[bytes] = []
        self._unanswered = 0
        self._buffer = b""
        self._sent_s = 0.0
        self._heard_s = 0.0

    @property
    def identified(self) -> bool:
        """Whether the other side accepted this broker's identity."""
        return self._identified

    def opened(self, now_s: float) -> None:
        """Begin a connection, on which nothing is registered yet."""
        self.closed()
        self._is_open = True
        self._heard_s = now_s
        body = _SIZE.pack(len(self._identity)) + self._identity
        self._output = [_MAGIC, b"IDENTIFY\n", body]
        self._unanswered = 1
        self._changed.update((name, None) for name in self._directory.names())

    def closed(self) -> None:
        """End a connection; the other side drops all registrations."""
        self._is_open = self._identified = False
        self._told.clear()
        self._changed.clear()
        self._output.clear()
        self._unanswered = 0
        self._buffer = b""

    def changed(self, topic: str) -> None:
        """Record that a topic or one of its channels was created or deleted."""
        if self._is_open:
            self._changed[topic] = None

    def take_output(self, now_s: float) -> bytes:
        """Return the bytes to send now."""
        if self._identified:
            while self._changed and self._unanswered < _WINDOW:
                topic, _ = self._changed.popitem(last=False)
                self._send_changes(topic)
            if not self._output and now_s - self._sent_s >= self._ping_interval_s:
                self._send(_PING)
        if not self._output:
            return b""
        if self._unanswered == len(self._output):
            self._heard_s = now_s  # no earlier answer was pending
        self._sent_s = now_s
        output = b"".join(self._output)
        self._output.clear()
        return output

    def receive_data(self, data: bytes, now_s: float) -> None:
        """Process received bytes.

        Raises:
            InvalidRequest: The other side refuses a command, or is not an nsqlookupd.
        """
        self._heard_s = now_s
        self._buffer += data
        while len(self._buffer) >= _SIZE.size:
            size: int = _SIZE.unpack_from(self._buffer)[0]
            if not 0 <= size <= _ANSWER_BYTES_MAX:
                raise InvalidRequest(f"an answer of {size} bytes: this is not an nsqlookupd")
            end = _SIZE.size + size
            if len(self._buffer) < end:
                return
            answer, self._buffer = self._buffer[_SIZE.size : end], self._buffer[end:]
            self._take_answer(answer)

    def next_check_s(self, now_s: float) -> float:
        """Return the seconds until there may be something to send or an answer times out."""
        if self._unanswered:
            return max(0.0, self._heard_s + self._timeout_s - now_s)
        return max(0.0, self._sent_s + self._ping_interval_s - now_s)

    def require_answers(self, now_s: float) -> None:
        """Check that answers arrive in time.

        Raises:
            Unavailable: An answer is overdue.
        """
        if self._unanswered and now_s - self._heard_s >= self._timeout_s:
            raise Unavailable(f"no answer within {self._timeout_s:g} s")

    def _send_changes(self, topic: str) -> None:
        told = self._told.get(topic)
        channels = self._directory.channels(topic)
        name = topic.encode()
        if channels is None:
            if told is not None:
                del self._told[topic]
                self._send(b"UNREGISTER %s\n" % name)
            return
        wanted = frozenset(channels)
        self._told[topic] = wanted
        if told is None and not wanted:
            self._send(b"REGISTER %s\n" % name)
        for channel in sorted(wanted - (told or frozenset())):
            self._send(b"REGISTER %s %s\n" % (name, channel.encode()))
        for channel in sorted((told or frozenset()) - wanted):
            self._send(b"UNREGISTER %s %s\n" % (name, channel.encode()))

    def _send(self, command: bytes) -> None:
        self._output.append(command)
        self._unanswered += 1

    def _take_answer(self, answer: bytes) -> None:
        if not self._unanswered:
            raise InvalidRequest("unexpected answer: this is not an nsqlookupd")
        self._unanswered -= 1
        if self._identified:
            if answer != _OK:
                raise InvalidRequest(f"refused: {answer[:100]!r}")
            return
        try:
            document = orjson.loads(answer)
        except orjson.JSONDecodeError:
            raise InvalidRequest(f"IDENTIFY was refused: {answer[:100]!r}") from None
        if not isinstance(document, dict):
            raise InvalidRequest("the answer to IDENTIFY is not a JSON object")
        self._identified = True
        host, port = document.get("broadcast_address"), document.get("http_port")
        if isinstance(host, str) and host and isinstance(port, int):
            self.http_address = _address(host, port)


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
