"""Modules that flows may name: those that the operator listed with `--flow-modules`.

Owns the list, the check of an import path against it, and the import. Classes that come with
Penstock are not on the list: the registry knows them by name.

A flow file names classes and functions as ``package.module:Class``. Importing a module runs its
code, so a flow may name only modules of folders and packages that the operator listed. Nothing is
listed by default.

Invariants: `check` imports nothing, it finds the file of a module and reads the names in it. `load`
imports nothing that `check` refuses.
"""

from __future__ import annotations

import ast
import importlib
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from penstock.core.errors import InvalidRequest, NotFound

_PATH: Final = re.compile(r"([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*):([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)")
_OPTION: Final = "--flow-modules"


def is_module_name(text: str) -> bool:
    """Return whether an entry of the list names a package or module, and not a folder."""
    return all(name.isidentifier() for name in text.split("."))


class FlowModules:
    """The modules that flows may name.

    Args:
        listed: Folders, and names of packages or modules. A folder is written with a slash.

    Raises:
        InvalidRequest: A folder or a package does not exist.
    """

    def __init__(self, listed: Iterable[str] = ()) -> None:
        entries = list(listed)
        self._packages = [one for one in entries if is_module_name(one)]
        self._folders = [Path(one).absolute() for one in entries if not is_module_name(one)]
        for folder in self._folders:
            if not folder.is_dir():
                raise InvalidRequest(
                    f"{_OPTION}: folder {folder} does not exist: create it, or leave it out"
                )
        for package in self._packages:
            if _find(package) is None:
                raise InvalidRequest(
                    f"{_OPTION}: package {package} is not installed: install it where Penstock "
                    "runs, or leave it out; a folder is written with a slash, as in ./processors"
                )

    def paths(self) -> list[Path]:
        """Return the folders and files that hold the listed modules."""
        found = list(self._folders)
        for package in self._packages:
            spec = _find(package)
            found += [] if spec is None else _places_of(spec)
        return found

    def allows(self, path: str) -> bool:
        """Return whether a flow may name an import path."""
        match = _PATH.fullmatch(path)
        try:
            return match is not None and self._spec(match[1]) is not None
        except InvalidRequest:
            return False

    def check(self, path: str, what: str) -> None:
        """Check that a flow may name an import path, and that it exists. Imports nothing.

        Args:
            path: Import path, such as ``package.module:Class``.
            what: Kind of the object, for messages, such as ``processor``.

        Raises:
            InvalidRequest: It is not an import path, or no listed folder or package has the module.
            NotFound: The module does not have the name.
        """
        match = _PATH.fullmatch(path)
        if match is None:
            raise InvalidRequest(
                f"{path!r} is not an import path: write one such as package.module:Class"
            )
        module, names = match[1], match[2]
        spec = self._spec(module)
        if spec is None:
            raise InvalidRequest(
                f"{what} {path}: flows may not name module {module}, because importing a module "
                f"runs its code: list its folder or package with {_OPTION} where Penstock is "
                "started, and for this command"
            )
        known = _names_in(spec, f"{what} {path}")
        if known is not None and names.partition(".")[0] not in known:
            raise NotFound(f"{what} {path}: module {module} has no {names}: correct the path")

    def load(self, path: str, what: str) -> object:
        """Import a module and return the object that a path names.

        Raises:
            InvalidRequest: As `check`; or the module cannot be imported.
            NotFound: As `check`.
        """
        self.check(path, what)
        for folder in self._folders:
            if str(folder) not in sys.path:
                # At the end, so that no file in it replaces another module.
                sys.path.append(str(folder))
        return load(path, what)

    def _spec(self, module: str) -> ModuleSpec | None:
        """Return where a module is if it is on the list, else None."""
        if any(module == one or module.startswith(f"{one}.") for one in self._packages):
            return _find(module)
        for folder in self._folders:
            spec = _find(module, folder)
            if spec is None or not _is_below(spec, folder):
                continue
            top = module.partition(".")[0]
            if _is_what_import_finds(top, folder):
                return spec
            raise InvalidRequest(
                f"module {top} of {folder} has the name of another module, which Python would "
                "import in its place: rename it"
            )
        return None


class ServiceModules:
    """List of modules of the service, for processors created from a flow's file; empty at first."""

    def __init__(self) -> None:
        self._modules = FlowModules()

    def set(self, modules: FlowModules) -> None:
        """Replace the list; the service does this before it opens a flow."""
        self._modules = modules

    def get(self) -> FlowModules:
        """Return the list."""
        return self._modules


SERVICE_MODULES = ServiceModules()


def load(path: str, what: str) -> object:
    """Import an allowed module and return the object that a path names.

    None: the module does not have the name.

    Raises:
        InvalidRequest: It is not an import path, or the module cannot be imported.
        NotFound: The module does not exist.
    """
    match = _PATH.fullmatch(path)
    if match is None:
        raise InvalidRequest(f"{path!r} is not an import path: write package.module:Class")
    module, names = match[1], match[2]
    try:
        found: object = importlib.import_module(module)
    except ImportError as error:
        if isinstance(error, ModuleNotFoundError) and module.startswith(error.name or "\0"):
            raise NotFound(f"{what} {path}: module {error.name} does not exist") from error
        raise InvalidRequest(f"{what} {path}: {error}: fix the module's imports") from error
    except (Exception, SystemExit) as error:  # a user's module may raise any exception
        raise InvalidRequest(
            f"{what} {path}: the module cannot be imported ({type(error).__name__}: {error}): "
            "fix it"
        ) from error
    try:
        for name in names.split("."):
            found = getattr(found, name, None)
    except (Exception, SystemExit) as error:  # of a user's `__getattr__`
        raise InvalidRequest(
            f"{what} {path}: its name cannot be looked up ({type(error).__name__}: {error}): fix "
            "the module"
        ) from error
    return found


def _find(module: str, folder: Path | None = None) -> ModuleSpec | None:
    """Find a module without importing it or the packages around it.

    Args:
        module: Its dotted name.
        folder: Folder of its first package; None: any folder in which an import would find it.
    """
    search: Sequence[str] | None = None if folder is None else [str(folder)]
    names = module.split(".")
    spec: ModuleSpec | None = None
    for count in range(1, len(names) + 1):
        name = ".".join(names[:count])
        try:
            spec = find_spec(name) if search is None else PathFinder.find_spec(name, search)
        except (ImportError, ValueError):
            return None
        if spec is None:
            return None
        search = list(spec.submodule_search_locations or ())
    return spec


def _places_of(spec: ModuleSpec) -> list[Path]:
    if spec.submodule_search_locations is not None:
        return [Path(one) for one in spec.submodule_search_locations]
    return [Path(spec.origin)] if spec.has_location and spec.origin else []


def _files(spec: ModuleSpec) -> Iterator[Path]:
    if spec.has_location and spec.origin:
        yield Path(spec.origin)
    else:
        yield from map(Path, spec.submodule_search_locations or ())


def _is_below(spec: ModuleSpec, folder: Path) -> bool:
    """Return whether a module is in a folder, even after symbolic links are followed."""
    root = folder.resolve()
    return all(file.resolve().is_relative_to(root) for file in _files(spec))


def _is_what_import_finds(top: str, folder: Path) -> bool:
    """Return whether an import by name would find the module of this folder and no other."""
    try:
        found = find_spec(top)
    except (ImportError, ValueError):
        return False
    return found is None or _is_below(found, folder)


def _names_in(spec: ModuleSpec, where: str) -> frozenset[str] | None:
    """Return the names at the top of a module, from its source; None: unknown.

    Raises:
        InvalidRequest: The source cannot be read or is not Python.
    """
    if not spec.origin or not spec.origin.endswith(".py"):
        return None
    try:
        tree = ast.parse(Path(spec.origin).read_bytes(), spec.origin)
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise InvalidRequest(
            f"{where}: the module cannot be imported ({type(error).__name__}: {error}): fix it"
        ) from error
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.alias):
            names.add((node.asname or node.name).partition(".")[0])
    # A star import or `__getattr__` adds names that the source does not show.
    return None if names & {"*", "__getattr__"} else frozenset(names)
