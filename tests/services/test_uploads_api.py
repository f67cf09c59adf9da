"""Uploads over HTTP: rights, refusals, and tasks that name them."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import httpx
import pytest
from starlette.applications import Starlette

from penstock.indexing.overlord.duties.uploads import UploadsDuty
from penstock.services.api.asgi import application
from penstock.services.api.uploads import UPLOADS, UploadRoutes
from penstock.storage.uploads import EXPIRES_AFTER_MS, UploadLimits, UploadStore
from tests.harness.access_kit import AccessFolderKit, as_principal
from tests.services.overlord_kit import Api, OverlordWorld, served

TASK = "/druid/indexer/v1/task"
RULES = """
[roles.loader]
allow = ["write datasource:clicks"]

[roles.denied]
allow = ["write datasource:*"]
deny = ["write datasource:*"]

[roles.reader]
allow = ["read *:*"]
"""


class Rig:
    """A router's uploads and an overlord over one folder."""

    def __init__(self, folder: Path) -> None:
        self.kit = AccessFolderKit(folder / "access", RULES)
        self.world = OverlordWorld(folder).start()
        self.store = UploadStore(folder / "uploads", self.world.clock, UploadLimits(50, 100))
        self.app = self.app_with(UploadRoutes(self.store))
        self.router = Api(self.app)
        self.overlord = Api(self.world.make_app(access=self.kit.control))

    def app_with(self, routes: UploadRoutes) -> Starlette:
        return application(
            routes.routes(), access=self.kit.control, body_bytes_max=4, streamed={UPLOADS}
        )

    def headers(self, name: str = "user:me", *roles: str) -> dict[str, str]:
        return as_principal(self.kit.control, name, *(roles or ("loader",)))

    def upload(
        self, content: bytes = b"x,y\n1,2\n", name: str = "user:me", *roles: str
    ) -> httpx.Response:
        return self.router.post(
            f"{UPLOADS}?name=a.csv", content=content, headers=self.headers(name, *roles)
        )

    def submit(
        self, upload: str, name: str = "user:me", datasource: str = "clicks"
    ) -> httpx.Response:
        spec = {
            "type": "index_parallel",
            "spec": {
                "dataSchema": {
                    "dataSource": datasource,
                    "timestampSpec": {"column": "x"},
                    "dimensionsSpec": {"dimensions": ["y"]},
                },
                "ioConfig": {
                    "inputSource": {"type": "upload", "uploads": [upload]},
                    "inputFormat": {"type": "csv", "findColumnsFromHeader": True},
                },
            },
        }
        return self.overlord.post(TASK, json=spec, headers=self.headers(name))

    def files(self) -> list[Path]:
        return [one for one in self.store._folder.rglob("*") if one.is_file()]

    def close(self) -> None:
        self.router.close()
        self.overlord.close()
        self.world.close()


@pytest.fixture(scope="module")
def module_rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    made = Rig(tmp_path_factory.mktemp("uploads"))
    yield made
    made.close()


@pytest.fixture
def rig(module_rig: Rig) -> Rig:
    for one in module_rig.store.all():
        module_rig.store.delete(one.id)
    return module_rig


def test_a_file_is_uploaded_listed_and_deleted(rig: Rig) -> None:
    answer = rig.upload()
    assert answer.status_code == 200, answer.text
    made = answer.json()
    assert (made["name"], made["bytes"]) == ("a.csv", 8)
    listed = rig.router.get(UPLOADS, headers=rig.headers()).json()
    assert listed == {"uploads": [made], "fileBytesMax": 50, "ownBytesMax": 100}
    path = f"{UPLOADS}/{made['id']}"
    assert rig.router.delete(path, headers=rig.headers()).status_code == 200
    assert rig.router.delete(path, headers=rig.headers()).status_code == 404
    assert rig.files() == []


@pytest.mark.parametrize("role", ["reader", "denied", "missing"])
def test_who_may_write_no_datasource_may_not_upload(rig: Rig, role: str) -> None:
    answer = rig.upload(b"x", "user:reader", role)
    assert answer.status_code == 403
    assert "may not write any datasource" in answer.json()["error"]
    assert rig.router.get(UPLOADS, headers=rig.headers("user:r", role)).status_code == 403
    assert rig.files() == []


def test_an_upload_of_another_principal_is_not_found(rig: Rig) -> None:
    made = rig.upload().json()["id"]
    other = rig.headers("user:other")
    assert rig.router.get(UPLOADS, headers=other).json()["uploads"] == []
    assert rig.router.delete(f"{UPLOADS}/{made}", headers=other).status_code == 404
    answer = rig.submit(made, "user:other")
    assert answer.status_code == 404
    assert "there is no upload" in answer.json()["errorMessage"]
    assert rig.submit(made, datasource="other").status_code == 403
    assert len(rig.store.all()) == 1


@pytest.mark.parametrize(
    ("query", "content", "status", "text"),
    [
        ("", b"x", 400, "printable characters"),
        ("?name=a%0Ab", b"x", 400, "printable characters"),
        ("?name=a", b"", 400, "the file is empty"),
        ("?name=a", b"x" * 51, 413, "larger than 50 bytes"),
    ],
)
def test_bad_uploads_are_refused_and_leave_nothing(
    rig: Rig, query: str, content: bytes, status: int, text: str
) -> None:
    answer = rig.router.post(UPLOADS + query, content=content, headers=rig.headers())
    assert answer.status_code == status
    assert text in answer.json()["error"]
    assert rig.files() == []


def test_a_body_of_unknown_length_is_bounded_while_it_arrives(rig: Rig) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(6):
            yield b"x" * 10

    answer = rig.router.post(f"{UPLOADS}?name=a", content=pieces(), headers=rig.headers())
    assert answer.status_code == 413
    assert rig.files() == []


def test_uploads_of_one_principal_are_bounded_together(rig: Rig) -> None:
    assert rig.upload(b"x" * 50).status_code == 200
    assert rig.upload(b"x" * 50).status_code == 200
    answer = rig.upload(b"x")
    assert answer.status_code == 429
    assert "a principal may have 100" in answer.json()["error"]


@pytest.mark.parametrize("how", ["cut", "silent"])
def test_an_upload_that_does_not_end_leaves_nothing(rig: Rig, how: str) -> None:
    head = "".join(f"{name}: {value}\r\n" for name, value in rig.headers().items())
    request = f"POST {UPLOADS}?name=a HTTP/1.1\r\nHost: localhost\r\nContent-Length: 40\r\n{head}"
    impatient = rig.app_with(UploadRoutes(rig.store, piece_timeout_s=0.2))
    with served(rig.world, impatient if how == "silent" else rig.app) as address:
        with socket.create_connection(("127.0.0.1", address.port), 30) as client:
            client.sendall(f"{request}\r\n".encode() + b"x" * 20)
            if how == "silent":
                assert client.recv(4096).startswith(b"HTTP/1.1 503 ")
            else:
                until(lambda: rig.files() != [])
        until(lambda: rig.files() == [] and not rig.store._arriving)
    assert rig.store.all() == []


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < end, "it did not come to that"
        threading.Event().wait(0.005)


def test_an_upload_that_a_task_needs_does_not_expire(rig: Rig) -> None:
    clock = rig.world.clock
    needed, other = rig.upload().json()["id"], rig.upload().json()["id"]
    clock.advance(ms=EXPIRES_AFTER_MS - 60_000)
    answer = rig.submit(needed)
    assert answer.status_code == 200, answer.text
    task = answer.json()["task"]
    clock.advance(ms=60_000)
    duty = UploadsDuty(rig.world.overlord.task_service.index, rig.world.uploads)
    duty.run()
    assert [one.id for one in rig.store.all()] == [needed]  # submitting was a use
    assert rig.submit(other).status_code == 404
    os.utime(rig.store.get(needed).path.parent, (0, 0))
    duty.run()
    assert [one.id for one in rig.store.all()] == [needed]  # the task has not ended
    os.utime(rig.store.get(needed).path.parent, (0, 0))
    headers = rig.headers()
    assert rig.overlord.post(f"{TASK}/{task}/shutdown", headers=headers).status_code == 200
    rig.world.until(lambda: rig.world.state(task) == "NONE")
    duty.run()
    assert rig.store.all() == []
