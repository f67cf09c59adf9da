"""Put the SVG pictures of `docs/pictures` into the pages, so that they follow light and dark.

A picture is a file of its own, which code hosts show too. Its `<style>` has the colours for light,
and below `@media (prefers-color-scheme: dark)` those for dark. In a page, the reader's choice
decides instead of the system's, so that the rules are rewritten: each applies to its picture only,
and the dark ones where the theme is dark. Identifiers get the name of the picture as a prefix,
because a page may have several pictures.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from typing import Final
from xml.etree import ElementTree as ET

_SVG: Final = "http://www.w3.org/2000/svg"
_XLINK: Final = "http://www.w3.org/1999/xlink"
_IMAGE: Final = re.compile(r"<img\b[^>]*>")
_ATTRIBUTE: Final = re.compile(r'\b(?P<name>[a-z-]+)="(?P<value>[^"]*)"')
_RULE: Final = re.compile(r"\s*(?P<head>[^{}]+?)\s*\{(?P<body>(?:[^{}]|\{[^{}]*\})*)\}")
_COMMENT: Final = re.compile(r"/\*.*?\*/", re.DOTALL)
_DARK: Final = re.compile(r"@media\s*\(\s*prefers-color-scheme\s*:\s*dark\s*\)")
_DARK_THEME: Final = '[data-md-color-scheme="slate"] '
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
        PictureMistake: The source is not an SVG with a `viewBox`, or has a script or a link out of
            itself.
    """
    try:
        svg = ET.fromstring(source)  # noqa: S314 - a file of this repository
    except ET.ParseError as error:
        raise PictureMistake(f"the picture {name}.svg is not valid XML: {error}") from None
    if svg.tag != f"{{{_SVG}}}svg" or "viewBox" not in svg.keys():  # noqa: SIM118 - of an element
        raise PictureMistake(f"the picture {name}.svg is not an SVG with a viewBox")
    scope = f"picture-{name}"
    for element in svg.iter():
        _check(element, name)
        _take_over_styles(element)
        _prefix_ids(element, name)
        if element.tag == f"{{{_SVG}}}style":
            element.text = "".join(scoped_rules(element.text or "", f".{scope}", name))
    # A page gives a picture its width, so that it fits a small screen.
    width = svg.attrib.pop("width", None)
    svg.attrib.pop("height", None)
    size = {"width": width} if width and re.fullmatch(r"\d+(\.\d+)?(px)?", width) else {}
    svg.attrib.update(size | {"class": f"picture {scope}", "role": "img", "aria-label": text})
    # A search for the words in a picture would find fragments.
    svg.set("data-search-exclude", "")
    return ET.tostring(svg, encoding="unicode").strip()


def scoped_rules(css: str, scope: str, name: str) -> Iterator[str]:
    """Yield the rules of a picture's style so that they apply below a selector only.

    Raises:
        PictureMistake: The style has an at-rule other than the one for dark.
    """
    for found in _RULE.finditer(_COMMENT.sub("", css)):
        if _DARK.fullmatch(found["head"]):
            for inner in _RULE.finditer(found["body"]):
                yield _scoped(inner, _DARK_THEME + scope)
        elif found["head"].startswith("@"):
            raise PictureMistake(
                f"the picture {name}.svg has {found['head']} in its style: only "
                "@media (prefers-color-scheme: dark) is rewritten"
            )
        else:
            yield _scoped(found, scope)


def _scoped(rule: re.Match[str], scope: str) -> str:
    selectors = (one.strip() for one in rule["head"].split(","))
    heads = (scope if one in {"svg", ":root"} else f"{scope} {one}" for one in selectors)
    return f"{', '.join(heads)} {{{rule['body'].strip()}}}\n"


def _check(element: ET.Element, name: str) -> None:
    tag = element.tag.rpartition("}")[2]
    if tag in {"script", "foreignObject"}:
        raise PictureMistake(f"the picture {name}.svg has a <{tag}>: draw it without")
    for attribute, value in element.attrib.items():
        key = attribute.rpartition("}")[2]
        if key.startswith("on"):
            raise PictureMistake(f"the picture {name}.svg has the handler {key}: remove it")
        if key == "href" and tag != "a" and not value.startswith("#"):
            raise PictureMistake(f"the picture {name}.svg loads {value}: draw it inside")


def _take_over_styles(element: ET.Element) -> None:
    """Turn a style attribute into attributes of their own, which the policy allows."""
    for declaration in element.attrib.pop("style", "").split(";"):
        key, colon, value = declaration.partition(":")
        if colon:
            element.set(key.strip(), value.strip())


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
