"""The key that the processes of one installation share, and what each of them derives from it.

Owns which key counts: that of the shared token, otherwise the file `process.key`. From it come the
bearer tokens of processes and tasks, and the key of hashes in column masks. `derived_tokens` has
the form of the tokens.
"""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from typing import Final

from penstock.core.access.access_state import AccessState
from penstock.core.access.bearer_tokens import token_digest
from penstock.core.access.derived_tokens import (
    derived_principal,
    key_of_peon,
    key_of_token,
    peon_caller,
    peon_token,
    process_token,
    task_token,
    token_for,
)
from penstock.core.access.principal import Principal, PrincipalKind
from penstock.core.access.row_rules import MaskKey
from penstock.core.access.rules import Rule
from penstock.core.clock import Clock
from penstock.core.errors import Unavailable

SHARED_TOKEN: Final = Principal(PrincipalKind.TOKEN, "shared", ("admin",))
"""The principal of the option `token`."""


class InstallationKey:
    """Derives and checks the credentials of one installation. Any thread, fast.

    Args:
        state: Has `process.key`.
        shared_token: The token of the option `token`; empty: none.
        process: Name of this process, such as `router`.
        clock: For the time of tokens.
        peon: The id of the task and its `peon_key`, if this process is its peon. A peon has no key
            of the installation.

    Attributes:
        process: Name of this process.
        has_shared_token: Whether there is a token of the option `token`.
        is_configured: Whether the process has a shared token, or is the peon of a task.
        mask_key: Returns the key of hashes in column masks.
    """

    def __init__(
        self,
        state: AccessState,
        shared_token: bytes,
        process: str,
        clock: Clock,
        peon: tuple[str, bytes] | None,
    ) -> None:
        self._state = state
        self.process: Final = process
        self.has_shared_token: Final = bool(shared_token)
        self._clock = clock
        self._peon = peon
        self._shared_digest = token_digest(shared_token) if shared_token else b""
        # Hosts of one installation may share nothing but this token, whose holders may do
        # everything already.
        self._shared_key = key_of_token(shared_token) if shared_token else b""
        self.is_configured: Final = bool(shared_token or peon)
        self.mask_key: Final = MaskKey(self._key)

    def principal(self, bearer: bytes) -> Principal | None:
        """Return the principal of the shared token or of a derived one; None: it is neither.

        Raises:
            Unauthenticated: It is a token of a process or task that does not count now.
        """
        if self._shared_digest and hmac.compare_digest(token_digest(bearer), self._shared_digest):
            return SHARED_TOKEN
        now_ms = self._clock.now_ms()
        if self._peon is not None:
            task, peon_key = self._peon
            return peon_caller(peon_key, task, bearer, now_ms)
        for key in self.accepted():
            found = derived_principal(key, bearer, now_ms)
            if found is not None:
                return found
        return None

    def accepted(self) -> list[bytes]:
        """Return the keys of tokens that this process accepts; none in a peon."""
        if self._peon is not None:
            return []
        return [key for key in (self._shared_key, self._state.snapshot.process_key) if key]

    def represented_bearer(self, principal_id: str) -> str:
        """Return the bearer token with which this process acts for a principal.

        It counts for minutes, so each request needs a new call. Raises as `process_bearer`.
        """
        return token_for(self._key(), self.process, principal_id, self._clock.now_ms())

    def process_bearer(self) -> str:
        """Return the bearer token with which this process calls other processes.

        It counts for minutes, so each request needs a new call.

        Raises:
            Unavailable: There is no `process.key`.
        """
        return process_token(self._key(), self.process, self._clock.now_ms())

    def task_bearer(self, task: str, rules: Sequence[Rule] = ()) -> str:
        """Return the bearer token of a task's peon; its principal is `task:TASK`.

        It counts for half an hour, so the worker must renew it.

        Args:
            task: Id of the task.
            rules: Rights of the peon at other processes, apart from its task's own actions.

        Raises:
            Unavailable: There is no `process.key`.
        """
        return task_token(self._key(), task, rules, self._clock.now_ms())

    def peon_key(self, task: str) -> bytes:
        """Return the key with which a task's peon checks its callers; see `for_task`.

        Raises:
            Unavailable: There is no `process.key`.
        """
        return key_of_peon(self._key(), task)

    def peon_bearer(self, task: str) -> str:
        """Return the bearer token with which this process calls the peon of a task.

        It counts for minutes, and nowhere else. Raises as `peon_key`.
        """
        return peon_token(self.peon_key(task), task, self._clock.now_ms())

    def _key(self) -> bytes:
        key = self._shared_key or self._state.snapshot.process_key
        if not key:
            raise Unavailable(
                "this process has no process.key, with which the processes of an installation call"
                " each other: copy it from the folder 'access' of the first host"
            )
        return key
