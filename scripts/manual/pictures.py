"""Put the SVG pictures of `docs/pictures` into the pages, so that they follow light and dark.

A picture is a file of its own, with the colours for light, which code hosts show too. In a page the
classes of its parts get their colours from `docs/assets/manual.css`. Identifiers get the name of
the picture as a prefix, because a page may have several pictures.
"""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path
from typing import Final
from xml.etree import ElementTree as ET

_SVG: Final = "http://www.w3.org/2000/svg"
_XLINK: Final = "http://www.w3.org/1999/xlink"
_IMAGE: Final = re.compile(r"<img\b[^>]*>")
_ATTRIBUTE: Final = re.compile(r'\b(?P<name>[a-z-]+)="(?P<value>[^"]*)"')
_REFERENCE: Final = re.compile(r"url\(\s*['\"]?#(?P<id>[^)'\"]+)['\"]?\s*\)")
_BY_ID: Final = ("aria-labelledby", "aria-describedby")

ET.register_namespace("", _SVG)
ET.register_namespace("xlink", _XLINK)


class PictureMistake(Exception):
    """A picture cannot be put into a page; the message names the picture and the reason."""


def with_pictures(html: str, folder: Path) -> str:
    """Return the content of a page with its pictures.

    Args:
        html: The content.
        folder: The folder of the page, from which the addresses of pictures lead to their files.

    Raises:
        PictureMistake: A file does not exist or is not a picture, or its text is missing.
    """

    def picture(found: re.Match[str]) -> str:
        values = {one["name"]: unescape(one["value"]) for one in _ATTRIBUTE.finditer(found[0])}
        address, text = values.get("src", ""), values.get("alt", "").strip()
        if not text:
            raise PictureMistake(f"the picture {address} has no alternative text: describe it")
        if "://" in address or not address.endswith(".svg"):
            return found[0]
        file = folder / address
        if not file.is_file():
            raise PictureMistake(f"the picture {address} does not exist: draw it, or fix its name")
        return inline_svg(file.read_text(), file.stem, text)

    return _IMAGE.sub(picture, html)


def inline_svg(source: str, name: str, text: str) -> str:
    """Return a picture as an element of a page.

    Args:
        source: The SVG.
        name: The name of the picture; it becomes a prefix of its identifiers.
        text: The alternative text.

    Raises:
        PictureMistake: The source is not an SVG with a `viewBox`, or it has a script, a style or a
            link out of itself.
    """
    try:
        svg = ET.fromstring(source)  # noqa: S314 - a file of this repository
    except ET.ParseError as error:
        raise PictureMistake(f"the picture {name}.svg is not valid XML: {error}") from None
    if svg.tag != f"{{{_SVG}}}svg" or "viewBox" not in svg.keys():  # noqa: SIM118 - of an element
        raise PictureMistake(f"the picture {name}.svg is not an SVG with a viewBox")
    for element in svg.iter():
        _check(element, name)
        _prefix_ids(element, name)
    # The height follows from the width, which a small screen limits.
    svg.attrib.pop("height", None)
    svg.attrib.update({"class": "picture", "role": "img", "aria-label": text})
    # A search for the words in a picture would find fragments.
    svg.set("data-search-exclude", "")
    return ET.tostring(svg, encoding="unicode").strip()


def _check(element: ET.Element, name: str) -> None:
    tag = element.tag.rpartition("}")[2]
    if tag in {"script", "style", "foreignObject"}:
        raise PictureMistake(f"the picture {name}.svg has a <{tag}>: draw it without")
    for attribute, value in element.attrib.items():
        key = attribute.rpartition("}")[2]
        if key == "style" or key.startswith("on"):
            raise PictureMistake(f"the picture {name}.svg has the attribute {key}: use a class")
        if key == "href" and tag != "a" and not value.startswith("#"):
            raise PictureMistake(f"the picture {name}.svg loads {value}: draw it inside")


def _prefix_ids(element: ET.Element, name: str) -> None:
    for key, value in element.attrib.items():
        if key == "id":
            element.set(key, f"{name}-{value}")
        elif key in {"href", f"{{{_XLINK}}}href"} and value.startswith("#"):
            element.set(key, f"#{name}-{value[1:]}")
        elif key in _BY_ID:
            element.set(key, " ".join(f"{name}-{one}" for one in value.split()))
        else:
            element.set(key, _REFERENCE.sub(rf"url(#{name}-\g<id>)", value))
