"""Find the files of a request's inputs that workers can read.

Owns the files of each input and the form of their rows. Inline text, files from HTTP and rows of
databases are stored in the scratch folder first; everything else is read in place.
"""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

import fsspec
import orjson

from penstock.core.clock import SystemClock
from penstock.core.errors import InvalidRequest, NotFound
from penstock.core.network_guard import NetworkDestination
from penstock.core.read_guard import READ_GUARD, ReadCheck
from penstock.core.secret_names import is_reference
from penstock.indexing.batch.batch_engine import CombinedInput, ExternalInput, SegmentInput
from penstock.indexing.engine import InputUnavailable
from penstock.indexing.secrets import HEADER_VALUE, masked, masked_url
from penstock.indexing.specs import TIME_COLUMN
from penstock.indexing.specs.input_formats import (
    AvroFormat,
    CsvFormat,
    JsonFormat,
    OrcFormat,
    ParquetFormat,
    TsvFormat,
)
from penstock.indexing.specs.inputs import (
    HttpInput,
    InlineInput,
    LocalInput,
    StoredInput,
    UploadInput,
    input_sources,
)
from penstock.indexing.specs.sources.databases import DatabaseInput
from penstock.indexing.specs.sources.secret_values import EnvironmentSecret, resolved
from penstock.spark.batch.input.delimited import header_of
from penstock.spark.batch.input.file_splits import InputFile, Source, StoreOptions
from penstock.spark.batch.input.http_files import fetch
from penstock.spark.batch.input.open_files import (
    UNUSABLE,
    check_readable,
    codec_of,
    codec_of_content,
    local_size,
    size_of,
)
from penstock.spark.batch.options import SparkBatchOptions
from penstock.spark.topic.row_shape import RowShape, TimeField, TimeFormat
from penstock.storage.uploads import UploadStore

if TYPE_CHECKING:
    from penstock.indexing.specs.input_formats import InputFormat
    from penstock.indexing.specs.inputs import SingleInput

FilesInput = ExternalInput | SegmentInput | CombinedInput

_TEXT_KINDS: Final = frozenset({"json", "delimited"})


@dataclass(frozen=True, slots=True)
class InputFiles:
    """Files, and the sources to which their `source` numbers refer."""

    files: tuple[InputFile, ...]
    sources: tuple[Source, ...]

    def shaped(self, shape: RowShape) -> InputFiles:
        """Return the same files with these fields; the place of the time stays."""
        sources = tuple(replace(s, shape=replace(shape, time=s.shape.time)) for s in self.sources)
        return InputFiles(self.files, sources)


@dataclass(slots=True)
class FileFinder:
    """Finds the files of one request.

    Args:
        time: Place of the time in external rows; None: it is a column like others.
        scratch: Folder for fetched files.
        options: Limits, and the source of secrets.
        check: Called periodically; raises when the request must end.
        only_heads: Fetch up to `fetch_bytes_max` of a larger file, instead of refusing it.
    """

    time: TimeField | None
    scratch: Path
    options: SparkBatchOptions
    check: Callable[[], None]
    only_heads: bool = False
    _files: list[InputFile] = field(default_factory=list)
    _sources: list[Source] = field(default_factory=list)
    _made: int = 0

    def find(self, wanted: FilesInput) -> InputFiles:
        """Return the files of an input.

        Raises:
            InvalidRequest: The input cannot be read.
            NotFound: No file exists.
            InputUnavailable: A store or a server does not answer.
        """
        for part in wanted.parts if isinstance(wanted, CombinedInput) else (wanted,):
            if isinstance(part, SegmentInput):
                self._add_segments(part)
            else:
                self._add_external(part)
        return InputFiles(tuple(self._files), tuple(self._sources))

    def _add_segments(self, wanted: SegmentInput) -> None:
        number = len(self._sources)
        shape = RowShape((), TimeField(TIME_COLUMN, TimeFormat.MILLIS))
        self._sources.append(Source("parquet", shape))
        for data, visible in wanted.files:
            clip = None if visible.covers(data.interval) else (visible.start_ms, visible.end_ms)
            self._files.append(
                InputFile(
                    data.path, data.path, data.bytes, number, clip=clip, renamed=wanted.renamed
                )
            )

    def _add_external(self, wanted: ExternalInput) -> None:
        files: list[SingleInput] = []
        for single in input_sources(wanted.source):
            if isinstance(single, DatabaseInput):
                self._add_database(single)
            else:
                files.append(single)
        if files:
            assert wanted.format is not None, "the spec was checked"
            self._add_files(files, wanted.format)

    def _add_database(self, wanted: DatabaseInput) -> None:
        # Imported here: it loads database drivers, which other inputs do not need.
        from penstock.spark.batch.input.database_rows import fetch_rows  # noqa: PLC0415

        number = len(self._sources)
        self._sources.append(Source("parquet", RowShape((), self.time)))
        connector = wanted.database.connector_config
        for rows in fetch_rows(
            wanted,
            self._secret(connector.password, "database.connectorConfig.password"),
            self._new_file,
            bytes_max=self.options.fetch_bytes_max,
            row_bytes_max=self.options.line_bytes_max,
            check=self.check,
        ):
            self._files.append(InputFile(str(rows.path), rows.shown, rows.size, number))

    def _add_files(self, wanted: Sequence[SingleInput], format_: InputFormat) -> None:
        number = len(self._sources)
        source = source_of(format_, RowShape((), self.time))
        self._sources.append(source)
        for single in wanted:
            found = list(self._files_of(single, number, is_text=source.kind in _TEXT_KINDS))
            if not found:
                raise NotFound(f"the input {_shown(single)} has no files: correct its paths")
            for file in found:
                columns = header_of(file, source) if source.header else file.columns
                if columns is not None:  # without a header there are no rows
                    self._files.append(replace(file, columns=columns))

    def each(self, single: SingleInput, *, is_text: bool) -> Iterator[InputFile]:
        """Yield the files of one input of files, without what their headers say.

        Raises as `find`.
        """
        return self._files_of(single, 0, is_text=is_text)

    def _files_of(self, single: SingleInput, source: int, *, is_text: bool) -> Iterator[InputFile]:
        guard = READ_GUARD.get()
        reads = guard.now()
        match single:
            case InlineInput():
                path = self._new_file("inline.txt")
                path.write_bytes(single.data.encode())
                yield InputFile(str(path), "inline", path.stat().st_size, source)
            case LocalInput():
                for name in _local_names(single, reads):
                    reads.path(name)
                    codec = codec_of(name) if is_text else None
                    yield InputFile(name, name, local_size(name), source, codec, guard=guard)
            case HttpInput():
                for url in single.uris:
                    yield self._fetched(single, url, source, is_text=is_text)
            case UploadInput():
                for upload in single.uploads:
                    yield self._uploaded(upload, source, is_text=is_text)
            case StoredInput():
                store = self._keys(single)
                reached: set[NetworkDestination] = set()
                for url in _urls(single, reads, store, reached):
                    check_readable(url, reads, reached)
                    codec = codec_of(url) if is_text else None
                    size = size_of(url, store)
                    shown = masked_url(url)
                    yield InputFile(url, shown, size, source, codec, guard=guard, store=store)
            case _:
                raise InvalidRequest(
                    f"the input {single.type} is read by the task as segments: it cannot be part"
                    " of files"
                )

    def _uploaded(self, upload_id: str, source: int, *, is_text: bool) -> InputFile:
        folder = self.options.uploads_folder
        if folder is None:
            raise NotFound(f"the upload {upload_id} is not on this host: upload the file again")
        found = UploadStore(folder, SystemClock()).get(upload_id)
        # The name is the client's text, so the compression is found by the content.
        codec = codec_of_content(found.path, found.name) if is_text else None
        return InputFile(str(found.path), found.name, found.bytes, source, codec)

    def _fetched(self, wanted: HttpInput, url: str, source: int, *, is_text: bool) -> InputFile:
        name = urlsplit(url).path.rsplit("/", 1)[-1] or "file"
        codec = codec_of(name) if is_text else None
        path = self._new_file("fetched")
        user, password = wanted.http_authentication_username, wanted.http_authentication_password
        size = fetch(
            url,
            path,
            headers=self._headers(wanted.request_headers),
            auth=None
            if user is None
            else (user, self._secret(password, "httpAuthenticationPassword")),
            bytes_max=self.options.fetch_bytes_max,
            timeout_s=self.options.fetch_timeout_s,
            check=self.check,
            only_head=self.only_heads,
        )
        return InputFile(str(path), masked_url(url), size, source, codec)

    def _secret(self, given: EnvironmentSecret | str | None, field_name: str) -> str:
        if given is None:
            return ""
        return resolved(given, self.options.secrets, f"inputSource.{field_name}")

    def _keys(self, wanted: StoredInput) -> StoreOptions:
        """Return the options of fsspec for the keys that a spec names."""
        given = wanted.properties
        if given is None:
            return ()
        key = self._secret(given.access_key_id, "properties.accessKeyId")
        secret = self._secret(given.secret_access_key, "properties.secretAccessKey")
        return ("key", key), ("secret", secret)

    def _headers(self, given: Mapping[str, str]) -> dict[str, str]:
        """Return headers with the values of secrets, which a client would show if they were bad."""
        found = {}
        for name, text in given.items():
            found[name] = self._secret(text, f"requestHeaders.{name}")
            if is_reference(text) and not HEADER_VALUE.fullmatch(found[name]):
                raise InvalidRequest(
                    "the secret is not the value of an HTTP header: it has line breaks, spaces"
                    " around it, or characters that are not ASCII",
                    place=f"inputSource.requestHeaders.{name}",
                )
        return found

    def _new_file(self, name: str) -> Path:
        self.scratch.mkdir(parents=True, exist_ok=True)
        self._made += 1
        return self.scratch / f"{self._made}-{name}"


def source_of(format_: InputFormat, shape: RowShape) -> Source:
    """Return how files of a format are read, and the rows made from them."""
    match format_:
        case JsonFormat():
            return Source("json", shape, lines_only=format_.assume_newline_delimited)
        case CsvFormat() | TsvFormat():
            return Source(
                "delimited",
                shape,
                format_.columns,
                format_.separator,
                format_.list_delimiter,
                format_.skip_header_rows + (1 if format_.has_header else 0),
                format_.has_header,
            )
        case ParquetFormat():
            return Source("parquet", shape, binary_as_string=format_.binary_as_string)
        case OrcFormat():
            return Source("orc", shape, binary_as_string=format_.binary_as_string)
        case AvroFormat():
            return Source("avro", shape, binary_as_string=format_.binary_as_string)


def _local_names(wanted: LocalInput, reads: ReadCheck) -> list[str]:
    names = list(wanted.files)
    if wanted.base_dir is not None:
        reads.path(wanted.base_dir)
        if not Path(wanted.base_dir).is_dir():
            raise NotFound(f"{wanted.base_dir} is not an existing folder: correct baseDir")
        for folder, _, files in os.walk(wanted.base_dir, onerror=_refuse_folder):
            matching = fnmatch.filter(files, wanted.filter or "*")
            names += [f"{folder.rstrip('/')}/{name}" for name in matching]
    return sorted(dict.fromkeys(names))


def _refuse_folder(error: OSError) -> None:
    """Raise for an unreadable folder, whose rows would be missing; ignore one that was deleted."""
    if isinstance(error, FileNotFoundError):
        return
    raise InvalidRequest(
        f"{error.filename} cannot be read ({error.strerror}): correct its permissions, or use a"
        " baseDir without it"
    )


def _urls(
    wanted: StoredInput,
    reads: ReadCheck,
    store: StoreOptions,
    reached: set[NetworkDestination],
) -> list[str]:
    urls = list(wanted.urls)
    if wanted.prefixes:
        for prefix in wanted.prefixes:
            check_readable(prefix, reads, reached)
        urls = [url for prefix in wanted.prefixes for url in _below(prefix, store)]
    if wanted.object_glob is not None:
        glob = wanted.object_glob
        urls = [u for u in urls if fnmatch.fnmatch(u.partition("://")[2], f"*{glob.lstrip('*')}")]
    return urls


def _below(prefix: str, store: StoreOptions) -> list[str]:
    try:
        fs, path = fsspec.core.url_to_fs(prefix, **dict(store))
        found = fs.find(path.rsplit("/", 1)[0])
        return sorted(fs.unstrip_protocol(name) for name in found if name.startswith(path))
    except UNUSABLE as error:
        shown = masked_url(prefix)
        text = f"{shown} cannot be read ({error}): correct it, or install its fsspec package"
        raise InvalidRequest(text) from None
    except FileNotFoundError:
        return []
    except OSError as error:
        raise InputUnavailable(
            f"{masked_url(prefix)} does not answer ({error}): try again"
        ) from None


def _shown(single: SingleInput) -> str:
    given = single.model_dump(mode="json", by_alias=True, exclude_none=True, exclude_defaults=True)
    text = orjson.dumps(masked(given)).decode()
    return text if len(text) <= 200 else f"{text[:200]}…"
