"""The report on cohesion: what it counts as an importer, and what it finds."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests import cohesion

# `make lint` runs them, and `make test` does not.
pytestmark = pytest.mark.lint


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


# The product itself

# Modules of less than 100 lines with one importer, and why each stays apart.
SMALL_MODULES = {
    "flow.processors.builtin": "the table of processors, whose entries are read by name",
    "indexing.batch.task_kinds": "the table of batch tasks",
    "indexing.lockbox.restored_locks": "pure, for the start of a term; `lockboxes` has the lanes",
    "indexing.overlord.duties.retention": "one module for each duty",
    "indexing.overlord.duties.uploads": "one module for each duty",
    "indexing.source.topic_supplier": "one module for each kind of stream",
    "indexing.task.persist_merge": "the task's own module already has three parts",
    "services.api.indexer.overlord_routes": "the list of all routes",
    "services.api.input_samples": "the route; the child runs `services.sampler_process`",
    "services.api.avatica.metadata_queries": "SQL of questions about tables; `routes` is full",
    "segments.delta.delta_schema": "pure; the schema of one format, as that of Iceberg",
    "services.api.delta.delta_routes": "the routes; `delta_tables` has the thread",
    "services.child_command": "imports the command line, which imports `server_process`",
    "services.cli.flow.commands": "one module for each group of commands",
    "services.cli.imports.commands": "one module for each group of commands",
    "services.cli.lookups": "one module for each group of commands",
    "services.cli.tls": "one module for each group of commands",
    "services.cli.indexing.workers": "one module for each group of commands",
    "storage.metadata.backends.bounded_connection": "imports psycopg; `postgres` must not",
    "spark.connect.python_daemon": "Spark starts it by its path",
    "spark.connect.session_kind": "state of the process under its own mutex; `session` is full",
    "spark.connect.user_types": "a change of PySpark that any process may need; `session` is full",
    "spark.equal_row_columns": "needs PySpark; `equal_row_groups` is pure",
    "spark.flow.builtin": "the table of processors that need Spark",
    "spark.flow.sql": "one module for each processor",
    "spark.sql.measured_plan": "the plan that Spark measured; `service` is full",
}
# Public class names that exist twice, and why.
SHARED_CLASS_NAMES = {
    "Processor": "of a flow's definition, and the base class of authors",
}


def test_small_modules_with_one_importer_have_a_reason() -> None:
    modules = cohesion.read_modules(cohesion.ROOT / "src")
    small = {module.short for module, _ in cohesion.small_with_one_importer(modules)}
    assert small == SMALL_MODULES.keys(), "join them with their importer, or give a reason"


def test_no_class_name_exists_twice_without_a_reason() -> None:
    twice = cohesion.classes_that_exist_twice(cohesion.read_modules(cohesion.ROOT / "src"))
    shorts = {name: [module.short for module in where] for name, where in twice.items()}
    # As in Python's `ast`, nodes of a syntax tree are used with the name of their module.
    found = {
        name: where
        for name, where in shorts.items()
        if len([short for short in where if short != "core.sql.tree"]) > 1
    }
    assert found.keys() == SHARED_CLASS_NAMES.keys(), found


@pytest.mark.parametrize(
    "page_name",
    ["contributing/where.md", "contributing/architecture.md", "contributing/boundaries.md"],
)
def test_every_module_that_a_page_for_contributors_names_exists(page_name: str) -> None:
    page = cohesion.ROOT / "docs" / page_name
    names = re.findall(r"`([a-z_0-9]+(?:\.[a-z_0-9]+)+)(?:\.\*)?`", page.read_text())
    names = [name for name in names if not name.endswith(".json")]
    paths = {name: cohesion.ROOT / "src" / "penstock" / name.replace(".", "/") for name in names}
    harness = cohesion.ROOT / "tests" / "harness"
    missing = [
        name
        for name, path in paths.items()
        if not path.is_dir()
        and not path.with_suffix(".py").exists()
        and not (harness / name.replace(".", "/")).with_suffix(".py").exists()
    ]
    assert names
    assert not missing
