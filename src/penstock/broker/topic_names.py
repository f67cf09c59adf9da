"""Names of topics and channels: NSQ's rules, checked before a name becomes a path.

Owns the rules. Two names that NSQ allows are refused: ``.`` and ``..`` are folders.

Characters outside the alphabet, such as ``~``, are free for the broker's own entries in the folder
of the topics.
"""

from __future__ import annotations

import re
from typing import Final

from penstock.core.errors import InvalidRequest
from penstock.core.printable import quoted

NAME_BYTES_MAX: Final = 64
EPHEMERAL_SUFFIX: Final = "#ephemeral"

_NAME: Final = re.compile(r"[.a-zA-Z0-9_-]+(?:#ephemeral)?", re.ASCII)
_FOLDERS: Final = frozenset({".", "..", ".#ephemeral", "..#ephemeral"})


def is_valid_name(name: str) -> bool:
    """Return whether ``name`` is a valid name of a topic or a channel."""
    return len(name) <= NAME_BYTES_MAX and bool(_NAME.fullmatch(name)) and name not in _FOLDERS


def is_ephemeral(name: str) -> bool:
    """Return whether the topic or channel of this name exists only in memory."""
    return name.endswith(EPHEMERAL_SUFFIX)


def require_name(name: str, what: str = "topic") -> str:
    """Return ``name`` if it is valid.

    Args:
        name: The name from outside.
        what: The kind of name, for the message.

    Raises:
        InvalidRequest: The name breaks a rule.
    """
    if text := name_mistake(name, what):
        raise InvalidRequest(text, place=what)
    return name


def name_mistake(name: str, what: str = "topic", *, may_be_ephemeral: bool = True) -> str:
    """Return the mistake in a name and the remedy, or empty text.

    Args:
        name: The name from outside.
        what: The kind of name.
        may_be_ephemeral: Whether the topic or channel may exist only in memory.
    """
    if is_valid_name(name) and (may_be_ephemeral or not is_ephemeral(name)):
        return ""
    return mistake_text(name, what, NAME_BYTES_MAX) + (
        f", and '{EPHEMERAL_SUFFIX}' at the end to keep it only in memory"
        if may_be_ephemeral
        else ""
    )


def mistake_text(name: str, what: str, bytes_max: int) -> str:
    """Return the text about a name that breaks a rule with the alphabet of NSQ and Kafka."""
    return (
        f"{quoted(name)} is not a valid {what} name: use 1 to {bytes_max} of the characters "
        "a-z A-Z 0-9 . _ - (but not '.' or '..')"
    )
