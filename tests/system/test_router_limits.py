"""A router with Spark under real limits: memory, file descriptors, threads.

Whatever a limit made fail, no answer is wrong. Queries are answered again once the limit is lifted,
or the process has ended by itself and its successor answers them.
"""

from __future__ import annotations

import signal
from concurrent.futures import ThreadPoolExecutor

import pytest

from penstock.services.host.restart_policy import RESTART_REQUESTED
from tests.system.limit_kit import (
    Answer,
    Asked,
    LimitedRole,
    check_refused,
    limit_folder,
    limited,
    works_again,
)

pytestmark = [pytest.mark.system, pytest.mark.spark]

SQL = "/druid/v2/sql"
AT_ONCE = 6
# Rows of a large answer, which goes through files.
LARGE = 20_000
# The first queries of a JVM are slow. Clients that give up must not stop later queries.
ANSWER_S = 10.0
# Less than Spark's client needs, which is imported for the first query.
SPARE_BYTES = 150 << 20


def ask(role: LimitedRole, number: int) -> Answer:
    """Ask a query whose answer has its number in each row; every third has a large answer."""
    rows = 1 if number % 3 else LARGE
    query = f"SELECT id + {number} AS n FROM range({rows}) ORDER BY 1"
    body = {"query": query, "resultFormat": "array"}
    answer = role.ask("POST", SQL, body, timeout_s=ANSWER_S)
    if answer.ok:
        assert answer.body == [[number + one] for one in range(rows)]
    return answer


@pytest.mark.parametrize("kind", ["memory", "files", "threads"])
def test_a_router_under_a_limit_gives_no_wrong_answer_and_answers_again(
    shared_spark: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_SPARK_CONNECT", shared_spark)

    def works() -> bool:
        return ask(role, 1).ok and ask(role, 3).ok

    with limit_folder() as folder:
        role, asked = LimitedRole(folder, "router"), Asked()
        if kind == "threads":  # later, its user cannot read the modules of Spark's client
            assert works_again(role, works)
        with (
            limited(role.process, kind, spare_bytes=SPARE_BYTES),
            ThreadPoolExecutor(AT_ONCE) as clients,
        ):
            for answer in clients.map(lambda one: ask(role, one), range(2 * AT_ONCE)):
                asked.note("during", answer)
        works_again(role, works)
        check_refused(asked.failed, role.log.read_text())
        if role.has_ended:
            # Without descriptors or memory, the library of gRPC ends its process.
            assert role.process.returncode in {RESTART_REQUESTED, -signal.SIGABRT}, role.said()
            role.start()
            assert works_again(role, works)
        assert role.stop() == 0
