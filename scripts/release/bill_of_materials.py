"""The bill of materials of a release: CycloneDX 1.6, from the lock files of the checkout.

`requirements.lock` has the versions and hashes. `runtime.lock` beside this module has the packages
that a user installs, and which package requires which. The document depends on these files, on
`pyproject.toml` and on the time that it is given, and on nothing of the machine.
"""

from __future__ import annotations

import json
import re
import tomllib
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
FILE_NAME: Final = "penstock-io.cdx.json"
_HASHES: Final = ROOT / "requirements.lock"
_GRAPH: Final = ROOT / "scripts" / "release" / "runtime.lock"
_THEME: Final = "mkdocs-material"
_PIN: Final = re.compile(
    r"^(?P<name>[a-z0-9][a-z0-9-]*)==(?P<version>[^\s;]+)(?: ; (?P<marker>[^#\\]*[^#\\\s]))?"
)
_HASH: Final = re.compile(r"--hash=sha256:([0-9a-f]{64})")


class LockMistake(Exception):
    """The lock files do not fit together, or to `pyproject.toml`."""


@dataclass(frozen=True)
class LockedPackage:
    """One version of a package.

    Attributes:
        name: Normalized name.
        version: The version.
        marker: Condition on the environment under which it is installed; empty: always.
        hashes: SHA-256 of its published files, as hexadecimal digits.
        required_by: Names of the packages that require it, as `runtime.lock` has them.
    """

    name: str
    version: str
    marker: str
    hashes: Sequence[str]
    required_by: Sequence[str]

    @property
    def purl(self) -> str:
        """The package URL, which also is its reference within the document."""
        return f"pkg:pypi/{self.name}@{self.version}"


def bill_of_materials(time_s: int, *, with_manual: bool = True) -> str:
    """Return the document as JSON text.

    Args:
        time_s: The time of the release, in seconds since 1970.
        with_manual: Whether the wheel has the manual, which contains files of its theme.

    Raises:
        LockMistake: The lock files have to be written anew.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    own = f"pkg:pypi/{project['name']}@{project['version']}"
    locked = list(_pins(_HASHES.read_text("utf-8")))
    packages = list(_runtime_packages(locked))
    required = _closure(packages, [_name(one) for one in project["dependencies"]])
    extras = [_name(one) for extra in project["optional-dependencies"].values() for one in extra]
    if missing := {*required, *_closure(packages, extras)} - {one.name for one in packages}:
        raise LockMistake(f"runtime.lock lacks {', '.join(sorted(missing))}: run make lock")
    application: dict[str, object] = {
        "type": "application",
        "bom-ref": own,
        "name": project["name"],
        "version": project["version"],
        "description": project["description"],
        "licenses": [{"license": {"id": project["license"]}}],
        "purl": own,
    }
    if with_manual:
        application["components"] = [_theme(locked)]
    document: dict[str, object] = {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "timestamp": datetime.fromtimestamp(time_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "lifecycles": [{"phase": "build"}],
            "component": application,
        },
        "components": [
            {
                **_component(one),
                "scope": "required" if one.name in required else "optional",
            }
            for one in packages
        ],
        "dependencies": list(_dependencies(own, project["name"], packages)),
    }
    # Two documents of equal content have the same number, as a build has no randomness.
    number = uuid.uuid5(uuid.NAMESPACE_URL, json.dumps(document, sort_keys=True))
    return json.dumps({**document, "serialNumber": number.urn}, indent=1) + "\n"


def _runtime_packages(locked: Sequence[LockedPackage]) -> Iterator[LockedPackage]:
    """Yield the packages of `runtime.lock`, with the hashes of the other lock file."""
    hashes = {one.purl: one.hashes for one in locked}
    for one in _pins(_GRAPH.read_text("utf-8")):
        if one.purl not in hashes:
            raise LockMistake(
                f"{one.name} {one.version} of runtime.lock is not in requirements.lock: "
                "run make lock"
            )
        yield replace(one, hashes=hashes[one.purl])


def _pins(text: str) -> Iterator[LockedPackage]:
    """Yield the packages of a lock file that uv wrote."""
    for lines in re.split(r"^(?=\S+==)", text, flags=re.MULTILINE):
        if (found := _PIN.match(lines)) is not None:
            _, _, via = lines.partition("# via ")
            names = [one.split()[0] for one in via.split(", ") if one and not one.startswith("-c ")]
            yield LockedPackage(
                found["name"],
                found["version"],
                found["marker"] or "",
                _HASH.findall(lines),
                names,
            )


def _name(requirement: str) -> str:
    """Return the normalized name of a requirement such as `pyspark[connect]==4.3.0`."""
    return re.split(r"[^A-Za-z0-9._-]", requirement)[0].lower().replace("_", "-").replace(".", "-")


def _closure(packages: Sequence[LockedPackage], names: Iterable[str]) -> set[str]:
    """Return the names, and those of everything that they require."""
    found = set(names)
    while more := {one.name for one in packages if found.intersection(one.required_by)} - found:
        found |= more
    return found


def _component(package: LockedPackage) -> dict[str, object]:
    component: dict[str, object] = {
        "type": "library",
        "bom-ref": package.purl,
        "name": package.name,
        "version": package.version,
        "purl": package.purl,
        # A component may have only hashes of itself. A package has several files, so that their
        # hashes belong to the place from which an installer takes one of them.
        "externalReferences": [
            {
                "type": "distribution",
                "url": f"https://pypi.org/simple/{package.name}/",
                "hashes": [{"alg": "SHA-256", "content": one} for one in package.hashes],
            }
        ],
    }
    if package.marker:
        marker = {"name": "penstock:environment-marker", "value": package.marker}
        component["properties"] = [marker]
    return component


def _theme(locked: Iterable[LockedPackage]) -> dict[str, object]:
    (theme,) = (one for one in locked if one.name == _THEME)
    about = "Its scripts, styles and icons are part of the manual in the wheel."
    return {**_component(theme), "description": about}


def _dependencies(
    own: str, project: str, packages: Sequence[LockedPackage]
) -> Iterator[dict[str, object]]:
    for purl, name in [(own, project), *((one.purl, one.name) for one in packages)]:
        below = sorted({one.purl for one in packages if name in one.required_by})
        yield {"ref": purl, **({"dependsOn": below} if below else {})}
