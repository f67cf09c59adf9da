"""A database that others keep, and that inputs of tasks read: by its port, a password, and TLS."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import trustme
from pydantic import JsonValue

from penstock.core.clock import SystemClock, pause
from tests.kits.ports_kit import kept_port
from tests.storage.postgres_server_kit import running_server

PASSWORD = "hush + 'hush'"


class ReadDatabase:
    """A running server; `owner` makes what there is, `reader` is the user of inputs."""

    def __init__(self, port: int, authority: trustme.CA) -> None:
        self.port = port
        self.authority = authority
        self.owner = psycopg.connect(
            host="127.0.0.1", port=port, user="owner", password=PASSWORD, dbname="shop",
            autocommit=True,
        )  # fmt: skip

    @property
    def url(self) -> str:
        return f"jdbc:postgresql://127.0.0.1:{self.port}/shop"

    def source(self, *sqls: str, **more: JsonValue) -> dict[str, JsonValue]:
        """An `inputSource`; `more` is of its connector, but for foldCase."""
        fold = {"foldCase": more.pop("foldCase")} if "foldCase" in more else {}
        connector = {"connectURI": self.url, "user": "reader", "password": PASSWORD, **more}
        database: JsonValue = {"type": "postgresql", "connectorConfig": connector}
        return {"type": "sql", "database": database, "sqls": list(sqls), **fold}

    def execute(self, sql: str) -> None:
        self.owner.execute(sql.encode())

    def running(self) -> list[str]:
        """What inputs have the server do now."""
        found = self.owner.execute(
            "SELECT query FROM pg_stat_activity WHERE usename = 'reader' AND state = 'active'"
        )
        return [str(row[0]) for row in found]


def encrypt(url: str, admin: psycopg.Connection, certificate: trustme.LeafCert) -> None:
    """Have the server offer TLS; it writes the files itself, as they must be its own."""
    chain = b"".join(blob.bytes() for blob in certificate.cert_chain_pems)
    for name, pem in (("crt", chain), ("key", certificate.private_key_pem.bytes())):
        command = psycopg.sql.SQL("COPY (SELECT {}) TO PROGRAM {}")
        program = f"umask 077 && base64 -d > server.{name}"
        admin.execute(command.format(base64.b64encode(pem).decode(), program))
    admin.execute("ALTER SYSTEM SET ssl = on")
    admin.execute("SELECT pg_reload_conf()")
    # The server reads its settings a moment later; a connection has those of its start.
    clock = SystemClock()
    until_s = clock.monotonic_s() + 120
    while _setting(url, "ssl") != "on":
        assert clock.monotonic_s() < until_s, "PostgreSQL does not offer TLS"
        pause(clock, 0.02)


def _setting(url: str, name: str) -> object:
    """Return a setting of a new connection."""
    with psycopg.connect(url) as connection:
        show = psycopg.sql.SQL("SHOW {}").format(psycopg.sql.Identifier(name))
        row = connection.execute(show).fetchone()
    assert row is not None
    return row[0]


@contextmanager
def running_database(binaries: Path) -> Iterator[ReadDatabase]:
    # A port that is only looked for may be that of another connection before the server has it.
    with kept_port() as port, running_server(binaries, port) as server:
        url = server.url.replace("+psycopg", "")
        with psycopg.connect(url, autocommit=True) as admin:
            for role in ("owner", "reader"):
                command = psycopg.sql.SQL("CREATE ROLE {} LOGIN CREATEROLE PASSWORD {}")
                admin.execute(command.format(psycopg.sql.Identifier(role), PASSWORD))
            admin.execute("GRANT pg_read_all_stats TO owner")
            admin.execute("GRANT reader TO owner WITH ADMIN OPTION")
            admin.execute("CREATE DATABASE shop OWNER owner")
            authority = trustme.CA()
            encrypt(url, admin, authority.issue_cert("127.0.0.1"))
        made = ReadDatabase(port, authority)
        made.execute("ALTER DEFAULT PRIVILEGES GRANT ALL ON TABLES TO reader")
        try:
            yield made
        finally:
            made.owner.close()
