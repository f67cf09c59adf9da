"""Local files and folders of a Penstock that only its own code may read.

Owns the list of them, from the options. `core.read_guard` compares paths with it, and the flow's
role adds the places that flows may read but not change.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from penstock.core.read_guard import ReadGuard
from penstock.services.host.data_folder import DataFolder
from penstock.services.options.resolution import CONFIG_VARIABLE
from penstock.services.options.table import Options, local_path


def private_places(options: Options, environment: Mapping[str, str]) -> list[Path]:
    """Return the data folder with its parts, the folders of tasks, the metadata, and secrets.

    Each part is listed, because it may be a link to a folder on another disk.
    """
    folder = DataFolder(options.data_dir)
    parts = (folder.topics, folder.flow, folder.tasks, folder.log, folder.run, folder.tmp)
    files = (options.tls_key, options.token_file, options.spark_secret_file)
    places = [folder.path, *parts, *options.task_folders]
    places += [one for one in files if one is not None]
    if named := environment.get(CONFIG_VARIABLE):
        places.append(Path(named))
    database = options.metadata_address
    if database.startswith("sqlite:///"):
        path = database.removeprefix("sqlite:///").partition("?")[0]
        places += [Path(f"{path}{end}") for end in ("", "-wal", "-shm")]
    return [one.absolute() for one in places]


def read_guard(options: Options, environment: Mapping[str, str]) -> ReadGuard:
    """Return the guard against reads of a Penstock's files by flows and tasks.

    Segments may be read, also in the data folder: every user may query their rows, and a task may
    read them again.
    """
    segments = local_path(options.deep_storage_address)
    return ReadGuard(
        tuple(map(str, private_places(options, environment))),
        () if segments is None else (str(segments.absolute()),),
    )
