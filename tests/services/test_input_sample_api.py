"""`POST /penstock/v1/sample`: rights, limits, and inputs that end their process."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from penstock.services.api.asgi import application
from penstock.services.api.input_samples import SAMPLE, SampleRoutes
from penstock.services.host.data_folder import DataFolder
from penstock.services.options.option_values import HostPort
from penstock.services.options.table import PenstockOptions
from penstock.services.sampler_process import SamplerProcesses
from penstock.storage.uploads import Upload, UploadStore
from penstock.testing.clock import VirtualClock
from tests.harness.access_kit import AccessFolderKit, as_principal
from tests.services.overlord_kit import Api
from tests.services.places_kit import NoSampler

RULES = """
[roles.loader]
allow = ["write datasource:clicks"]

[roles.outside]
allow = ["write datasource:clicks", "read-external system:inputs"]

[roles.reader]
allow = ["read datasource:*", "read-external system:inputs"]
"""
CSV = b"day,shop\n2025-11-20,Bern\n"


class Rig:
    """The route, over real processes or over none."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.kit = AccessFolderKit(folder / "access", RULES)
        data = DataFolder(folder / "data")
        data.path.mkdir()
        options = PenstockOptions(data_dir=data.path, http=HostPort("127.0.0.1", 1))
        self.uploads = UploadStore(data.path / "uploads", VirtualClock())
        self.processes = SamplerProcesses(options, {}, [], timeout_s=120)
        self.real = self._api(SampleRoutes(self.processes, self.uploads))
        self.api = self._api(SampleRoutes(NoSampler(), self.uploads))

    def _api(self, routes: SampleRoutes) -> Api:
        return Api(application(routes.routes(), access=self.kit.control))

    def upload(self, content: bytes, owner: str = "user:me", name: str = "sales.csv") -> Upload:
        writer = self.uploads.begin(owner, name, None)
        writer.write(content)
        return writer.finish()

    def ask(
        self, source: dict[str, object], role: str = "loader", *, real: bool = False
    ) -> httpx.Response:
        headers = as_principal(self.kit.control, "user:me", role)
        api = self.real if real else self.api
        return api.post(SAMPLE, json={"inputSource": source}, headers=headers)

    def close(self) -> None:
        self.real.close()
        self.api.close()


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    made = Rig(tmp_path_factory.mktemp("samples"))
    yield made
    made.close()


def of_upload(upload: Upload) -> dict[str, object]:
    return {"type": "upload", "uploads": [upload.id]}


INLINE = {"type": "inline", "data": "a,b\n1,2\n"}
LOCAL = {"type": "local", "files": ["/x"]}


@pytest.mark.parametrize(
    ("role", "source", "status"),
    [
        ("loader", INLINE, 200),
        ("loader", LOCAL, 403),
        ("loader", {"type": "http", "uris": ["https://example.org/a"]}, 403),
        ("loader", {"type": "s3", "uris": ["s3://bucket/a"]}, 403),
        ("loader", {"type": "combining", "delegates": [INLINE, LOCAL]}, 403),
        ("outside", LOCAL, 200),
        ("outside", {"type": "http", "uris": ["https://u/x"], "requestHeaders": {"a": "secret://s"}},
         403),
        ("reader", INLINE, 403),
        ("loader", {"type": "druid", "dataSource": "clicks", "interval": "2024/2025"}, 400),
        ("loader", {"type": "none"}, 400),
    ],
)  # fmt: skip
def test_a_sample_needs_the_rights_of_the_task(
    rig: Rig, role: str, source: dict[str, object], status: int
) -> None:
    answer = rig.ask(source, role)
    assert answer.status_code == status, answer.text


def test_without_the_right_no_request_waits_for_a_place(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def taken(*_: object, **__: object) -> None:
        raise AssertionError("it took a place")

    monkeypatch.setattr("penstock.services.api.input_samples.partial", taken)
    assert rig.ask(INLINE, "reader").status_code == 403


def test_an_upload_is_shown_to_the_principal_that_made_it(rig: Rig) -> None:
    answer = rig.ask(of_upload(rig.upload(CSV)), real=True)
    assert answer.status_code == 200, answer.text
    found = answer.json()
    assert found["rows"] == [{"__time": "2025-11-20T00:00:00.000Z", "shop": "Bern"}]
    assert found["files"]["first"] == "sales.csv"
    assert rig.ask(of_upload(rig.upload(CSV, "user:other"))).status_code == 404


def test_files_of_penstock_are_not_shown(rig: Rig) -> None:
    made = rig.upload(CSV, "user:other")
    answer = rig.ask({"type": "local", "files": [str(made.path)]}, "outside", real=True)
    assert answer.status_code == 400
    assert "must not read files of" in answer.json()["error"]


def test_a_bomb_costs_only_its_own_request(rig: Rig) -> None:
    """1 GiB of one line in 1 MB, and a file that begins like Parquet."""
    piece = gzip.compress(b"0" * (64 << 20))
    answer = rig.ask(of_upload(rig.upload(piece * 16, name="a.csv")), real=True)
    assert answer.status_code == 200, answer.text
    assert answer.json()["errors"][0]["reason"] == "longer than 67108864 bytes"
    answer = rig.ask(of_upload(rig.upload(b"PAR1" + b"x" * 100)), real=True)
    assert answer.status_code == 400
    assert "sales.csv" in answer.json()["error"]
    assert list(DataFolder(rig.folder / "data").tmp.rglob("sample-*")) == []


def test_a_process_that_ends_is_an_error_of_its_request(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    for program, timeout_s, text in (
        (("sleep", "60"), 0.2, "were not read within 0.2 s"),
        (("false",), 120, "ran out of its 1024 MiB of memory, or crashed"),
    ):
        monkeypatch.setattr("penstock.services.sampler_process._PROGRAM", program)
        slow = SamplerProcesses(rig.processes.options, timeout_s=timeout_s)
        api = rig._api(SampleRoutes(slow, rig.uploads))
        headers = as_principal(rig.kit.control, "user:me", "loader")
        answer = api.post(SAMPLE, json={"inputSource": INLINE}, headers=headers)
        api.close()
        assert answer.status_code == 400
        assert text in answer.json()["error"]
