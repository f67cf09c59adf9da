"""URLs of file systems that flows, specs and statements may name.

Owns the list of file systems and the check of a URL. File systems that wrap another one (caches,
archives, `dir`) are not in the list: they open files of this machine under names that the user
chooses, and so bypass the guards of reads and writes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

from penstock.core.errors import InvalidRequest

LOCAL_SCHEMES: Final = frozenset({"file", "local"})
_REMOTE: Final = frozenset(
    (
        *("s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "azure", "adl", "oss", "oci", "tos"),
        *("hdfs", "webhdfs", "http", "https", "ftp", "sftp", "ssh", "smb", "webdav"),
        *("dbfs", "lakefs", "hf", "box", "dropbox", "gdrive", "memory"),
    )
)
_HDFS_OPTIONS: Final = frozenset({"user", "kerb_ticket", "replication", "port"})


def check_store_url(
    where: str, options: Mapping[str, object] | None = None, *, shown: str | None = None
) -> None:
    """Refuse URLs of file systems that give access to this machine's files under another name.

    Args:
        where: The URL, or a relative path.
        options: Options of the file system, as fsspec defines them.
        shown: The URL for error messages, without secrets; None: as it is.

    Raises:
        InvalidRequest: It must not be used.
    """
    options = options or {}
    wrong = f"{(where if shown is None else shown)!r} cannot be opened:"
    scheme, separator, _ = where.partition("://")
    if separator and scheme not in _REMOTE | LOCAL_SCHEMES:
        raise InvalidRequest(
            f"{wrong} flows and tasks must not use the file system {scheme}://; use a path or one "
            f"of {', '.join(sorted(_REMOTE))}"
        )
    if "::" in where:
        raise InvalidRequest(
            f"{wrong} flows and tasks must not chain file systems (::); write a single URL"
        )
    if "protocol" in options:
        raise InvalidRequest(f"{wrong} option 'protocol' would override that of the URL; remove it")
    if separator and scheme == "hdfs":
        # Without a host Hadoop uses its default file system, which may be this machine's.
        others = sorted(options.keys() - _HDFS_OPTIONS)
        if others or urlsplit(where).hostname in {None, "default"}:
            raise InvalidRequest(
                f"{wrong} write hdfs://HOST:PORT/PATH, with no other options than "
                f"{', '.join(sorted(_HDFS_OPTIONS))}"
            )
