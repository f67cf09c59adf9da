"""A bare client of NSQ's TCP protocol: it sends bytes and takes frames, and knows no more."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
from typing import NamedTuple, Self


class Frame(NamedTuple):
    """A frame: its type (0 response, 1 error, 2 message) and data."""

    kind: int
    data: bytes


class Message(NamedTuple):
    """A message frame's content."""

    time_ns: int
    attempts: int
    id: bytes
    body: bytes


class V2:
    """A connection."""

    def __init__(self, port: int, *, timeout_s: float = 120.0, magic: bytes = b"  V2") -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout_s)
        self.socket.sendall(magic)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.socket.close()

    def send(self, *parts: bytes) -> None:
        self.socket.sendall(b"".join(parts))

    def try_send(self, *parts: bytes) -> bool:
        """Send, unless the server has closed the connection."""
        try:
            self.send(*parts)
        except OSError:
            return False
        return True

    def end(self) -> None:
        """Send no more; what the server sends can still be taken."""
        with contextlib.suppress(OSError):  # it was closed by the other side
            self.socket.shutdown(socket.SHUT_WR)

    def frame(self) -> Frame | None:
        """Take the next frame; None when the connection was closed."""
        head = self._exactly(8)
        if len(head) < 8:
            return None
        size, kind = struct.unpack(">ii", head)
        return Frame(kind, self._exactly(size - 4))

    def _exactly(self, count: int) -> bytes:
        """Read so many bytes and no more: what follows may be compressed."""
        data = b""
        while len(data) < count and (piece := self.socket.recv(count - len(data))):
            data += piece
        return data

    def answer(self) -> bytes:
        """Take the next response, which is no heartbeat."""
        frame = self.frame()
        while frame == Frame(0, b"_heartbeat_"):
            frame = self.frame()
        assert frame is not None, "closed"
        assert frame.kind == 0, frame
        return frame.data

    def error(self) -> str:
        """Take the next frame, an error."""
        frame = self.frame()
        assert frame is not None, "closed"
        assert frame.kind == 1, frame
        return frame.data.decode()

    def message(self) -> Message:
        """Take the next message."""
        frame = self.frame()
        while frame == Frame(0, b"_heartbeat_"):
            frame = self.frame()
        assert frame is not None, "closed"
        assert frame.kind == 2, frame
        time_ns, attempts = struct.unpack(">qH", frame.data[:10])
        return Message(time_ns, attempts, frame.data[10:26], frame.data[26:])

    def closed(self) -> bool:
        """Say whether the server closes the connection now."""
        try:
            return self.socket.recv(1) == b""
        except ConnectionResetError:
            return True

    def piece(self) -> bytes:
        """Take some of what was sent, as it is; what was read ahead comes first."""
        return self.socket.recv(65536)

    # -- commands

    def ask(self, *parts: bytes) -> bytes:
        self.send(*parts)
        return self.answer()

    def identify(self, **fields: object) -> bytes:
        body = json.dumps(fields).encode()
        return self.ask(b"IDENTIFY\n", sized(body))

    def publish(self, topic: str, *bodies: bytes) -> None:
        for body in bodies:
            assert self.ask(f"PUB {topic}\n".encode(), sized(body)) == b"OK"

    def subscribe(self, topic: str, channel: str, ready: int = 1) -> Self:
        assert self.ask(f"SUB {topic} {channel}\n".encode()) == b"OK"
        if ready:
            self.ready(ready)
        return self

    def ready(self, count: int) -> None:
        self.send(b"RDY %d\n" % count)

    def finish(self, *ids: bytes) -> None:
        self.send(*(b"FIN %s\n" % number for number in ids))


def sized(body: bytes) -> bytes:
    """Return a body with its length before it."""
    return struct.pack(">i", len(body)) + body


def batch(*bodies: bytes) -> bytes:
    """Return the body of an MPUB."""
    return sized(struct.pack(">i", len(bodies)) + b"".join(map(sized, bodies)))
