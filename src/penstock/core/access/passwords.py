"""Passwords of users: hashed with argon2id, checked slowly, remembered for seconds.

Owns the hashes and the cost of checking one. Every check takes about 50 ms and 64 MiB, so a process
runs one at a time, lets a few wait and refuses more: a client that guesses passwords cannot use up
the memory or the threads of a server. Results are remembered, so a program that sends its password
with each request waits once in half a minute.

Invariant: the time of a check does not depend on whether the user exists.
"""

from __future__ import annotations

import hashlib
import os
import threading
from dataclasses import dataclass
from typing import Final

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError

from penstock.core.clock import Clock
from penstock.core.errors import Full, InvalidRequest
from penstock.core.names import normalised

CHARACTERS_MIN: Final = 8
"""Minimum length of a password (NIST SP 800-63B, section 5.1.1.2)."""
CHARACTERS_MAX: Final = 1_000
CORRECT_S: Final = 30.0
"""Time for which a correct password is remembered, in seconds."""
WRONG_S: Final = 5.0
"""Time for which a wrong password is remembered, in seconds."""

_WAITING_MAX: Final = 8
_REMEMBERED_MAX: Final = 10_000
# Hash of no password, which costs as much to check as one of the default parameters.
_NO_HASH: Final = (
    "$argon2id$v=19$m=65536,t=3,p=4$AAAAAAAAAAAAAAAAAAAAAA"
    "$AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"
)


def check_password(password: str) -> str:
    """Return a new password if it is acceptable.

    Raises:
        InvalidRequest: It is too short or too long, or has a control character.
    """
    if not CHARACTERS_MIN <= len(password) <= CHARACTERS_MAX:
        raise InvalidRequest(
            f"the password has {len(password)} characters: use {CHARACTERS_MIN} to"
            f" {CHARACTERS_MAX:,}"
        )
    if not password.isprintable():
        raise InvalidRequest("the password has a control character: use printable ones")
    return password


def hash_password(password: str) -> str:
    """Return the hash of a password, with its parameters and its salt.

    The parameters are argon2-cffi's default: the second choice of RFC 9106, section 4.
    """
    return PasswordHasher().hash(_encoded(password))


@dataclass(frozen=True, slots=True)
class _Result:
    is_correct: bool
    until_s: float


class PasswordChecks:
    """Checks passwords and remembers the results. Any thread.

    The mutex serializes the checks themselves: mail would need a thread for a rare event.

    Args:
        clock: For the time for which a result is remembered.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._mutex = threading.Lock()
        self._waiting = threading.BoundedSemaphore(_WAITING_MAX)
        # Keyed hashes: the memory of the process has no password, nor what it could be tried with.
        self._key: Final = os.urandom(32)
        self._results: dict[bytes, _Result] = {}

    def remembered(self, password_hash: str, password: str) -> bool | None:
        """Return the remembered result of a check; None: there is none. Fast."""
        found = self._results.get(self._digest(password_hash, password))
        if found is None or self._clock.monotonic_s() >= found.until_s:
            return None
        return found.is_correct

    def is_correct(self, password_hash: str | None, password: str) -> bool:
        """Return whether a password has a hash. Slow.

        Args:
            password_hash: The hash; None for a user who does not exist.
            password: The password from outside.

        Raises:
            Full: Too many other passwords are waiting for their check.
        """
        if len(password) > CHARACTERS_MAX:
            return False
        stored = password_hash or _NO_HASH
        if (found := self.remembered(stored, password)) is not None:
            return found
        if not self._waiting.acquire(blocking=False):
            raise Full("too many passwords are being checked: try again in a second")
        try:
            with self._mutex:
                found = self.remembered(stored, password)  # another thread may have checked it
                return self._check(stored, password) if found is None else found
        finally:
            self._waiting.release()

    def _check(self, stored: str, password: str) -> bool:
        is_correct = _has_hash(password, stored)
        if len(self._results) >= _REMEMBERED_MAX:
            self._results.clear()
        remembered_s = CORRECT_S if is_correct else WRONG_S
        result = _Result(is_correct, self._clock.monotonic_s() + remembered_s)
        self._results[self._digest(stored, password)] = result
        return is_correct

    def _digest(self, password_hash: str, password: str) -> bytes:
        text = b"\0".join((password_hash.encode(), _encoded(password)))
        return hashlib.blake2b(text, key=self._key, digest_size=32).digest()


def _has_hash(password: str, stored: str) -> bool:
    try:
        PasswordHasher().verify(stored, _encoded(password))
    except (VerificationError, InvalidHashError):  # narrow: restores nothing
        return False
    return True


def _encoded(password: str) -> bytes:
    # Half a surrogate pair is in no stored password, but may come from outside.
    return normalised(password).encode("utf-8", "surrogatepass")
