"""Open inputs: paths of this host and URLs that fsspec supports, compressed or not.

The only module of batch tasks that opens inputs; every error names the file. Keys of object
stores come from the environment, as fsspec reads them, or from the secrets that a spec names.
"""

from __future__ import annotations

import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, cast

import fsspec
import pyarrow as pa
from fsspec.implementations.local import LocalFileSystem

from penstock.core.errors import CorruptData, InvalidRequest, NotFound
from penstock.core.guarded_connections import NETWORK_GUARD
from penstock.core.network_guard import NetworkDestination
from penstock.core.out_of_memory import is_out_of_memory
from penstock.core.read_guard import ReadCheck
from penstock.core.store_urls import LOCAL_SCHEMES, check_store_url, store_destinations
from penstock.indexing.engine import InputUnavailable
from penstock.indexing.secrets import masked_url
from penstock.spark.batch.input.file_splits import InputFile, StoreOptions
from penstock.spark.connect.worker_memory import out_of_memory

# Errors besides OSError that fsspec's file systems raise for URLs that they cannot parse.
UNUSABLE: Final = (ImportError, ValueError, TypeError, LookupError, AttributeError, RuntimeError)

_CODECS: Final = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2", ".lz4": "lz4"}
_MAGIC_BYTES: Final = 8
# RFC 1952, RFC 8878, the documents of bzip2 and of LZ4's frame format.
_CODEC_MAGIC: Final = {
    b"\x1f\x8b": "gzip",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"BZh": "bz2",
    b"\x04\x22\x4d\x18": "lz4",
}
_UNREADABLE_MAGIC: Final = {
    b"PK\x03\x04": "is a zip archive or an Excel file: unpack it, or save the sheet as CSV",
    b"\xfd7zXZ\x00": "is packed with xz: pack it with gzip or zstd",
}
_UNREADABLE: Final = {
    ".zip": "unpack it",
    ".xz": "pack it with gzip or zstd",
    ".snappy": "unpack it",
}


def codec_of(name: str) -> str | None:
    """Return the compression of a file, by its name.

    Raises:
        InvalidRequest: The compression is not supported.
    """
    folded = name.lower()
    for suffix, remedy in _UNREADABLE.items():
        if folded.endswith(suffix):
            shown = masked_url(name)
            raise InvalidRequest(f"{shown}: {suffix} cannot be read: {remedy}")
    return next((codec for suffix, codec in _CODECS.items() if folded.endswith(suffix)), None)


def codec_of_content(path: Path, shown: str) -> str | None:
    """Return the compression of a local file, by its first bytes.

    Args:
        path: The file.
        shown: Its name for messages.

    Raises:
        InvalidRequest: The compression is not supported.
        NotFound: The file does not exist.
    """
    try:
        with path.open("rb") as file:
            head = file.read(_MAGIC_BYTES)
    except FileNotFoundError:
        raise NotFound(f"{shown} does not exist: correct the input's files") from None
    return codec_of_head(head, shown)


def codec_of_head(head: bytes, shown: str) -> str | None:
    """Return the compression of a file, by its first bytes. Raises as `codec_of_content`."""
    for magic, reason in _UNREADABLE_MAGIC.items():
        if head.startswith(magic):
            raise InvalidRequest(f"{shown} {reason}")
    return next((codec for magic, codec in _CODEC_MAGIC.items() if head.startswith(magic)), None)


@contextmanager
def opened(file: InputFile) -> Iterator[pa.NativeFile]:
    """Open a file for reading at any place, as it is stored."""
    with translated(file), _raw(file) as stored:
        yield stored


@contextmanager
def opened_text(file: InputFile) -> Iterator[pa.NativeFile]:
    """Open a file of text, unpacked if it is compressed."""
    with translated(file), _raw(file) as stored:
        if file.codec is None:
            yield stored
        else:
            with pa.CompressedInputStream(stored, file.codec) as plain:
                yield plain


@contextmanager
def translated(file: InputFile) -> Iterator[None]:
    """Translate errors in the block to errors that name the file.

    Raises:
        NotFound: The file does not exist.
        CorruptData: The file does not match its format or is truncated.
        InvalidRequest: No permission, or the file exceeds the process's memory limit.
        InputUnavailable: The file's store does not answer.
    """
    try:
        yield
    except (MemoryError, SystemError) as error:
        # First, because Arrow's error of this kind is a subclass of the types below.
        if not is_out_of_memory(error):
            raise
        raise out_of_memory(f"reading {file.shown}") from None
    except FileNotFoundError:
        raise NotFound(f"{file.shown} does not exist: correct the input's paths") from None
    except (PermissionError, IsADirectoryError) as error:
        reason = error.strerror or str(error)
        raise InvalidRequest(f"{file.shown} cannot be read ({reason}): correct the file") from None
    except (ConnectionError, TimeoutError) as error:
        # Raised for a store behind fsspec: the file itself may be intact.
        raise InputUnavailable(f"{file.shown} cannot be read now: {_first_line(error)}") from None
    except (pa.ArrowException, OSError, EOFError) as error:
        # Arrow raises OSError for streams that are truncated or not of the expected format.
        reason = f"{_first_line(error)}: check that the file is complete and of the given format"
        raise CorruptData(file.shown, None, reason) from None


def local_size(name: str) -> int:
    """Return the size of a file of this host, in bytes.

    Raises:
        NotFound: The file does not exist.
        InvalidRequest: It is not a regular file, or not readable.
    """
    try:
        found = Path(name).stat()
    except ValueError:
        raise InvalidRequest(f"invalid path {name!r}: correct the input's files") from None
    except FileNotFoundError:
        raise NotFound(f"{name} does not exist: correct the input's files") from None
    except OSError as error:
        raise InvalidRequest(
            f"{name} cannot be read ({error.strerror}): check its permissions"
        ) from None
    if stat.S_ISDIR(found.st_mode):
        raise InvalidRequest(f"{name} is a folder: give it as baseDir, with a filter")
    if not stat.S_ISREG(found.st_mode):
        # A pipe or a device may have no end, or block a reader in a call that cannot be
        # interrupted.
        raise InvalidRequest(f"{name} is not a regular file: write the rows into one")
    return found.st_size


def size_of(url: str, store: StoreOptions = ()) -> int:
    """Return the size of the file at a URL, in bytes.

    Args:
        url: The URL.
        store: Options of fsspec for its store.

    Raises:
        NotFound: The file does not exist.
        InvalidRequest: It is not a regular file, or its URL scheme is not supported.
        InputUnavailable: The store does not answer.
    """
    shown = masked_url(url)
    try:
        fs, path = fsspec.core.url_to_fs(url, **dict(store))
        if isinstance(fs, LocalFileSystem):
            return local_size(str(path))
        return int(cast("int", fs.info(path)["size"]))
    except FileNotFoundError:
        raise NotFound(f"{shown} does not exist: correct the input's paths") from None
    except UNUSABLE as error:
        text = f"{shown} cannot be read ({_first_line(error)})"
        raise InvalidRequest(f"{text}: correct it, or install its fsspec package") from None
    except OSError as error:
        raise InputUnavailable(f"{shown} does not answer: {_first_line(error)}") from None


def check_readable(url: str, reads: ReadCheck, reached: set[NetworkDestination]) -> None:
    """Check a URL that a spec or a statement names, before anything is opened or listed.

    Args:
        url: The URL.
        reads: Checks paths of this host.
        reached: Hosts that were checked for other URLs of the input; another one is added.

    Raises:
        InvalidRequest: Tasks must not read it.
    """
    shown = masked_url(url)
    check_store_url(url, shown=shown)
    reads.url(url, shown)
    for destination in store_destinations(url):
        if destination not in reached:
            NETWORK_GUARD.check(destination)
            reached.add(destination)
    if url.partition("://")[0] in LOCAL_SCHEMES:
        reads.path(str(local_path(url)))


@contextmanager
def _raw(file: InputFile) -> Iterator[pa.NativeFile]:
    if (path := local_path(file.path)) is None:
        with (
            fsspec.open(file.path, "rb", **dict(file.store)) as remote,
            pa.PythonFile(remote, mode="r") as found,
        ):
            yield found
        return
    reads = None if file.guard is None else file.guard.now()
    if reads is not None:
        reads.path(path)
    with pa.OSFile(path, "rb") as local:
        if reads is not None:
            reads.opened(local.fileno(), path)
        yield local


def local_path(place: str) -> str | None:
    """Return the path of a file of this host, given as a path or a URL; None for other files."""
    if "://" not in place:
        return place
    fs, path = fsspec.core.url_to_fs(place)
    return str(path) if isinstance(fs, LocalFileSystem) else None


def _first_line(error: BaseException) -> str:
    text = str(error).strip() or type(error).__name__
    return text.split("\n", 1)[0][:300]
