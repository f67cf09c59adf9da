"""A load generator for NSQ's TCP protocol that is fast enough not to be what is measured.

It prepares its bytes beforehand, looks at whole reads at once, and knows only messages of one size.
"""

from __future__ import annotations

import socket
import struct
import time
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from multiprocessing.sharedctypes import Synchronized

OK_BYTES = 10
_FRAME_HEAD_BYTES = 8 + 8 + 2


def connect(port: int) -> socket.socket:
    """Return a connection that has said which protocol it speaks."""
    connection = socket.create_connection(("127.0.0.1", port))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.sendall(b"  V2")
    return connection


def pub(topic: str, body: bytes) -> bytes:
    """Return a PUB."""
    return b"PUB %s\n" % topic.encode() + struct.pack(">i", len(body)) + body


def mpub(topic: str, body: bytes, count: int) -> bytes:
    """Return an MPUB of `count` equal messages."""
    batch = struct.pack(">i", count) + (struct.pack(">i", len(body)) + body) * count
    return b"MPUB %s\n" % topic.encode() + struct.pack(">i", len(batch)) + batch


def take(connection: socket.socket, count: int) -> None:
    """Read so many bytes."""
    while count:
        got = len(connection.recv(min(count, 1 << 20)))
        if not got:
            raise ConnectionError("the server closed the connection")
        count -= got


def identify_durable(connection: socket.socket) -> None:
    """Ask for answers that mean: fsynced."""
    body = b'{"durable": true}'
    connection.sendall(b"IDENTIFY\n" + struct.pack(">i", len(body)) + body)
    take(connection, OK_BYTES)


def publish(
    port: int, sent: bytes, answers: int, under_way: int, seconds: float, *, durable: bool = False
) -> int:
    """Send the bytes again and again, some of them unanswered; return how often."""
    connection = connect(port)
    if durable:
        identify_durable(connection)
    for _ in range(under_way):
        connection.sendall(sent)
    count = under_way
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        take(connection, answers * OK_BYTES)
        connection.sendall(sent)
        count += 1
    take(connection, answers * OK_BYTES * under_way)
    connection.close()
    return count


def consume(
    port: int, topic: str, channel: str, body_bytes: int, total: int, done: Synchronized[int]
) -> None:
    """Take and finish messages until all consumers together have `total`."""
    frame = np.dtype([("head", f"V{_FRAME_HEAD_BYTES}"), ("id", "S16"), ("body", f"V{body_bytes}")])
    answer = np.dtype([("name", "S4"), ("id", "S16"), ("end", "S1")])
    connection = connect(port)
    connection.sendall(b"SUB %s %s\nRDY 2500\n" % (topic.encode(), channel.encode()))
    take(connection, OK_BYTES)
    connection.settimeout(0.1)
    rest = b""
    while done.value < total:
        try:
            rest += connection.recv(1 << 20)
        except TimeoutError:
            continue
        count = len(rest) // frame.itemsize
        if not count:
            continue
        finished = np.empty(count, answer)
        finished["name"], finished["end"] = b"FIN ", b"\n"
        finished["id"] = np.frombuffer(rest, frame, count)["id"]
        rest = rest[count * frame.itemsize :]
        connection.sendall(finished.tobytes())
        with done.get_lock():
            done.value += count
    connection.close()
