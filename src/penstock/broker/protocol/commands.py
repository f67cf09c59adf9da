"""The commands of NSQ's V2 protocol, and the exception that refuses one.

Owns only the data passed from the parser to the connection.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa


class CommandRefused(Exception):
    """A command is refused, and its connection ends with NSQ's code and text.

    Args:
        code: Error code of NSQ.
        text: The problem.
        name: Name of the command, if it is known.
    """

    def __init__(self, code: str, text: str, name: str = "") -> None:
        super().__init__(f"{code} {text}")
        self.code = code
        self.text = text
        self.name = name


@dataclass(frozen=True, slots=True)
class Identify:
    """``IDENTIFY``: the client describes itself and requests settings."""

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
class MalformedIdCommand:
    """``FIN``, ``REQ`` or ``TOUCH`` of 16 bytes that are not a message id.

    It fails as it does for a message that is not in flight, and the connection continues.
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
    """Invalid input; always the last item of a parser.

    `name` is the command as which it began: a client that may not send it gets that error, as in
    NSQ.
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
    | MalformedIdCommand
    | StartClose
    | Nop
    | Publish
    | MultiPublish
    | DeferredPublish
    | Malformed
)
