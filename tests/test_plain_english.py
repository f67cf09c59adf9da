"""Phrases that the language guide asks to avoid in the texts of `src`: at most `PLACES_MAX` hits.

`python tests/test_plain_english.py [path ...]` prints each place with its file and line. Texts are
docstrings, comments, and string literals of three words or more. The patterns find the most
frequent habits, not all, and some of their hits are good English: hence a limit above zero, which
only falls.
"""

from __future__ import annotations

import re
import sys
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

# `make lint` runs them, and `make test` does not.
pytestmark = pytest.mark.lint

ROOT: Final = Path(__file__).parent.parent
PLACES_MAX: Final = 3
_WORDS_MIN: Final = 3
_CONTEXT: Final = 50


@dataclass(frozen=True)
class Habit:
    """A phrase to avoid.

    Attributes:
        name: The phrase in short.
        pattern: Its regular expression. White space in a text is one blank.
        reason: Why a reader stumbles over it.
        instead: What to write.
        bad: An example that the pattern finds.
        good: The example rewritten, which the pattern does not find.
    """

    name: str
    pattern: str
    reason: str
    instead: str
    bad: str
    good: str


# Beginnings of a sentence, an item of a list or a definition.
_START: Final = r"(?:^|(?<=[.:;!?] )|(?<=- ))"

HABITS: Final = (
    Habit(
        "question word for a noun",
        _START + r"(?:[Ww]hat|[Ww]ho(?:ever)?) (?![^.]*\?)[a-z]",
        "the reader must guess which thing is meant",
        "the noun: messages that ..., clients that ...",
        "What a channel delivers no longer: too old, lost or deleted.",
        "Messages that a channel drops: expired, lost or deleted.",
    ),
    Habit(
        "preposition before what",
        r"\b(?:[Oo]f|[Ww]ith|[Ff]rom|[Ff]or|[Bb]y|[Tt]o|[Ii]n|[Tt]han) what\b",
        "the noun is missing",
        "the noun: of the rows that ..., from the offsets that ...",
        "Merge it with what tasks announced.",
        "Merge it with the files that tasks announced.",
    ),
    Habit(
        "so many for a number",
        r"\b[Ss]o (?:many|much|often|long|large|old|late|few)\b(?! (?:as|that)\b)",
        "a definition refers to a number that the reader does not see",
        "maximum number of ..., maximum age in ms, up to 20 times",
        "So old the cache may be.",
        "Maximum age of the cache.",
    ),
    Habit(
        "is no X",
        r"(?<![Tt]here )\b(?:is|are|was|were) no "
        r"(?!longer|more|less|fewer|such|other|different|later|earlier|greater|larger|smaller|newer"
        r"|older|better|worse|higher|lower)[a-z]",
        "a word-for-word translation",
        "is not a X; invalid X",
        "'x' is no address",
        "'x' is not an address",
    ),
    Habit(
        "tell for report",
        r"\b(?:is|are|was|were|be|been) (?:not )?told\b"
        r"|\b[Tt]ells? (?:whether|how|of|that|what|who|when|where)\b",
        "programs return values and report events",
        "returns, reports, shows, notifies",
        "Tell whether the queue is empty.",
        "Return whether the queue is empty.",
    ),
    Habit("mend", r"\bmend(?:s|ed|ing)?\b", "rare", "fix, repair", "mends it", "repairs it"),
    Habit(
        "no more",
        r"\bno more\b(?! than)|\bnot any more\b",
        "means a number, not a time",
        "no longer",
        "It is read no more.",
        "It is no longer read.",
    ),
    Habit(
        "is there",
        r"\b(?:is|are|was|were|be) (?:not |yet |still )?there\b(?! (?:is|are))",
        "the reader looks for a place",
        "exists, is present, was created",
        "The file may be there.",
        "The file may exist.",
    ),
    Habit(
        "bear",
        r"\b(?:bears?|borne|bearable)\b",
        "rare in this sense",
        "tolerate, allow",
        "The queue bears losses.",
        "The queue tolerates losses.",
    ),
    Habit(
        "say for specify",
        r"\b(?:is|are|was|were|not|been) said\b|\bsays? so\b|\bsays? nothing\b",
        "texts and settings do not speak",
        "specify, contain, state",
        "The interval is not said.",
        "The interval is not specified.",
    ),
    Habit(
        "whatever",
        r"\b[Ww]hatever\b",
        "vague: often an exception is meant",
        "even if it raises; any X; regardless of X",
        "Close it, whatever it raises.",
        "Close it, even if it raises.",
    ),
    Habit(
        "beside for elsewhere",
        r"\bbeside (?:the (?:event )?loop|(?:other|further) (?:work|changes|calls))\b",
        "a place is named where a thread is meant",
        "on another thread, without blocking the loop; while other changes run",
        "Read beside the event loop.",
        "Read on another thread.",
    ),
    Habit(
        "nobody, somebody",
        r"\b(?:[Nn]obody|[Ss]omebody|[Ee]verybody|[Nn]o one)\b",
        "programs are not people",
        "no process, no client; a user",
        "Nobody reads the file.",
        "No process reads the file.",
    ),
    Habit(
        "in vain", r"\bin vain\b", "literary", "without success", "asks in vain", "gets no answer"
    ),
    Habit(
        "likewise", r"\b[Ll]ikewise\b", "literary", "also; the same", "likewise None", "also None"
    ),
    Habit(
        "anew", r"\banew\b", "literary", "again; write a new X", "create it anew", "create it again"
    ),
    Habit(
        "look for check",
        r"\b(?:is|are|was|were|be) looked (?:at|for)\b|\blooks? (?:at|after)\b"
        r"|\b(?:[Aa]|[Ee]ach|last) look\b(?!-)",
        "programs do not look",
        "check, read, inspect; the last check",
        "Each row is looked at.",
        "Each row is checked.",
    ),
    Habit(
        "made of",
        r"\bmade (?:of|out of)\b",
        "often made from, or consists of",
        "built from, consists of",
        "A name made of hex digits.",
        "A name that consists of hex digits.",
    ),
    Habit(
        "else at the start",
        _START + r"Else\b",
        "else joins two choices in one sentence",
        "otherwise",
        "Else the file is deleted.",
        "Otherwise the file is deleted.",
    ),
    Habit(
        "go on",
        r"\b(?:go|goes|going|went|gone) on\b",
        "continue is plainer",
        "continue, keep, happen",
        "Reading goes on.",
        "Reading continues.",
    ),
    Habit(
        "by now",
        r"\bby now\b",
        "vague",
        "already, now",
        "It may run by now.",
        "It may already run.",
    ),
    Habit(
        "also with a condition",
        r"\balso (?:where|if|when|after|before|while|for those)\b",
        "even is meant",
        "even if, even after; and after",
        "It holds also after a crash.",
        "It holds even after a crash.",
    ),
    Habit(
        "fronted of",
        _START
        + r"(?:Of|From among) (?:the|its|two|three|all|several|these|those|any|each|equal)\b",
        "the subject comes too late",
        "begin with the subject",
        "Of two files the newer is read.",
        "The newer of two files is read.",
    ),
    Habit(
        "alone for only",
        r"\b(?:in|by|of) [a-z]+ alone\b",
        "the reader expects something lonely",
        "only",
        "Names that differ in case alone.",
        "Names that differ only in case.",
    ),
    Habit(
        "ask for request",
        r"\b(?:is|are|was|were|be|been) asked(?: for)?\b",
        "servers are called, values are requested",
        "request, call, query",
        "The host is asked for its columns.",
        "The columns are requested from the host.",
    ),
    Habit(
        "without end",
        r"\bat last\b|\bfor good(?=[.,;:]|$)|\bwithout end\b",
        "literary",
        "finally; permanently; forever, without a limit",
        "It waits without end.",
        "It waits forever.",
    ),
    Habit(
        "wish, want",
        r"\bwish(?:es|ed)?\b|(?<!\buser )\bwants?\b(?!`)",
        "tasks and queues do not wish",
        "request, need, require",
        "Tasks that want a lock.",
        "Tasks that request a lock.",
    ),
    Habit(
        "of which there are",
        r"\bof which there (?:is|are)\b|\bthere (?:is|are) none but\b",
        "a statement hides behind another one",
        "a sentence of its own: There are two ...",
        "Names of slices, of which there is one at least.",
        "Names of slices, at least one.",
    ),
)

_PATTERNS: Final = tuple((habit, re.compile(habit.pattern)) for habit in HABITS)
# A comment, or a string literal with its prefix, quotes and content.
_TOKEN: Final = re.compile(
    r"#(?P<comment>[^\n]*)"
    r"|[A-Za-z]{0,2}(?P<quotes>\"\"\"|'''|\"|')(?P<text>(?:\\.|(?!(?P=quotes))[^\\])*)(?P=quotes)",
    re.DOTALL,
)
_FIELD: Final = re.compile(r"\{[^{}\n]*\}")


@dataclass(frozen=True)
class Place:
    """One hit: its file, its line, the habit, and the words around it."""

    path: Path
    line: int
    habit: Habit
    excerpt: str

    def __str__(self) -> str:
        name = self.path.relative_to(ROOT) if self.path.is_relative_to(ROOT) else self.path
        return f"{name}:{self.line}: {self.habit.name} ({self.habit.instead}): {self.excerpt}"


@dataclass(frozen=True)
class Text:
    """A docstring, a comment of one or more lines, or adjacent literals, with one blank for
    white space.

    Attributes:
        words: The text.
        starts: Offsets in `words` at which the lines of the file begin.
        lines: The numbers of these lines.
    """

    words: str
    starts: tuple[int, ...]
    lines: tuple[int, ...]

    def line_at(self, offset: int) -> int:
        """Return the number of the line that contains an offset of the text."""
        return self.lines[bisect_right(self.starts, offset) - 1]


def texts_of(source: str) -> Iterator[Text]:
    """Return the texts of a module; neighbours that only white space separates are one text."""
    words, starts, lines = "", [0], [1]
    kind, end, line = "", 0, 1
    for token in _TOKEN.finditer(source):
        between = source[end : token.start()]
        line += between.count("\n")
        content = token["comment"] if token["text"] is None else _FIELD.sub("{}", token["text"])
        now = "comment" if token["text"] is None else "string"
        if now != kind or between.strip():
            yield from _whole(words, starts, lines)
            words, starts, lines = "", [0], [line]
        kind, end = now, token.end()
        for number, part in enumerate(content.split("\n")):
            stripped = " ".join(part.replace("\\n", " ").split())
            if words and stripped and not words.endswith(" "):
                words += " " if number or kind == "comment" or part[:1] == " " else ""
            if stripped:
                starts.append(len(words))
                lines.append(line + number)
                words += stripped + (" " if kind == "string" and part.endswith(" ") else "")
        line += content.count("\n")
    yield from _whole(words, starts, lines)


def _whole(words: str, starts: list[int], lines: list[int]) -> Iterator[Text]:
    if words.count(" ") + 1 >= _WORDS_MIN:
        yield Text(words, tuple(starts), tuple(lines))


def places_in(path: Path, source: str) -> Iterator[Place]:
    """Return the hits of all habits in a module."""
    for text in texts_of(source):
        for habit, pattern in _PATTERNS:
            for hit in pattern.finditer(text.words):
                first, last = max(0, hit.start() - _CONTEXT), hit.end() + _CONTEXT
                yield Place(path, text.line_at(hit.start()), habit, text.words[first:last])


def places(paths: Iterable[Path]) -> list[Place]:
    """Return the hits in files and in all modules below folders."""
    files = (
        file
        for path in paths
        for file in ([path] if path.is_file() else sorted(path.rglob("*.py")))
    )
    return [place for file in files for place in places_in(file, file.read_text())]


def test_texts_of_the_sources_are_plain_english() -> None:
    found = places([ROOT / "src"])
    assert len(found) <= PLACES_MAX, "\n".join(map(str, found))


@pytest.mark.parametrize("habit", HABITS, ids=lambda habit: habit.name)
def test_each_habit_is_found_and_its_rewrite_is_not(habit: Habit) -> None:
    assert re.search(habit.pattern, habit.bad)
    assert not [one.name for one, pattern in _PATTERNS if pattern.search(habit.good)]


def test_a_place_has_the_line_of_its_words() -> None:
    source = (
        '"""Doc of a module.\n\nAn address\nis no\nname.\n"""\n'
        "x = 1  # comment that goes\n# on in the next line\n"
        'y = f("the file is "\n    "no archive")\n'
        "z = 'is no' # short\n"
    )
    found = places_in(Path("x.py"), source)
    assert [(place.habit.name, place.line) for place in found] == [
        ("is no X", 4),
        ("go on", 7),
        ("is no X", 9),
    ]


if __name__ == "__main__":
    _found = places([Path(arg).resolve() for arg in sys.argv[1:]] or [ROOT / "src"])
    print(*_found, f"{len(_found)} places", sep="\n")
