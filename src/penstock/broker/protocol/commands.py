"""The commands of NSQ's V2 protocol, and what refuses one.

Owns the vocabulary between the parser and the connection, no behaviour.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa


class Refused(Exception):
    """A command is refused, and its connection ends with NSQ's code and text.

    Args:
        code: NSQ's.
        text: What is wrong.
        name: Which command it is, where that is known.
    """

    def __init__(self, code: str, text: str, name: str = "") -> None:
        super().__init__(f"{code} {text}")
        self.code = code
        self.text = text
        self.name = name


@dataclass(frozen=True, slots=True)
class Identify:
    """``IDENTIFY``: the client says what it is and wants."""

    body: bytes


@dataclass(frozen=True, slots=True)
class Authenticate:
    """``AUTH``."""

    secret: bytes


@dataclass(frozen=True, slots=True)
class Subscribe:
    """``SUB``."""

    topic: str
    channel: str


@dataclass(frozen=True, slots=True)
class Ready:
    """``RDY``."""

    count: int


@dataclass(frozen=True, slots=True)
class Finish:
    """One or more ``FIN`` in a row."""

    ids: npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Requeue:
    """``REQ``."""

    id: int
    delay_ms: int


@dataclass(frozen=True, slots=True)
class Touch:
    """``TOUCH``."""

    id: int


@dataclass(frozen=True, slots=True)
class Stray:
    """``FIN``, ``REQ`` or ``TOUCH`` of 16 bytes that are the id of no message.

    It fails as it does for a message that is not in flight, and the connection goes on.
    """

    name: str
    id: str


@dataclass(frozen=True, slots=True)
class StartClose:
    """``CLS``."""


@dataclass(frozen=True, slots=True)
class Nop:
    """``NOP``."""


@dataclass(frozen=True, slots=True)
class Publish:
    """One or more ``PUB`` to a topic in a row; each is answered."""

    topic: str
    messages: list[bytes]


@dataclass(frozen=True, slots=True)
class MultiPublish:
    """``MPUB``."""

    topic: str
    messages: Sequence[bytes] | pa.BinaryArray
    size_bytes: int


@dataclass(frozen=True, slots=True)
class DeferredPublish:
    """``DPUB``."""

    topic: str
    delay_ms: int
    message: bytes


@dataclass(frozen=True, slots=True)
class Malformed:
    """What came is no command; the last thing that a parser gives.

    `name` is the command that it began as: who may not send that at all is told so, as by NSQ.
    """

    code: str
    text: str
    name: str = field(default="", compare=False)


Command = (
    Identify
    | Authenticate
    | Subscribe
    | Ready
    | Finish
    | Requeue
    | Touch
    | Stray
    | StartClose
    | Nop
    | Publish
    | MultiPublish
    | DeferredPublish
    | Malformed
)
