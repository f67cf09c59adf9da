"""A small kit for the pictures of the manual: boxes, arrows, bars and texts become one SVG file.

Coordinates are pixels from the upper left corner. Colours are given twice: as attributes, for the
pictures on their own (as code hosts show them), and as classes, for the stylesheet of the site,
which has a light and a dark set. A picture has neither scripts nor styles of its own, so that it
can stand inside a page with a strict Content-Security-Policy.

`Picture.check` finds texts that leave their boxes, and boxes that overlap.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Literal
from xml.sax.saxutils import escape, quoteattr

Kind = Literal["process", "store", "data", "user", "old", "bad", "note"]
Side = Literal["left", "right", "top", "bottom"]

FONT: Final = "Inter, Helvetica, Arial, sans-serif"
SIZE: Final = 13
SMALL: Final = 11
LINE: Final = 16
# Width of a character in parts of the size of the font, rather too much than too little.
CHARACTER: Final = 0.56
PADDING: Final = 6

# Fill and outline of each kind of box.
COLOURS: Final[dict[str, tuple[str, str]]] = {
    "process": ("#e8eefc", "#3f5fb5"),
    "store": ("#e7f4ea", "#2f7d46"),
    "data": ("#fff4dc", "#b07a14"),
    "user": ("#f3ecfb", "#7a4fb0"),
    "old": ("#eeeeee", "#9a9a9a"),
    "bad": ("#fde8e6", "#bd3b2f"),
    "note": ("none", "none"),
}
INK: Final = "#1f2430"
FAINT: Final = "#6b7280"
PAPER: Final = "#ffffff"


@dataclass(frozen=True)
class Box:
    """A rectangle with lines of text; the first line is bold if there are more.

    Attributes:
        left: Left edge.
        top: Upper edge.
        width: Width.
        height: Height.
        text: Lines of text.
        kind: Kind of thing, which gives its colour.
    """

    left: float
    top: float
    width: float
    height: float
    text: str
    kind: Kind

    @property
    def right(self) -> float:
        """The right edge."""
        return self.left + self.width

    @property
    def bottom(self) -> float:
        """The lower edge."""
        return self.top + self.height

    def side(self, side: Side, at: float = 0.5) -> tuple[float, float]:
        """Return a point of an edge.

        Args:
            side: The edge.
            at: Part of the edge from its left or upper end, 0 to 1.
        """
        across, down = self.left + self.width * at, self.top + self.height * at
        return {
            "left": (self.left, down),
            "right": (self.right, down),
            "top": (across, self.top),
            "bottom": (across, self.bottom),
        }[side]


@dataclass
class Picture:
    """A picture; its methods draw in the order of their calls.

    Args:
        width: Width of the picture.
        height: Height.
        title: Its subject in a few words.
        description: The same in one or two sentences, for readers who cannot see it.
    """

    width: int
    height: int
    title: str
    description: str
    _parts: list[str] = field(default_factory=list)
    _labels: list[str] = field(default_factory=list)
    _boxes: list[Box] = field(default_factory=list)
    _problems: list[str] = field(default_factory=list)

    def box(
        self,
        left: float,
        top: float,
        width: float,
        height: float,
        text: str,
        kind: Kind = "process",
        *,
        small: bool = False,
    ) -> Box:
        """Draw a box with centred lines of text, and return it for arrows."""
        box = Box(left, top, width, height, text, kind)
        fill, stroke = COLOURS[kind]
        self._parts.append(
            f'<rect x="{left:g}" y="{top:g}" width="{width:g}" height="{height:g}" rx="5"'
            f' fill="{fill}" stroke="{stroke}" class="p-{kind}"/>'
        )
        self._boxes.append(box)
        size = SMALL if small else SIZE
        lines = text.split("\n") if text else []
        first = top + height / 2 - LINE * (len(lines) - 1) / 2
        for number, line in enumerate(lines):
            is_head = number == 0 and len(lines) > 1 and not small
            self._text(
                left + width / 2,
                first + LINE * number,
                line,
                size=size if number == 0 else SMALL,
                anchor="middle",
                bold=is_head,
            )
            room = width - PADDING
            if text_width(line, size if number == 0 else SMALL) > room:
                self._problems.append(f"{line!r} does not fit its box")
        if len(lines) * LINE > height:
            self._problems.append(f"{text!r} has too many lines for its box")
        return box

    def group(self, left: float, top: float, width: float, height: float, text: str) -> None:
        """Draw a dashed frame around boxes, with its name at its upper left corner."""
        self._parts.append(
            f'<rect x="{left:g}" y="{top:g}" width="{width:g}" height="{height:g}" rx="8"'
            f' fill="none" stroke="{FAINT}" stroke-dasharray="4 4" class="p-group"/>'
        )
        self._text(left + 10, top + 14, text, size=SMALL, faint=True)

    def arrow(
        self,
        start: tuple[float, float],
        end: tuple[float, float],
        text: str = "",
        *,
        via: tuple[tuple[float, float], ...] = (),
        dashed: bool = False,
        both: bool = False,
        at: tuple[float, float] | None = None,
    ) -> None:
        """Draw an arrow.

        Args:
            start: Its first point.
            end: Its last point.
            text: A label.
            via: Points between them.
            dashed: Draw it dashed.
            both: Give it a head at both ends.
            at: Centre of the label; None: above the middle of the longest part.
        """
        points = (start, *via, end)
        path = " ".join(f"{x:g},{y:g}" for x, y in points)
        dash = ' stroke-dasharray="5 4"' if dashed else ""
        tail = f' marker-start="url(#{self._head})"' if both else ""
        self._parts.append(
            f'<polyline points="{path}" fill="none" stroke="{FAINT}" stroke-width="1.5"{dash}{tail}'
            f' marker-end="url(#{self._head})" class="p-line"/>'
        )
        if text:
            parts = itertools.pairwise(points)
            (x1, y1), (x2, y2) = max(parts, key=lambda p: abs(p[0][0] - p[1][0]))
            x, y = at or ((x1 + x2) / 2, (y1 + y2) / 2 - 9)
            # The outline of the letters is the paper, so that no line runs through a label.
            self._labels += [
                f'<text x="{x:g}" y="{y + 13 * number:g}" font-size="{SMALL}" text-anchor="middle"'
                f' dominant-baseline="central" fill="{FAINT}" stroke="{PAPER}" stroke-width="4"'
                ' stroke-linejoin="round" paint-order="stroke" class="p-faint p-label">'
                f"{escape(line)}</text>"
                for number, line in enumerate(text.split("\n"))
            ]

    def steps(
        self, top: float, height: float, steps: Sequence[tuple[str, Kind]], *, width: float = 132
    ) -> list[Box]:
        """Draw boxes from left to right with arrows between them, and return them."""
        boxes = [
            self.box(10 + (width + 13) * number, top, width, height, text, kind, small=True)
            for number, (text, kind) in enumerate(steps)
        ]
        for one, other in itertools.pairwise(boxes):
            self.arrow(one.side("right"), other.side("left"))
        return boxes

    def line(self, start: tuple[float, float], end: tuple[float, float]) -> None:
        """Draw a thin line without a head."""
        self._parts.append(
            f'<line x1="{start[0]:g}" y1="{start[1]:g}" x2="{end[0]:g}" y2="{end[1]:g}"'
            f' stroke="{FAINT}" class="p-line"/>'
        )

    def text(
        self, left: float, middle: float, text: str, *, bold: bool = False, faint: bool = False
    ) -> None:
        """Write lines of text from a left edge; the first is centred on `middle`."""
        for number, line in enumerate(text.split("\n")):
            y = middle + LINE * number
            self._text(left, y, line, size=SIZE if bold else SMALL, bold=bold, faint=faint)
            if left + text_width(line, SIZE if bold else SMALL) > self.width:
                self._problems.append(f"{line!r} leaves the picture")

    def _text(
        self,
        x: float,
        y: float,
        text: str,
        *,
        size: int,
        anchor: str = "start",
        bold: bool = False,
        faint: bool = False,
    ) -> None:
        weight = ' font-weight="600"' if bold else ""
        colour, name = (FAINT, "p-faint") if faint else (INK, "p-ink")
        self._parts.append(
            f'<text x="{x:g}" y="{y:g}" font-size="{size}" text-anchor="{anchor}"{weight}'
            f' dominant-baseline="central" fill="{colour}" class="{name}">{escape(text)}</text>'
        )

    def check(self) -> list[str]:
        """Return what is wrong with the picture: texts that do not fit, boxes that overlap."""
        found = list(self._problems)
        for one, other in itertools.combinations(self._boxes, 2):
            apart = (
                one.right <= other.left
                or other.right <= one.left
                or one.bottom <= other.top
                or other.bottom <= one.top
            )
            inside = _holds(one, other) or _holds(other, one)
            if not apart and not inside:
                found.append(f"{one.text!r} and {other.text!r} overlap")
        found += [
            f"{box.text!r} leaves the picture"
            for box in self._boxes
            if min(box.left, box.top) < 0 or box.right > self.width or box.bottom > self.height
        ]
        return found

    @property
    def _head(self) -> str:
        """Identifier of the head of arrows, which no other picture of a page may have."""
        return "head-" + re.sub(r"[^a-z0-9]+", "-", self.title.lower()).strip("-")

    def svg(self) -> str:
        """Return the file; labels of arrows lie above everything else."""
        name = quoteattr(self.title)
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}"'
            f' width="{self.width}" height="{self.height}" role="img" aria-label={name}'
            f' font-family="{FONT}" class="picture">\n'
            f"<title>{escape(self.title)}</title>\n<desc>{escape(self.description)}</desc>\n"
            f'<defs><marker id="{self._head}" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7"'
            ' markerHeight="7" orient="auto-start-reverse">'
            f'<path d="M0 0L10 5L0 10z" fill="{FAINT}" class="p-head"/></marker></defs>\n'
            f'<rect width="{self.width}" height="{self.height}" fill="{PAPER}" class="p-paper"/>\n'
            + "\n".join(self._parts + self._labels)
            + "\n</svg>\n"
        )


def _holds(outer: Box, inner: Box) -> bool:
    return (
        outer.left <= inner.left
        and outer.top <= inner.top
        and outer.right >= inner.right
        and outer.bottom >= inner.bottom
    )


def text_width(text: str, size: int) -> float:
    """Return the width of a text in pixels, estimated."""
    return len(text) * size * CHARACTER
