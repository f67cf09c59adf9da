"""Find Markdown that MkDocs shows in another way than code hosts do."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

_FENCE: Final = re.compile(r"^ *(```+|~~~+)")
_ITEM: Final = re.compile(r"^(?P<indent> *)(?:[-*+]|\d+[.)]) +\S")
_INDENT: Final = 4
# Another text behind the language makes MkDocs show the whole block as a paragraph.
_OPENING: Final = re.compile(r'^ *(?:```+|~~~+) *[\w-]*(?: title="[^"]+")? *$')


def mistakes_of_markdown(markdown: str) -> Iterator[str]:
    """Yield what is wrong, with the number of the line after the metadata of the page.

    MkDocs needs an empty line before a list, and four spaces before the items of an inner list. A
    fenced block begins with its language, and the name of a file only as `title="…"`.
    """
    fence = ""
    before = ""
    in_list = False
    for number, line in enumerate(markdown.splitlines(), 1):
        found = _FENCE.match(line)
        if found is not None and (not fence or found[1] == fence):
            if not fence and _OPENING.match(line) is None:
                yield f'line {number}: write the name of a file as title="NAME"'
            fence = "" if fence else found[1]
        elif not fence:
            item = _ITEM.match(line)
            if item is not None and before and not in_list and not item["indent"]:
                yield f"line {number}: put an empty line before the list"
            if item is not None and len(item["indent"]) % _INDENT:
                yield f"line {number}: indent the inner list by four spaces"
            in_list = item is not None or (in_list and (not line or line.startswith(" ")))
            before = line
