"""Local files, folders and ports of a Penstock that only its own code may use.

Owns the lists of them, from the options. `core.read_guard` compares paths with the first, and the
flow's role adds the places that flows may read but not change. `core.network_guard` compares
destinations with the second.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from penstock.core.network_guard import NetworkGuard
from penstock.core.read_guard import ReadGuard
from penstock.services.host.data_folder import DataFolder, segment_cache_folder
from penstock.services.options.resolution import CONFIG_FILE, CONFIG_VARIABLE
from penstock.services.options.table import TLS_FOLDER, PenstockOptions, local_path
from penstock.spark.connect.connect_address import ConnectAddress
from penstock.storage.secrets.secret_sources import CommandSource, FileSource, read_sources
from penstock.storage.sqlite_urls import sqlite_path
from penstock.storage.uploads import UPLOADS_FOLDER


def private_places(options: PenstockOptions, environment: Mapping[str, str]) -> list[Path]:
    """Return the parts of the data folder, the folders of tasks, the metadata, and secrets.

    The data folder as a whole is not private: users may keep files for their flows in it.
    """
    folder = DataFolder(options.data_dir)
    parts = (folder.topics, folder.flow, folder.tasks, folder.log, folder.run, folder.tmp)
    # The right to one is that of the principal that made it, not of those who may read files.
    uploads = folder.path / UPLOADS_FOLDER
    copies = segment_cache_folder(folder)  # of segments
    # The whole folders: a process that reads a key has all rights, and the rules name secrets.
    access = (folder.access, options.access_path, folder.path / TLS_FOLDER)
    secrets = (folder.secrets, *_files_of_secrets(folder.secrets))
    files = (options.tls_key, options.token_file, options.spark_secret_file)
    places = [
        *parts,
        uploads,
        copies,
        *access,
        *secrets,
        folder.path / CONFIG_FILE,
        *options.task_folders,
    ]
    places += [one for one in files if one is not None]
    if named := environment.get(CONFIG_VARIABLE):
        places.append(Path(named))
    path = sqlite_path(options.metadata_address)
    if path is not None:
        places += [Path(f"{path}{end}") for end in ("", "-wal", "-shm")]
    return [one.absolute() for one in places]


def _files_of_secrets(folder: Path) -> list[Path]:
    """Return the files that contain secrets of the operator, and the programs that print them.

    Programs that are looked up by name are in folders that flows must not change anyway.

    Raises:
        InvalidRequest: `secrets.toml` is wrong, so these files are not known.
    """
    sources = read_sources(folder)
    paths: list[str] = []
    for source in (sources.key, *sources.secrets.values()):
        if isinstance(source, FileSource):
            paths.append(source.path)
        elif isinstance(source, CommandSource):
            paths += [one for one in source.arguments if one.startswith("/") and _is_file(one)]
    return list(map(Path, paths))


def _is_file(path: str) -> bool:
    try:
        return Path(path).is_file()
    except OSError:
        return False


def read_guard(options: PenstockOptions, environment: Mapping[str, str]) -> ReadGuard:
    """Return the guard against reads of a Penstock's files by flows and tasks.

    Segments are among them: rights are given for names of datasources, and the path of a file would
    bypass them. Tasks read datasources with inputs of type `druid`, and SQL.
    """
    stores = (options.deep_storage_address, options.task_logs_address)
    folders = [local_path(one) for one in stores]
    private = [*private_places(options, environment), *(one for one in folders if one is not None)]
    return ReadGuard(
        tuple(str(one.absolute()) for one in private),
        tuple(str(folder.absolute()) for folder in options.readable_folders),
        tuple(one for one, folder in zip(stores, folders, strict=True) if folder is None),
    )


def network_guard(options: PenstockOptions, listening: Iterable[int] = ()) -> NetworkGuard:
    """Return the guard against connections of flows and tasks to Penstock and unlisted hosts.

    Args:
        options: The options of this Penstock.
        listening: Further ports on which its processes are known to listen.

    Raises:
        InvalidRequest: The list of hosts is invalid.
    """
    addresses = (options.http, options.broker_http_address, options.broker_tcp_address)
    ports = {one.port for one in addresses} | {options.broker_https_port}
    ports.add(None if options.flight is None else options.flight.port)
    for spark in (options.spark_connect, options.query_connect):
        ports.add(None if spark is None else ConnectAddress.parse(spark).port)
    known = {port for port in ports if port}
    return NetworkGuard.of(options.reachable_hosts, known.union(listening))
