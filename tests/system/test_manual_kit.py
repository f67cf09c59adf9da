"""The kit that follows pages: what it reads from them, what it accepts, how it reports."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.markdown_kit import fences
from tests.system.manual_kit import (
    HOME,
    PAGES,
    READING,
    PageCommand,
    PageFile,
    Reader,
    commands_of,
    is_shown,
    needs_a_shell,
    parts_of,
)

PAGE = """# A page

```yaml title="folder/spec.yaml"
type: penstock
```

!!! note
    ```console
    $ penstock pub --topic a '{"b":
    1}'
    1 event published
    $ penstock topic list
    ```

<!-- not run: it needs a cluster -->
```console
$ penstock topic delete a
```
"""


@pytest.fixture
def reader(tmp_path: Path) -> Reader:
    folder = tmp_path / "a page"
    folder.mkdir()
    return Reader(folder, {}, {"127.0.0.1:8888": "127.0.0.1:34567"})


def test_the_parts_of_a_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    monkeypatch.setattr("tests.docs.markdown_kit.ROOT", tmp_path)
    assert parts_of(page) == [
        PageFile("page.md:3", "folder/spec.yaml", "type: penstock\n"),
        PageCommand("page.md:9", """penstock pub --topic a '{"b":\n1}'""", ("1 event published",)),
        PageCommand("page.md:12", "penstock topic list", ()),
    ]


def test_every_block_of_commands_begins_with_one() -> None:
    found = [
        fence.place
        for page in PAGES
        for fence in fences(page)
        if fence.language == "console" and not fence.text.startswith("$ ")
    ]
    assert not found


def test_pages_are_found() -> None:
    assert {page.parent.name for page in PAGES if commands_of(page)} >= {"howto"}


@pytest.mark.parametrize(
    ("shown", "output"),
    [
        ("a   b\n─────\n1   …", "a       b\n──────────\n1   12:30"),
        ("…\nlast", "first\nsecond\nlast\n"),
        ("first\n…", "first\n"),
        ("{\n…\n  a (1)\n…\n}", "{\n  b\n  a (1)\n  c\n}"),
    ],
)
def test_outputs_that_a_page_shows(shown: str, output: str) -> None:
    assert is_shown(shown.splitlines(), output)


@pytest.mark.parametrize(
    ("shown", "output"),
    [("a", "a\nb"), ("a\nb", "a"), ("a", "b"), ("1 row", "11 row"), ("a.b", "axb"), ("…\na", "b")],
)
def test_outputs_that_a_page_does_not_show(shown: str, output: str) -> None:
    assert not is_shown(shown.splitlines(), output)


def test_commands_that_are_repeated() -> None:
    assert READING.match("penstock sql 'SELECT 1'")
    assert READING.match("penstock flow queue list")
    assert READING.match("penstock topic peek a --max 1")
    assert not READING.match("penstock sql 'INSERT INTO a SELECT 1'")
    assert not READING.match("penstock sql 'REPLACE INTO a\nSELECT 1'")
    assert not READING.match("penstock sql --file a.sql")
    assert not READING.match("penstock topic create status")


def test_commands_that_need_a_shell() -> None:
    assert needs_a_shell("penstock sql 'SELECT 1' > file")
    assert needs_a_shell("penstock topic list | head -1")
    assert not needs_a_shell("penstock sql 'SELECT 1 > 0 | 1' --json")


def test_a_command_and_its_output(reader: Reader) -> None:
    reader.type(PageCommand("page.md:1", "penstock --version", ("penstock …",)))
    reader.type(PageCommand("page.md:1", "penstock --version", ()))
    reader.type(PageCommand("page.md:1", "penstock sql", ("penstock: …",)))
    reader.type(PageCommand("page.md:1", "pwd", (HOME,)))
    reader.type(PageCommand("page.md:1", "echo 127.0.0.1:8888", ("127.0.0.1:8888",)))
    reader.type(PageCommand("page.md:1", f"test -d {HOME} && python -c 'print(1)'", ("1",)))


@pytest.mark.parametrize(
    ("command", "shown", "reason"),
    [
        ("penstock --version", "another", "the output differs from the page"),
        ("penstock --version", "penstock: wrong", "exit code 0, and the page shows an error"),
        ("penstock wrong", "", "exit code 2, and the page shows no error"),
        ("exit 3", "", "exit code 3, and the page shows no error"),
    ],
)
def test_the_report_of_a_wrong_page(reader: Reader, command: str, shown: str, reason: str) -> None:
    with pytest.raises(pytest.fail.Exception) as failed:
        reader.type(PageCommand("docs/page.md:7", command, tuple(shown.splitlines())))
    report = str(failed.value)
    assert f"docs/page.md:7: {reason}\n$ {command}\n--- expected\n{shown}" in report
    assert "--- got\n" in report
