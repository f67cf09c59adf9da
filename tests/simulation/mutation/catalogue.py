"""The catalogue of faults: what a developer could have got wrong, and which promise that breaks.

Each file of `catalogue/` is a part of the product and a list of faults. A fault replaces a text
that occurs once in a module of `src/penstock`. It must be believable, and change one to ten lines.
The catalogue is written from the product and its documentation, without a look at what the
simulation checks. A fault that the simulation does not notice gets a verdict:

| verdict | meaning of `reason` |
|---|---|
| equivalent | why no user can see a difference; the fault is neither run nor counted |
| masked | which other part of the product hides it |
| hole | what the simulation lacks |
"""

from __future__ import annotations

import ast
import difflib
import hashlib
import tomllib
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[3]
SOURCES: Final = ROOT / "src" / "penstock"
CATALOGUE: Final = Path(__file__).parent / "catalogue"
VERDICTS: Final = frozenset({"", "equivalent", "masked", "hole"})


class StaleFault(Exception):
    """The text that a fault replaces does not occur exactly once any longer."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault.

    Attributes:
        id: Its name, unique in the catalogue.
        part: The part of the product.
        file: The module, relative to `src/penstock`.
        thought: The thought that could have led a developer to it.
        breaks: The promise that it breaks.
        promise: The document that makes the promise, relative to the repository.
        old: The text that is replaced.
        new: The text instead of it.
        verdict: One of `VERDICTS`; empty if it was not judged.
        reason: Why it has this verdict.
    """

    id: str
    part: str
    file: str
    thought: str
    breaks: str
    promise: str
    old: str
    new: str
    verdict: str = ""
    reason: str = ""

    @property
    def order(self) -> int:
        """Place in the random order in which faults are tried, so that a few are a fair sample."""
        return zlib.crc32(self.id.encode())

    @property
    def digest(self) -> str:
        """Digest of the change, which differs if the fault is edited."""
        return hashlib.sha256(f"{self.file}\0{self.old}\0{self.new}".encode()).hexdigest()[:12]

    def source(self) -> str:
        """Return the text of the module without the fault."""
        return (SOURCES / self.file).read_text(encoding="utf-8")

    def applied(self) -> str:
        """Return the text of the module with the fault.

        Raises:
            StaleFault: The old text does not occur exactly once.
        """
        text = self.source()
        count = text.count(self.old)
        if count != 1:
            raise StaleFault(
                f"fault {self.id}: its old text occurs {count} times in {self.file}: write the"
                " fault again for the present code, or delete it"
            )
        return text.replace(self.old, self.new)

    def lines(self) -> frozenset[int] | None:
        """Return the lines of the statements that it changes; None: they run when it is imported.

        A run that executes none of these lines is the same with and without the fault.
        """
        text = self.source()
        first = text[: text.index(self.old)].count("\n") + 1
        before, after = self.old.splitlines(), self.new.splitlines()
        changed: set[int] = set()
        for kind, start, end, _, _ in difflib.SequenceMatcher(a=before, b=after).get_opcodes():
            if kind == "insert":
                changed |= {first + start - 1, first + start}
            elif kind != "equal":
                changed |= set(range(first + start, first + end))
        tree = ast.parse(text)
        found: set[int] = set()
        for line in changed:
            place = _statement(tree, line)
            if place is None:
                return None
            found |= place
        return frozenset(found)


def load(folder: Path = CATALOGUE) -> list[Fault]:
    """Return all faults, in the order in which they are tried."""
    found = [
        Fault(part=path.stem, **fault)
        for path in sorted(folder.glob("*.toml"))
        for fault in tomllib.loads(path.read_text(encoding="utf-8"))["fault"]
    ]
    return sorted(found, key=lambda fault: (fault.order, fault.id))


def _statement(tree: ast.Module, line: int) -> set[int] | None:
    """Return the lines of the innermost statement around a line of a function; None: of none."""
    place: set[int] | None = None
    body: list[ast.stmt] = tree.body
    in_function = False
    while True:
        one = next((s for s in body if _first_line(s) <= line <= (s.end_lineno or s.lineno)), None)
        if one is None:
            return place
        body = _children(one)
        if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef):
            in_function = True
            if line < one.body[0].lineno:
                return None  # its signature or a decorator
            place = set(range(one.body[0].lineno, (one.end_lineno or one.lineno) + 1))
        elif in_function:
            place = set(range(one.lineno, (one.end_lineno or one.lineno) + 1))


def _first_line(statement: ast.stmt) -> int:
    decorators: list[ast.expr] = getattr(statement, "decorator_list", [])
    return min([statement.lineno, *(one.lineno for one in decorators)])


def _children(statement: ast.stmt) -> list[ast.stmt]:
    """Return the statements that are directly in a statement."""
    return [
        found
        for node in ast.iter_child_nodes(statement)
        # Handlers of exceptions and cases of a match are between the two.
        for found in ([node] if isinstance(node, ast.stmt) else ast.iter_child_nodes(node))
        if isinstance(found, ast.stmt)
    ]
