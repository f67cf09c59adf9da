"""Tokens of an issuer at the APIs of the services."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.core.clock import SystemClock
from tests.harness.access_kit import AccessFolderKit
from tests.kits.oidc_kit import IssuerServer, ec_key
from tests.services.overlord_kit import Api, OverlordWorld, noop

P = "/druid/indexer/v1"


class Guarded:
    """An overlord whose rules name an issuer."""

    def __init__(self, folder: Path, *, is_down: bool = False) -> None:
        self.issuer = IssuerServer(SystemClock(), ec_key())
        self.issuer.is_down = is_down
        rules = self.issuer.rules('groups_claim = "groups"') + (
            '[oidc.work.groups]\nteam = ["team"]\n'
            '[roles.team]\nallow = ["write datasource:clicks"]\n'
            '[principals]\n"oidc:alice" = ["viewer"]\n'
        )
        self.kit = AccessFolderKit(folder / "access", rules)
        self.kit.control.start()
        self.world = OverlordWorld(folder).start()
        self.api = Api(self.world.make_app(access=self.kit.control))

    def status(self, method: str, path: str, token: bytes, **more: object) -> int:
        headers = {"Authorization": f"Bearer {token.decode()}"}
        return self.api(method, f"{P}/{path}", headers=headers, **more).status_code

    def close(self) -> None:
        self.api.close()
        self.world.close()
        self.issuer.close()
        self.kit.control.close()


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    made = Guarded(tmp_path_factory.mktemp("guarded"))
    yield made
    made.close()


def test_roles_of_the_principal_and_of_its_groups_decide(guarded: Guarded) -> None:
    alice, bob = guarded.issuer.token(), guarded.issuer.token("bob", groups=["team", "other"])
    assert guarded.status("GET", "workers", alice) == 200
    assert guarded.status("GET", "workers", bob) == 403
    assert guarded.status("POST", "task", alice, json=noop("t-1", "clicks")) == 403
    assert guarded.status("POST", "task", bob, json=noop("t-1", "clicks")) == 200
    assert guarded.status("POST", "task", bob, json=noop("t-2", "other")) == 403


@pytest.mark.parametrize(
    "more",
    [
        {"exp": 1},
        {"aud": "other"},
        {"header": {"alg": "none"}},
        {"header": {"kid": "unknown"}},
        {"key": ec_key("attacker"), "header": {"kid": "ec"}},
    ],
)
def test_other_tokens_get_401_and_the_reason(guarded: Guarded, more: dict[str, object]) -> None:
    token = guarded.issuer.token(**more)  # type: ignore[arg-type]
    answer = guarded.api.get(f"{P}/workers", headers={"Authorization": f"Bearer {token.decode()}"})
    assert answer.status_code == 401
    assert "of the token" in answer.text or "the token" in answer.text
    assert not any(part in answer.text for part in token.decode().split("."))
    assert "Bearer" in answer.headers["WWW-Authenticate"]


def test_a_token_gives_nobody_the_right_to_act_for_others(guarded: Guarded) -> None:
    headers = {
        "Authorization": f"Bearer {guarded.issuer.token().decode()}",
        "X-Penstock-Principal": '{"id":"user:root","roles":["admin"]}',
    }
    assert guarded.api.get(f"{P}/workers", headers=headers).status_code == 403


def test_a_load_balancer_is_answered_whatever_token_it_sends(tmp_path: Path) -> None:
    guarded = Guarded(tmp_path, is_down=True)
    headers = {"Authorization": f"Bearer {guarded.issuer.token(key=ec_key('new')).decode()}"}
    assert guarded.api.get(f"{P}/workers", headers=headers).status_code == 503
    assert guarded.api.get("/status/health", headers=headers).status_code == 200
    guarded.close()
