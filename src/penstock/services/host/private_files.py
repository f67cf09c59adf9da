"""Local files and folders of a Penstock that only its own code may read.

Owns the list of them, from the options. `core.read_guard` compares paths with it, and the flow's
role adds the places that flows may read but not change.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from penstock.core.read_guard import ReadGuard
from penstock.services.host.data_folder import DataFolder
from penstock.services.options.resolution import CONFIG_FILE, CONFIG_VARIABLE
from penstock.services.options.table import PenstockOptions, local_path
from penstock.storage.sqlite_urls import sqlite_path


def private_places(options: PenstockOptions, environment: Mapping[str, str]) -> list[Path]:
    """Return the parts of the data folder, the folders of tasks, the metadata, and secrets.

    The data folder as a whole is not private: users may keep files for their flows in it.
    """
    folder = DataFolder(options.data_dir)
    parts = (folder.topics, folder.flow, folder.tasks, folder.log, folder.run, folder.tmp)
    files = (options.tls_key, options.token_file, options.spark_secret_file)
    places = [*parts, folder.path / CONFIG_FILE, *options.task_folders]
    places += [one for one in files if one is not None]
    if named := environment.get(CONFIG_VARIABLE):
        places.append(Path(named))
    path = sqlite_path(options.metadata_address)
    if path is not None:
        places += [Path(f"{path}{end}") for end in ("", "-wal", "-shm")]
    return [one.absolute() for one in places]


def read_guard(options: PenstockOptions, environment: Mapping[str, str]) -> ReadGuard:
    """Return the guard against reads of a Penstock's files by flows and tasks.

    Segments may be read even if they are in the data folder: every user may query their rows, and a
    task may read them again.
    """
    segments = local_path(options.deep_storage_address)
    return ReadGuard(
        tuple(map(str, private_places(options, environment))),
        () if segments is None else (str(segments.absolute()),),
    )
