"""URLs of SQLite files: every path comes back from SQLAlchemy and from Penstock unchanged."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import make_url

from penstock.storage.metadata import MetadataStore
from penstock.storage.sqlite_urls import sqlite_path, sqlite_url

PATHS = [
    "/plain/m.db",
    "/x%20y%41#ü/m.db",
    "/a b#ü%20%/m.db",
    "/ends in %",
    "/%25/%2F%3F/m.db",
    "/what?a=1&uri=true/m.db",
    "/me:secret@host:1/m.db",
    "/a+b=c&d;e,f'g\"h\\i/m.db",
    "/line\nbreak/m.db",
    "//twice//m.db",
    "relative/%20.db",
    "/€🎉/m.db",
]


@pytest.mark.parametrize("path", PATHS)
def test_a_path_of_any_characters_is_read_as_it_was_given(path: str) -> None:
    url = sqlite_url(path)
    assert make_url(url).database == path
    assert not make_url(url).query
    assert sqlite_path(url) == path


def test_a_plain_path_is_shown_unchanged() -> None:
    assert sqlite_url(Path("/var/lib/a b/ü.db")) == "sqlite:////var/lib/a b/ü.db"


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("sqlite:////a%20b/m.db?timeout=9", "/a b/m.db"),
        ("sqlite+pysqlite:////m.db", "/m.db"),
        ("sqlite:///file:/a%2520b/m.db?uri=true&mode=ro", "/a b/m.db"),
        ("sqlite:///file:/m.db", "file:/m.db"),
        ("sqlite://", None),
        ("postgresql://host/m.db", None),
        ("nonsense", None),
        ("postgresql://host:port/m.db", None),
    ],
)
def test_the_file_of_a_url_is_the_one_that_sqlalchemy_opens(url: str, path: str | None) -> None:
    assert sqlite_path(url) == path


def test_a_database_is_made_at_its_path_although_the_decoded_folder_exists(tmp_path: Path) -> None:
    given, decoded = tmp_path / "x%20y?", tmp_path / "x y"
    given.mkdir()
    decoded.mkdir()
    MetadataStore.open(sqlite_url(given / "m.db")).close()
    assert (given / "m.db").is_file()
    assert list(decoded.iterdir()) == []
