"""The documentation: its links lead somewhere, its specs parse, its Python compiles."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from penstock.indexing.specs import parse_supervisor, parse_supervisor_spec
from penstock.indexing.specs.batch.batch_task_specs import BATCH_TASK_TYPES, parse_batch_task
from penstock.indexing.specs.lookup_spec import checked_lookup
from penstock.indexing.specs.spec_text import read_object
from penstock.services.cli.entry import run
from tests.docs.markdown_kit import PAGES, ROOT, Fence, all_fences, anchors, fences, links

# Pages of the manual, and those that a reader of the repository opens.
BESIDE = {path for glob in ("*.md", ".github/**/*.md", "tests/**/*.md") for path in ROOT.glob(glob)}
LINKED = [*PAGES, *sorted(BESIDE - {*PAGES})]
EXAMPLES = ROOT / "src" / "penstock" / "services" / "examples"


def test_the_readme_can_be_read_outside_of_the_repository() -> None:
    """The wheel carries it as its description, where a relative link leads nowhere."""
    relative = [path for path, _ in links(ROOT / "README.md") if not path.startswith("/")]
    assert not relative


def test_no_command_of_a_page_has_a_password_in_its_arguments() -> None:
    """The command line refuses it, as every user of a host can read it."""
    password = re.compile(r"--[a-z-]+[ =]\S*://[^\s/@]*:[^\s/@]*@")
    found = [
        f"{page.relative_to(ROOT)}:{number}: {line.strip()}"
        for page in PAGES
        for number, line in enumerate(page.read_text().splitlines(), 1)
        if password.search(line)
    ]
    assert not found


def test_the_pages_beside_the_manual_are_checked() -> None:
    names = {"README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"}
    assert names <= {page.name for page in LINKED}


@pytest.mark.parametrize("page", LINKED, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    broken = []
    for path, anchor in links(page):
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (
            anchor and target.suffix == ".md" and anchor not in anchors(target)
        ):
            broken.append(f"{path}#{anchor}")
    assert not broken


@pytest.mark.parametrize("fence", all_fences("json"), ids=lambda f: f.place)
def test_json_parses_and_specs_are_valid(fence: Fence) -> None:
    if fence.title.endswith(".jsonl"):
        for line in fence.text.splitlines():
            json.loads(line)
    else:
        check_spec(json.loads(fence.text))


@pytest.mark.parametrize(
    "fence", [fence for fence in all_fences("yaml") if fence.title], ids=lambda f: f.place
)
def test_specs_and_flows_of_files_are_valid(
    fence: Fence, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.path", [*sys.path])  # `--flow-modules` adds to it
    value = read_object(fence.text)
    if "processors" in value:
        file = tmp_path / fence.title
        file.write_text(fence.text)
        modules = [f"--flow-modules={each}" for each in own_processors(fence.page, tmp_path)]
        assert run(["flow", "validate", str(file), *modules]) == 0
    else:
        check_spec(value)


def own_processors(page: Path, folder: Path) -> list[Path]:
    """Write the modules of processors that a page shows; return their folders."""
    files = [fence for fence in fences(page) if fence.title.startswith("processors/")]
    for fence in files:
        (folder / fence.title).parent.mkdir(exist_ok=True)
        (folder / fence.title).write_text(fence.text)
    return [folder / "processors"] if files else []


def check_spec(value: object) -> None:
    """Check a value that is the spec of a supervisor, a batch task or a lookup; accept others."""
    if isinstance(value, dict) and value.get("type") in BATCH_TASK_TYPES:
        parse_batch_task(value)
    elif isinstance(value, dict) and {"type", "spec"} <= value.keys():
        parse_supervisor(value)
    elif isinstance(value, dict) and "name" in value and value.keys() & {"map", "inputSource"}:
        checked_lookup(value)


@pytest.mark.parametrize("fence", all_fences("python"), ids=lambda f: f.place)
def test_python_compiles(fence: Fence) -> None:
    compile(fence.text, fence.place, "exec")


def test_tests_that_run_blocks_of_pages_exist_and_name_their_page() -> None:
    """A block that another test runs is skipped by the test of pages, wherever the page is."""
    for page in PAGES:
        for fence in fences(page):
            if fence.run_by:
                assert page.name in (ROOT / fence.run_by).read_text(), fence.place


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*-supervisor.json")))
def test_example_specs_are_valid(path: Path) -> None:
    parse_supervisor_spec(path.read_bytes())


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.yaml")), ids=lambda p: p.name)
def test_example_flows_are_valid(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["flow", "validate", str(path)]) == 0, capsys.readouterr().err


def test_the_list_of_decisions_is_complete() -> None:
    folder = ROOT / "docs" / "decisions"
    listed = re.findall(r"\]\((\d{4}-[\w-]+\.md)\)", (folder / "index.md").read_text())
    assert listed == sorted(path.name for path in folder.glob("[0-9]*.md"))
