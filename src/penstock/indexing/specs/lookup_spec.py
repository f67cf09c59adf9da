"""The spec of a lookup: a small table that statements and flows join by name.

Owns the form of the spec, and what Druid's forms mean in it. Nothing here reads rows:
`penstock.spark.batch.input.lookup_rows` does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Final, Literal
from urllib.parse import unquote, urlsplit

import orjson
from pydantic import AfterValidator, Field, ValidationError, model_validator

from penstock.core.column_case import case_variants_in
from penstock.core.durations import parse_duration
from penstock.core.errors import InvalidRequest
from penstock.core.names import LOOKUP, check_name
from penstock.indexing.specs.errors import spec_error
from penstock.indexing.specs.input_formats import InputFormat
from penstock.indexing.specs.inputs import (
    DruidInput,
    InlineInput,
    InputSource,
    UploadInput,
    input_sources,
)
from penstock.indexing.specs.scalars import ColumnName, Count, DurationMs
from penstock.indexing.specs.sources.databases import DatabaseInput
from penstock.indexing.specs.spec_base import Found, SpecModel, as_mistake, mistake, mistakes
from penstock.indexing.specs.spec_text import read_object

KEY_COLUMN: Final = "k"
VALUE_COLUMN: Final = "v"
"""Names of the columns of a lookup in Druid."""

SPEC_BYTES_MAX: Final = 4 << 20
"""Size of a spec with its map; larger tables belong in a file."""
STORED_BYTES_MAX: Final = 64 << 10
"""Size of a spec without its map, as lists of lookups read it."""
ROWS_MAX: Final = 200_000
BYTES_MAX: Final = 16 << 20
"""Size of the rows of one lookup in memory: each query that names it gets all of them."""
COLUMNS_MAX: Final = 50
_PERIOD_MIN_MS: Final = 10_000


def _name(text: str) -> str:
    with as_mistake():
        return check_name(text, LOOKUP)


def _period(ms: int) -> int:
    if ms < _PERIOD_MIN_MS:
        raise mistake("must be PT10S or longer: each refresh starts a process")
    return ms


LookupName = Annotated[str, AfterValidator(_name)]


class LookupColumn(SpecModel):
    """A column besides the key, with the type of its values."""

    name: ColumnName
    type: Literal["string", "long", "double"] = "string"


class LookupSpec(SpecModel):
    """A lookup: a map, or the rows of files; one column is the key, and each key has one row."""

    name: LookupName
    map: dict[str, str | None] | None = None
    input_source: InputSource | None = None
    input_format: InputFormat | None = None
    key: ColumnName = KEY_COLUMN
    columns: tuple[LookupColumn, ...] = Field(
        default=(LookupColumn(name=VALUE_COLUMN),), min_length=1, max_length=COLUMNS_MAX
    )
    duplicates: Literal["refuse", "last"] = "refuse"
    refresh_period: Annotated[DurationMs, AfterValidator(_period)] | None = None
    max_rows: Count = Field(default=ROWS_MAX, ge=1, le=ROWS_MAX)
    max_bytes: Count = Field(default=BYTES_MAX, ge=1, le=BYTES_MAX)

    unsupported: ClassVar[Mapping[str, str]] = {
        "version": "Penstock numbers the versions itself",
    }

    @model_validator(mode="after")
    def _check_together(self) -> LookupSpec:
        found: Found = []
        if (self.map is None) == (self.input_source is None):
            found.append((("map",), None, "set either this or inputSource"))
        elif self.map is not None:
            if self.input_format is not None:
                found.append((("inputFormat",), None, "is only for inputSource: leave it out"))
            if self.refresh_period is not None:
                found.append(
                    (("refreshPeriod",), None, "a map does not change by itself: leave it out")
                )
            if len(self.columns) > 1 or self.columns[0].type != "string":
                found.append((("columns",), None, "a map has one column of type string"))
        else:
            found += self._source_mistakes()
        names = [self.key, *(one.name for one in self.columns)]
        if variants := case_variants_in(names):
            text = f"{' and '.join(map(repr, variants))} differ at most in case: rename one"
            found.append((("columns",), None, text))
        if found:
            raise mistakes("LookupSpec", found)
        return self

    def _source_mistakes(self) -> Found:
        assert self.input_source is not None
        found: Found = []
        if self.input_format is None:
            found.append((("inputFormat",), None, "is required with inputSource"))
        for one in input_sources(self.input_source):
            if isinstance(one, DruidInput | DatabaseInput | UploadInput | InlineInput):
                text = (
                    f"a lookup is not read from {one.type}: use files that stay where they are"
                    " (local, http, or an object store), or write the entries as map"
                )
                found.append((("inputSource",), None, text))
        return found

    @property
    def column_names(self) -> tuple[str, ...]:
        """The names of all columns, the key first."""
        return (self.key, *(one.name for one in self.columns))


def parse_lookup(text: bytes | str, *, name: str = "") -> tuple[LookupSpec, dict[str, object]]:
    """Parse a submitted spec, in Penstock's form or in one of Druid's.

    Args:
        text: JSON or YAML.
        name: The name in the path of the request, which a spec may then leave out.

    Returns:
        The spec, and its JSON form, which is stored; a map is empty there, because its entries are
        stored as rows.

    Raises:
        SpecError: An `InvalidRequest` that lists every mistake with its place.
        InvalidRequest: The text is not an object, or too large.
    """
    if len(text) > SPEC_BYTES_MAX:
        raise InvalidRequest(
            f"the spec has more than {SPEC_BYTES_MAX >> 20} MiB: put the rows into a file, and name"
            " it with inputSource"
        )
    value = read_object(text)
    if not isinstance(value, dict):
        raise InvalidRequest("the spec of a lookup must be an object with map or inputSource")
    given = of_druid(value) if "lookupExtractorFactory" in value else dict(value)
    if name and given.setdefault("name", name) != name:
        raise InvalidRequest(
            f"is {given['name']!r:.80}, but the request is about {name!r:.80}: use one name",
            place="name",
        )
    spec = checked_lookup(given)
    stored = {**given, "map": {}} if spec.map is not None else given
    if len(orjson.dumps(stored)) > STORED_BYTES_MAX:
        raise InvalidRequest(
            f"the spec has more than {STORED_BYTES_MAX >> 10} KiB without its map: name fewer files"
        )
    return spec, stored


def checked_lookup(value: Mapping[str, object]) -> LookupSpec:
    """Return the spec of a JSON object. Raises SpecError as `parse_lookup`."""
    try:
        return LookupSpec.model_validate(value, by_alias=True, by_name=False)
    except ValidationError as error:
        raise spec_error(error, LookupSpec) from None


def of_druid(value: Mapping[str, object]) -> dict[str, object]:
    """Return the spec that means the same as one of Druid.

    Args:
        value: An object with `lookupExtractorFactory`; its `version` has no meaning here.

    Raises:
        InvalidRequest: The factory or a part of it has no equivalent.
    """
    place = "lookupExtractorFactory"
    factory = _object(value[place], place)
    kind = factory.get("type")
    if kind == "map":
        return {"map": factory.get("map")}
    if kind != "cachedNamespace":
        raise InvalidRequest(
            f"the type {kind!r:.60} is not supported: use map, or cachedNamespace with a uri",
            place=f"{place}.type",
        )
    place += ".extractionNamespace"
    namespace = _object(factory.get("extractionNamespace"), place)
    if namespace.get("type") != "uri":
        raise InvalidRequest(
            "only the type uri is supported: write the rows of a database into a file regularly,"
            " and name the file",
            place=f"{place}.type",
        )
    uri = namespace.get("uri")
    if not isinstance(uri, str):
        raise InvalidRequest("is required: uriPrefix is not supported", place=f"{place}.uri")
    spec = _parsed(_object(namespace.get("namespaceParseSpec"), f"{place}.namespaceParseSpec"))
    spec["inputSource"] = _source_of(uri)
    # Druid keeps the last one of several rows with the same key.
    spec["duplicates"] = "last"
    period = namespace.get("pollPeriod")
    if period is not None and (not isinstance(period, str | int) or isinstance(period, bool)):
        raise InvalidRequest('write a duration, such as "PT10M"', place=f"{place}.pollPeriod")
    if period is not None and parse_duration(str(period)):
        spec["refreshPeriod"] = period
    return spec


def _source_of(uri: str) -> dict[str, object]:
    parts = urlsplit(uri)
    if parts.scheme in {"", "file"}:
        return {"type": "local", "files": [unquote(parts.path)]}
    if parts.scheme in {"http", "https"}:
        return {"type": "http", "uris": [uri]}
    return {"type": "fsspec", "uris": [uri]}


def _parsed(given: Mapping[str, object]) -> dict[str, object]:
    """Return the format and the columns of Druid's `namespaceParseSpec`."""
    place = "lookupExtractorFactory.extractionNamespace.namespaceParseSpec"
    kind = given.get("format")
    if kind == "customJson":
        key, value = given.get("keyFieldName"), given.get("valueFieldName")
        format_: dict[str, object] = {"type": "json"}
    elif kind in {"csv", "tsv"}:
        names = given.get("columns")
        columns = names if isinstance(names, list) else []
        first = (*columns, None, None)[:2]
        key, value = given.get("keyColumn", first[0]), given.get("valueColumn", first[1])
        format_ = {"type": kind, "columns": columns}
        if given.get("hasHeaderRow") is True:
            format_ = {"type": kind, "findColumnsFromHeader": True}
        if skipped := given.get("skipHeaderRows"):
            format_["skipHeaderRows"] = skipped
        if kind == "tsv" and "delimiter" in given:
            format_["delimiter"] = given["delimiter"]
    else:
        raise InvalidRequest(
            f"the format {kind!r:.60} is not supported: use csv, tsv or customJson",
            place=f"{place}.format",
        )
    return {"inputFormat": format_, "key": key, "columns": [{"name": value}]}


def _object(value: object, place: str) -> Mapping[str, object]:
    if not isinstance(value, dict):
        raise InvalidRequest("must be an object", place=place)
    return value
