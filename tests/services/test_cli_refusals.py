"""What commands say if they do not reach the server, or are refused: the reason and the remedy."""

from __future__ import annotations

import pytest
from test_cli import Capture, FakeServer, server

from penstock.services.cli import exit_codes
from penstock.services.cli.entry import run

__all__ = ["server"]


@pytest.mark.parametrize("status", [200, 404, 501])
def test_another_web_server_at_the_address_is_named(
    status: int, server: FakeServer, capsys: Capture
) -> None:
    page = "<!DOCTYPE HTML>\n<html><p>Jupyter</p></html>"
    server.answers["/status"] = server.answers["/druid/v2/sql"] = (status, page)
    assert run(["status"]) != exit_codes.OK
    error = capsys.readouterr().err
    assert f"GET {server.url}/status was answered" in error
    assert "another program, or a proxy, answers at this address: --url" in error
    assert "Jupyter" not in error
    if status != 200:
        assert run(["sql", "select 1", "--format", "json"]) != exit_codes.OK
        assert f"POST {server.url}/druid/v2/sql was answered" in capsys.readouterr().err
