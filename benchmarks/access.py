"""Decisions about access and authentication of bearer tokens, with 1,000 roles and 10,000 tokens.

All is one thread that waits for nothing. The aim of a decision is 10 µs, repeated or new. The limit
of authentication is one SHA-256 over the token.
"""

from __future__ import annotations

import hashlib
import json
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.table import Row, against, print_rows
from penstock.core.access.access_control import AccessControl
from penstock.core.access.access_folder import AccessFolder
from penstock.core.access.bearer_tokens import new_token
from penstock.core.access.principal import Principal
from penstock.core.access.rules import Action, Resource, ResourceKind
from penstock.core.clock import SystemClock

ROLES = 1_000
TOKENS = 10_000
REQUESTS = 20_000
ROUNDS = 5
AIM_US = 10.0


def rules() -> str:
    """Return an `access.toml`: each role has a team's topics, and each token three roles."""
    lines: list[str] = []
    for n in range(ROLES):
        lines += [
            f"[roles.team-{n}]",
            f'allow = ["read,write topic:team-{n}-*", "read datasource:*-of-{n}"]',
            f'deny = ["* topic:team-{n}-secret"]',
        ]
    lines.append("[principals]")
    for n in range(TOKENS):
        roles = json.dumps([f"team-{(n + step) % ROLES}" for step in (0, 7, 77)])
        lines.append(f'"token:t{n}" = {roles}')
    return "\n".join(lines)


def fill(folder: AccessFolder) -> list[bytes]:
    """Write rules and tokens; return the texts of the tokens."""
    folder.make_secrets(SystemClock())
    folder.rules.write_text(rules())
    tokens = [new_token() for _ in range(TOKENS)]
    document = {
        "format": 1,
        "tokens": {
            token.id: {"name": f"t{n}", "sha256": token.digest.hex()}
            for n, token in enumerate(tokens)
        },
    }
    folder.credentials.write_text(json.dumps(document))
    folder.credentials.chmod(0o600)
    return [token.text.encode() for token in tokens]


def us_each(work: Callable[[], object], count: int) -> float:
    """Return the processor time of one of `count` calls in a round, the best round of all."""
    best = float("inf")
    for _ in range(ROUNDS):
        started = time.process_time()
        work()
        best = min(best, time.process_time() - started)
    return best / count * 1e6


def decisions(control: AccessControl, principals: list[Principal]) -> list[Row]:
    """Measure decisions that were made before, and new ones for as many names and tokens."""
    rng = random.Random(7)
    one = principals[5]
    known = Resource(ResourceKind.TOPIC, "team-5-clicks")
    chosen = [rng.choice(principals) for _ in range(REQUESTS)]
    fresh = iter(range(REQUESTS * (ROUNDS + 1)))

    def again() -> None:
        for _ in range(REQUESTS):
            control.decide(one, Action.WRITE, Resource(known.kind, known.name))

    def new_names() -> None:
        for _ in range(REQUESTS):
            name = f"team-5-{next(fresh)}"
            control.decide(one, Action.WRITE, Resource(ResourceKind.TOPIC, name))

    def all_tokens() -> None:
        for principal in chosen:
            control.decide(principal, Action.READ, known)

    return [
        against(
            "access: a decision as before",
            *(us_each(again, REQUESTS), "µs", "aim", AIM_US, "< 1"),
        ),
        against(
            "access: a decision on a new name",
            *(us_each(new_names, REQUESTS), "µs", "aim", AIM_US, "< 1"),
        ),
        against(
            "access: decisions of 10,000 tokens",
            *(us_each(all_tokens, REQUESTS), "µs", "aim", AIM_US, "< 1"),
        ),
    ]


def run() -> list[Row]:
    """Measure everything."""
    with tempfile.TemporaryDirectory() as name:
        folder = AccessFolder(Path(name) / "access")
        texts = fill(folder)
        started = time.process_time()
        control = AccessControl(folder.path, SystemClock())
        read_s = time.process_time() - started
        principals = [control.authenticator.of_bearer(text) for text in texts]
        assert not control.problems
        known = [one for one in principals if one is not None]
        assert len(known) == TOKENS
        process = control.key.process_bearer().encode()

        def bearers() -> None:
            for text in texts:
                control.authenticator.of_bearer(text)

        def hashes() -> None:
            for text in texts:
                hashlib.sha256(text).digest()

        def processes() -> None:
            for _ in range(TOKENS):
                control.authenticator.of_bearer(process)

        hash_us = us_each(hashes, TOKENS)
        return [
            *decisions(control, known),
            against(
                "access: a bearer token, 10,000 stored",
                *(us_each(bearers, TOKENS), "µs", "SHA-256", hash_us),
            ),
            Row("access: the token of a process", us_each(processes, TOKENS), "µs"),
            Row("access: read 1,000 roles, 10,000 tokens", read_s * 1e3, "ms"),
        ]


if __name__ == "__main__":
    print_rows(run())
