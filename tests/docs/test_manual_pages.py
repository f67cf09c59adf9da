"""How `scripts/manual` changes pages and pictures, and which mistakes it finds."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from manual.navigation import expanded
from manual.page_policy import InlineParts, foreign_addresses_of_css, violations
from manual.pages import mistakes_of_markdown
from manual.pictures import PictureMistake, inline_svg, with_pictures
from tests.docs.markdown_kit import ROOT

SVG = '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 10 10" {}>{}</svg>'


def test_patterns_of_the_navigation_stand_for_pages_and_nothing_else_is_changed(
    tmp_path: Path,
) -> None:
    """MkDocs reports pages that do not exist, so that they stay in the list."""
    for name in ("a.md", "d/index.md", "d/0002.md", "d/0001.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    kept: list[str | dict[str, object]]
    kept = ["a.md", "missing.md", {"Named": "missing.md"}, {"Outer": [{"Inner": ["missing.md"]}]}]
    found = expanded([*kept, {"Decisions": ["d/index.md", "d/*.md"]}], tmp_path)
    assert found == [*kept, {"Decisions": ["d/index.md", "d/0001.md", "d/0002.md"]}]


def test_inline_scripts_and_styles_become_files(tmp_path: Path) -> None:
    parts = InlineParts()
    data = '<script id="c" type="application/json">{"a": 1}</script>'
    moved = parts.moved(f"<script>run()</script><style>p {{}}</style>{data}", "../")
    again = parts.moved("<script>run()</script>", "")
    parts.write(tmp_path)
    script, style = sorted((tmp_path / "assets" / "inline").iterdir(), key=lambda one: one.suffix)[
        ::-1
    ]
    assert script.read_text() == "run()"
    assert style.read_text() == "p {}"
    assert moved == (
        f'<script src="../assets/inline/{script.name}"></script>'
        f'<link rel="stylesheet" href="../assets/inline/{style.name}">{data}'
    )
    assert again == f'<script src="assets/inline/{script.name}"></script>'


@pytest.mark.parametrize(
    ("html", "told"),
    [
        ('<p style="color: red">', "style attribute"),
        ("<p onclick='a()'>", "handler onclick"),
        ("<script>a()</script>", "is inline"),
        ("<style>p {}</style>", "is inline"),
        ('<a href=" JavaScript:a()">', "script as its address"),
        ('<img src="a.png">', "no alternative text"),
        ('<img src="a.png" alt=" ">', "no alternative text"),
        ('<img src="//a.example/a.png" alt="a">', "loads //a.example/a.png"),
        ('<link rel="stylesheet" href="https://a.example/a.css">', "loads https://a.example"),
        ('<iframe src="http://a.example">', "loads http://a.example"),
    ],
)
def test_what_the_policy_would_block_is_found(html: str, told: str) -> None:
    assert [told in one for one in violations(html)] == [True]


@pytest.mark.parametrize(
    "html",
    [
        '<script src="a.js"></script>',
        '<script type="application/json">{}</script>',
        '<a href="https://a.example">a</a>',
        '<img src="a.png" alt="A picture">',
        "<p>style=a onclick=b</p>",
    ],
)
def test_what_the_policy_allows_is_not_found(html: str) -> None:
    assert violations(html) == []


def test_addresses_of_styles() -> None:
    css = '@import "https://a.example/a.css"; p {mask: url(//b.example/b)} q {mask: url(data:x)}'
    assert list(foreign_addresses_of_css(css)) == ["https://a.example/a.css", "//b.example/b"]


@pytest.mark.parametrize(
    "text",
    [
        "text\n\n- one\n- two\n    - inner\n\n    more\n- three",
        "1. one\n   goes on\n2. two",
        "```yaml\ntext\n- one\n  - two\n```",
        "| a |\n|---|\n| - |",
        "- one\n\ntext\n\n- two",
    ],
)
def test_lists_that_are_shown_as_written(text: str) -> None:
    assert list(mistakes_of_markdown(text)) == []


def test_lists_that_are_not_shown_as_written() -> None:
    told = list(mistakes_of_markdown("text\n- one\n  - two\n\ntext\n1. one"))
    assert [one.partition(":")[0] for one in told] == ["line 2", "line 3", "line 6"]


def test_a_file_name_that_is_not_a_title() -> None:
    block = "```yaml{}\na: 1\n```\n"
    assert list(mistakes_of_markdown(block.format(' title="a.yaml"'))) == []
    told = list(mistakes_of_markdown(block.format(" a.yaml")))
    assert told == ['line 1: write the name of a file as title="NAME"']


def test_the_stylesheet_has_colours_for_dark_of_every_part_of_a_picture() -> None:
    css = (ROOT / "docs" / "assets" / "manual.css").read_text()
    dark = set(re.findall(r'\[data-md-color-scheme="slate"\] \.(p-[a-z]+)', css))
    drawn = [path.read_text() for path in (ROOT / "docs" / "pictures").glob("*.svg")]
    assert len(drawn) > 10
    used = {name for svg in drawn for name in re.findall(r'class="(p-[a-z]+)"', svg)}
    assert used - {"p-note", "p-paper"} == dark


def test_every_picture_can_be_put_into_a_page() -> None:
    for path in (ROOT / "docs" / "pictures").glob("*.svg"):
        assert violations(inline_svg(path.read_text(), path.stem, "A picture")) == []


def test_a_picture_has_names_of_its_own() -> None:
    inside = '<marker id="end"/><path marker-end="url(#end)"/><use href="#end"/>'
    made = inline_svg(SVG.format('width="20" height="20"', inside), "whole", "A < B")
    assert 'id="whole-end"' in made
    assert 'marker-end="url(#whole-end)"' in made
    assert 'href="#whole-end"' in made
    assert "height=" not in made
    assert 'role="img" aria-label="A &lt; B"' in made
    assert violations(made) == []


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("<svg", "not valid XML"),
        ('<svg xmlns="http://www.w3.org/2000/svg"/>', "viewBox"),
        (SVG.format("", "<script>a()</script>"), "<script>"),
        (SVG.format("", '<path onclick="a()"/>'), "attribute onclick"),
        (SVG.format("", '<path style="fill: none"/>'), "attribute style"),
        (SVG.format("", '<image href="https://a.example/a.png"/>'), "loads https://a.example"),
        (SVG.format("", "<style>p {}</style>"), "<style>"),
    ],
)
def test_pictures_that_cannot_be_put_into_a_page(source: str, told: str) -> None:
    with pytest.raises(PictureMistake, match=told):
        inline_svg(source, "whole", "All of it")


def test_pictures_of_a_page(tmp_path: Path) -> None:
    (tmp_path / "pictures").mkdir()
    (tmp_path / "concepts").mkdir()
    (tmp_path / "pictures" / "whole.svg").write_text(SVG.format("", "<path/>"))
    html = '<p><img alt="A &amp; B" src="../pictures/whole.svg"></p>'
    made = with_pictures(html, tmp_path / "concepts")
    assert made.startswith("<p><svg ")
    assert 'aria-label="A &amp; B"' in made
    with pytest.raises(PictureMistake, match=r"missing\.svg does not exist"):
        with_pictures('<img alt="A" src="../pictures/missing.svg">', tmp_path / "concepts")
    with pytest.raises(PictureMistake, match="no alternative text"):
        with_pictures('<img alt="" src="../pictures/whole.svg">', tmp_path / "concepts")
