"""Secrets of inputs: looked up late, sent where they belong, and shown in no error."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import cast

import fsspec
import pytest
from pydantic import JsonValue, TypeAdapter, ValidationError

from penstock.core.errors import InvalidRequest
from penstock.indexing.batch.batch_engine import ExternalInput
from penstock.indexing.specs.input_formats import JsonFormat
from penstock.indexing.specs.inputs import InputSource
from penstock.spark.batch.input import file_finder
from penstock.spark.batch.input.file_finder import FileFinder
from penstock.spark.batch.options import SparkBatchOptions
from penstock.storage.secrets.secret_sources import Secrets

Find = Callable[[dict[str, JsonValue]], object]
HTTP: dict[str, JsonValue] = {"type": "http", "uris": ["http://h/rows.json"]}
S3: dict[str, JsonValue] = {"type": "s3", "uris": ["s3://lake/rows.json"]}


def source(given: dict[str, JsonValue]) -> InputSource:
    adapter: TypeAdapter[InputSource] = TypeAdapter(InputSource)
    return adapter.validate_python(given)


@pytest.fixture
def secrets(tmp_path: Path) -> Secrets:
    made = Secrets(tmp_path / "secrets", {"PENSTOCK_INPUT_A": "from a variable"})
    for name, value in (("shop", "hush"), ("lines", "hush\r\nX-More: 1"), ("spaces", " hush")):
        made.store().set(name, value)
    return made


@pytest.fixture
def find(secrets: Secrets, tmp_path: Path) -> Find:
    def find(given: dict[str, JsonValue]) -> object:
        options = SparkBatchOptions(secrets=secrets)
        finder = FileFinder(None, tmp_path / "scratch", options, lambda: None)
        return finder.find(ExternalInput(source(given), JsonFormat(type="json")))

    return find


def test_secrets_of_http_are_sent_and_not_kept(find: Find, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[dict[str, object]] = []

    def fetch(_url: str, target: Path, **given: object) -> int:
        sent.append(given)
        return target.write_bytes(b'{"a": 1}\n')

    monkeypatch.setattr(file_finder, "fetch", fetch)
    found = find(
        HTTP
        | {
            "httpAuthenticationUsername": "ann",
            "httpAuthenticationPassword": "secret://shop",
            "requestHeaders": {"X-Key": "secret://shop", "Accept": "*/*"},
        }
    )
    assert sent[0]["auth"] == ("ann", "hush")
    assert sent[0]["headers"] == {"X-Key": "hush", "Accept": "*/*"}
    assert "hush" not in repr(found)


@pytest.mark.parametrize("name", ["lines", "spaces"])
def test_a_secret_that_is_no_header_is_refused_before_it_is_sent(find: Find, name: str) -> None:
    with pytest.raises(InvalidRequest, match=r"requestHeaders\.X-Key: the secret is not") as error:
        find(HTTP | {"requestHeaders": {"X-Key": f"secret://{name}"}})
    assert "hush" not in str(error.value)


def test_a_secret_without_a_value_is_told_with_its_field(find: Find) -> None:
    for given, place in (
        (HTTP | {"requestHeaders": {"X-Key": "secret://absent"}}, "requestHeaders.X-Key"),
        (
            S3
            | {"properties": {"accessKeyId": "secret://absent", "secretAccessKey": "secret://a"}},
            "properties.accessKeyId",
        ),
    ):
        with pytest.raises(InvalidRequest, match=f"inputSource.{place}: unknown secret 'absent'"):
            find(cast("dict[str, JsonValue]", given))


def test_keys_of_a_store_go_to_its_file_system_and_to_workers(
    find: Find, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[dict[str, object]] = []
    plain = fsspec.filesystem("memory")
    plain.pipe_file("/rows.json", b'{"a": 1}\n')

    def url_to_fs(url: str, **given: object) -> tuple[object, str]:
        seen.append(given)
        return plain, f"/{url.rpartition('/')[2]}"

    monkeypatch.setattr("fsspec.core.url_to_fs", url_to_fs)
    variable: JsonValue = {"type": "environment", "variable": "PENSTOCK_INPUT_A"}
    keys: dict[str, JsonValue] = {"accessKeyId": variable, "secretAccessKey": "secret://shop"}
    found = find(S3 | {"properties": keys})
    options = {"key": "from a variable", "secret": "hush"}
    assert options in seen
    [file] = found.files  # type: ignore[attr-defined]
    assert dict(file.store) == options
    assert "hush" not in repr(found)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            S3 | {"properties": {"accessKeyId": "hush", "secretAccessKey": "secret://a"}},
            "must be secret",
        ),
        (S3 | {"properties": {"accessKeyId": "secret://a"}}, "Field required"),
        (
            {
                "type": "google",
                "uris": ["gs://lake/a"],
                "properties": {"accessKeyId": "secret://a", "secretAccessKey": "secret://a"},
            },
            "keys only for s3",
        ),
    ],
)
def test_keys_are_named_and_never_written(given: dict[str, JsonValue], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        source(given)
