"""The address of a user's database. Plain data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

TlsMode = Literal["disable", "allow", "prefer", "require", "verify-ca", "verify-full"]


@dataclass(frozen=True, slots=True)
class DatabaseAddress:
    """A database of a PostgreSQL server.

    Attributes:
        host: Its name or network address.
        port: Its port.
        name: The name of the database.
        tls: Whether the connection is encrypted, and how its certificate is verified, in libpq's
            terms.
        search_path: Schemas for names without one; None: those of the user.
        application: The name of the connection in the server's lists.
        connect_timeout_s: Time limit for a connection to each address of the host.
    """

    host: str
    port: int
    name: str
    tls: TlsMode = "prefer"
    search_path: str | None = None
    application: str = "penstock"
    connect_timeout_s: int = 10

    @property
    def shown(self) -> str:
        """Its name in messages."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}/{self.name}"
