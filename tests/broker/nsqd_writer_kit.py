"""Writes data folders as an nsqd does: files, metadata, topics."""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass, field
from pathlib import Path

TIME_NS = 1_700_000_000 * 10**9


def record(number: int, body: bytes, attempts: int = 0) -> bytes:
    data = struct.pack(">qH", TIME_NS + number, attempts) + b"%016x" % (number + 1) + body
    return struct.pack(">i", len(data)) + data


@dataclass
class NsqdQueue:
    """One queue: `max_bytes` bounds a file, as nsqd's --max-bytes-per-file."""

    folder: Path
    name: str = "t"
    max_bytes: int = 1_000
    read: tuple[int, int] = (0, 0)
    depth: int = 0
    file: int = 0
    position: int = 0
    places: list[tuple[int, int, int]] = field(default_factory=list)  # file, start, end of each

    def path(self, number: int) -> Path:
        return self.folder / f"{self.name}.diskqueue.{number:06}.dat"

    @property
    def metadata(self) -> Path:
        return self.folder / f"{self.name}.diskqueue.meta.dat"

    def put(self, *bodies: bytes) -> None:
        for body in bodies:
            data = record(len(self.places), body)
            if self.position and self.position + len(data) > self.max_bytes:
                self.file, self.position = self.file + 1, 0
            with self.path(self.file).open("ab") as file:
                file.write(data)
            self.places.append((self.file, self.position, self.position + len(data)))
            self.position += len(data)
            self.depth += 1

    def consume(self, count: int) -> None:
        """Hand out records; files that were read to their end are deleted."""
        self.depth -= count
        done = len(self.places) - self.depth
        number, _, end = self.places[done - 1]
        if self.depth and self.places[done][0] != number:
            number, end = self.places[done][:2]
        for old in range(number):
            self.path(old).unlink(missing_ok=True)
        self.read = (number, end)

    def sync(self) -> None:
        self.metadata.write_text(
            f"{self.depth}\n{self.read[0]},{self.read[1]}\n{self.file},{self.position}\n"
        )

    def damage(self, number: int, position: int, data: bytes) -> None:
        with self.path(number).open("r+b") as file:
            file.seek(position)
            file.write(data)

    def cut(self, number: int, size: int) -> None:
        with self.path(number).open("r+b") as file:
            file.truncate(size)


def write_topics(folder: Path, *topics: tuple[str, bool, list[tuple[str, bool]]]) -> None:
    document = {
        "topics": [
            {
                "name": name,
                "paused": paused,
                "channels": [{"name": c, "paused": p} for c, p in channels] or None,
            }
            for name, paused, channels in topics
        ],
        "version": "1.3.0",
    }
    (folder / "nsqd.dat").write_text(json.dumps(document))
