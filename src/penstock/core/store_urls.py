"""URLs of file systems that flows, specs and statements may name.

Owns the list of file systems, the check of a URL, and the hosts to which its file system connects.
File systems that wrap another one (caches, archives, `dir`) are not in the list: they open files of
this machine under names that the user chooses, and so bypass the guards of reads and writes. Nor
are `http` and `https`: their file systems follow redirects to any host. Inputs of type `http` and
InvokeHTTP check each of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final
from urllib.parse import urlsplit

from penstock.core.errors import InvalidRequest
from penstock.core.network_guard import NetworkDestination, url_destination

LOCAL_SCHEMES: Final = frozenset({"file", "local"})
_REMOTE: Final = frozenset(
    (
        *("s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "azure", "adl", "oss", "oci", "tos"),
        *("hdfs", "webhdfs", "ftp", "sftp", "ssh", "smb", "webdav"),
        *("dbfs", "lakefs", "hf", "box", "dropbox", "gdrive", "memory"),
    )
)
_HDFS_OPTIONS: Final = frozenset({"user", "kerb_ticket", "replication", "port"})
_HTTP: Final = frozenset({"http", "https"})
# File systems whose URLs name a host, and their ports.
_PORTS: Final[Mapping[str, int]] = {
    "hdfs": 8020,
    "webhdfs": 9870,
    "ftp": 21,
    "sftp": 22,
    "ssh": 22,
    "smb": 445,
    "webdav": 443,
    "abfs": 443,
    "abfss": 443,
    "adl": 443,
}
# Of Azure, where the host follows the name of a container.
_AFTER_CONTAINER: Final = frozenset({"abfs", "abfss", "adl"})
# Options of file systems that name a host without a scheme.
_HOST_OPTION: Final = re.compile(r"host|hostname|server|endpoint\w*|\w+_(?:host|endpoint)")
_PROXY_OPTION: Final = re.compile(r".*prox(?:y|ies).*")
_URL: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^;,\s'\"]*")
_DEPTH_MAX: Final = 8


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
    if separator and scheme in _HTTP:
        raise InvalidRequest(
            f"{wrong} read it with an input source of type http, or with InvokeHTTP in a flow,"
            " which check each redirect"
        )
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


def store_destinations(
    where: str, options: Mapping[str, object] | None = None
) -> Iterator[NetworkDestination]:
    """Yield the hosts that a URL and the options of its file system name.

    Stores without a host in their URL, such as S3, have the end point of the environment, which the
    operator sets, unless an option names another.

    Args:
        where: A URL or a path that `check_store_url` accepts.
        options: Options of the file system, as fsspec defines them.

    Raises:
        InvalidRequest: A host is ambiguous, or an option names a proxy.
    """
    scheme, separator, rest = where.partition("://")
    port = _PORTS.get(scheme)
    if separator and port is not None:
        given = (options or {}).get("port")
        authority = rest.partition("/")[0]
        if authority and (scheme not in _AFTER_CONTAINER or "@" in authority):
            yield url_destination(where, given if isinstance(given, int) else port)
    yield from _option_hosts(options or {}, port or 443, 0)


def _option_hosts(
    value: object, port: int, depth: int, name: str = ""
) -> Iterator[NetworkDestination]:
    if depth > _DEPTH_MAX:
        raise InvalidRequest(f"the options are nested more than {_DEPTH_MAX} times: correct them")
    if isinstance(value, Mapping):
        for key, inner in value.items():
            key_name = str(key).lower()
            if _PROXY_OPTION.fullmatch(key_name) and inner:
                raise InvalidRequest(
                    f"option {key_name!r:.60} names a proxy, whose connections cannot be checked:"
                    " leave it out"
                )
            yield from _option_hosts(inner, port, depth + 1, key_name)
    elif isinstance(value, list):
        for inner in value:
            yield from _option_hosts(inner, port, depth + 1, name)
    elif isinstance(value, str):
        urls = _URL.findall(value)
        yield from map(url_destination, urls)
        if not urls and value and _HOST_OPTION.fullmatch(name):
            yield url_destination(f"host://{value}", port)
