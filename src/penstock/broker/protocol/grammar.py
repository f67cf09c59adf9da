"""Parsing of a line: one command of NSQ's V2 protocol, or the error that refuses it.

Owns the commands, their parameters and the limits of bodies, with NSQ's codes and texts. Does not
own where a line or a body ends (`command_parser`), nor when a command is allowed
(`penstock.broker.tcp`).

Invariant: a command with a body is checked before the body arrives: its line first, then the size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

import numpy as np

from penstock.broker import message_id
from penstock.broker.message_bodies import MalformedBody, parse_binary_prefix, parse_few
from penstock.broker.protocol import commands as c
from penstock.broker.topic_names import is_valid_name

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.broker.protocol.limits import ProtocolLimits

_INT64_MAX: Final = 2**63 - 1
_DIGITS_MAX: Final = 18  # of a number that is certainly below _INT64_MAX
_COUNT_BYTES: Final = 4
_ESCAPES: Final = {
    "\a": "\\a",
    "\b": "\\b",
    "\f": "\\f",
    "\n": "\\n",
    "\r": "\\r",
    "\t": "\\t",
    "\v": "\\v",
    '"': '\\"',
    "\\": "\\\\",
}
_NO_UTF8: Final = range(0xDC80, 0xDD00)  # Python's surrogate escapes of invalid bytes
_CODE_OF_BODY: Final = {"message": "E_BAD_MESSAGE", "body": "E_BAD_BODY"}


@dataclass(frozen=True, slots=True)
class PendingCommand:
    """A command whose line was received and whose body was not.

    Attributes:
        name: Name of the command.
        holds: NSQ's word for the body in errors.
        max_bytes: Maximum size of the body.
        complete: Creates the command from the body.
        line_topic: Topic of a PUB, whose next line is likely the same.
    """

    name: str
    holds: Literal["message", "body"]
    max_bytes: int
    complete: Callable[[bytes], c.Command]
    line_topic: str | None = None

    def check_size(self, size: int) -> None:
        """Check the size that the client announces.

        Raises:
            CommandRefused: The size is not allowed.
        """
        if 0 < size <= self.max_bytes:
            return
        code = _CODE_OF_BODY[self.holds]
        if size <= 0:
            noun = "message body" if self.holds == "message" else "body"
            raise c.CommandRefused(code, f"{self.name} invalid {noun} size {size}")
        raise c.CommandRefused(code, f"{self.name} {self.holds} too big {size} > {self.max_bytes}")


class Grammar:
    """Parses lines.

    Args:
        limits: Limits on the input.
    """

    def __init__(self, limits: ProtocolLimits) -> None:
        self._limits = limits
        self._table: dict[bytes, Callable[[list[bytes]], c.Command | PendingCommand]] = {
            b"FIN": self._fin,
            b"RDY": self._rdy,
            b"REQ": self._req,
            b"TOUCH": self._touch,
            b"NOP": lambda _: c.Nop(),
            b"CLS": lambda _: c.StartClose(),
            b"PUB": self._pub,
            b"MPUB": self._mpub,
            b"DPUB": self._dpub,
            b"SUB": self._sub,
            b"IDENTIFY": self._identify,
            b"AUTH": self._auth,
        }

    def read(self, line: bytes) -> c.Command | PendingCommand:
        """Parse a line without its line feed.

        Raises:
            CommandRefused: It is not a command.
        """
        parts = (line[:-1] if line.endswith(b"\r") else line).split(b" ")
        parse = self._table.get(parts[0])
        if parse is None:
            raise c.CommandRefused("E_INVALID", f"invalid command {_shown(parts[0])}")
        try:
            return parse(parts)
        except c.CommandRefused as refused:  # narrow: add the name of the command
            refused.name = parts[0].decode("ascii")
            raise

    # -- with a body

    def _pub(self, parts: list[bytes]) -> PendingCommand:
        _require(parts, 2, "parameters")
        topic = _name(parts[1], "E_BAD_TOPIC", "PUB topic")
        limit = self._limits.max_message_bytes
        return PendingCommand("PUB", "message", limit, lambda body: c.Publish(topic, [body]), topic)

    def _dpub(self, parts: list[bytes]) -> PendingCommand:
        _require(parts, 3, "parameters")
        topic = _name(parts[1], "E_BAD_TOPIC", "DPUB topic")
        delay_ms = _number(parts[2], "DPUB could not parse timeout")
        longest = self._limits.max_requeue_ms
        if delay_ms > longest:
            raise c.CommandRefused("E_INVALID", f"DPUB timeout {delay_ms} out of range 0-{longest}")
        limit = self._limits.max_message_bytes
        return PendingCommand(
            "DPUB", "message", limit, lambda body: c.DeferredPublish(topic, delay_ms, body)
        )

    def _mpub(self, parts: list[bytes]) -> PendingCommand:
        _require(parts, 2, "parameters")
        # NSQ repeats the code, and clients may depend on it.
        topic = _name(parts[1], "E_BAD_TOPIC", "E_BAD_TOPIC MPUB topic")
        limits = self._limits

        def complete(body: bytes) -> c.Command:
            try:
                messages, used = parse_few(body, limits.max_message_bytes) or parse_binary_prefix(
                    body, limits.max_message_bytes, limits.max_body_bytes
                )
            except MalformedBody as error:
                raise c.CommandRefused(f"E_{error.code}", f"MPUB {error.nsq_text}") from error
            payload = used - _COUNT_BYTES * (len(messages) + 1)
            return c.MultiPublish(topic, messages, payload)

        return PendingCommand("MPUB", "body", limits.max_body_bytes, complete)

    def _identify(self, _parts: list[bytes]) -> PendingCommand:
        return PendingCommand("IDENTIFY", "body", self._limits.max_body_bytes, c.Identify)

    def _auth(self, parts: list[bytes]) -> PendingCommand:
        if len(parts) != 1:
            raise c.CommandRefused("E_INVALID", "AUTH invalid number of parameters")
        return PendingCommand("AUTH", "body", self._limits.max_body_bytes, c.Authenticate)

    # -- without a body

    def _sub(self, parts: list[bytes]) -> c.Command:
        _require(parts, 3, "parameters")
        topic = _name(parts[1], "E_BAD_TOPIC", "SUB topic")
        return c.Subscribe(topic, _name(parts[2], "E_BAD_CHANNEL", "SUB channel"))

    def _rdy(self, parts: list[bytes]) -> c.Command:
        count = _number(parts[1], "RDY could not parse count") if len(parts) > 1 else 1
        most = self._limits.max_ready_count
        if count > most:
            raise c.CommandRefused("E_INVALID", f"RDY count {count} out of range 0-{most}")
        return c.Ready(count)

    def _fin(self, parts: list[bytes]) -> c.Command:
        _require(parts, 2, "params")
        number = _id(parts)
        return (
            number
            if isinstance(number, c.MalformedIdCommand)
            else c.Finish(np.array([number], np.int64))
        )

    def _req(self, parts: list[bytes]) -> c.Command:
        _require(parts, 3, "params")
        number = _id(parts)
        delay_ms = _number(parts[2], "REQ could not parse timeout")
        if isinstance(number, c.MalformedIdCommand):
            return number
        return c.Requeue(number, min(delay_ms, self._limits.max_requeue_ms))

    def _touch(self, parts: list[bytes]) -> c.Command:
        _require(parts, 2, "params")
        number = _id(parts)
        return number if isinstance(number, c.MalformedIdCommand) else c.Touch(number)


def _require(parts: list[bytes], count: int, noun: str) -> None:
    if len(parts) < count:
        raise c.CommandRefused("E_INVALID", f"{_shown(parts[0])} insufficient number of {noun}")


def _name(raw: bytes, code: str, what: str) -> str:
    name = raw.decode("latin-1")  # one letter per byte, so that the length equals NSQ's
    if not is_valid_name(name):
        raise c.CommandRefused(code, f"{what} name {_quoted(raw)} is not valid")
    return name


def _quoted(raw: bytes) -> str:
    """Quote a name as NSQ does: nonprintable characters are escaped as in Go."""
    return '"' + "".join(map(_escaped, raw.decode("utf-8", "surrogateescape"))) + '"'


def _escaped(letter: str) -> str:
    if letter in _ESCAPES:
        return _ESCAPES[letter]
    if letter.isprintable():
        return letter
    number = ord(letter)
    if number in _NO_UTF8 or letter.isascii():
        return f"\\x{number % 256:02x}"
    return f"\\u{number:04x}" if letter <= "\uffff" else f"\\U{number:08x}"


def _number(raw: bytes, text: str) -> int:
    """Return an unsigned number: digits only; an empty text is 0, as in NSQ."""
    if raw and not raw.isdigit():
        raise c.CommandRefused("E_INVALID", f"{text} {_shown(raw)}")
    digits = raw.lstrip(b"0") or b"0"
    return int(digits) if len(digits) <= _DIGITS_MAX else _INT64_MAX


def _id(parts: list[bytes]) -> int | c.MalformedIdCommand:
    raw = parts[1]
    if len(raw) != message_id.ID_BYTES:
        raise c.CommandRefused("E_INVALID", "invalid message ID")
    number = message_id.parse(raw)
    return c.MalformedIdCommand(_shown(parts[0]), _shown(raw)) if number is None else number


def _shown(raw: bytes) -> str:
    return raw.decode("utf-8", "backslashreplace")
