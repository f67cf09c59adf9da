"""Comments of a flow's file, kept with the flow that was applied and written into its export.

Owns where a comment belongs, and the comments in an exported text. A flow is stored as a model,
which has no comments, so each comment is stored with the path of the field that it stands above or
beside. The export may lack this field, because its value is the default: then the comment goes to
the nearest part around it. Does not own the comments of components, which are fields of the model.

Invariants: an export with comments reads as the same flow as without. No comment keeps a value that
the export leaves out: text after the name of a sensitive property, or after a word for a secret,
is replaced.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

import msgspec

from penstock.core.errors import InvalidRequest
from penstock.core.secret_names import is_reference
from penstock.core.yaml_tree import YamlComment, comments_in
from penstock.flow.graph.source_locations import (
    FlowProblem,
    InvalidFlow,
    Path,
    SourceLocation,
    SourceLocations,
)
from penstock.flow.graph.yaml_reader import locations

LEFT_OUT: Final = "(left out)"
COMMENTS_MAX: Final = 50_000
CHARACTERS_MAX: Final = 1 << 18

_TOO_MANY: Final = (
    f"the file has more than {COMMENTS_MAX:,} comments, or more than {CHARACTERS_MAX:,} characters"
    " in them: leave some out"
)

_COMMENT: Final = re.compile(r"#[^\n\r\x85\u2028\u2029]*|")
# Names are cut, and passwords bounded, so that the time for a comment is linear in its length.
_NAME_CHARACTERS: Final = 200
_SEPARATOR: Final = re.compile(r"[:=][ \t]*(?=\S)")
# The value follows in the next lines: `password: |`.
_OPENING: Final = re.compile(r"[:=](?:[ \t]*[|>][-+0-9]{0,2})?$")
_BEFORE_NAME: Final = re.compile(r".*[:=,;{]", re.DOTALL)
_SECRET_WORDS: Final = re.compile(
    r"passw|passphrase|secret|token|credential|authorization|(?:api|access|private)[ _-]?key",
    re.IGNORECASE,
)
_IN_URL: Final = re.compile(r"(://[^/@\s:]{0,200}:)\S{0,200}@")
_PARAMETER: Final = re.compile(r"#\{[^}]*\}")

_Anchor: TypeAlias = tuple[int, int, Path]
"""Line and column at which the part at a path begins."""


class PlacedComment(msgspec.Struct, frozen=True, array_like=True):
    """Comments of one part of a flow.

    Attributes:
        path: Path of the part in the document; empty: above everything.
        above: Lines above it, each from `#` on; empty ones separate paragraphs.
        beside: The comment in its line; empty: none.
    """

    path: tuple[str | int, ...]
    above: tuple[str, ...] = ()
    beside: str = ""


class FlowComments(msgspec.Struct, frozen=True, array_like=True):
    """All comments of a flow's file.

    Attributes:
        placed: Those of its parts.
        below: Lines after the last part.
    """

    placed: tuple[PlacedComment, ...] = ()
    below: tuple[str, ...] = ()

    def check(self) -> None:
        """Check comments that were read from a disk.

        Raises:
            InvalidRequest: One is not a comment of one line.
        """
        lines = [line for one in self.placed for line in (*one.above, one.beside)]
        if not all(_COMMENT.fullmatch(line) for line in (*lines, *self.below)):
            raise InvalidRequest("a comment of the flow is not a line that begins with #")


NO_COMMENTS: Final = FlowComments()


@dataclass(slots=True)
class _Lines:
    """Comments of one part, as they are collected."""

    above: list[str] = field(default_factory=list)
    beside: str = ""


def comments_of(
    document: str | bytes, places: SourceLocations, sensitive: Collection[str] = ()
) -> FlowComments:
    """Return the comments of a flow's file, without values that look like secrets.

    Args:
        document: The file, which could be read.
        places: Its positions.
        sensitive: Names of sensitive properties.

    Raises:
        InvalidFlow: There are too many, or they are too long.
    """
    is_without = "#" not in document if isinstance(document, str) else b"#" not in document
    if is_without:
        return NO_COMMENTS
    secrets = _SecretFilter(frozenset(one.casefold() for one in sensitive))
    anchors = _anchors(places)
    first = {line: path for line, _, path in reversed(anchors)}
    collected: dict[Path, _Lines] = {}
    below: list[str] = []
    at, last_line = 0, 0
    size = 0
    for number, comment in enumerate(comments_in(document), 1):
        size += len(comment.text)
        if number > COMMENTS_MAX or size > CHARACTERS_MAX:
            place = SourceLocation(comment.line, 1, "", places.file)
            raise InvalidFlow([FlowProblem(place, _TOO_MANY)])
        text = secrets.shown(comment)
        while at < len(anchors) and anchors[at][0] <= comment.line:
            at += 1
        if not comment.is_alone:
            path = first.get(comment.line) or (anchors[at - 1][2] if at else ())
            lines = collected.setdefault(path, _Lines())
            if lines.beside:
                lines.above.append(text)
            else:
                lines.beside = text
            continue
        if at == len(anchors):
            above = below
        else:
            # Lines above everything stay there, even if the export begins with another field.
            above = collected.setdefault(anchors[at][2] if at else (), _Lines()).above
        if above and comment.line > last_line + 1:
            above.append("")
        above.append(text)
        last_line = comment.line
    placed = (PlacedComment(path, tuple(one.above), one.beside) for path, one in collected.items())
    return FlowComments(tuple(placed), tuple(below))


def with_comments(text: str, comments: FlowComments) -> str:
    """Return the export of a flow with comments.

    Args:
        text: The export, as `to_yaml` writes it.
        comments: The comments.
    """
    if comments == NO_COMMENTS:
        return text
    anchors = _anchors(locations(text))
    begins = {path: line for line, _, path in reversed(anchors)}
    parts = {line for line, _, _ in anchors}
    lines = text.splitlines(keepends=True)  # they end as the positions count them
    above: dict[int, list[str]] = {}
    beside: dict[int, str] = {}
    for one in comments.placed:
        at = _nearest(one.path, begins)
        above.setdefault(at, []).extend(one.above)
        if not one.beside:
            continue
        # A text may continue in the next lines, where a comment would be a part of it.
        ends_here = at + 1 in parts or at == len(lines)
        if one.path in begins and ends_here and at not in beside:
            beside[at] = one.beside
        else:
            above[at].append(one.beside)
    written: list[str] = []
    for number, line in enumerate(lines, 1):
        indent = line[: len(line) - len(line.lstrip(" "))]
        written.extend(f"{indent}{one}\n" if one else "\n" for one in above.get(number, ()))
        # Not all white space: a value may end with a no-break space.
        unended = line.rstrip("\r\n")
        written.append(f"{unended}  {beside[number]}\n" if number in beside else line)
    written.extend(f"{one}\n" for one in comments.below)
    return "".join(written)


def _anchors(places: SourceLocations) -> Sequence[_Anchor]:
    """Return where each part of a file begins, in order; the better path of two comes first."""
    found: dict[tuple[int, int], Path] = {}
    # Items of lists, and names of parts in lists: all other values stand beside their keys.
    keys = places.key_marks
    items = {path: at for path, at in places.marks.items() if path and path not in keys}
    for marks in (items, keys):
        for path, at in marks.items():
            known = found.get(at)
            if known is None or (len(path), _is_number(path)) < (len(known), _is_number(known)):
                found[at] = path
    return sorted((line, column, path) for (line, column), path in found.items())


def _is_number(path: Path) -> bool:
    return isinstance(path[-1], int)


def _nearest(path: Path, begins: dict[Path, int]) -> int:
    """Return the line of a part, or of the nearest one around it."""
    while path and path not in begins:
        path = path[:-1]
    return begins.get(path, 1)


@dataclass(slots=True)
class _SecretFilter:
    """Replaces secrets in comments, of which the next line may continue a value.

    Attributes:
        names: Names of sensitive properties, in lower case.
        line: Line of the last comment.
        indent: Column of a name in that line whose value follows; None: no secret continues.
    """

    names: Collection[str]
    line: int = 0
    indent: int | None = None

    def shown(self, comment: YamlComment) -> str:
        """Return a comment without secrets. Comments come in their order."""
        content = comment.text.lstrip("# \t")
        indent = len(comment.text) - len(content)
        follows = comment.is_alone and comment.line == self.line + 1
        self.line = comment.line
        if self.indent is not None and follows:
            if not content:
                return comment.text
            if indent > self.indent or (indent == self.indent and content.startswith("-")):
                return f"{comment.text[:indent]}{LEFT_OUT}"
        opening = _OPENING.search(content) if comment.is_alone else None
        is_secret = opening is not None and _is_secret(content[: opening.start()], self.names)
        self.indent = indent if is_secret else None
        return _without_secret(comment.text, self.names)


def _is_secret(text: str, names: Collection[str]) -> bool:
    """Return whether a text ends with the name of a secret."""
    name = _BEFORE_NAME.sub("", text[-_NAME_CHARACTERS:]).strip(" \t#\"'-")
    return name.casefold() in names or _SECRET_WORDS.search(name) is not None


def _without_secret(text: str, names: Collection[str]) -> str:
    shown = _IN_URL.sub(rf"\g<1>{LEFT_OUT}@", text)
    for match in _SEPARATOR.finditer(shown):
        if _is_secret(shown[max(0, match.start() - _NAME_CHARACTERS) : match.start()], names):
            value = shown[match.end() :].strip(" \t\"'")
            if is_reference(value) or _PARAMETER.fullmatch(value):
                break
            return f"{shown[: match.end()]}{LEFT_OUT}"
    return shown
