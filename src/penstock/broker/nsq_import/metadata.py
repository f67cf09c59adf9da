"""Metadata of an nsqd: file names, read positions, topics. Pure.

NAME.diskqueue.NNNNNN.dat      records; NAME is TOPIC or TOPIC:CHANNEL (TOPIC;CHANNEL on Windows)
NAME.diskqueue.NNNNNN.dat.bad  records that nsqd could not read
NAME.diskqueue.meta.dat        depth, then read and write position, one per line
nsqd.dat                       topics, channels, and their pause flags
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

_DATA_FILE: Final = re.compile(r"(?P<name>.+)\.diskqueue\.(?P<number>\d{6,18})\.dat(?P<bad>\.bad)?")
_META_FILE: Final = re.compile(r"(?P<name>.+)\.diskqueue\.meta\.dat")
_METADATA: Final = re.compile(rb"(-?\d{1,18})\n(\d{1,18}),(\d{1,18})\n(\d{1,18}),(\d{1,18})\n")
_SEPARATORS: Final = re.compile(r"[:;]")


@dataclass(frozen=True, slots=True, order=True)
class QueueName:
    """Name of a queue: of a topic, for messages that no channel has, or of a channel."""

    topic: str
    channel: str = ""

    @classmethod
    def parse(cls, text: str) -> QueueName:
        """Parse the first part of a file's name."""
        topic, *channel = _SEPARATORS.split(text, maxsplit=1)
        return cls(topic, *channel)

    def __str__(self) -> str:
        return f"{self.topic}:{self.channel}" if self.channel else self.topic


@dataclass(frozen=True, slots=True, order=True)
class NsqdDataFile:
    """A data file: its number in its queue, and its name in the folder."""

    number: int
    is_good: bool  # a file renamed to .bad sorts before the one that took its number
    name: str


@dataclass(frozen=True, slots=True)
class QueueMetadata:
    """Read and write positions of a queue when nsqd last saved them."""

    depth: int
    read_file: int
    read_position: int
    write_file: int
    write_position: int


@dataclass(frozen=True, slots=True)
class NsqdChannel:
    """A channel."""

    name: str
    is_paused: bool = False


@dataclass(frozen=True, slots=True)
class NsqdTopic:
    """A topic and its channels."""

    name: str
    is_paused: bool = False
    channels: tuple[NsqdChannel, ...] = ()


def parse_data_file_name(name: str) -> tuple[QueueName, NsqdDataFile] | None:
    """Parse a file's name; return None if it is not that of a data file."""
    match = _DATA_FILE.fullmatch(name)
    if match is None:
        return None
    file = NsqdDataFile(int(match["number"]), match["bad"] is None, name)
    return QueueName.parse(match["name"]), file


def parse_metadata_file_name(name: str) -> QueueName | None:
    """Return the queue of a metadata file's name; None if it is not one."""
    match = _META_FILE.fullmatch(name)
    return None if match is None else QueueName.parse(match["name"])


def parse_metadata(raw: bytes) -> QueueMetadata | None:
    """Parse a queue's metadata; return None if it is truncated or damaged."""
    match = _METADATA.fullmatch(raw)
    return None if match is None else QueueMetadata(*map(int, match.groups()))


def parse_topics(raw: bytes) -> list[NsqdTopic] | None:
    """Return the topics in ``nsqd.dat``; None if it is truncated or damaged."""
    try:
        document = json.loads(raw)
        return [_topic(entry) for entry in document["topics"] or ()]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def _topic(entry: Mapping[str, object]) -> NsqdTopic:
    channels = entry.get("channels") or ()
    if not isinstance(channels, list | tuple):
        raise TypeError("channels")
    found = tuple(NsqdChannel(_name(c), c.get("paused") is True) for c in channels)
    return NsqdTopic(_name(entry), entry.get("paused") is True, found)


def _name(entry: Mapping[str, object]) -> str:
    name = entry["name"]
    if not isinstance(name, str):
        raise TypeError("name")
    return name
