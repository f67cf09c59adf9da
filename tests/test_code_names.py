"""Names: those in texts of the code exist, and those that the glossary replaces are not used.

Docstrings and comments refer to modules and functions in single backticks. A rename that leaves
such a reference behind sends the reader to something that is gone. Three rules, each without false
alarms on text that is right:

- The names after "does not own" are modules, beside the module that names them or above it. There,
  names in double backticks count, too.
- Another name is a module, or a name of the code: an identifier of the same module, or a
  class, function, field, attribute, option or word of a table anywhere.
- A dotted name is a module, a name that such a module defines, or of such names; names of other
  libraries are not followed.
"""

from __future__ import annotations

import ast
import builtins
import functools
import io
import keyword
import re
import sys
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest

from tests import cohesion

# `make lint` runs them, and `make test` does not.
pytestmark = pytest.mark.lint

SOURCE: Final = cohesion.ROOT / "src" / cohesion.PACKAGE

# Names of others that no code of Penstock has, and whose they are.
FOREIGN: Final = {
    "__penstock_extern_1": "SQL: `__penstock_extern_` and a number",
    "Origin": "a header of HTTP",
    "PT0S": "a period of ISO 8601",
    "RLIMIT_AS": "a constant of the system",
    "ReleaseSessionRequest": "a message of Spark Connect",
    "availableNow": "a trigger of Spark's streams",
    "collect_list": "a function of Spark SQL",
    "mapInArrow": "a method of Spark's DataFrames",
    "pendingSegmentVersion": "a field of Druid's API",
    "pyspark_penstock": "a package of the wheel, beside this one",
    "pyspark_penstock_topic": "a package of the wheel, beside this one",
    "ps": "a command of the system",
    "pushFilters": "a method of Spark's data sources",
    "sql_query_time": "a metric in Prometheus' form",
    "top": "a command of the system",
    "pa.ArrowMemoryError": "PyArrow has this class; it is caught by its name",
}

_IN_BACKTICKS: Final = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
_LITERAL: Final = re.compile(r"``([^`\n]+)``")
_WORD: Final = re.compile(r"[A-Za-z_]\w*")
_DOTTED: Final = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+")
_NOT_OWNED: Final = re.compile(r"not\s+(?:own|know)\b.*?(?:\.\s|\.$|\Z)", re.DOTALL)
_FILE_ENDINGS: Final = ("json", "log", "md", "out", "py", "toml", "yaml")


@dataclass
class Code:
    """The texts of one module, and the names in its code."""

    path: Path
    tree: ast.Module
    texts: list[tuple[int, str]] = field(default_factory=list)
    imported: set[str] = field(default_factory=set)
    identifiers: set[str] = field(default_factory=set)
    defined: set[str] = field(default_factory=set)
    strings: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        nodes = list(ast.walk(self.tree))
        docstrings = {id(node) for node in self._docstrings(nodes)}
        for node in nodes:
            self._add_names(node)
            self.imported |= set(_imported(node))
            if isinstance(node, ast.Constant) and id(node) not in docstrings:
                self._add_string(node.value)
        for statement in self.tree.body:
            self.defined |= set(_targets(statement))
        text = self.path.read_text()
        if re.search("#.*`", text):
            for token in tokenize.generate_tokens(io.StringIO(text).readline):
                if token.type == tokenize.COMMENT:
                    self.texts.append((token.start[0], token.string))

    def _docstrings(self, nodes: list[ast.AST]) -> Iterator[ast.Constant]:
        for node in nodes:
            body = getattr(node, "body", None)
            for one in body if isinstance(body, list) else ():
                value = one.value if isinstance(one, ast.Expr) else None
                if isinstance(value, ast.Constant) and isinstance(value.value, str):
                    self.texts.append((one.lineno, value.value))
                    yield value

    def _add_names(self, node: ast.AST) -> None:
        for attribute in ("id", "attr", "arg", "name", "asname", "module"):
            value = getattr(node, attribute, None)
            if isinstance(value, str):
                self.identifiers |= set(value.split("."))
        if isinstance(node, ast.ClassDef):
            self.defined |= {name for one in node.body for name in _targets(one)}
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            self.defined.add(node.name)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            self.defined.add(node.attr)
        if isinstance(node, ast.arg) and "_" in node.arg:  # one word may be a module's old name
            self.defined.add(node.arg)

    def _add_string(self, value: object) -> None:
        text = value.decode("latin-1") if isinstance(value, bytes) else value
        if isinstance(text, str):
            words = re.findall(r"\w+", text)
            self.identifiers |= set(words)
            if re.fullmatch(r"[\w.]+", text):  # an option, a column, a word of a protocol
                self.strings |= set(words)


def _targets(node: ast.stmt) -> Iterator[str]:
    targets = node.targets if isinstance(node, ast.Assign) else []
    if isinstance(node, ast.AnnAssign):
        targets = [node.target]
    for target in targets:
        if isinstance(target, ast.Name):
            yield target.id


def _camel_case(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(map(str.capitalize, others))


@dataclass(frozen=True)
class Names:
    """What a name in a text may mean."""

    source: Path
    codes: dict[Path, Code]
    ours: frozenset[str]
    outside: frozenset[str]

    @staticmethod
    def of(source: Path, trees: dict[Path, ast.Module]) -> Names:
        """Return the names in the modules of the package in a folder, which were parsed."""
        codes = {path: Code(path, tree) for path, tree in trees.items()}
        parts = {part for path in codes for part in path.relative_to(source).with_suffix("").parts}
        ours = {name for code in codes.values() for name in code.defined | code.strings}
        ours |= {_camel_case(name) for name in ours}  # fields of specs, as JSON has them
        python = {*dir(builtins), *keyword.kwlist, *sys.stdlib_module_names}
        outside = python.union(*(code.imported for code in codes.values()))
        return Names(source, codes, frozenset(parts | ours), frozenset(outside))

    def module(self, dotted: str, start: Path) -> Path | None:
        """Return the module or package of a path, beside a module or in a package above it."""
        place = dotted.removeprefix(f"{cohesion.PACKAGE}.").replace(".", "/")
        for folder in start.parents:
            for path in (folder / f"{place}.py", folder / place / "__init__.py"):
                if path in self.codes:
                    return path
            if folder == self.source:
                break
        return None

    def stale(self) -> Iterator[str]:
        """Yield the places of names that mean nothing."""
        for path, code in self.codes.items():
            for first, text in code.texts:
                is_module = text is code.texts[0][1]
                not_owned = [m.span() for m in _NOT_OWNED.finditer(text) if is_module]
                for match in (*_IN_BACKTICKS.finditer(text), *_LITERAL.finditer(text)):
                    name = match[1].removesuffix("()")
                    is_owner = any(start < match.start() < end for start, end in not_owned)
                    if match.re is _LITERAL and not is_owner:
                        continue
                    if not self._is_known(name, code, is_owner=is_owner):
                        line = first + text[: match.start()].count("\n")
                        yield f"{path.relative_to(self.source)}:{line}: `{name}`"

    def _is_known(self, name: str, code: Code, *, is_owner: bool) -> bool:
        if name in FOREIGN:
            return True
        if _WORD.fullmatch(name):
            if is_owner and name.islower():
                return self.module(name, code.path) is not None
            return any(name in known for known in (self.ours, self.outside, code.identifiers))
        if not _DOTTED.fullmatch(name) or name.endswith(_FILE_ENDINGS):
            return True
        if self.module(name, code.path) is not None:
            return True
        if is_owner and name.islower():
            return False
        first, *others = name.split(".")
        if first in self.outside:
            return True
        module = self.module(name.rpartition(".")[0], code.path)
        if module is not None and module.stem != "__init__" and first not in code.identifiers:
            return others[-1] in self.codes[module].defined
        return all(part in self.ours or part in code.identifiers for part in (first, *others))


def _imported(node: ast.AST) -> Iterator[str]:
    """Yield the names that an import takes from elsewhere."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield from alias.name.split(".")
    elif isinstance(node, ast.ImportFrom):
        module = node.module or ""
        if module.partition(".")[0] != cohesion.PACKAGE:
            yield from module.split(".")
            yield from (alias.name for alias in node.names)


@functools.cache
def _names() -> Names:
    modules = cohesion.read_modules(cohesion.ROOT / "src").values()
    return Names.of(SOURCE, {module.path: module.tree for module in modules})


def test_every_name_in_a_text_of_the_code_exists() -> None:
    found = list(_names().stale())
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("text", "is_stale"),
    [
        ("Owns this. Does not own that (`other`).", False),
        ("Owns this. Does not own that (`reading`).", True),
        ("Owns this. Does not own that (`parts.reading`).", True),
        ("Owns this. Does not own that (`parts.part`).", False),
        ("Owns this. Does not own that (`part`), which is in a folder below.", True),
        ("See `other.thing`.", False),
        ("See `other.gone`.", True),
        ("See `gone`, `other`.", True),
        ("See `local`, a variable of this module.", False),
        ("See `remote`, a variable of another module.", True),
        ("See ``gone``, which is literal.", False),
        ("Owns this. Does not own that (``gone``).", True),
        ("Owns this. Does not own that (``other``), nor ``gone.json``.", False),
        ("Written to `gone.json`.", False),
        ("See `os.replace`.", False),
    ],
)
def test_a_name_that_means_nothing_is_found(text: str, is_stale: bool, tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "__init__.py").write_text("")
    (tmp_path / "parts" / "part.py").write_text("")
    (tmp_path / "other.py").write_text("def thing(x):\n    remote = x\n    return remote\n")
    module = tmp_path / "here.py"
    module.write_text(f'"""{text}"""\n\nimport os\n\n\ndef here(x):\n    local = x\n')
    trees = {path: ast.parse(path.read_text()) for path in sorted(tmp_path.rglob("*.py"))}
    assert len(list(Names.of(tmp_path, trees).stale())) == is_stale


# Names that the glossary replaces

_REPLACED: Final = re.compile(
    r"^\| ([a-z ]+) \| ([^|]+) \| (anywhere|alone|module|class) \| [^|]+ \|$", re.MULTILINE
)
# Names that the table refuses, and where they are right.
RIGHT: Final = {
    "tell": "a method of Python's file objects",
    "sending_headers": "a method of pyarrow's middleware of Flight",
    "ContentMissing": "an error is named by the condition",
    "NotLeading": "an error is named by the condition",
}


def _words(name: str) -> str:
    """Return the words of a name in any style, in lower case."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|_+", " ", name).strip().lower()


def _plural(name: str) -> str:
    if name.endswith("s"):
        return name
    return f"{name}es" if name.endswith(("ch", "sh", "x")) else f"{name}s"


def replaced_names(
    words: str, table: list[tuple[str, str, str]], kind: str = "function"
) -> Iterator[str]:
    """Yield what the table says of the words of a name of a module, class or function.

    A name of several words is also found when they are run together (`giveup`).
    """
    for name, instead, where in table:
        for form in {name, _plural(name), name.replace(" ", ""), _plural(name.replace(" ", ""))}:
            is_within = where == "anywhere" and f" {form} " in f" {words} "
            if is_within or (form == words and where in {"anywhere", "alone", kind}):
                yield f"{form}: use {instead}"


@dataclass(frozen=True)
class Named:
    """The names of one module: its path, its classes, its public functions and methods."""

    module: str
    classes: tuple[str, ...]
    functions: tuple[str, ...]

    @staticmethod
    def of(module: cohesion.Module) -> Named:
        """Collect the names of a module; functions within functions are left out."""
        classes: list[str] = []
        functions: list[str] = []

        def visit(body: list[ast.stmt]) -> None:
            for node in body:
                if isinstance(node, ast.ClassDef):
                    classes.append(node.name)
                    visit(node.body)
                elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    if not node.name.startswith("_"):
                        functions.append(node.name)
                elif isinstance(node, ast.If):
                    visit(node.body)

        visit(module.tree.body)
        return Named(module.short, tuple(classes), tuple(functions))


@functools.cache
def _named() -> list[Named]:
    modules = cohesion.read_modules(cohesion.ROOT / "src")
    return [Named.of(module) for module in modules.values()]


def test_no_module_class_or_function_has_a_name_that_the_glossary_replaces() -> None:
    table = _REPLACED.findall(cohesion.GLOSSARY.read_text())
    assert len(table) > 80
    found = []
    for named in _named():
        names = {
            "class": set(named.classes) - RIGHT.keys(),
            "function": set(named.functions) - RIGHT.keys(),
            "module": set(named.module.split(".")),
        }
        for kind, ones in names.items():
            for name in ones:
                replaced = replaced_names(_words(name), table, kind)
                found += [f"{named.module}: {name}: {one}" for one in replaced]
    assert not found, "\n".join(found)


def test_no_public_name_is_a_gerund() -> None:
    modules = cohesion.named_by_gerunds(cohesion.read_modules(cohesion.ROOT / "src"))
    found = [module.name for module in modules]
    for named in _named():
        for name in {*named.classes, *named.functions} - RIGHT.keys():
            first, *others = _words(name).split()
            if name in named.functions:
                is_gerund = cohesion.is_gerund(first, is_last=not others)
            else:
                is_gerund = not name.startswith("_") and cohesion.is_gerund((others or [first])[-1])
            if is_gerund:
                found.append(f"{named.module}: {name}")
    assert not found, "\n".join(found)


def test_every_word_in_ing_of_the_glossary_is_used() -> None:
    used = set()
    for named in _named():
        for name in (*named.module.split("."), *named.classes, *named.functions):
            used |= set(_words(name).split())
    assert cohesion.words_in_ing().keys() <= used
    assert RIGHT.keys() <= {name for n in _named() for name in (*n.classes, *n.functions)}


@pytest.mark.parametrize(
    ("name", "is_refused"),
    [
        ("TaskDesk", True),
        ("task_desk", True),
        ("TaskDesks", True),
        ("lock_wishes", True),
        ("_Desk", True),
        ("UndoWayBack", True),
        ("wayback", True),
        ("wayback_log", True),
        ("backway", False),
        ("Desktop", False),
        ("running", True),
        ("_Running", True),
        ("running_task", False),
        ("parts", False),
    ],
)
def test_a_replaced_name_is_found_as_words(name: str, is_refused: bool) -> None:
    table = [(one, "x", "anywhere") for one in ("desk", "way back", "wish")]
    table += [("running", "x", "alone"), ("part", "x", "module")]
    assert bool(list(replaced_names(_words(name), table))) == is_refused


@pytest.mark.parametrize("kind", ["module", "class"])
def test_a_name_may_be_refused_for_modules_or_classes_only(kind: str) -> None:
    table = [("part", "x", kind)]
    assert list(replaced_names("parts", table, kind)) == ["parts: use x"]
    assert not list(replaced_names("parts", table, "function"))
    assert not list(replaced_names("body parts", table, kind))


@pytest.mark.parametrize(
    ("word", "is_last", "is_refused"),
    [
        ("naming", True, True),
        ("naming", False, True),
        ("reading", True, True),
        ("reading", False, False),
        ("pending", True, False),
        ("name", True, False),
    ],
)
def test_a_gerund_is_a_word_in_ing_that_the_glossary_does_not_list(
    word: str, is_last: bool, is_refused: bool
) -> None:
    assert cohesion.is_gerund(word, is_last=is_last) == is_refused
