"""Permissions of the data folder: only its user, and the segments for one more group if requested.

Owns the process umask of every role, which children inherit (including Spark's JVM and its Python
workers), and restricts folders that an older release left open. Restricting the top folder protects
everything below it, which takes no time. Opening segments to a group may require changing every
file, which runs once, in the background.

    data folder   0700   0710 GROUP with --segments-group: the group may traverse, not list
    segments      0700   2750 GROUP, files 0640; new ones inherit the group
    all others    0700, files at the top 0600
"""

from __future__ import annotations

import contextlib
import grp
import logging
import os
import stat
from pathlib import Path
from typing import Final

from penstock.core.errors import InvalidRequest, PenstockError, Unavailable
from penstock.core.threads import start_job
from penstock.services.host.data_folder import DataFolder
from penstock.services.options.table import PenstockOptions, local_path
from penstock.storage.disk import OsFileSystem

logger = logging.getLogger(__name__)

PRIVATE_UMASK: Final = 0o077
GROUP_UMASK: Final = 0o027

_PRIVATE_FOLDER: Final = 0o700
_PRIVATE_FILE: Final = 0o600
_PASSABLE_FOLDER: Final = 0o710
_GROUP_FOLDER: Final = 0o2750
_GROUP_FILE: Final = 0o640
# In `run`: whether all segments were opened, to which group, and their location.
_MARKER: Final = "segments-group"


def use_umask(options: PenstockOptions) -> None:
    """Set the umask of this process, and of the children that it starts from here on."""
    os.umask(_umask(options))


def hadoop_umask(options: PenstockOptions) -> str:
    """Return the same for Hadoop's file systems in Spark, which set permissions themselves."""
    return f"{_umask(options):03o}"


def private_data_folder(options: PenstockOptions) -> DataFolder:
    """Prepare the data folder, and restrict it to its user.

    Raises:
        InvalidRequest: The folder is not Penstock's, or the segments cannot be opened to the group.
        Unavailable: The folder cannot be written.
    """
    use_umask(options)
    folder = DataFolder(options.data_dir.absolute())
    group = None if options.segments_group is None else _group_id(options.segments_group)
    root = local_path(options.deep_storage_address)
    if group is not None and root is None:
        raise InvalidRequest(
            f"--segments-group {options.segments_group} needs segments in a folder, and"
            f" --deep-storage is {options.deep_storage}: set the permissions in that store"
        )
    folder.prepare()
    marker = folder.run / _MARKER
    if group is None:
        _close_again(marker)
        _tighten(folder.path, _PRIVATE_FOLDER, None)
    elif root is not None:
        try:
            marker_text = f"{group} {root}"
            is_done = _read(marker) == f"done {marker_text}"
            if not is_done:
                marker.write_text(f"begun {marker_text}")
            _open_way(folder.path, root, group)
        except OSError as error:
            raise InvalidRequest(
                f"--segments-group {options.segments_group}: {error.filename} cannot be given to"
                f" the group ({error.strerror}): run Penstock as a member of the group"
            ) from None
        if not is_done:
            _open_in_background(root, group, marker)
    return folder


def make_deep_storage(options: PenstockOptions) -> None:
    """Create the folder of a local deep storage; only at a start.

    If this fails, tasks wait for it, and readiness reports it. A process that its launcher restarts
    does not create it, because a disk may have been unmounted meanwhile.
    """
    root = local_path(options.deep_storage_address)
    try:
        if root is not None:
            OsFileSystem().mkdir(str(root))
    except PenstockError as error:
        logger.warning("cannot create the deep storage folder: %s", error)


def _umask(options: PenstockOptions) -> int:
    return PRIVATE_UMASK if options.segments_group is None else GROUP_UMASK


def _group_id(name: str) -> int:
    try:
        return int(name) if name.isdecimal() else grp.getgrnam(name).gr_gid
    except KeyError:
        raise InvalidRequest(
            f"--segments-group {name}: this host has no such group: create it, or give its number"
        ) from None


def _tighten(top: Path, mode: int, opened: Path | None) -> None:
    """Restrict the data folder and its direct entries; entries of other users are skipped.

    Args:
        top: The data folder.
        mode: Its mode.
        opened: An entry that is opened to a group.
    """
    for entry in top.iterdir():
        if entry == opened:
            continue
        # Deleted meanwhile, or of another user.
        with contextlib.suppress(FileNotFoundError, PermissionError):
            # A link to a folder on another disk is followed; that is one of Penstock's, too.
            found = entry.stat().st_mode
            if stat.S_ISDIR(found):
                _chmod(entry, _PRIVATE_FOLDER)
            elif stat.S_ISREG(found) and not entry.is_symlink():
                _chmod(entry, _PRIVATE_FILE)
    try:
        _chmod(top, mode)
    except PermissionError:
        logger.warning(
            "%s belongs to another user, so its permissions cannot be changed: other users"
            " cannot read the files in it, but can list their names",
            top,
        )


def _open_way(top: Path, root: Path, group: int) -> None:
    """Let a group pass through the data folder to the segments, and read new ones."""
    root.mkdir(parents=True, exist_ok=True)
    way = [top, *reversed([one for one in root.parents if top in one.parents])]
    inside = top in root.parents
    opened = None if not inside else [*way, root][1]
    _tighten(top, _PRIVATE_FOLDER, opened)
    for folder in way if inside else ():
        os.chown(folder, -1, group)
        _chmod(folder, _PASSABLE_FOLDER)
    os.chown(root, -1, group)
    _chmod(root, _GROUP_FOLDER)


def _open_in_background(root: Path, group: int, marker: Path) -> None:
    """Open existing segments to a group."""

    def run() -> None:
        if open_to_group(root, group) == 0:
            with contextlib.suppress(OSError):  # repeated at the next start
                marker.write_text(f"done {group} {root}")

    start_job("segments group", run)


def open_to_group(root: Path, group: int) -> int:
    """Let a group read everything below a folder; return how many entries could not be changed.

    Top-down: entries created in a changed folder inherit the group, and entries created before are
    listed.
    """
    folders, left = [root], 0
    while folders:
        folder = folders.pop()
        try:
            os.chown(folder, -1, group)
            _chmod(folder, _GROUP_FOLDER)
            entries = list(os.scandir(folder))
        except FileNotFoundError:
            continue
        except OSError as error:
            left += 1
            logger.warning("%s cannot be opened to group %d: %s", folder, group, error)
            continue
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                folders.append(Path(entry.path))
            elif entry.is_file(follow_symlinks=False):
                try:
                    os.chown(entry.path, -1, group)
                    _chmod(Path(entry.path), _GROUP_FILE)
                except FileNotFoundError:
                    continue
                except OSError as error:
                    left += 1
                    logger.warning("%s cannot be opened to group %d: %s", entry.path, group, error)
    return left


def _close_again(marker: Path) -> None:
    """Restrict segments outside of the data folder that an earlier start opened to a group."""
    text = _read(marker)
    if not text:
        return
    root = Path(text.split(" ", 2)[-1])
    try:
        _chmod(root, _PRIVATE_FOLDER)
    except FileNotFoundError:
        pass
    except OSError as error:
        raise Unavailable(
            f"{root} was opened to a group and cannot be closed ({error.strerror}): change its"
            " permissions to 0700"
        ) from None
    marker.unlink(missing_ok=True)


def _read(marker: Path) -> str:
    try:
        return marker.read_text()
    except FileNotFoundError:
        return ""


def _chmod(path: Path, mode: int) -> None:
    if stat.S_IMODE(path.stat().st_mode) != mode:
        path.chmod(mode)
