"""OpenID Connect: tokens of an issuer on loopback, hostile tokens, and keys that change."""

from __future__ import annotations

import contextlib
import hmac
import json
import socket
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
import trustme
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.core.access import oidc_fetch
from penstock.core.access.access_control import AccessControl
from penstock.core.access.oidc_fetch import fetch_keys
from penstock.core.access.oidc_issuer import OidcIssuer
from penstock.core.access.oidc_keys import PAUSE_S, REFRESH_S, STALE_S
from penstock.core.access.policy_file import parse_policy
from penstock.core.access.principal import Principal, PrincipalKind
from penstock.core.access.rules import Action, Resource, ResourceKind
from penstock.core.errors import (
    Forbidden,
    InvalidRequest,
    PenstockError,
    Unauthenticated,
    Unavailable,
)
from penstock.testing.clock import VirtualClock
from tests.kits.oidc_kit import (
    AUDIENCE,
    KEYS_PATH,
    IssuerServer,
    Key,
    base64url,
    ec_key,
    ed_key,
    rsa_key,
    signed,
)

CLICKS = Resource(ResourceKind.TOPIC, "clicks")
MINUTE_MS = 60_000


class World:
    """An access control, and the issuer that its `access.toml` names."""

    def __init__(self, folder: Path) -> None:
        self.clock = VirtualClock()
        self.issuer = IssuerServer(self.clock, ec_key())
        self.folder = folder
        folder.mkdir()
        self.control = AccessControl(folder, self.clock)
        self.control.start()

    def rules(self, text: str) -> None:
        (self.folder / "access.toml").write_text(text)
        self.control.refresh()

    def settle(self) -> None:
        """Wait until no keys are being read and the thread waits for the clock."""
        self.wait_until(lambda: "keys" in self.waiting())

    def waiting(self) -> str:
        keys = self.control.oidc._keys
        with keys._changed:
            idle = keys._next() is None
        return (
            "keys" if idle and all(one.tried_s is not None for one in keys._states.values()) else ""
        )

    @staticmethod
    def wait_until(is_so: Callable[[], bool]) -> None:
        until = time.monotonic() + 120
        while not is_so():
            assert time.monotonic() < until
            time.sleep(0.002)

    def pass_s(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.settle()

    def known(self, token: bytes) -> Principal:
        """The principal of a token that has one."""
        found = self.find(token)
        assert found is not None
        return found

    def find(self, token: bytes) -> Principal | None:
        """The principal of a token, after its keys have been read if they are awaited."""
        reading = self.control.oidc.keys_awaited(token)
        if reading is not None:
            reading.result(120)
        return self.control.authenticator.of_bearer(token)

    def problem(self, principal: Principal) -> str | None:
        """Why the credential of a principal no longer counts, if it does not."""
        reason = self.control.decide(principal, Action.WRITE, CLICKS).reason
        return reason if reason.startswith("the credential ") else None

    def reads(self) -> int:
        return self.issuer.requests.count(KEYS_PATH)

    def close(self) -> None:
        self.issuer.close()
        self.control.close()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path / "access")
    made.rules(made.issuer.rules() + '[principals]\n"oidc:alice" = ["publisher"]\n')
    made.settle()
    yield made
    made.close()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """For tests that change neither the issuer nor the rules."""
    made = World(tmp_path_factory.mktemp("oidc") / "access")
    made.issuer.keys = [ec_key(), rsa_key(), ed_key(), ec_key("other")]
    made.rules(
        made.issuer.rules('groups_claim = "groups"')
        + '[oidc.work.groups]\nwriters = ["publisher"]\nreaders = ["consumer", "no-secrets"]\n'
        + '[roles.no-secrets]\ndeny = ["* topic:clicks-secret"]\n'
        + '[principals]\n"oidc:alice" = ["publisher"]\n'
    )
    made.settle()
    yield made
    made.close()


# Who is let in


@pytest.mark.parametrize(
    ("key", "algorithm"),
    [(ec_key(), "ES256"), (rsa_key(), "RS256"), (rsa_key(), "PS512"), (ed_key(), "EdDSA")],
)
def test_a_token_of_the_issuer_is_a_principal(shared: World, key: Key, algorithm: str) -> None:
    token = shared.issuer.token(key=key, algorithm=algorithm)
    principal = shared.find(token)
    assert principal
    assert (principal.kind, principal.id) == (PrincipalKind.OIDC, "oidc:alice")
    assert shared.control.decide(principal, Action.WRITE, CLICKS).allowed
    assert not shared.control.decide(principal, Action.READ, CLICKS).allowed
    assert shared.find(token) is principal  # it is remembered


@pytest.mark.parametrize(
    "claims",
    [
        {"aud": [AUDIENCE]},
        {"aud": ["other", AUDIENCE]},
        {"nbf": 0, "iat": 0},
        {"nbf": 1_356_998_400 + 25},
        {"exp": 1_356_998_400 - 25},
        {"exp": 1_356_998_400 + 0.5},
        {"azp": "x", "nested": {"a": [1, {"b": None}]}},
        {"_claim_names": {}},
    ],
)
def test_claims_within_the_rules_are_accepted(shared: World, claims: dict[str, Any]) -> None:
    assert shared.find(shared.issuer.token(**claims))


@pytest.mark.parametrize(
    "header", [{"typ": "at+jwt"}, {"typ": "application/AT+JWT"}, {"x5t": "x"}, {"typ": "jwt"}]
)
def test_headers_within_the_rules_are_accepted(shared: World, header: dict[str, object]) -> None:
    assert shared.find(shared.issuer.token(header=header))


def test_groups_give_the_roles_that_the_file_names(shared: World) -> None:
    def roles(**claims: Any) -> tuple[str, ...]:
        principal = shared.find(shared.issuer.token("bob", **claims))
        assert principal
        return principal.roles

    assert roles() == ()
    assert roles(groups=[]) == ()
    assert roles(groups=["admin", "publisher", "WRITERS", "writers "]) == ()
    assert roles(groups=["readers", "writers"]) == ("publisher", "consumer", "no-secrets")
    bob = shared.known(shared.issuer.token("bob", groups=["readers"]))
    secret = Resource(ResourceKind.TOPIC, "clicks-secret")
    assert shared.control.decide(bob, Action.READ, CLICKS).allowed
    assert not shared.control.decide(bob, Action.READ, secret).allowed


# Who is not


@pytest.mark.parametrize(
    ("claims", "reason"),
    [
        ({"aud": "other"}, "another audience"),
        ({"aud": []}, "another audience"),
        ({"aud": None}, "another audience"),
        ({"aud": [AUDIENCE, 7]}, "another audience"),
        ({"aud": {AUDIENCE: AUDIENCE}}, "another audience"),
        ({"aud": AUDIENCE + " "}, "another audience"),
        ({"iss": "https://other.example.com"}, "issuer of the token is not one"),
        ({"iss": None}, "issuer of the token is not one"),
        ({"iss": ["x"]}, "issuer of the token is not one"),
        ({"exp": 1_356_998_400 - 30}, "has expired"),
        ({"exp": 0}, "has expired"),
        ({"exp": None}, "'exp' of the token is not a time"),
        ({"exp": "9999999999"}, "'exp' of the token is not a time"),
        ({"exp": True}, "'exp' of the token is not a time"),
        ({"exp": -1}, "'exp' of the token is not a time"),
        ({"exp": 1e300}, "'exp' of the token is not a time"),
        ({"exp": 10**30}, "'exp' of the token is not a time"),
        ({"nbf": 1_356_998_400 + 31}, "not valid yet"),
        ({"nbf": "0"}, "'nbf' of the token is not a time"),
        ({"iat": 1_356_998_400 + 31}, "issued in the future"),
        ({"iat": []}, "'iat' of the token is not a time"),
        ({"sub": ""}, "the claim 'sub' of the token is not a text"),
        ({"sub": 7}, "the claim 'sub' of the token is not a text"),
        ({"sub": ["alice"]}, "the claim 'sub' of the token is not a text"),
        ({"sub": "alice\n"}, "control characters"),
        ({"sub": " alice"}, "outer spaces"),
        ({"sub": "cafe\u0301"}, "other than NFC"),
        ({"sub": "\ud800"}, "control characters"),
        ({"sub": "a" * 201}, "more than 200 characters"),
        ({"groups": "writers"}, "'groups' is not a list"),
        ({"groups": [["writers"]]}, "'groups' is not a list"),
        ({"groups": None}, "'groups' is not a list"),
        ({"groups": ["g"] * 1_001}, "'groups' is not a list of up to 1,000"),
        ({"_claim_names": {"groups": "src1"}}, "'groups' is not in the token itself"),
        ({"_claim_names": ["groups"]}, "'groups' is not in the token itself"),
    ],
)
def test_claims_outside_the_rules_are_refused(
    shared: World, claims: dict[str, Any], reason: str
) -> None:
    with pytest.raises(Unauthenticated, match=reason):
        shared.find(shared.issuer.token(**claims))


def test_a_token_without_an_end_is_refused(shared: World) -> None:
    claims = shared.issuer.claims()
    del claims["exp"]
    with pytest.raises(Unauthenticated, match="no time at which it expires"):
        shared.find(signed({"alg": "ES256", "kid": "ec"}, claims, ec_key(), "ES256"))


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        ({"alg": "none"}, "algorithm of the token is not allowed"),
        ({"alg": "None"}, "algorithm of the token is not allowed"),
        ({"alg": ""}, "algorithm of the token is not allowed"),
        ({"alg": None}, "algorithm of the token is not allowed"),
        ({"alg": ["ES256"]}, "algorithm of the token is not allowed"),
        ({"alg": "ES256K"}, "algorithm of the token is not allowed"),
        ({"alg": "HS256"}, "algorithm of the token is not allowed"),
        ({"alg": "RSA-OAEP", "enc": "A256GCM"}, "algorithm of the token is not allowed"),
        ({"jku": "https://attacker.example.com/keys"}, "has 'jku'"),
        ({"x5u": "https://attacker.example.com/cert"}, "has 'x5u'"),
        ({"jwk": ec_key("attacker").as_dict(private=False)}, "has 'jwk'"),
        ({"x5c": ["MIIB"]}, "has 'x5c'"),
        ({"crit": ["exp"]}, "has 'crit'"),
        ({"b64": False}, "has 'b64'"),
        ({"zip": "DEF"}, "has 'zip'"),
        ({"typ": "logout+jwt"}, "for another purpose"),
        ({"typ": "secevent+jwt"}, "for another purpose"),
        ({"typ": None}, "for another purpose"),
        ({"kid": 7}, "not a text"),
        ({"kid": ["ec"]}, "not a text"),
        ({"kid": "k" * 201}, "too long"),
        ({"kid": "EC"}, "no such key"),
        ({"kid": "../../../../dev/null"}, "no such key"),
        ({"kid": "ec' OR '1'='1"}, "no such key"),
        ({"kid": "http://127.0.0.1/keys"}, "no such key"),
        ({"kid": "\x00"}, "no such key"),
        ({"kid": "rsa"}, "no such key"),  # of another type than the algorithm
        ({"kid": "other"}, "signature of the token is not valid"),
        ({"kid": ""}, "names no key, and its issuer has several"),
        ({"alg": "ES384"}, "no such key"),
        ({"alg": "RS256"}, "no such key"),
        ({"alg": "RS256", "kid": "rsa"}, "signature of the token is not valid"),
        ({"alg": "EdDSA", "kid": "ed"}, "signature of the token is not valid"),
    ],
)
def test_headers_outside_the_rules_are_refused(
    shared: World, header: dict[str, object], reason: str
) -> None:
    with pytest.raises(Unauthenticated, match=reason):
        shared.find(shared.issuer.token(header=header))


@pytest.mark.parametrize("secret", ["pem", "jwk", "modulus", "empty-like"])
def test_a_public_key_is_no_secret_of_hmac(shared: World, secret: str) -> None:
    public = rsa_key()
    secrets = {
        "pem": public.as_pem(private=False),
        "jwk": json.dumps(public.as_dict(private=False)).encode(),
        "modulus": str(public.as_dict(private=False)["n"]).encode(),
        "empty-like": b"\x00",
    }
    claims = shared.issuer.claims()
    text = b".".join(
        base64url(json.dumps(one).encode()) for one in ({"alg": "HS256", "kid": "rsa"}, claims)
    )
    token = text + b"." + base64url(hmac.digest(secrets[secret], text, "sha256"))
    with pytest.raises(Unauthenticated, match="algorithm of the token is not allowed"):
        shared.find(token)
    # The same bytes under the name of an algorithm that is allowed.
    _, _, rest = token.partition(b".")
    head = base64url(json.dumps({"alg": "RS256", "kid": "rsa"}).encode())
    with pytest.raises(Unauthenticated, match="signature of the token is not valid"):
        shared.find(head + b"." + rest)


HEAD = base64url(b'{"alg":"ES256","kid":"ec"}')


def hostile_tokens(issuer: IssuerServer) -> dict[str, bytes]:
    """Texts of three parts that are not valid tokens of the issuer."""
    good = issuer.token()
    head, body, signature = good.split(b".")
    claims = json.dumps(issuer.claims("mallory"))
    twice = claims[:-1] + ', "sub": "alice"}'
    return {
        "other claims": b".".join((head, base64url(claims.encode()), signature)),
        "padded": good + b"=",
        "another alphabet": good.replace(b"-", b"+").replace(b"_", b"/") + b"+",
        "part of the signature": good[:-4],
        "longer signature": good + b"AAAA",
        "zero signature": b".".join((head, body, base64url(bytes(64)))),
        "der signature": b".".join((head, body, base64url(b"\x30\x06\x02\x01\x01\x02\x01\x01"))),
        "same claim twice": signed(
            b'{"alg":"ES256","kid":"ec"}', twice.encode(), ec_key(), "ES256"
        ),
        "same header twice": signed(
            b'{"alg":"none","alg":"ES256","kid":"ec"}', claims.encode(), ec_key(), "ES256"
        ),
        "claims as a list": signed({"alg": "ES256"}, [claims], ec_key(), "ES256"),
        "header as a text": signed("ES256", issuer.claims(), ec_key(), "ES256"),
        "nested": signed({"alg": "ES256", "kid": "ec"}, b"[" * 3_000, ec_key(), "ES256"),
        "nested in a claim": signed(
            {"alg": "ES256", "kid": "ec"}, b'{"a":' + b'{"a":' * 1_100 + b"1", ec_key(), "ES256"
        ),
        "token in a token": signed({"alg": "ES256", "cty": "JWT"}, good, ec_key(), "ES256"),
        "large number": signed(
            {"alg": "ES256"}, b'{"exp":' + b"9" * 5_000 + b"}", ec_key(), "ES256"
        ),
        "not a number": signed({"alg": "ES256"}, b'{"exp":NaN}', ec_key(), "ES256"),
        "not text": signed({"alg": "ES256"}, b"\xff\xfe", ec_key(), "ES256"),
        "byte order mark": signed(
            {"alg": "ES256"}, b"\xef\xbb\xbf" + claims.encode(), ec_key(), "ES256"
        ),
        "key of an attacker": issuer.token(key=ec_key("attacker"), header={"kid": "ec"}),
        "no claims": HEAD + b".e30." + signature,
    }


def test_hostile_tokens_are_refused(shared: World) -> None:
    for name, token in hostile_tokens(shared.issuer).items():
        try:
            found = shared.find(token)
        except Unauthenticated:
            continue
        assert found is None, name
    assert shared.find(shared.issuer.token())


def test_long_tokens_are_refused_before_they_are_read(shared: World) -> None:
    assert shared.find(shared.issuer.token(more="x" * 4_000))
    assert shared.find(shared.issuer.token(more="x" * 6_500)) is None
    assert shared.find(b"a." * 1_000_000) is None
    assert shared.find(shared.issuer.token(header={"more": "x" * 6_000})) is None


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 10_000), st.binary(min_size=1, max_size=3))
def test_a_changed_token_is_refused(shared: World, at: int, put: bytes) -> None:
    token = shared.issuer.token()
    at %= len(token)
    changed = token[:at] + put + token[at + len(put) :]
    if changed == token:
        return
    with contextlib.suppress(Unauthenticated):
        assert shared.find(changed) is None


@given(st.binary(max_size=300), st.binary(max_size=300))
def test_any_header_and_claims_end_in_an_answer(shared: World, head: bytes, body: bytes) -> None:
    with contextlib.suppress(Unauthenticated):
        assert shared.find(b".".join(map(base64url, (head, body, b"x")))) is None


def test_a_token_ends_with_its_time_on_open_connections_too(world: World) -> None:
    token = world.issuer.token(exp=world.clock.now_ms() // 1000 + 60)
    principal = world.find(token)
    assert principal
    world.clock.advance(89)
    world.control.require(principal, Action.WRITE, CLICKS)
    world.clock.advance(1)
    with pytest.raises(Forbidden):
        world.control.require(principal, Action.WRITE, CLICKS)
    with pytest.raises(Unauthenticated, match="has expired"):
        world.find(token)


def test_another_claim_may_name_the_principal(world: World) -> None:
    world.rules(world.issuer.rules('claim = "email"'))
    email = "alice@example.com"
    principal = world.find(world.issuer.token(email=email, email_verified=True))
    assert principal
    assert principal.id == f"oidc:{email}"
    for verified in (False, "true", None, 1):
        with pytest.raises(Unauthenticated, match="has not verified the email address"):
            world.find(world.issuer.token(email=email, email_verified=verified))
    with pytest.raises(Unauthenticated, match="'email' of the token is not a text"):
        world.find(world.issuer.token())


def test_with_several_issuers_the_issuer_is_part_of_the_name(world: World) -> None:
    with IssuerServer(world.clock, ec_key()) as other:
        world.rules(
            world.issuer.rules()
            + other.rules(name="partner")
            + '[principals]\n"oidc:work/alice" = ["publisher"]\n"oidc:partner/alice" = []\n'
        )
        ours, theirs = world.find(world.issuer.token()), world.find(other.token())
        assert ours
        assert theirs
        assert (ours.id, theirs.id) == ("oidc:work/alice", "oidc:partner/alice")
        assert world.control.decide(ours, Action.WRITE, CLICKS).allowed
        assert not world.control.decide(theirs, Action.WRITE, CLICKS).allowed
        # Both have a key with the same id; the issuer of the token decides which one counts.
        other.keys = [ec_key("theirs")]
        with pytest.raises(Unauthenticated, match="no such key"):
            world.find(world.issuer.token(key=ec_key("theirs")))


# Keys


def test_keys_are_read_before_the_first_token(world: World) -> None:
    assert world.reads() == 1
    assert world.control.oidc.keys_awaited(world.issuer.token()) is None
    assert world.control.authenticator.of_bearer(world.issuer.token())
    assert world.reads() == 1


def test_a_token_with_a_new_key_waits_until_keys_are_read(world: World) -> None:
    world.clock.advance(PAUSE_S)
    world.issuer.keys = [ec_key(), ec_key("new")]
    old = world.known(world.issuer.token())
    generation = world.control.generation
    token = world.issuer.token("bob", key=ec_key("new"))
    with pytest.raises(Unauthenticated, match="no such key"):
        world.control.authenticator.of_bearer(token)
    new = world.known(token)
    assert new.id == "oidc:bob"
    assert world.control.generation > generation
    assert world.problem(old) is None
    assert world.reads() == 2


def test_a_withdrawn_key_ends_its_tokens_within_minutes(world: World) -> None:
    token = world.issuer.token(exp=world.clock.now_ms() // 1000 + 86_400)
    principal = world.known(token)
    world.control.require(principal, Action.WRITE, CLICKS)
    world.issuer.keys = [ec_key("new")]
    world.pass_s(REFRESH_S)
    assert world.reads() == 2
    assert world.problem(principal) == "the credential was removed or changed"
    with pytest.raises(Forbidden):
        world.control.require(principal, Action.WRITE, CLICKS)
    world.clock.advance(PAUSE_S)
    with pytest.raises(Unauthenticated, match="no such key"):
        world.find(token)


def test_rules_may_change_while_the_issuer_is_down(world: World) -> None:
    token = world.issuer.token(exp=world.clock.now_ms() // 1000 + 86_400)
    world.issuer.is_down = True
    world.pass_s(STALE_S + REFRESH_S)
    world.rules(world.issuer.rules() + '[principals]\n"oidc:alice" = ["publisher", "viewer"]\n')
    with pytest.raises(Unavailable):
        world.find(token)
    world.issuer.is_down = False
    world.pass_s(PAUSE_S)
    principal = world.known(token)
    world.control.require(principal, Action.WRITE, CLICKS)


def test_a_token_without_a_key_id_needs_an_issuer_with_one_key(world: World) -> None:
    token = world.issuer.token(header={"kid": ""})
    assert world.find(token)
    world.issuer.keys = [ec_key(), ec_key("second"), rsa_key()]
    world.pass_s(REFRESH_S)
    with pytest.raises(Unauthenticated, match="names no key"):
        world.find(world.issuer.token(header={"kid": ""}))
    assert world.find(world.issuer.token(key=rsa_key(), algorithm="RS256", header={"kid": ""}))


def test_a_key_of_the_same_id_is_another_key(world: World) -> None:
    principal = world.known(world.issuer.token())
    other = type(ec_key()).generate_key("P-256", {"kid": "ec"}, private=True)
    world.issuer.keys = [other]
    world.pass_s(REFRESH_S)
    assert world.problem(principal)
    assert world.find(world.issuer.token())
    with pytest.raises(Unauthenticated, match="signature of the token is not valid"):
        world.find(world.issuer.token(key=ec_key()))


def test_many_tokens_with_unknown_keys_cause_one_read_in_ten_seconds(world: World) -> None:
    def flood() -> int:
        before = world.reads()
        futures: set[Future[None]] = set()
        for number in range(200):
            token = world.issuer.token(header={"kid": f"k{number}"})
            reading = world.control.oidc.keys_awaited(token)
            if reading is not None:
                futures.add(reading)
        for one in futures:
            one.result(120)
        world.settle()
        return world.reads() - before

    assert flood() == 0  # they were read a moment ago
    for _ in range(3):
        world.clock.advance(PAUSE_S)
        assert flood() <= 1
    # Tokens that are wrong in other ways cause none.
    world.clock.advance(PAUSE_S)
    for claims in ({"iss": "x"}, {"aud": "x"}, {"exp": 1}):
        token = world.issuer.token(header={"kid": "x"}, **claims)
        assert world.control.oidc.keys_awaited(token) is None


def test_waiting_requests_cannot_cancel_a_read(world: World) -> None:
    world.clock.advance(PAUSE_S)
    world.issuer.keys = [ec_key("new")]
    token = world.issuer.token()
    reading = world.control.oidc.keys_awaited(token)
    assert reading
    assert not reading.cancel()
    assert world.find(token)


def test_keys_are_used_for_an_hour_while_the_issuer_is_down(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    day_s = world.clock.now_ms() // 1000 + 86_400
    token = world.issuer.token(exp=day_s)
    principal = world.known(token)
    world.issuer.is_down = True
    world.pass_s(REFRESH_S)
    assert "503" in caplog.text
    assert caplog.text.count("cannot be read") == 1
    world.pass_s(STALE_S - REFRESH_S - 1)
    assert world.find(token) == principal
    assert world.find(world.issuer.token("bob", exp=day_s))
    with pytest.raises(Unavailable, match="its issuer does not answer: try again in 10 s"):
        world.find(world.issuer.token(header={"kid": "new"}, exp=day_s))
    world.pass_s(1)
    with pytest.raises(Unavailable, match="its issuer does not answer"):
        world.find(token)
    assert world.problem(principal)
    world.issuer.is_down = False
    world.pass_s(PAUSE_S)
    assert world.find(token) == principal
    assert world.problem(principal) is None
    assert caplog.text.count("cannot be read") == 1


def test_an_issuer_that_hangs_makes_nobody_wait_for_it_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(oidc_fetch, "FETCH_S", 600.0)  # the issuer gives up after 30 s
    world = World(tmp_path / "access")
    world.issuer.hangs = True
    world.rules(world.issuer.rules())
    token = world.issuer.token()
    reading = world.control.oidc.keys_awaited(token)
    assert reading
    begun = time.monotonic()
    with pytest.raises(Unavailable, match="because they are being read"):
        world.control.authenticator.of_bearer(token)
    world.control.close()
    assert time.monotonic() - begun < 20
    assert reading.result(0) is None
    world.close()


def test_without_its_threads_a_control_reads_no_keys(tmp_path: Path) -> None:
    clock = VirtualClock()
    with IssuerServer(clock) as issuer:
        tmp_path.joinpath("access.toml").write_text(issuer.rules())
        control = AccessControl(tmp_path, clock)
        assert control.oidc.keys_awaited(issuer.token()) is None
        with pytest.raises(Unavailable):
            control.authenticator.of_bearer(issuer.token())
        assert issuer.requests == []


def test_a_change_of_the_rules_keeps_the_keys_and_changes_the_rights(world: World) -> None:
    token = world.issuer.token("bob", groups=["team"])
    bob = world.known(token)
    world.rules(
        world.issuer.rules('groups_claim = "groups"') + '[oidc.work.groups]\nteam = ["publisher"]\n'
    )
    assert world.problem(bob)
    again = world.find(token)
    assert again
    assert again.roles == ("publisher",)
    assert world.reads() == 1
    world.rules("# none\n")
    assert world.problem(again)
    assert world.find(token) is None


# Answers of an issuer


def issuer_at(server: IssuerServer, url: str = "", ca: str = "") -> OidcIssuer:
    return OidcIssuer("work", url or server.url, AUDIENCE, ca=ca)


@pytest.fixture(scope="module")
def server() -> Iterator[IssuerServer]:
    with IssuerServer(VirtualClock()) as made:
        yield made


@pytest.mark.parametrize(
    ("fields", "answers", "error"),
    [
        ({"issuer": "https://other.example.com"}, {}, "document of the issuer 'https://other"),
        ({"issuer": None}, {}, "document of the issuer 'None'"),
        ({"jwks_uri": None}, {}, "no 'jwks_uri'"),
        ({"jwks_uri": "file:///etc/passwd"}, {}, "does not begin with https"),
        ({"jwks_uri": "https://user@example.com/"}, {}, "a user or a password"),
        ({"jwks_uri": "https://exa mple.com/"}, {}, "must be encoded"),
        ({"jwks_uri": "https://example.com/\r\nX: y"}, {}, "must be encoded"),
        ({"jwks_uri": "https://169.254.169.254/latest"}, {}, "metadata service"),
        ({"jwks_uri": "http://localhost:1/"}, {}, "which is this host"),
        ({"jwks_uri": "http://192.0.2.1/"}, {}, "which is not encrypted"),
        ({"jwks_uri": "https://2130706433/"}, {}, "not an address in the usual form"),
        ({}, {"/.well-known/openid-configuration": (200, {}, b"[]")}, "document of the issuer"),
        ({}, {"/.well-known/openid-configuration": (200, {}, b"<html>")}, "not valid JSON"),
        ({}, {"/.well-known/openid-configuration": (302, {"Location": "/x"}, b"")}, "answers 302"),
        ({}, {KEYS_PATH: (301, {"Location": "http://127.0.0.1/"}, b"")}, "answers 301"),
        ({}, {KEYS_PATH: (404, {}, b"")}, "answers 404"),
        ({}, {KEYS_PATH: (200, {}, b"x" * 300_000)}, "more than 262,144 bytes"),
        ({}, {KEYS_PATH: (200, {}, b'{"keys": []}')}, "none of its 0 keys"),
        ({}, {KEYS_PATH: (200, {"Content-Length": "9999999"}, b"{}")}, "."),
    ],
)
def test_answers_that_are_wrong_give_no_keys(
    server: IssuerServer,
    monkeypatch: pytest.MonkeyPatch,
    fields: dict[str, object],
    answers: dict[str, tuple[int, Mapping[str, str], bytes]],
    error: str,
) -> None:
    is_cut_off = "Content-Length" in str(answers)
    monkeypatch.setattr(oidc_fetch, "FETCH_S", 2.0 if is_cut_off else 60.0)
    server.fields, server.answers = fields, answers
    with pytest.raises(PenstockError, match=error):
        fetch_keys(issuer_at(server))


def test_an_issuer_whose_answers_take_long_is_given_up(
    server: IssuerServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(oidc_fetch, "FETCH_S", 0.2)
    server.fields, server.answers = {}, {}
    with IssuerServer(VirtualClock()) as slow:
        slow.hangs = True
        with pytest.raises(Unavailable, match=r"no complete answer|timed out"):
            fetch_keys(issuer_at(slow))


def test_silent_addresses_of_an_issuer_take_only_a_part_of_the_time(
    server: IssuerServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.fields, server.answers = {}, {}
    connect, tried = socket.create_connection, list[tuple[str, float]]()

    def connect_slowly(address: tuple[str, int], timeout_s: float) -> socket.socket:
        tried.append((address[0], timeout_s))
        if address[0] != "127.0.0.1":
            raise TimeoutError("timed out")
        return connect(address, timeout_s)

    addresses = ["192.0.2.1", "192.0.2.2", "127.0.0.1"]
    monkeypatch.setattr(oidc_fetch, "FETCH_S", 60.0)
    monkeypatch.setattr(oidc_fetch, "system_addresses", lambda *_: addresses)
    monkeypatch.setattr(socket, "create_connection", connect_slowly)
    assert fetch_keys(issuer_at(server))
    assert [address for address, _ in tried[:3]] == addresses
    assert tried[0][1] < 21
    assert tried[1][1] < 31


def test_nobody_listens_there() -> None:
    with IssuerServer(VirtualClock()) as gone:
        pass
    with pytest.raises(Unavailable, match="refused"):
        fetch_keys(issuer_at(gone))


def test_the_certificate_of_an_issuer_is_checked(tmp_path: Path) -> None:
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    ca = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(str(ca))
    with IssuerServer(VirtualClock(), ec_key(), tls=context) as secured:
        assert [one.kid for one in fetch_keys(issuer_at(secured, ca=str(ca)))] == ["ec"]
        with pytest.raises(Unavailable, match="the certificate is not valid"):
            fetch_keys(issuer_at(secured))
        secured.fields = {"jwks_uri": secured.url.replace("https", "http") + KEYS_PATH}
        with pytest.raises(InvalidRequest, match="which is not encrypted: use https"):
            fetch_keys(issuer_at(secured, ca=str(ca)))
        with pytest.raises(InvalidRequest, match="cannot be used"):
            fetch_keys(issuer_at(secured, ca=str(tmp_path / "missing.pem")))


# access.toml

ISSUER = '[oidc.work]\nissuer = "https://login.example.com/realm"\naudience = "penstock"\n'
OTHER = '[oidc.other]\nissuer = "https://other.example.com"\naudience = "penstock"\n'


def test_a_file_names_issuers() -> None:
    policy = parse_policy(
        ISSUER
        + 'claim = "preferred_username"\ngroups_claim = "https://example.com/groups"\n'
        + 'ca = "/etc/ca.pem"\n[oidc.work.groups]\n"data team" = ["analyst", "analyst"]\n'
        + 'none = []\n[principals]\n"oidc:alice" = ["viewer"]\n',
        "access.toml",
    )
    (issuer,) = policy.issuers
    assert issuer == OidcIssuer(
        "work",
        "https://login.example.com/realm",
        "penstock",
        "preferred_username",
        "https://example.com/groups",
        (("data team", ("analyst",)), ("none", ())),
        "/etc/ca.pem",
    )
    assert issuer.discovery_url == (
        "https://login.example.com/realm/.well-known/openid-configuration"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("oidc = 1", "access.toml: oidc: must be a table"),
        ("[oidc.work]", "access.toml: oidc.work: the key issuer is missing: add it"),
        ("[oidc.'a b']\nissuer = 'x'", "'a b' is not a valid name of an issuer"),
        (ISSUER.replace("audience", "audiance"), "unknown key 'audiance'.*did you mean 'audience'"),
        (ISSUER.replace('"penstock"', "['a']"), "oidc.work.audience: must be a text"),
        (ISSUER.replace('"penstock"', '""'), "oidc.work.audience: must not be empty"),
        (ISSUER + "claim = 1", "oidc.work.claim: must be a text"),
        (ISSUER + "claim = ''", "oidc.work.claim: must not be empty"),
        (ISSUER + "ca = 'ca.pem'", "oidc.work.ca: 'ca.pem' is not an absolute path"),
        (ISSUER + "groups_claim = 'groups'", "groups_claim and groups belong together"),
        (ISSUER + "[oidc.work.groups]\na = ['admin']", "groups_claim and groups belong together"),
        (
            ISSUER + "groups_claim = 'g'\n[oidc.work.groups]\na = ['admn']",
            r"oidc.work.groups.a\[0\]: unknown role 'admn'.*did you mean 'admin'",
        ),
        (
            ISSUER + "groups_claim = 'g'\n[oidc.work.groups]\na = 'admin'",
            "oidc.work.groups.a: must be a list of texts",
        ),
        (ISSUER.replace("https", "http"), "oidc.work.issuer: .* is not encrypted.*use https"),
        (ISSUER.replace("https", "ftp"), "does not begin with https"),
        (ISSUER.replace("realm", "realm?a=b"), "has a query or a fragment"),
        (ISSUER.replace("realm", "realm#a"), "has a query or a fragment"),
        (ISSUER.replace("login", "me:secret@login"), "has a user or a password"),
        (ISSUER.replace("login", "log in"), "must be encoded"),
        (ISSUER.replace("com/", "com:port/"), "host or port is malformed"),
        (ISSUER.replace("realm", "r" * 480), "has more than 500 characters|up to 500"),
        (ISSUER + OTHER.replace("other.example.com", "login.example.com/realm"), "two tables"),
        (ISSUER + OTHER + "[principals]\n'oidc:alice' = []", "lacks the name of one.*work, other"),
        (ISSUER + OTHER + "[principals]\n'oidc:wor/a' = []", "lacks the name of one"),
        (ISSUER + "[principals]\n'oidc:work/alice' = []", "its name is not part of.*remove work/"),
        ("".join(OTHER.replace("other", f"o{n}") for n in range(11)), "has 11 issuers: use up to"),
    ],
)
def test_a_file_with_wrong_issuers_is_refused(text: str, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        parse_policy(text, "access.toml")
