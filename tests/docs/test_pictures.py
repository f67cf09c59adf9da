"""The pictures of the manual are what their sources draw, and can be read."""

from __future__ import annotations

import importlib
import sys
from xml.etree import ElementTree as ET

import pytest

from tests.docs.markdown_kit import ROOT

FOLDER = ROOT / "docs" / "pictures"
sys.path.append(str(FOLDER))

from draw import pictures  # noqa: E402 - of that folder
from drawing import Picture  # noqa: E402

DRAWN = pictures()
SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.parametrize("name", DRAWN)
def test_a_picture_is_what_its_source_draws(name: str) -> None:
    assert DRAWN[name].check() == []
    file = FOLDER / f"{name.replace('_', '-')}.svg"
    told = "is stale: python docs/pictures/draw.py"
    assert file.read_text() == DRAWN[name].svg(), told


def test_pictures_do_not_hide_modules_of_the_same_name() -> None:
    assert importlib.import_module("mailbox").Mailbox, "the module of Python"


def test_every_file_has_a_source() -> None:
    files = {path.stem.replace("-", "_") for path in FOLDER.glob("*.svg")}
    assert files == set(DRAWN)


@pytest.mark.parametrize("name", DRAWN)
def test_a_picture_has_words_for_who_cannot_see_it_and_no_styles(name: str) -> None:
    root = ET.fromstring(DRAWN[name].svg())
    assert len(root.findtext(f"{SVG}title", "")) > 8
    assert len(root.findtext(f"{SVG}desc", "")) > 30
    assert not {one.tag for one in root.iter()} & {f"{SVG}style", f"{SVG}script"}
    assert not [one for one in root.iter() if one.get("style")]


def test_identifiers_are_unique_over_all_pictures() -> None:
    """A page may show several of them, also as code hosts put them into one document."""
    found = [
        (name, one.get("id"))
        for name in DRAWN
        for one in ET.fromstring(DRAWN[name].svg()).iter()
        if one.get("id")
    ]
    assert len({identifier for _, identifier in found}) == len(found) > 5


def test_labels_of_arrows_lie_above_lines_on_a_background() -> None:
    picture = Picture(300, 100, "A test", "A picture with a label")
    picture.arrow((10, 50), (290, 50), "label", at=(150, 50))
    picture.line((150, 10), (150, 90))
    *_, last = ET.fromstring(picture.svg())
    assert last.text == "label"
    assert (last.get("paint-order"), last.get("stroke")) == ("stroke", "#ffffff")


def test_texts_that_do_not_fit_and_boxes_that_overlap_are_found() -> None:
    picture = Picture(300, 100, "A test", "A picture with mistakes")
    picture.box(10, 10, 60, 30, "a text that is too long")
    picture.box(50, 20, 60, 30, "short")
    picture.box(250, 60, 60, 30, "outside")
    assert len(picture.check()) == 3
