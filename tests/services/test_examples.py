"""`penstock init`: the examples of the package, written where a user wants them."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.core.errors import NotFound
from penstock.services.cli import exit_codes
from penstock.services.cli.entry import run
from penstock.services.examples import EXAMPLES, example, write_examples


def test_init_writes_every_example(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "new" / "examples"
    assert run(["init", str(folder)]) == exit_codes.OK
    written = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert written == set(EXAMPLES)
    for name in EXAMPLES:
        assert (folder / name).read_bytes() == example(name)


def test_init_can_be_repeated(tmp_path: Path) -> None:
    write_examples(tmp_path)
    (tmp_path / "flights.yaml").unlink()
    assert write_examples(tmp_path) == ["flights.yaml"]
    assert write_examples(tmp_path) == []


def test_init_overwrites_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "flights.yaml").write_text("mine")
    assert run(["init", str(tmp_path)]) == exit_codes.USAGE
    assert "flights.yaml exists with other content" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["flights.yaml"]
    assert (tmp_path / "flights.yaml").read_text() == "mine"


def test_init_into_a_file_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert run(["init", str(tmp_path / "file")]) == exit_codes.FAILED
    assert "choose a folder that you can write to" in capsys.readouterr().err


def test_an_unknown_example_names_the_known_ones() -> None:
    with pytest.raises(NotFound, match=r"'nothing'.*clicks-supervisor\.json"):
        example("nothing")
