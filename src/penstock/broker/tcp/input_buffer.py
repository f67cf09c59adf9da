"""Input of a client that is not executed yet: bytes, then commands.

Owns the first bytes, which identify the protocol, compressed or unparsed input, the commands that
wait, and how much memory they take. Does not own the codec (`penstock.broker.protocol`) nor when
execution continues (`tcp_connection`).

Invariants: commands come in the order of their bytes; one `take` parses one slice
(`penstock.broker.protocol.command_parser`), and decompresses one piece, because a few bytes may
expand to very many.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from penstock.broker.protocol import commands as c
from penstock.broker.protocol.command_parser import CommandParser

if TYPE_CHECKING:
    from penstock.broker.memory.memory_budget import MemoryBudget
    from penstock.broker.protocol.limits import ProtocolLimits
    from penstock.broker.tcp.client_session import ClientSession

_MAGIC: Final = b"  V2"
_WAITING_BYTES_MAX: Final = 1 << 22
_WAITING_COMMANDS: Final = 64  # while one of them takes long
# A client that sends this much at once has used its turn; otherwise the loop would read from it
# repeatedly.
_TURN_BYTES: Final = 1 << 17
_PIECE_BYTES: Final = 1 << 16


class InputBuffer:
    """Input side of one connection.

    Args:
        limits: Limits on the input of clients.
        session: Knows the compression.
        memory: Memory budget to which waiting input is added.

    Attributes:
        commands: Complete commands in order; the connection removes them from the left.
        greeted: The client has sent the protocol's magic bytes.
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

    def __init__(
        self, limits: ProtocolLimits, session: ClientSession, memory: MemoryBudget
    ) -> None:
        self.commands: deque[c.Command] = deque()
        self.greeted = False
        self._session = session
        self._memory = memory
        self._parser = CommandParser(limits)
        self._magic = b""
        self._waiting_bytes = 0  # input of the waiting commands
        self._packed = False  # some of the input is still compressed
        self._had_turn = False  # other connections come first now

    def take(self, data: bytes = b"") -> bool:
        """Parse a slice of the input; return whether it completed a command.

        Args:
            data: Received bytes; empty, to continue with earlier input.

        Raises:
            CommandRefused: The client speaks another protocol.
            PenstockError: The input cannot be decompressed.
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
        """Record that other connections had their turn."""
        self._had_turn = False

    @property
    def holds_more(self) -> bool:
        """Whether there is input to parse without reading more from the client."""
        return self._packed or self._parser.waiting_bytes > 0

    @property
    def waits_for_turn(self) -> bool:
        """Whether other connections come first, before more input is parsed or read."""
        return self._had_turn or self._packed or self._parser.waiting_bytes > 0

    @property
    def wanted_bytes(self) -> int:
        """Number of bytes that the current command still lacks; 0 if that is unknown."""
        return self._parser.wanted_bytes

    @property
    def is_empty(self) -> bool:
        """Whether no command waits, not even a part of one."""
        return not self.commands and self._parser.is_between_commands

    @property
    def is_full(self) -> bool:
        """Whether commands must be executed before more input is parsed."""
        if not self.commands:
            return False
        if len(self.commands) > _WAITING_COMMANDS:
            return True
        return self._waiting_bytes > _WAITING_BYTES_MAX or self._memory.is_full

    def report_held(self) -> None:
        """Update the memory budget after commands were executed."""
        if not self.commands:
            self._waiting_bytes = min(self._waiting_bytes, self._parser.waiting_bytes)
        self._memory.hold(self, self._waiting_bytes)

    def end(self) -> None:
        """Drop all input: the connection has ended."""
        self.commands.clear()
        self._memory.hold(self, 0)

    def _greet(self, data: bytes) -> bytes:
        wanted = len(_MAGIC) - len(self._magic)
        self._magic += data[:wanted]
        if not _MAGIC.startswith(self._magic):
            raise c.CommandRefused("E_BAD_PROTOCOL", "")
        self.greeted = self._magic == _MAGIC
        return data[wanted:]
