"""What is kept of a topic beside its messages: ``topic.json``.

Owns the file's fields, how a damaged one is told, and the copy of the topic's id beside it
(``topic.id``). Does not own when they are written (`store`).
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Self

import orjson

from penstock.broker.names import is_valid_name
from penstock.broker.topics.options import NOTHING_SET, TopicOptions
from penstock.core.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Mapping

FILE_NAME: Final = "topic.json"
ID_FILE_NAME: Final = "topic.id"

_FORMAT: Final = 1
_ID: Final = re.compile(r"[0-9a-z]{1,64}")


@dataclass(frozen=True, slots=True)
class TopicFile:
    """What a topic.json says.

    Attributes:
        partitions: How many stream partitions there are; 0: no topic was made.
        id: Tells the topic from one that was deleted and had its name; empty: it was made by a
            Penstock that gave none.
        paused: Its channels get nothing new.
        deleted: It is gone; its files follow.
        held: Up to where its channels have its messages, by stream partition, while it is paused or
            has no channel; None: they have all.
        channels: Its channels that outlive a restart, and whether each is paused.
        options: What it was told.
    """

    partitions: int
    id: str = ""
    paused: bool = False
    deleted: bool = False
    held: tuple[int, ...] | None = None
    channels: Mapping[str, bool] = field(default_factory=dict)
    options: TopicOptions = field(default_factory=TopicOptions)

    def to_bytes(self, name: str) -> bytes:
        """Return the file's content."""
        document: dict[str, object] = {
            "format": _FORMAT,
            "topic": name,
            "id": self.id,
            "partitions": self.partitions,
            "paused": self.paused,
            "held": None if self.held is None else list(self.held),
            "channels": [
                {"name": channel, "paused": paused}
                for channel, paused in sorted(self.channels.items())
            ],
        }
        if options := self.options.to_mapping():
            document["options"] = options
        if self.deleted:
            document["deleted"] = True
        return (json.dumps(document, indent=2) + "\n").encode()

    @classmethod
    def parse(cls, data: bytes, path: str) -> Self:
        """Read a topic.json; ValueError when it is damaged.

        Raises:
            InvalidRequest: It is of a newer format.
        """
        document = orjson.loads(data)
        if not isinstance(document, dict):
            raise ValueError(f"{path} is not an object")  # noqa: TRY004 - damage, as bad JSON is
        number = document.get("format")
        if isinstance(number, int) and number > _FORMAT:
            raise InvalidRequest(
                f"{path} has format number {number}, this Penstock reads up to {_FORMAT}: "
                "use the Penstock that wrote it, or a newer one"
            )
        partitions = document.get("partitions")
        if number != _FORMAT or not isinstance(partitions, int) or partitions < 1:
            raise ValueError(f"{path} says format {number!r}, partitions {partitions!r}")
        return cls(
            partitions,
            _id(document.get("id", ""), path),
            bool(document.get("paused")),
            bool(document.get("deleted")),
            _held(document.get("held"), partitions, path),
            _channels(document.get("channels", []), path),
            _options(document.get("options", {}), path),
        )


def parse_id(data: bytes) -> str:
    """Return the id that a ``topic.id`` holds, empty when it is damaged."""
    text = data.decode(errors="replace").strip()
    return text if _ID.fullmatch(text) else ""


def _id(value: object, path: str) -> str:
    if not isinstance(value, str) or (value and not _ID.fullmatch(value)):
        raise ValueError(f"{path} says id {value!r}")
    return value


def _held(value: object, partitions: int, path: str) -> tuple[int, ...] | None:
    if value is None:
        return None
    if (
        not isinstance(value, list)
        or len(value) != partitions
        or not all(isinstance(offset, int) and offset >= 0 for offset in value)
    ):
        raise ValueError(f"{path} says held {value!r}")
    return tuple(value)


def _options(value: object, path: str) -> TopicOptions:
    if not isinstance(value, dict):
        raise ValueError(f"{path} says options {value!r}")  # noqa: TRY004 - damage, as bad JSON is
    try:
        return TopicOptions.of(value) if value else NOTHING_SET
    except InvalidRequest as error:
        raise ValueError(f"{path} says options {value!r}") from error


def _channels(value: object, path: str) -> dict[str, bool]:
    if not isinstance(value, list):
        raise ValueError(f"{path} says channels {value!r}")  # noqa: TRY004 - damage, as bad JSON is
    found = {}
    for entry in value:
        name = entry.get("name") if isinstance(entry, dict) else None
        if not isinstance(name, str) or not is_valid_name(name):
            raise ValueError(f"{path} names a channel {entry!r}")
        found[name] = bool(entry.get("paused"))
    return found
