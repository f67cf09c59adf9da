"""The input of a batch task: ``inputSource``.

Together with a format (`input_formats`) and the types of its columns, it forms a table that a
statement reads: `ExternTable`.

Owns only the form of specs: nothing here opens a file or a connection. The engine enforces limits
on what may be read (folders, hosts, sizes), because they depend on where it runs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import PurePath
from typing import Annotated, ClassVar, Final, Literal
from urllib.parse import urlsplit

from pydantic import BeforeValidator, Field, field_validator, model_validator

from penstock.core.intervals import Interval
from penstock.core.secret_names import is_reference
from penstock.indexing.secrets import (
    HEADER_MASK_REMEDY,
    MASK,
    MASK_REMEDY,
    URL_MASK_REMEDY,
    masked_url,
)
from penstock.indexing.specs.filters import Filter
from penstock.indexing.specs.input_formats import InputFormat
from penstock.indexing.specs.scalars import OWN_PREFIX, DatasourceName, IntervalText
from penstock.indexing.specs.sources.databases import DatabaseInput
from penstock.indexing.specs.sources.secret_values import (
    EnvironmentSecret,
    Secret,
    check_whole_reference,
)
from penstock.indexing.specs.spec_base import (
    Found,
    SpecModel,
    as_mistake,
    mistake,
    mistakes,
    refuse_types,
)

_SCHEMES: Final[Mapping[str, tuple[str, ...]]] = {
    "s3": ("s3", "s3a"),
    "google": ("gs", "gcs"),
    "azure": ("azure", "az", "abfs", "abfss", "adl"),
    "hdfs": ("hdfs", "webhdfs"),
}
_BUCKETS: Final = {"s3": "s3", "google": "gs", "azure": "az"}
EXTERN_PREFIX: Final = f"{OWN_PREFIX}extern_"
_EXTERN_COLUMNS_MAX: Final = 10_000
_SYSTEM_FIELDS: Final = {"systemFields": "only rows supply columns: leave it out"}


class LocalInput(SpecModel):
    """Files that every worker can read: a folder with a pattern of names, or a list, or both."""

    type: Literal["local"] = "local"
    base_dir: str | None = Field(default=None, min_length=1)
    filter: str | None = Field(default=None, min_length=1)
    files: tuple[Annotated[str, Field(min_length=1)], ...] = ()

    unsupported: ClassVar[Mapping[str, str]] = _SYSTEM_FIELDS

    @model_validator(mode="after")
    def _check_together(self) -> LocalInput:
        if self.base_dir is None and not self.files:
            raise mistakes("LocalInput", [(("baseDir",), None, "set this with filter, or files")])
        if self.base_dir is not None and self.filter is None:
            text = 'specify the file names in baseDir, such as "*.json"'
            raise mistakes("LocalInput", [(("filter",), None, text)])
        if self.base_dir is None and self.filter is not None:
            text = "requires baseDir: set it, or leave this out"
            raise mistakes("LocalInput", [(("filter",), self.filter, text)])
        # Tasks and Spark's workers have different folders, so each would resolve it differently.
        text = "is a relative path, but each task runs in its own folder: use an absolute path"
        relative: Found = [
            (place, path, text)
            for place, path in (
                (("baseDir",), self.base_dir),
                *((("files", number), path) for number, path in enumerate(self.files)),
            )
            if path is not None and not PurePath(path).is_absolute()
        ]
        if relative:
            raise mistakes("LocalInput", relative)
        return self


class HttpInput(SpecModel):
    """Files behind URLs."""

    type: Literal["http"] = "http"
    uris: tuple[str, ...] = Field(min_length=1)
    http_authentication_username: str | None = None
    http_authentication_password: Secret | None = None
    request_headers: dict[str, str] = Field(default_factory=dict)

    unsupported: ClassVar[Mapping[str, str]] = _SYSTEM_FIELDS

    @field_validator("uris")
    @classmethod
    def _check_uris(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for number, uri in enumerate(value):
            _check_url(uri, ("http", "https"), number)
        return value

    @field_validator("request_headers")
    @classmethod
    def _check_headers(cls, value: dict[str, str]) -> dict[str, str]:
        for name, text in value.items():
            if not re.fullmatch(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", name) or re.search(
                r"[\x00-\x08\x0a-\x1f\x7f]", text
            ):
                begin = re.split(r"[^\w-]", name, maxsplit=1)[0]  # its text may follow
                raise mistake(f"invalid HTTP header {begin!r}: no control characters nor spaces")
            if text == MASK:
                raise mistake(f"{name!r} {HEADER_MASK_REMEDY}")
            with as_mistake():
                check_whole_reference(text)
        return value

    @field_validator("http_authentication_password")
    @classmethod
    def _check_password(
        cls, value: EnvironmentSecret | str | None
    ) -> EnvironmentSecret | str | None:
        if value == MASK:
            raise mistake(MASK_REMEDY)
        return value

    @model_validator(mode="after")
    def _check_together(self) -> HttpInput:
        if self.http_authentication_password is not None and not self.http_authentication_username:
            text = "is required with httpAuthenticationPassword"
            raise mistakes("HttpInput", [(("httpAuthenticationUsername",), None, text)])
        return self


class InlineInput(SpecModel):
    """The rows themselves, as text in the format."""

    type: Literal["inline"] = "inline"
    data: str


class UploadInput(SpecModel):
    """Files that were uploaded to `POST /penstock/v1/uploads`, by their ids."""

    type: Literal["upload"] = "upload"
    uploads: tuple[Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")], ...] = Field(
        min_length=1, max_length=100
    )


class ObjectPath(SpecModel):
    """One object of an object store."""

    bucket: str = Field(min_length=1)
    path: str = Field(min_length=1)


class S3Keys(SpecModel):
    """Keys of an object store of the kind S3, instead of those where tasks run.

    Only names of secrets are accepted, not the keys themselves.
    """

    access_key_id: Secret
    secret_access_key: Secret

    @field_validator("access_key_id", "secret_access_key")
    @classmethod
    def _check_named(cls, value: EnvironmentSecret | str) -> EnvironmentSecret | str:
        if isinstance(value, str) and not is_reference(value):
            raise mistake("must be secret://NAME: a spec must not contain keys")
        return value


class StoredInput(SpecModel):
    """Files of an object store or a distributed file system: listed, or selected by prefixes.

    `fsspec` takes URLs of all stores that tasks may read, if their package is installed.
    """

    type: Literal["s3", "google", "azure", "hdfs", "fsspec"]
    uris: tuple[str, ...] = ()
    prefixes: tuple[str, ...] = ()
    objects: tuple[ObjectPath, ...] = ()
    paths: Annotated[
        tuple[str, ...], BeforeValidator(lambda v: [v] if isinstance(v, str) else v)
    ] = ()
    object_glob: str | None = Field(default=None, min_length=1)
    properties: S3Keys | None = None

    unsupported: ClassVar[Mapping[str, str]] = _SYSTEM_FIELDS | {
        "endpointConfig": "set the end point where tasks run",
        "proxyConfig": "set the proxy where tasks run",
        "clientConfig": "set the client where tasks run",
    }

    @model_validator(mode="after")
    def _check_together(self) -> StoredInput:
        given = [n for n in ("uris", "prefixes", "objects", "paths") if getattr(self, n)]
        found: Found = []
        if len(given) != 1:
            text = "set exactly one of uris, prefixes, objects and paths"
            found.append(((given[1] if given else "uris",), given, text))
        for field in ("uris", "prefixes", "paths"):
            for number, url in enumerate(getattr(self, field)):
                wrong = _mistake_in_url(url, _SCHEMES.get(self.type, ()))
                if wrong is not None:
                    found.append(((field, number), url, wrong))
        if self.properties is not None and self.type != "s3":
            text = "has keys only for s3: set those of other stores where tasks run"
            found.append((("properties",), None, text))
        if self.objects and self.type not in _BUCKETS:
            found.append((("objects",), None, f"{self.type} has no buckets: use uris"))
        if found:
            raise mistakes("StoredInput", found)
        return self

    @property
    def urls(self) -> tuple[str, ...]:
        """The listed URLs; with `prefixes`, each stands for all URLs that begin with it."""
        objects = (f"{_BUCKETS[self.type]}://{o.bucket}/{o.path}" for o in self.objects)
        return (*self.uris, *self.prefixes, *self.paths, *objects)


class DruidInput(SpecModel):
    """Visible rows of a datasource of this cluster, in an interval or in listed segments.

    Rows that do not match `filter` are left out. `dimensions` and `metrics` list the columns to
    read; without a list all columns of its kind are read.
    """

    type: Literal["druid"] = "druid"
    datasource: DatasourceName
    interval: IntervalText | None = None
    segments: tuple[str, ...] = ()
    dimensions: tuple[str, ...] | None = None
    metrics: tuple[str, ...] | None = None
    filter: Filter | None = None

    @field_validator("segments", mode="before")
    @classmethod
    def _take_ids(cls, value: object) -> object:
        """Accept Druid's `{segmentId, intervals}`; the parts are derived from the id."""
        if not isinstance(value, list):
            return value
        return [
            one["segmentId"] if isinstance(one, dict) and one.keys() == {"segmentId"} else one
            for one in value
        ]

    @model_validator(mode="after")
    def _check_together(self) -> DruidInput:
        if (self.interval is None) == (not self.segments):
            text = "set either this or segments"
            raise mistakes("DruidInput", [(("interval",), self.interval, text)])
        return self

    @property
    def time(self) -> Interval | None:
        """The interval to read; None for that of the segments."""
        return None if self.interval is None else Interval.parse(self.interval)


_REFUSED_SOURCES: Final[Mapping[str, str]] = {
    "iceberg": "read the table's Parquet files",
    "delta": "read the table's Parquet files",
}
SingleInput = Annotated[
    LocalInput | HttpInput | InlineInput | UploadInput | StoredInput | DruidInput | DatabaseInput,
    Field(discriminator="type"),
]


class CombiningInput(SpecModel):
    """Several inputs, read as one."""

    type: Literal["combining"] = "combining"
    delegates: tuple[Annotated[SingleInput, refuse_types(_REFUSED_SOURCES)], ...] = Field(
        min_length=1
    )

    @model_validator(mode="after")
    def _check_together(self) -> CombiningInput:
        found: Found = []
        for number, one in enumerate(self.delegates):
            if not isinstance(one, DruidInput):
                continue
            for name in ("filter", "dimensions", "metrics"):
                if getattr(one, name) is not None:
                    text = "cannot be combined with other sources: read it in a task of its own"
                    # pydantic also puts the tag of the union before its field.
                    found.append((("delegates", number, "druid", name), None, text))
        if found:
            raise mistakes("CombiningInput", found)
        return self


InputSource = Annotated[
    LocalInput
    | HttpInput
    | InlineInput
    | UploadInput
    | StoredInput
    | DruidInput
    | DatabaseInput
    | CombiningInput,
    Field(discriminator="type"),
    refuse_types(_REFUSED_SOURCES),
]


def _folded(value: object) -> object:
    return "".join(value.split()).lower() if isinstance(value, str) else value


ExternType = Literal[
    "string",
    "long",
    "double",
    "float",
    "array<string>",
    "array<long>",
    "array<double>",
    "complex<json>",
]


class ExternColumn(SpecModel):
    """One column of files that a statement reads, and the type of its values."""

    name: str = Field(min_length=1)
    type: Annotated[ExternType, BeforeValidator(_folded)]


class ExternTable(SpecModel):
    """Files that a statement reads as a table of these columns: `TABLE(EXTERN(…))`.

    Rows of a database are such a table, too; `inputFormat` is left out then.
    """

    input_source: InputSource
    input_format: InputFormat | None = None
    signature: tuple[ExternColumn, ...] = Field(min_length=1, max_length=_EXTERN_COLUMNS_MAX)

    @field_validator("input_source")
    @classmethod
    def _check_source(cls, value: InputSource) -> InputSource:
        for one in input_sources(value):
            if isinstance(one, DruidInput):
                raise mistake(f"is read by its name: write FROM {one.datasource}, without EXTERN")
        return value

    @field_validator("signature")
    @classmethod
    def _check_names(cls, value: tuple[ExternColumn, ...]) -> tuple[ExternColumn, ...]:
        found: Found = []
        seen: dict[str, str] = {}
        for number, column in enumerate(value):
            folded = column.name.lower()
            if folded in seen:
                text = f"duplicate column {seen[folded]!r}: SQL ignores case"
                found.append(((number, "name"), column.name, text))
            seen.setdefault(folded, column.name)
        if found:
            raise mistakes("signature", found)
        return value

    @model_validator(mode="after")
    def _check_format(self) -> ExternTable:
        if (wrong := wrong_format(self.input_source, self.input_format)) is not None:
            raise mistakes("ExternTable", [(("inputFormat",), None, wrong)])
        return self


def wrong_format(source: InputSource, given: InputFormat | None) -> str | None:
    """Return the mistake in the format of a source that requires one, or takes none."""
    if any(not isinstance(one, DruidInput | DatabaseInput) for one in input_sources(source)):
        return "is required: specify the format of the rows" if given is None else None
    if given is None:
        return None
    return "leave it out: rows of datasources and of databases have types"


def extern_name(number: int) -> str:
    """Return the name by which a query reads an external table of its statement."""
    return f"{EXTERN_PREFIX}{number}"


def input_sources(source: InputSource) -> tuple[SingleInput, ...]:
    """Return the inputs of a source: several if it combines them, otherwise itself."""
    return source.delegates if isinstance(source, CombiningInput) else (source,)


def uploads_of(sources: Iterable[InputSource]) -> tuple[str, ...]:
    """Return the ids of the uploads that inputs name, each once."""
    found = (
        upload
        for source in sources
        for one in input_sources(source)
        if isinstance(one, UploadInput)
        for upload in one.uploads
    )
    return tuple(dict.fromkeys(found))


def _check_url(url: str, schemes: tuple[str, ...], number: int) -> None:
    if (text := _mistake_in_url(url, schemes)) is not None:
        raise mistakes("urls", [((number,), url, text)])


def _mistake_in_url(url: str, schemes: tuple[str, ...]) -> str | None:
    """Return the mistake in a URL; without schemes any scheme is allowed."""
    if MASK in url:
        return URL_MASK_REMEDY
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:  # Its text contains the alleged port, which may be a password.
        return "is not a URL: its port must be a number, and its host a name"
    url = masked_url(url)
    if not parts.scheme or "://" not in url:
        wanted = schemes[0] if schemes else "scheme"
        return f"invalid URL {url!r}: write {wanted}://…"
    if schemes and parts.scheme not in schemes:
        return f"{url!r} has the scheme {parts.scheme}: it must be {' or '.join(schemes)}"
    if parts.password is not None:
        return "must not contain a password: it would be shown wherever the spec is"
    if schemes[:1] == ("http",) and not parts.hostname:
        return f"{url!r} has no host: add one"
    return None
