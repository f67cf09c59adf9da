"""Cohesion of the modules of `src`: who imports whom, and what that says of how code was cut.

`python tests/cohesion.py` prints a report from which moves of code are planned. Pure
functions over syntax trees; the package is not imported. A name that a package's `__init__` only
re-exports is followed to the module that defines it, and the `__init__` is no importer of it.
"""

from __future__ import annotations

import ast
import functools
import gc
import re
from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parent.parent
PACKAGE: Final = "penstock"
SMALL_LINES: Final = 100

_MODULE_IN_TEXT: Final = re.compile(rf"{PACKAGE}(?:\.\w+)+(?=$|[:\s'\"`])")

GLOSSARY: Final = ROOT / "docs" / "contributing" / "glossary.md"
_WORD_IN_ING: Final = re.compile(
    r"^\| (\w+ing) \| (noun|adjective|modifier) \| [^|]+ \|$", re.MULTILINE
)


@dataclass(frozen=True)
class Module:
    """One module of the package: its dotted name, its file and its syntax tree."""

    name: str
    path: Path
    tree: ast.Module
    lines: int

    @property
    def is_init(self) -> bool:
        """Whether it is the `__init__` of a package."""
        return self.path.name == "__init__.py"

    @property
    def short(self) -> str:
        """The dotted name without the root package."""
        return self.name.removeprefix(f"{PACKAGE}.")

    @property
    def top_package(self) -> str:
        """The package of the layer that it belongs to, such as `broker`."""
        return self.short.partition(".")[0]

    @cached_property
    def public(self) -> dict[str, ast.AST]:
        """Public classes and functions at the top level, by name."""
        kinds = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        return {
            node.name: node
            for node in self.tree.body
            if isinstance(node, kinds) and not node.name.startswith("_")
        }

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """All nodes of its tree."""
        return list(ast.walk(self.tree))

    @cached_property
    def imported(self) -> list[tuple[str, str | None]]:
        """What it imports: (module, name of it or None for the module itself)."""
        found: list[tuple[str, str | None]] = []
        for node in self.nodes:
            if isinstance(node, ast.Import):
                found.extend((alias.name, None) for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                base = node.module or ""
                if node.level:
                    parts = self.name.split(".")
                    keep = len(parts) - node.level + self.is_init
                    base = ".".join([*parts[:keep], *([base] if base else [])])
                found.extend((base, alias.name) for alias in node.names)
        return found

    @cached_property
    def mentioned(self) -> set[str]:
        """Modules that its texts name, as import paths of classes do; docstrings left out."""
        docstrings = {
            id(node.body[0].value)
            for node in self.nodes
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
            and node.body
            and isinstance(node.body[0], ast.Expr)
        }
        return {
            match
            for node in self.nodes
            if isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and id(node) not in docstrings
            for match in _MODULE_IN_TEXT.findall(node.value)
        }


@functools.cache
def read_modules(source: Path) -> dict[str, Module]:
    """Return all modules of the package below a `src` folder, by dotted name.

    Half a million objects that stay: the garbage collector would scan them again and again, while
    they are made and ever after.
    """
    found: dict[str, Module] = {}
    gc.disable()
    for path in sorted((source / PACKAGE).rglob("*.py")):
        parts = path.relative_to(source).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        text = path.read_text()
        found[name] = Module(name, path, ast.parse(text), text.count("\n"))
    gc.freeze()
    gc.enable()
    return found


def _home(modules: dict[str, Module], module: str, name: str | None) -> str | None:
    """Return the module that defines what an import names, through re-exports of `__init__`s."""
    for _ in range(10):
        if name is not None and f"{module}.{name}" in modules:
            return f"{module}.{name}"
        holder = modules.get(module)
        if holder is None or name is None or not holder.is_init or name in holder.public:
            return module if holder is not None else None
        step = next(((m, n) for m, n in holder.imported if n == name), None)
        if step is None:
            return module
        module = step[0]
    raise AssertionError(f"{module}.{name} is re-exported in a circle")


def importers(modules: dict[str, Module]) -> dict[str, set[str]]:
    """Return which modules use each module. A re-export is no use."""
    found: dict[str, set[str]] = defaultdict(set)
    for module in modules.values():
        used = {_home(modules, base, name) for base, name in module.imported}
        used |= module.mentioned & modules.keys()
        for target in used:
            is_own = target is not None and module.is_init and target.startswith(module.name + ".")
            if target is not None and target != module.name and not is_own:
                found[target].add(module.name)
    return found


def small_with_one_importer(modules: dict[str, Module]) -> list[tuple[Module, Module]]:
    """Return the modules below the limit that one module alone imports, with that module."""
    users = importers(modules)
    return [
        (module, modules[next(iter(users[module.name]))])
        for module in modules.values()
        if not module.is_init and module.lines < SMALL_LINES and len(users[module.name]) == 1
    ]


def pairs_that_import_each_other(modules: dict[str, Module]) -> list[tuple[str, str]]:
    """Return pairs of modules that use names of each other, for type checking alone, too."""
    users = importers(modules)
    return sorted(
        (user, name)
        for name, using in users.items()
        for user in using
        if user < name and name in users.get(user, ())
    )


def callbacks_in_constructors(modules: dict[str, Module]) -> dict[tuple[str, str], set[str]]:
    """Return the functions that constructors take from modules of the same top-level package.

    Found by the annotation of a parameter of `__init__` or of a field of a dataclass: `Callable`,
    or a name that stands for one. A class counts if another module of its package creates it.

    Returns:
        The creating modules, by (module and class, parameter).
    """
    names = _names_of_callables(modules)
    taking = {
        node.name: (module, parameters)
        for module in modules.values()
        for node in module.nodes
        if isinstance(node, ast.ClassDef) and (parameters := _callables_taken(node, names))
    }
    found: dict[tuple[str, str], set[str]] = defaultdict(set)
    for creator in modules.values():
        for node in creator.nodes:
            name = _created_class(node, taking.keys()) if isinstance(node, ast.Call) else None
            if name is None:
                continue
            module, parameters = taking[name]
            if module is not creator and module.top_package == creator.top_package:
                for parameter in parameters:
                    found[f"{module.short}.{name}", parameter].add(creator.short)
    return dict(found)


def _created_class(call: ast.Call, classes: Collection[str]) -> str | None:
    """Return which of some classes a call creates, by its name or by a class method of it."""
    function = call.func
    if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name):
        names = [function.value.id, function.attr]
    else:
        names = [function.id] if isinstance(function, ast.Name) else []
    return next((name for name in names if name in classes), None)


def _callables_taken(node: ast.ClassDef, names: Collection[str]) -> list[str]:
    is_dataclass = any("dataclass" in ast.unparse(one) for one in node.decorator_list)
    fields = [
        (statement.target.id, statement.annotation)
        for statement in node.body
        if is_dataclass
        and isinstance(statement, ast.AnnAssign)
        and isinstance(statement.target, ast.Name)
    ]
    parameters = [
        (argument.arg, argument.annotation)
        for statement in node.body
        if isinstance(statement, ast.FunctionDef) and statement.name == "__init__"
        for argument in (*statement.args.args, *statement.args.kwonlyargs)
        if argument.annotation is not None
    ]
    return [name for name, kind in (*fields, *parameters) if _names_in(kind) & {*names}]


def _names_of_callables(modules: dict[str, Module]) -> set[str]:
    """Return `Callable` and the module-level names that stand for one, such as type aliases."""
    names = {"Callable"}
    for module in modules.values():
        for statement in module.tree.body:
            if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
                target: ast.expr = statement.targets[0]
                value: ast.expr | None = statement.value
            elif isinstance(statement, ast.AnnAssign):
                target, value = statement.target, statement.value
            else:
                continue
            # The type itself, quoted or not; a table of functions is no name of a type.
            text = "" if value is None else ast.unparse(value).strip("'\"")
            is_callable = text.startswith("Callable[")
            if is_callable and isinstance(target, ast.Name):
                names.add(target.id)
    return names


def _names_in(annotation: ast.expr) -> set[str]:
    """Return the names in an annotation, also in quoted ones."""
    found: set[str] = set()
    for node in ast.walk(annotation):
        if isinstance(node, ast.Name):
            found.add(node.id)
        elif isinstance(node, ast.Attribute):
            found.add(node.attr)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.update(re.findall(r"\w+", node.value))
    return found


def classes_that_exist_twice(modules: dict[str, Module]) -> dict[str, list[Module]]:
    """Return the public class names that more than one module defines."""
    homes: dict[str, list[Module]] = defaultdict(list)
    for module in modules.values():
        for name, node in module.public.items():
            if isinstance(node, ast.ClassDef):
                homes[name].append(module)
    return {name: where for name, where in sorted(homes.items()) if len(where) > 1}


@functools.cache
def words_in_ing() -> dict[str, str]:
    """Return the words that the glossary lists as no gerunds, with their kind."""
    return dict(_WORD_IN_ING.findall(GLOSSARY.read_text()))


def is_gerund(word: str, *, is_last: bool = True) -> bool:
    """Return whether a word of a name is an activity; a modifier is none if a noun follows."""
    kind = words_in_ing().get(word)
    return word.endswith("ing") and (kind is None or (kind == "modifier" and is_last))


def named_by_gerunds(modules: dict[str, Module]) -> list[Module]:
    """Return the modules and packages whose last part ends with an activity and not a thing."""
    return [module for module in modules.values() if is_gerund(re.split(r"[._]", module.name)[-1])]


def names_used_twice(modules: dict[str, Module]) -> dict[str, list[Module]]:
    """Return the last parts of module names that more than one module has; packages left out."""
    homes: dict[str, list[Module]] = defaultdict(list)
    for module in modules.values():
        if not module.is_init and not module.path.stem.startswith("__"):
            homes[module.path.stem].append(module)
    return {name: where for name, where in sorted(homes.items()) if len(where) > 1}


def main() -> None:
    """Print the report."""
    modules = read_modules(ROOT / "src")
    small = small_with_one_importer(modules)
    print(f"{len(modules)} modules, {sum(m.lines for m in modules.values())} lines")
    print(f"\nbelow {SMALL_LINES} lines with one importer: {len(small)}")
    for module, user in small:
        print(f"  {module.short} ({module.lines}) <- {user.short} ({user.lines})")
    pairs = pairs_that_import_each_other(modules)
    print(f"\npairs that import each other: {len(pairs)}")
    for one, other in pairs:
        print(f"  {one} <-> {other}")
    twice = classes_that_exist_twice(modules)
    print(f"\npublic classes that exist twice or more: {len(twice)}")
    for name, where in twice.items():
        print(f"  {name}: {', '.join(module.short for module in where)}")
    gerunds = named_by_gerunds(modules)
    print(f"\ngerunds: {len(gerunds)}")
    for module in gerunds:
        print(f"  {module.short} ({module.lines})")
    again = names_used_twice(modules)
    print(f"\nlast names of modules used twice or more: {len(again)}")
    for name, where in again.items():
        print(f"  {name}: {', '.join(module.short for module in where)}")


if __name__ == "__main__":
    main()
