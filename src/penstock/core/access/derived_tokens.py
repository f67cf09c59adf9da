"""Tokens of processes and tasks, which those derive from a common key.

    penstock-process_NAME_TIME_HMAC      a process of the installation
    penstock-task_TASK_RULES_TIME_HMAC   the peon of a task; it may do what the rules allow
    penstock-peon_TASK_TIME_HMAC         a process that calls the peon of a task
    penstock-acting_NAME_ID_TIME_HMAC    a process that acts for the principal with this id

NAME, TASK, RULES and ID are in hexadecimal, so that every token is one word. TIME is when the token
was made, in epoch seconds. Nothing needs to be stored: a process with `process.key` checks all but
the third. A peon has no such key. It checks the third with a key that is derived for its task
alone, so its callers send it nothing that counts elsewhere.

| token | made again | counts for |
|---|---|---|
| of a process, for itself, a peon or a principal | each minute | 2 minutes |
| of a task | every 5 minutes, by its worker | 30 minutes |

The clocks of hosts may differ by 5 minutes: a token counts for as long before its time, and for as
long after its end.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Sequence
from typing import Final, NamedTuple

from penstock.core.access.principal import Principal, PrincipalKind
from penstock.core.access.rules import Rule
from penstock.core.errors import InvalidRequest, Unauthenticated
from penstock.core.intervals import format_time

CLOCKS_DIFFER_S: Final = 300
"""Maximum difference between the clocks of two hosts, in seconds, as in Kerberos (RFC 4120, 3.2.3).

Processes with a larger difference refuse each other's requests."""

PROCESS_MADE_AGAIN_S: Final = 60
"""Interval at which a process makes its token again, in seconds."""

TASK_MADE_AGAIN_S: Final = 300
"""Interval at which a worker makes the tokens of its tasks again, in seconds."""

_PROCESS_COUNTS_S: Final = 120
_TASK_COUNTS_S: Final = 1_800
_COUNTS_S: Final = {
    PrincipalKind.PROCESS: _PROCESS_COUNTS_S,
    PrincipalKind.TASK: _TASK_COUNTS_S,
}
_KINDS: Final = {PrincipalKind.PROCESS: "penstock-process", PrincipalKind.TASK: "penstock-task"}
_KIND_OF: Final = {prefix: kind for kind, prefix in _KINDS.items()}
_PEON: Final = "penstock-peon"
_ACTING: Final = "penstock-acting"
_KEY_BYTES: Final = 32
_TIME_DIGITS_MAX: Final = 12


def new_key() -> str:
    """Return the content of a new `process.key`: 256 random bits in hexadecimal."""
    return f"{secrets.token_hex(_KEY_BYTES)}\n"


def key_of_token(token: bytes) -> bytes:
    """Return the key that the processes of an installation with a shared token use."""
    return hmac.digest(token, b"process.key", "sha256")


def key_of_peon(key: bytes, task: str) -> bytes:
    """Return the key with which the peon of a task checks its callers."""
    return hmac.digest(key, f"peon\0{task}".encode(), "sha256")


def parse_key(content: bytes, place: str) -> bytes:
    """Return the key in the content of `process.key`.

    Raises:
        InvalidRequest: The content is not a key.
    """
    try:
        key = bytes.fromhex(content.decode("ascii").strip())
    except ValueError:  # narrow: restores nothing; UnicodeDecodeError is one
        key = b""
    if len(key) != _KEY_BYTES:
        raise InvalidRequest(
            f"it is not a key of {_KEY_BYTES} bytes in hexadecimal: delete the file and start"
            " Penstock again, which makes a new one",
            place=place,
        )
    return key


def process_token(key: bytes, process: str, now_ms: int) -> str:
    """Return the token of a process; it is the same for a minute."""
    return _signed(key, _KINDS[PrincipalKind.PROCESS], (process,), _minute_s(now_ms))


def task_token(key: bytes, task: str, rules: Sequence[Rule], now_ms: int) -> str:
    """Return the token of a task, which may do what the rules allow."""
    parts = (task, "\n".join(map(str, rules)))
    return _signed(key, _KINDS[PrincipalKind.TASK], parts, now_ms // 1000)


def peon_token(peon_key: bytes, task: str, now_ms: int) -> str:
    """Return the token for requests to the peon of a task; it is the same for a minute.

    Args:
        peon_key: `key_of_peon` of the task.
        task: The task.
        now_ms: Time of the host.
    """
    return _signed(peon_key, _PEON, (task,), _minute_s(now_ms))


def token_for(key: bytes, process: str, principal: str, now_ms: int) -> str:
    """Return the token of a process that acts for a principal; it is the same for a minute.

    It contains no rights: a process that receives it looks up those that the principal has then.

    Args:
        key: The key of the installation.
        process: Name of the process.
        principal: Id of the principal.
        now_ms: Time of the host.
    """
    return _signed(key, _ACTING, (process, principal), _minute_s(now_ms))


class ActingToken(NamedTuple):
    """Content of an acting token.

    Attributes:
        process: Name of the process.
        principal: Id of the principal for which it acts.
        expires_ms: Time in epoch milliseconds from which the token no longer counts.
    """

    process: str
    principal: str
    expires_ms: int


def acted_for(key: bytes, bearer: bytes, now_ms: int) -> ActingToken | None:
    """Return the content of an acting token; None: it is not one, or not of this key.

    Raises:
        Unauthenticated: It is one of this key, and does not count now.
    """
    found = _parts(bearer)
    if found is None or found[0] != _ACTING or len(found[1]) != 2:
        return None
    prefix, parts, made_s, mac = found
    if not hmac.compare_digest(_mac(key, prefix, parts, made_s), mac):
        return None
    process, principal = parts
    whose = f"process:{process}, which acts for {principal},"
    return ActingToken(process, principal, _end_ms(whose, made_s, _PROCESS_COUNTS_S, now_ms))


def derived_principal(key: bytes, bearer: bytes, now_ms: int) -> Principal | None:
    """Return the principal of a token; None: it is not one, or not of this key.

    Raises:
        Unauthenticated: It is one of this key, and does not count now.
    """
    found = _parts(bearer)
    kind = _KIND_OF.get(found[0]) if found else None
    if found is None or kind is None:
        return None
    prefix, parts, made_s, mac = found
    if len(parts) != (2 if kind is PrincipalKind.TASK else 1):
        return None
    if not hmac.compare_digest(_mac(key, prefix, parts, made_s), mac):
        return None
    rules = tuple(map(Rule.parse, parts[1].splitlines())) if len(parts) > 1 else ()
    expires_ms = _end_ms(f"{kind}:{parts[0]}", made_s, _COUNTS_S[kind], now_ms)
    return Principal(kind, parts[0], scope=rules or None, expires_ms=expires_ms)


def peon_caller(peon_key: bytes, task: str, bearer: bytes, now_ms: int) -> Principal | None:
    """Return the principal of a request to the peon of a task; None: the token is not for it.

    Raises:
        Unauthenticated: The token is for it, and does not count now.
    """
    found = _parts(bearer)
    if found is None or found[:2] != (_PEON, (task,)):
        return None
    prefix, parts, made_s, mac = found
    if not hmac.compare_digest(_mac(peon_key, prefix, parts, made_s), mac):
        return None
    expires_ms = _end_ms(f"the caller of task {task}", made_s, _PROCESS_COUNTS_S, now_ms)
    return Principal(PrincipalKind.PROCESS, "caller-of-peon", expires_ms=expires_ms)


def _minute_s(now_ms: int) -> int:
    return now_ms // 1000 // PROCESS_MADE_AGAIN_S * PROCESS_MADE_AGAIN_S


def _signed(key: bytes, prefix: str, parts: tuple[str, ...], made_s: int) -> str:
    encoded = "_".join(part.encode().hex() for part in parts)
    return f"{prefix}_{encoded}_{made_s}_{_mac(key, prefix, parts, made_s).decode()}"


def _mac(key: bytes, prefix: str, parts: Sequence[str], made_s: int) -> bytes:
    return (
        hmac.digest(key, "\0".join((prefix, *parts, str(made_s))).encode(), "sha256").hex().encode()
    )


def _parts(bearer: bytes) -> tuple[str, tuple[str, ...], int, bytes] | None:
    """Return prefix, names, time and HMAC of a token; None: it has another form."""
    prefix, *encoded = bearer.split(b"_")
    if len(encoded) < 3:
        return None
    *names, made, mac = encoded
    # One text for each number, so that a token has one form.
    is_number = made.isdigit() and len(made) <= _TIME_DIGITS_MAX and made == b"%d" % int(made)
    if not is_number:
        return None
    try:
        parts = tuple(bytes.fromhex(one.decode("ascii")).decode() for one in names)
        return (prefix.decode("ascii"), parts, int(made), mac) if parts[0] else None
    except ValueError:  # narrow: restores nothing; UnicodeDecodeError is one
        return None


def _end_ms(whose: str, made_s: int, counts_s: int, now_ms: int) -> int:
    """Return when a token no longer counts, in epoch milliseconds.

    Raises:
        Unauthenticated: It does not count now.
    """
    end_ms = (made_s + counts_s + CLOCKS_DIFFER_S) * 1000
    if not (made_s - CLOCKS_DIFFER_S) * 1000 <= now_ms < end_ms:
        raise Unauthenticated(
            f"the token of {whose} was made at {format_time(made_s * 1000)} and does not count at"
            f" {format_time(now_ms)}: it counts for {counts_s // 60} minutes, and the clocks of"
            f" hosts may differ by {CLOCKS_DIFFER_S // 60} minutes; set the clocks"
        )
    return end_ms
