"""A dead letter of a task: a message that could not become a row, and why.

Owns the parsing of the JSON that `spark.topic.bad_files` writes and `indexing.task.dead_letters`
publishes. A dead letter of a channel is the message itself, so it is not parsed here. Pure.

The text of a dead letter is input: every client that may publish to its topic may write one. So the
topic that it names grants nothing, and a caller checks the rights of its user on that topic.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from typing import Final, TypeGuard

import orjson

_MESSAGE: Final = "message_base64"
_LEFT_OUT: Final = "message_left_out_bytes"
_MARKS: Final = (b'"message_base64"', b'"message_left_out_bytes"')
_INT64_MAX: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A dead letter of a task.

    Attributes:
        topic: The topic that the task read.
        partition: Its stream partition.
        offset: The offset of the message there.
        reason: Why the message could not become a row.
        message: The message; None if it was too large for the dead letter.
        left_out_bytes: The size of a message that was left out, about.
    """

    topic: str
    partition: int
    offset: int
    reason: str
    message: bytes | None
    left_out_bytes: int = 0


def parse_dead_letter(body: bytes) -> DeadLetter | None:
    """Return the dead letter of a task, or None if the body is any other message."""
    if not body.startswith(b"{") or not any(mark in body for mark in _MARKS):
        return None
    try:
        found = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(found, dict):
        return None
    topic, reason = found.get("topic"), found.get("reason")
    partition, offset = found.get("partition"), found.get("offset")
    packed, left_out = found.get(_MESSAGE), found.get(_LEFT_OUT, 0)
    if not (isinstance(topic, str) and isinstance(reason, str)):
        return None
    if not (_is_whole(partition) and _is_whole(offset) and _is_whole(left_out)):
        return None
    message = None
    if packed is not None:
        if not isinstance(packed, str):
            return None
        try:
            message = base64.b64decode(packed, validate=True)
        except (binascii.Error, ValueError):
            return None
    return DeadLetter(topic, partition, offset, reason, message, left_out)


def _is_whole(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _INT64_MAX
