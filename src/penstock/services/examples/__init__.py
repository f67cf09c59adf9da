"""Example specs, flows and files for operators in the package; `penstock init` writes them.

The specs and the flow are the ones that the documentation uses: the supervisor of the quickstart,
and the flow and the supervisor of the demo. The files for operators are templates for their own
systems.
"""

from __future__ import annotations

import os
import tempfile
from importlib import resources
from pathlib import Path
from typing import Final

from penstock.core.errors import InvalidRequest, NotFound, Unavailable

EXAMPLES: Final = {
    "audit-supervisor.json": "index the topic `audit` of --audit-topic audit",
    "clicks-supervisor.json": "index the topic `clicks` into a datasource (the quickstart)",
    "flights-supervisor.json": "index the topic `flights` (the demo)",
    "flights.yaml": "a flow from CSV files to the topic `flights` (the demo)",
    "operations/alert-rules.yaml": "alert rules for Prometheus",
    "operations/grafana-dashboard.json": "a dashboard for Grafana, over Prometheus",
    "operations/penstock.service": "a systemd unit",
    "operations/Containerfile": "an image for containers",
}


def example(name: str) -> bytes:
    """Return the content of an example file.

    Raises:
        NotFound: No example has this name.
    """
    if name not in EXAMPLES:
        known = ", ".join(EXAMPLES)
        raise NotFound(f"no example is called {name!r}; choose one of {known}")
    return resources.files(__name__).joinpath(name).read_bytes()


def write_examples(folder: Path) -> list[str]:
    """Write the example files into a folder, which is created if it is missing.

    A file that already has the same content is not changed, so the command can be repeated.

    Returns:
        The names of the files that were written.

    Raises:
        InvalidRequest: A file of one of these names has other content. Nothing was written.
        Unavailable: The folder or a file cannot be read or written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        missing = [name for name in EXAMPLES if not os.path.lexists(folder / name)]
        for name in EXAMPLES.keys() - missing:
            if (folder / name).read_bytes() != example(name):
                raise InvalidRequest(
                    f"{folder / name} exists with other content: Penstock does not overwrite it; "
                    "rename the file, or choose another folder"
                )
        for name in missing:
            (folder / name).parent.mkdir(exist_ok=True)
            _write(folder / name, example(name))
    except OSError as error:
        raise Unavailable(
            f"the examples cannot be written to {folder} ({error.strerror}): choose a folder that "
            "you can write to"
        ) from error
    return missing


def _write(path: Path, content: bytes) -> None:
    """Create a file atomically, unless a file of that name exists."""
    handle, hidden = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        umask = os.umask(0)
        os.umask(umask)
        Path(hidden).chmod(0o666 & ~umask)
        os.link(hidden, path)
    finally:
        Path(hidden).unlink()
