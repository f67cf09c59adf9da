"""What a client sent and is not carried out yet: bytes, then commands.

Owns the first bytes, which say the protocol, what is packed or not parsed yet, the commands that
wait, and how much memory they take. Does not own the codec (`penstock.broker.protocol`) nor when
somebody goes on (`connection`).

Invariants: commands come in the order of their bytes; one `take` parses one slice
(`penstock.broker.protocol.parser`), and unpacks one piece, for a little may hold very much.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from penstock.broker.protocol import commands as c
from penstock.broker.protocol.parser import CommandParser

if TYPE_CHECKING:
    from penstock.broker.memory.ledger import MemoryLedger
    from penstock.broker.protocol.limits import ProtocolLimits
    from penstock.broker.tcp.session import Session

_MAGIC: Final = b"  V2"
_WAITING_BYTES_MAX: Final = 1 << 22
_WAITING_COMMANDS: Final = 64  # while one of them takes its time
# Who sends that much at once has had its turn: the loop would read from it again and again.
_TURN_BYTES: Final = 1 << 17
_PIECE_BYTES: Final = 1 << 16


class Intake:
    """The way in of one connection.

    Args:
        limits: What clients may send.
        session: Knows how the bytes are packed.
        memory: Is told how much waits.

    Attributes:
        commands: What is complete and waits, in order; who carries one out takes it from the left.
        greeted: The client said which protocol it speaks.
    """

    __slots__ = (
        "_had_turn",
        "_magic",
        "_memory",
        "_packed",
        "_parser",
        "_session",
        "_waiting_bytes",
        "commands",
        "greeted",
    )

    def __init__(self, limits: ProtocolLimits, session: Session, memory: MemoryLedger) -> None:
        self.commands: deque[c.Command] = deque()
        self.greeted = False
        self._session = session
        self._memory = memory
        self._parser = CommandParser(limits)
        self._magic = b""
        self._waiting_bytes = 0  # what the commands that wait came in
        self._packed = False  # of what came some is packed still
        self._had_turn = False  # others come first now

    def take(self, data: bytes = b"") -> bool:
        """Parse a slice of what came; says whether a command is complete that was not before.

        Args:
            data: What came; nothing, to go on with what is here.

        Raises:
            Refused: It is another protocol.
            PenstockError: It cannot be unpacked.
        """
        if not self.greeted:
            data = self._greet(data)
            if not data:
                return False
        if len(data) >= _TURN_BYTES:
            self._had_turn = True
        codec = self._session.codec
        if codec is not None and (data or not self._parser.waiting_bytes):
            data = codec.decompress(data, _PIECE_BYTES)
            self._packed = len(data) == _PIECE_BYTES
        found = self._parser.feed(data)
        self._waiting_bytes += len(data)
        self.commands.extend(found)
        return bool(found)

    def begin_turn(self) -> None:
        """Take note that others had their turn."""
        self._had_turn = False

    @property
    def holds_more(self) -> bool:
        """Say whether there is something to go on with, without more from the client."""
        return self._packed or self._parser.waiting_bytes > 0

    @property
    def waits_for_turn(self) -> bool:
        """Say whether others come first, before more is looked at or read."""
        return self._had_turn or self.holds_more

    @property
    def wanted_bytes(self) -> int:
        """Return what the command under way still lacks; 0 when that is not known."""
        return self._parser.wanted_bytes

    @property
    def is_empty(self) -> bool:
        """Say whether nothing of a command is there."""
        return not self.commands and self._parser.is_between_commands

    @property
    def is_full(self) -> bool:
        """Say whether what waits has to become less before there is more."""
        if not self.commands:
            return False
        if len(self.commands) > _WAITING_COMMANDS:
            return True
        return self._waiting_bytes > _WAITING_BYTES_MAX or self._memory.is_full

    def tell_ledger(self) -> None:
        """Tell how much waits, after commands were carried out."""
        if not self.commands:
            self._waiting_bytes = min(self._waiting_bytes, self._parser.waiting_bytes)
        self._memory.hold(self, self._waiting_bytes)

    def end(self) -> None:
        """Forget everything: the connection is gone."""
        self.commands.clear()
        self._memory.hold(self, 0)

    def _greet(self, data: bytes) -> bytes:
        wanted = len(_MAGIC) - len(self._magic)
        self._magic += data[:wanted]
        if not _MAGIC.startswith(self._magic):
            raise c.Refused("E_BAD_PROTOCOL", "")
        self.greeted = self._magic == _MAGIC
        return data[wanted:]
