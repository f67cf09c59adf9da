"""The site of the manual: it loads nothing from elsewhere, and mistakes of pages fail its build."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
import yaml

import penstock
from manual import build
from manual.build import NoMkDocs, site_files
from manual.page_policy import foreign_addresses_of_css, violations
from penstock.services.api.static_pages import MEDIA_TYPES, SITE
from release.wheel_hook import WheelHook
from tests.docs.markdown_kit import ROOT

# In the theme's scripts, for functions that the manual does not use; the policy blocks them.
UNUSED = {
    "https://api.github.com/repos/",
    "https://api.github.com/users/",
    "https://unpkg.com/mermaid@11/dist/mermaid.min.js",
    "https://unpkg.com/resize-observer-polyfill",
}
IN_COMMENTS = {
    "http://lunrjs.com",
    "http://tartarus.org/",
    "https://bit.ly/2s3ChXG",
    "https://clipboardjs.com/",
}
ADDRESS = re.compile(r"https?://[a-zA-Z0-9./@_-]+")


def pages(site: Path) -> Iterator[tuple[str, str]]:
    for path in site_files(site):
        if path.suffix == ".html":
            yield str(path.relative_to(site)), path.read_text()


def test_the_router_serves_the_folder_and_every_kind_of_file(site: Path) -> None:
    assert site == SITE
    assert {path.suffix for path in site_files(site)} <= MEDIA_TYPES.keys()


def test_every_page_names_the_version(site: Path) -> None:
    title = re.compile(rf"<title>.*Penstock {re.escape(penstock.__version__)}</title>")
    assert [name for name, html in pages(site) if not title.search(html)] == []


def test_pages_need_no_inline_parts_and_load_nothing_from_elsewhere(site: Path) -> None:
    found = [(name, one) for name, html in pages(site) for one in violations(html)]
    assert found == []
    styles = [path for path in site_files(site) if path.suffix == ".css"]
    assert len(styles) > 2
    assert [one for path in styles for one in foreign_addresses_of_css(path.read_text())] == []
    scripts = [path.read_text() for path in site_files(site) if path.suffix == ".js"]
    of_theme = [text for text in scripts if not text.startswith("var __index")]
    assert {one for text in of_theme for one in ADDRESS.findall(text)} <= UNUSED | IN_COMMENTS


def test_files_that_a_page_names_exist(site: Path) -> None:
    broken = []
    for name, html in pages(site):
        for address in re.findall(r'\b(?:src|href)="([^"]+)"', html):
            parts = urlsplit(address)
            if parts.scheme or not parts.path:
                continue
            target = (site / name).parent / unquote(parts.path)
            if not (target / "index.html" if target.is_dir() else target).is_file():
                broken.append((name, address))
    assert broken == []


def test_a_site_of_the_same_pages_is_not_built_again(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(digest: str) -> None:
        raise AssertionError(digest)

    monkeypatch.setattr(build, "_build", fail)
    assert build.build_site() == site


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with the configuration of the manual; its list has `index.md` and decisions."""
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    text = (ROOT / "mkdocs.yml").read_text()
    assert "\nnav:\n" in text
    nav = "nav:\n  - index.md\n  - Decisions:\n      - decisions/*.md\n"
    (tmp_path / "mkdocs.yml").write_text(text.partition("\nnav:\n")[0] + "\n" + nav)
    (tmp_path / "scripts").symlink_to(ROOT / "scripts")
    shutil.copytree(ROOT / "docs" / "assets", tmp_path / "docs" / "assets")
    (tmp_path / "docs" / "pictures").mkdir()
    return tmp_path


def mkdocs(project: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mkdocs", "build", "-d", str(project / "out")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "scripts"), "NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(
        command, cwd=project, env=environment, capture_output=True, text=True, check=False
    )


MISTAKES = {
    "[a](missing.md)": "'missing.md'",
    "[b](index.md#nowhere)": "#nowhere",
    "[c](/quickstart.md)": "absolute link '/quickstart.md'",
    "![d](pictures/missing.svg)": "pictures/missing.svg",
    "![](pictures/drawn.svg)": "has no alternative text",
    '<p style="color: red">e</p>': "has a style attribute",
    '<p onclick="alert(1)">f</p>': "has the inline handler onclick",
    '<a href="javascript:alert(1)">g</a>': "has a script as its address",
    '<script src="https://example.com/a.js"></script>': "loads https://example.com/a.js",
    "![h](https://example.com/a.png)": "loads https://example.com/a.png",
    "text\n- item": "put an empty line before the list",
    "- item\n  - inner": "indent the inner list by four spaces",
}


def test_mistakes_of_pages_fail_the_build(project: Path) -> None:
    docs = project / "docs"
    drawn = '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 9 9"><path d="M1 1"/></svg>'
    (docs / "pictures" / "drawn.svg").write_text(drawn)
    # One page for each, as a page with a wrong picture is not searched any further.
    for number, text in enumerate(MISTAKES):
        (docs / "decisions").mkdir(exist_ok=True)
        moved = text.replace("](pictures", "](../pictures").replace("](index", "](../index")
        (docs / "decisions" / f"{number}.md").write_text(f"# {number}\n\n{moved}\n")
    (docs / "index.md").write_text("# Front\n")
    (docs / "unlisted.md").write_text("# Unlisted\n")
    done = mkdocs(project)
    assert done.returncode != 0
    lines = done.stderr.splitlines()
    for number, told in enumerate([*MISTAKES.values()]):
        assert any(told in line and f"decisions/{number}.md" in line for line in lines), told
    assert any("unlisted.md" in line for line in lines)


def test_a_page_of_the_list_that_does_not_exist_fails_the_build(project: Path) -> None:
    (project / "docs" / "index.md").write_text("# Front\n")
    with (project / "mkdocs.yml").open("a") as configuration:
        configuration.write("  - Start:\n      - quickstart.md\n")
    done = mkdocs(project)
    assert done.returncode != 0
    told = "'quickstart.md' is included in the 'nav' configuration, which is not found"
    assert told in done.stderr


def test_a_picture_and_a_table_need_no_style_in_the_page(project: Path) -> None:
    drawn = '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 9 9"><text>word</text></svg>'
    (project / "docs" / "pictures" / "drawn.svg").write_text(drawn)
    picture, table = "![A word](pictures/drawn.svg)", "| a |\n|--:|\n| 1 |"
    page = f'# Front\n\n{picture}\n\n{table}\n\n```json title="a"\n{{}}\n```\n'
    (project / "docs" / "index.md").write_text(page)
    done = mkdocs(project)
    assert done.returncode == 0, done.stderr
    html = (project / "out" / "index.html").read_text()
    assert 'aria-label="A word"' in html
    assert violations(html) == []


def test_pages_of_the_navigation_are_named_once() -> None:
    text = re.sub(r"!!python\S+", "", (ROOT / "mkdocs.yml").read_text())

    def names(entries: list[object]) -> Iterator[str]:
        for entry in entries:
            if isinstance(entry, str):
                yield entry
            else:
                assert isinstance(entry, dict)
                for below in entry.values():
                    yield from names(below)

    listed = list(names(yaml.safe_load(text)["nav"]))
    assert len(listed) == len(set(listed))
    assert "howto/replace-a-day.md" in listed


def hook() -> tuple[WheelHook, list[str]]:
    warnings: list[str] = []
    made = object.__new__(WheelHook)
    made.__dict__["_BuildHookInterface__app"] = SimpleNamespace(display_warning=warnings.append)
    return made, warnings


@pytest.fixture
def data() -> dict[str, Any]:
    """What Hatchling passes to a hook."""
    return {"force_include": {}, "sbom_files": []}


def test_the_wheel_has_the_files_of_the_manual_and_what_is_in_them(
    site: Path, data: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1795953600")
    made, warnings = hook()
    made.initialize("standard", data)
    included = data["force_include"]
    assert included[str(site / "index.html")] == "penstock/services/site/index.html"
    assert len(included) == len(site_files(site))
    (bill,) = map(Path, data["sbom_files"])
    assert '"timestamp": "2026-11-29T12:00:00Z"' in bill.read_text()
    assert '"name": "mkdocs-material"' in bill.read_text()
    made.finalize("standard", data, "a.whl")
    assert not bill.exists()
    assert warnings == []


def test_an_editable_installation_builds_no_manual(data: dict[str, Any]) -> None:
    made, _ = hook()
    made.initialize("editable", data)
    made.finalize("editable", data, "a.whl")
    assert data == {"force_include": {}, "sbom_files": []}


def test_a_wheel_without_mkdocs_has_no_manual_and_a_warning(
    data: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1795953600")
    monkeypatch.setattr(build, "_BUILDERS", ("no-such-package-here",))
    made, warnings = hook()
    made.initialize("standard", data)
    assert data["force_include"] == {}
    (bill,) = map(Path, data["sbom_files"])
    assert "mkdocs-material" not in bill.read_text()
    made.finalize("standard", data, "a.whl")
    assert "no-such-package-here" in warnings[0]
    assert "install mkdocs-material" in warnings[0]
    with pytest.raises(NoMkDocs):
        build.build_site()


def test_a_wheel_without_git_has_a_fixed_time_and_a_warning(
    data: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "0")  # so that what the hook sets is taken back
    monkeypatch.delenv("SOURCE_DATE_EPOCH")
    monkeypatch.setattr(build, "_BUILDERS", ("no-such-package-here",))
    monkeypatch.setenv("PATH", str(tmp_path))
    made, warnings = hook()
    made.initialize("standard", data)
    assert os.environ["SOURCE_DATE_EPOCH"] == "1580601600"
    assert '"timestamp": "2020-02-02T' in Path(data["sbom_files"][0]).read_text()
    made.finalize("standard", data, "a.whl")
    assert "set SOURCE_DATE_EPOCH" in warnings[1]
