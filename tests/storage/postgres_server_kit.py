"""A private PostgreSQL for the tests: in a temporary folder, on a socket, as an ordinary user.

With a port it listens on this host, too; there it asks for passwords.
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def find_binaries() -> Path | None:
    found = shutil.which("pg_ctl")
    if found and (Path(found).resolve().parent / "initdb").exists():
        return Path(found).resolve().parent
    versions = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda p: p.parts)
    return versions[-1].parent if versions else None


def require_binaries() -> Path:
    """Return where PostgreSQL's programs are; skip the test where there are none, but not in CI."""
    found = find_binaries()
    if found is None and os.environ.get("CI"):
        pytest.fail("PostgreSQL is not installed, and what needs one must be tested")
    if found is None:
        pytest.skip("PostgreSQL is not installed: scripts/setup postgres")
    return found


class PostgresServer:
    """A running server with one database, which is emptied for each test that wants it."""

    def __init__(self, folder: Path, port: int | None = None) -> None:
        more = "" if port is None else f"&port={port}"
        self.url = f"postgresql+psycopg://penstock@/postgres?host={folder}{more}"
        self._made: list[tuple[object, ...]] | None = None

    def empty_database(self) -> str:
        """Return the URL of the database after everything in it was dropped."""
        with psycopg.connect(self.url.replace("+psycopg", ""), autocommit=True) as connection:
            connection.execute("DROP SCHEMA public CASCADE")
            connection.execute("CREATE SCHEMA public")
        return self.url

    def new_database(self, make: Callable[[str], None]) -> str:
        """Return the URL of a database as `make` leaves it in an empty one.

        Making its tables takes ten times as long as deleting their rows, so they stay while they
        are as they were made.

        Args:
            make: Makes the tables, and their first rows; the same in each call.
        """
        with psycopg.connect(self.url.replace("+psycopg", ""), autocommit=True) as connection:
            if self._made is not None and _shape(connection) == self._made:
                connection.execute(_RENEW)
                return self.url
        self.empty_database()
        make(self.url)
        with psycopg.connect(self.url.replace("+psycopg", ""), autocommit=True) as connection:
            connection.execute(_KEEP)
            self._made = _shape(connection)
        return self.url


# Copies the first rows of each table into a schema of their own.
_KEEP = """
DO $$
DECLARE one text;
BEGIN
    DROP SCHEMA IF EXISTS made CASCADE;
    CREATE SCHEMA made;
    FOR one IN SELECT tablename FROM pg_tables WHERE schemaname = 'public' LOOP
        EXECUTE format('CREATE TABLE made.%I AS TABLE public.%I', one, one);
    END LOOP;
    CREATE TABLE made."its sequences" AS
        SELECT sequencename, last_value FROM pg_sequences WHERE schemaname = 'public';
END $$
"""
# Gives each table its first rows, and each sequence its first value.
_RENEW = """
DO $$
DECLARE one text; value bigint;
BEGIN
    FOR one IN SELECT tablename FROM pg_tables WHERE schemaname = 'public' LOOP
        EXECUTE format('DELETE FROM public.%I', one);
        EXECUTE format(
            'INSERT INTO public.%I OVERRIDING SYSTEM VALUE SELECT * FROM made.%I', one, one
        );
    END LOOP;
    FOR one, value IN SELECT sequencename, last_value FROM made."its sequences" LOOP
        PERFORM setval(format('public.%I', one)::regclass, coalesce(value, 1), value IS NOT NULL);
    END LOOP;
END $$
"""


def _shape(connection: psycopg.Connection[tuple[object, ...]]) -> list[tuple[object, ...]]:
    """Return the columns and indexes of the tables."""
    return connection.execute(
        "SELECT table_name || '', column_name || '', data_type || coalesce(column_default, '')"
        " FROM information_schema.columns WHERE table_schema = 'public'"
        " UNION ALL SELECT tablename, indexname, indexdef FROM pg_indexes"
        " WHERE schemaname = 'public' ORDER BY 1, 2, 3"
    ).fetchall()


@contextmanager
def running_server(binaries: Path, port: int | None = None) -> Iterator[PostgresServer]:
    # A short path: a socket's may have 107 bytes.
    folder = Path(tempfile.mkdtemp(prefix="pst-pg-", dir="/tmp"))
    as_user: list[str] = []
    if os.geteuid() == 0:
        # The server refuses to run as root.
        names = {entry.pw_name for entry in pwd.getpwall()}
        entry = pwd.getpwnam("postgres" if "postgres" in names else "nobody")
        os.chown(folder, entry.pw_uid, entry.pw_gid)
        as_user = [
            "setpriv",
            f"--reuid={entry.pw_uid}",
            f"--regid={entry.pw_gid}",
            "--clear-groups",
        ]

    def run(*command: str) -> None:
        done = subprocess.run(
            [*as_user, *command], cwd=folder, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"

    data = str(folder / "data")
    listens = "''" if port is None else f"127.0.0.1 -p {port}"
    options = (
        f"-k {folder} -c listen_addresses={listens} -c fsync=off -c full_page_writes=off "
        "-c max_connections=60 -c shared_buffers=16MB"
    )
    try:
        auth = ("--auth-local=trust", "--auth-host=scram-sha-256")
        run(str(binaries / "initdb"), "-D", data, *auth, "-U", "penstock", "--no-sync")
        pg_ctl = str(binaries / "pg_ctl")
        run(pg_ctl, "-w", "-D", data, "-l", str(folder / "log"), "-o", options, "start")
        try:
            yield PostgresServer(folder, port)
        finally:
            run(pg_ctl, "-w", "-D", data, "-m", "immediate", "stop")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
