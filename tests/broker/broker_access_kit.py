"""Credentials and roles of an installation, for tests of a broker."""

from __future__ import annotations

import base64
import functools
import threading
from typing import TYPE_CHECKING

from penstock.core.access.access_control import AccessControl
from penstock.core.access.credentials import CredentialFile
from penstock.core.access.passwords import hash_password
from penstock.core.clock import SystemClock

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.core.access.audit import AuditOptions

ROLES = ("admin", "operator", "publisher", "consumer", "analyst", "viewer")

hash_once = functools.cache(hash_password)  # it takes 50 ms


class AheadClock:
    """A real clock that can be put forward."""

    def __init__(self) -> None:
        self._real = SystemClock()
        self.ahead_ms = 0

    def now_ms(self) -> int:
        return self._real.now_ms() + self.ahead_ms

    def monotonic_s(self) -> float:
        return self._real.monotonic_s() + self.ahead_ms / 1000

    def wait(self, condition: threading.Condition, timeout_s: float | None) -> bool:
        return self._real.wait(condition, timeout_s)


class Installation:
    """The folder `access`, and the access control that reads it when a method changes it."""

    def __init__(
        self, folder: Path, clock: AheadClock | None = None, audit: AuditOptions | None = None
    ) -> None:
        self.clock = clock or AheadClock()
        self.folder = folder
        self.control = AccessControl(folder, self.clock, process="broker", audit=audit)
        self._file = CredentialFile(folder / "credentials.json", self.clock)

    def token(
        self, name: str, *roles: str, scope: tuple[str, ...] | None = None, lasts_ms: int = 0
    ) -> str:
        expires_ms = self.clock.now_ms() + lasts_ms if lasts_ms else None
        token = self._file.add_token(name, roles, scope, expires_ms)
        self.control.refresh()
        return token.text

    def remove_token(self, name: str) -> None:
        self._file.remove_token(name)
        self.control.refresh()

    def user(self, name: str, password: str, *roles: str) -> None:
        self._file.add_user(name, hash_once(password), roles)
        self.control.refresh()

    def remove_user(self, name: str) -> None:
        self._file.remove_user(name)
        self.control.refresh()

    def change_password(self, name: str, password: str) -> None:
        self._file.set_password(name, hash_once(password))
        self.control.refresh()

    def rules(self, text: str) -> None:
        (self.folder / "access.toml").write_text(text)
        self.control.refresh()


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def basic(user: str, password: str) -> dict[str, str]:
    text = base64.b64encode(f"{user}:{password}".encode()).decode()
    return {"Authorization": f"Basic {text}"}
