"""Where a database of others is. Plain data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

TlsMode = Literal["disable", "allow", "prefer", "require", "verify-ca", "verify-full"]


@dataclass(frozen=True, slots=True)
class DatabaseAddress:
    """A database of a PostgreSQL server.

    Attributes:
        host: A name or an address of the network.
        port: Its port.
        name: Of the database.
        tls: Whether the connection is encrypted, and how its certificate is judged, as libpq says.
        search_path: Schemas where names without one are looked up; None: those of the user.
        application: How the connection is called in the server's lists.
        connect_timeout_s: How long a connection to each address of the host may take.
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
        """How messages call it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}/{self.name}"
