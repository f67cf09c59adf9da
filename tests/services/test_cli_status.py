"""`penstock status` while many tasks wait."""

from __future__ import annotations

from test_cli import Capture, FakeServer, server

from penstock.services.cli import exit_codes
from penstock.services.cli.entry import run

__all__ = ["server"]


def test_status_names_the_tasks_that_wait_at_most_20(server: FakeServer, capsys: Capture) -> None:
    wait = {"dependency": "input", "since": "2026-11-23", "tries": 2, "work": "read", "error": "x"}
    waits = [wait | {"owner": f"task {number}"} for number in range(22)]
    for count, last in (
        (20, "waits for input since 2026-11-23, 2 tries (task 19: read): x"),
        (22, "and 2 more waits: see penstock status --json"),
    ):
        server.answers["/status"] = (200, {"version": "1", "services": [], "waits": waits[:count]})
        assert run(["status"]) == exit_codes.OK
        out = capsys.readouterr().out
        assert out.splitlines()[-1] == last
        assert out.count("waits for input") == 20
