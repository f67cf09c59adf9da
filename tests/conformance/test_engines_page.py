"""Blocks of the page about other engines that need packages of others, at a running Penstock.

The test of all pages runs the other blocks of this page.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from penstock.testing.server import LocalPenstock
from tests.conformance.clients_kit import ENGINES, Client
from tests.docs.markdown_kit import ROOT, fences
from tests.system.manual_kit import HOME, PageFile, Reader, commands_of, parts_of

pytestmark = [pytest.mark.conformance, pytest.mark.system]

PAGE = ROOT / "docs" / "howto" / "read-with-other-engines.md"
HERE = str(Path(__file__).relative_to(ROOT))
# The commands of the page on which these blocks depend.
FIRST = ("penstock sql --file", "penstock table delta enable")
INSTALL = "INSTALL iceberg;\n"


@pytest.fixture(scope="module")
def engines() -> Iterator[Client]:
    with Client("engines", str(ENGINES)) as running:
        yield running


@pytest.fixture(scope="module")
def reader(
    engines: Client, plain_penstock: LocalPenstock, tmp_path_factory: pytest.TempPathFactory
) -> Reader:
    """A reader who has typed what comes before the blocks, and has the packages of engines."""
    paths = [str(ENGINES), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    variables = {
        "PENSTOCK_DATA_DIR": str(plain_penstock.folder),
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
    }
    addresses = {
        f"{HOME}/data": str(plain_penstock.folder),
        "127.0.0.1:8888": urlsplit(plain_penstock.api_url).netloc,
    }
    folder = tmp_path_factory.mktemp("reader") / "me"
    folder.mkdir()
    made = Reader(folder, variables, addresses)
    made.do(part for part in parts_of(PAGE) if isinstance(part, PageFile))
    made.do(command for command in commands_of(PAGE) if command.text.startswith(FIRST))
    return made


def test_the_programs_of_the_page_print_what_it_shows(reader: Reader) -> None:
    commands = [part for part in parts_of(PAGE, HERE) if not isinstance(part, PageFile)]
    assert {command.text for command in commands} == {
        "python with_delta.py",
        "python with_spark.py",
    }
    reader.do(commands)


def test_the_statements_of_the_page_read_its_rows_in_duckdb(
    reader: Reader, engines: Client
) -> None:
    (statements,) = (
        fence.text for fence in fences(PAGE) if fence.run_by == HERE and fence.language == "sql"
    )
    assert statements.startswith(INSTALL)
    found = engines.ask("statements", reader.here(statements.removeprefix(INSTALL)))
    assert sorted(found) == [["/", 20], ["/docs", 31]]


def test_every_block_of_the_page_is_run() -> None:
    assert not [fence.place for fence in fences(PAGE) if fence.not_run]
