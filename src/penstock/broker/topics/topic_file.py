"""The persistent settings of a topic: ``topic.json``.

Owns the file's fields, how damage is detected, and the copy of the topic's id in ``topic.id``. Does
not own when they are written (`topic_files`).
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Self

import orjson

from penstock.broker.topic_names import is_valid_name
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
    """Contents of a topic.json.

    Attributes:
        partitions: Number of stream partitions; 0 if the topic was not created.
        id: Distinguishes the topic from a deleted topic with the same name; empty if a release
            without ids created it.
        paused: Its channels get no new messages.
        deleted: The topic is deleted; its files are being removed.
        held: By stream partition, the offset up to which channels received messages while the
            topic is paused or has no channel; None if they received all.
        channels: Its persistent channels, and whether each is paused.
        options: Its options.
    """

    partitions: int
    id: str = ""
    paused: bool = False
    deleted: bool = False
    held: tuple[int, ...] | None = None
    channels: Mapping[str, bool] = field(default_factory=dict)
    options: TopicOptions = field(default_factory=TopicOptions)

    def to_bytes(self, name: str) -> bytes:
        """Return the contents of the file."""
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
        """Parse a topic.json.

        Raises:
            ValueError: It is damaged.
            InvalidRequest: It has a newer format.
        """
        document = orjson.loads(data)
        if not isinstance(document, dict):
            raise ValueError(f"{path} is not a JSON object")  # noqa: TRY004 - damaged JSON
        number = document.get("format")
        if isinstance(number, int) and number > _FORMAT:
            raise InvalidRequest(
                f"{path} has format number {number}, but this release reads up to {_FORMAT}: "
                "use the release that wrote the file, or a newer one"
            )
        partitions = document.get("partitions")
        if number != _FORMAT or not isinstance(partitions, int) or partitions < 1:
            raise ValueError(
                f"{path} has format {number!r} (expected {_FORMAT}), or an invalid number of "
                f"partitions {partitions!r} (expected 1 or more)"
            )
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
    """Return the id in a ``topic.id``, or an empty text if it is damaged."""
    text = data.decode(errors="replace").strip()
    return text if _ID.fullmatch(text) else ""


def _id(value: object, path: str) -> str:
    if not isinstance(value, str) or (value and not _ID.fullmatch(value)):
        raise ValueError(f"{path} has an invalid id {value!r}")
    return value


def _held(value: object, partitions: int, path: str) -> tuple[int, ...] | None:
    if value is None:
        return None
    if (
        not isinstance(value, list)
        or len(value) != partitions
        or not all(isinstance(offset, int) and offset >= 0 for offset in value)
    ):
        raise ValueError(f"{path} has an invalid value of held: {value!r}")
    return tuple(value)


def _options(value: object, path: str) -> TopicOptions:
    if not isinstance(value, dict):
        raise ValueError(f"{path} has invalid options {value!r}")  # noqa: TRY004 - damaged JSON
    try:
        return TopicOptions.of(value) if value else NOTHING_SET
    except InvalidRequest as error:
        raise ValueError(f"{path} has invalid options {value!r}") from error


def _channels(value: object, path: str) -> dict[str, bool]:
    if not isinstance(value, list):
        raise ValueError(f"{path} has invalid channels {value!r}")  # noqa: TRY004 - damaged JSON
    found = {}
    for entry in value:
        name = entry.get("name") if isinstance(entry, dict) else None
        if not isinstance(name, str) or not is_valid_name(name):
            raise ValueError(f"{path} has an invalid channel {entry!r}")
        found[name] = bool(entry.get("paused"))
    return found
