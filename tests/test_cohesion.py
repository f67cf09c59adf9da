"""The report on cohesion: what it counts as an importer, and what it finds."""

from __future__ import annotations

from pathlib import Path

import pytest

import cohesion


@pytest.fixture
def source(tmp_path: Path) -> Path:
    files = {
        "__init__.py": "",
        "shelf/__init__.py": "from penstock.shelf.parts import Part\n",
        "shelf/parts.py": "class Part:\n    pass\n",
        "shelf/named.py": "",
        "reading.py": "from penstock.shelf import Part\n\n\nclass Reader:\n    pass\n",
        "table.py": '"""As `penstock.shelf.parts`."""\nPATHS = ["penstock.shelf.named:Named"]\n',
        "other.py": "from penstock import reading\n\n\nclass Reader:\n    pass\n",
    }
    for name, text in files.items():
        path = tmp_path / "penstock" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return tmp_path


def test_a_re_export_is_followed_and_is_no_importer(source: Path) -> None:
    users = cohesion.importers(cohesion.read_modules(source))
    assert users["penstock.shelf.parts"] == {"penstock.reading"}
    assert users["penstock.reading"] == {"penstock.other"}


def test_a_path_in_a_text_counts_and_one_in_a_docstring_does_not(source: Path) -> None:
    users = cohesion.importers(cohesion.read_modules(source))
    assert users["penstock.shelf.named"] == {"penstock.table"}
    assert "penstock.table" not in users["penstock.shelf.parts"]


def test_a_pair_that_imports_each_other_is_found(source: Path) -> None:
    named = source / "penstock" / "shelf" / "named.py"
    named.write_text(
        "from typing import TYPE_CHECKING\n\nif TYPE_CHECKING:\n    import penstock.table\n"
    )
    pairs = cohesion.pairs_that_import_each_other(cohesion.read_modules(source))
    assert pairs == [("penstock.shelf.named", "penstock.table")]


def test_small_modules_double_names_and_gerunds_are_found(source: Path) -> None:
    modules = cohesion.read_modules(source)
    small = {module.short for module, _ in cohesion.small_with_one_importer(modules)}
    assert small == {"reading", "shelf.named", "shelf.parts"}
    twice = cohesion.classes_that_exist_twice(modules)
    assert {name: [m.short for m in where] for name, where in twice.items()} == {
        "Reader": ["other", "reading"]
    }
    assert [module.short for module in cohesion.named_by_gerunds(modules)] == ["reading"]
