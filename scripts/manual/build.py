"""Build the site into the package, unless it was built from the same pages before."""

from __future__ import annotations

import fcntl
import hashlib
import importlib.metadata
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
SITE: Final = ROOT / "src" / "penstock" / "services" / "site"
INPUTS: Final = ("docs", "scripts/manual", "mkdocs.yml", "pyproject.toml")
"""Files and folders from which the site is built; the version is in the last one."""
_BUILDERS: Final = ("mkdocs", "mkdocs-material", "pymdown-extensions", "Markdown", "Pygments")
_DIGEST: Final = ".inputs"  # the router serves no file whose name begins with a dot


class NoMkDocs(Exception):
    """MkDocs or its theme is not installed for this Python."""


class SiteFailed(Exception):
    """MkDocs refused the pages; the message has its warnings."""


def build_site() -> Path:
    """Build the site into the package and return its folder.

    Does nothing if the folder was built from the same pages. A process that builds at the same time
    is waited for.

    Raises:
        NoMkDocs: MkDocs is not installed.
        SiteFailed: A page has a mistake, such as a broken link.
    """
    digest = _digest()
    with (ROOT / "mkdocs.yml").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not _is_built_from(digest):
            _build(digest)
    return SITE


def site_files(site: Path = SITE) -> list[Path]:
    """Return the files of a built site, sorted."""
    return sorted(
        path for path in site.rglob("*") if path.is_file() and not path.name.startswith(".")
    )


def _build(digest: str) -> None:
    with tempfile.TemporaryDirectory(prefix=".site-", dir=SITE.parent) as folder:
        made = Path(folder) / "site"
        # A process of its own, because MkDocs changes the logging of the process. With `--quiet` it
        # would not count warnings, which `strict` makes errors.
        command = (sys.executable, "-m", "mkdocs", "build", "--site-dir", str(made))
        path = os.pathsep.join(filter(None, (str(ROOT / "scripts"), os.environ.get("PYTHONPATH"))))
        environment = {
            **os.environ,
            "PYTHONPATH": path,
            # Material prints advice about versions of MkDocs to come.
            "NO_MKDOCS_2_WARNING": "1",
            # The bytes of the site depend on its pages alone, not on the language of the machine,
            # the order of sets or the day.
            "PYTHONUTF8": "1",
            "PYTHONHASHSEED": "0",
            "SOURCE_DATE_EPOCH": "0",
        }
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, encoding="utf-8", check=False
        )
        if done.returncode != 0:
            raise SiteFailed(f"the manual could not be built:\n{done.stderr}")
        (made / _DIGEST).write_text(digest)
        shutil.rmtree(SITE, ignore_errors=True)
        made.rename(SITE)


def _is_built_from(digest: str) -> bool:
    try:
        return (SITE / _DIGEST).read_text() == digest
    except OSError:
        return False


def _digest() -> str:
    """Return a digest of everything that the site depends on."""
    digest = hashlib.sha256()
    try:
        versions = [importlib.metadata.version(name) for name in _BUILDERS]
    except importlib.metadata.PackageNotFoundError as error:
        raise NoMkDocs(
            f"the package {error.name} is not installed, which builds the manual"
        ) from None
    digest.update(repr(versions).encode())
    for name in INPUTS:
        top = ROOT / name
        for path in [top] if top.is_file() else sorted(top.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                content = path.read_bytes()
                digest.update(f"{path.relative_to(ROOT)} {len(content)}\n".encode())
                digest.update(content)
    return digest.hexdigest()
