"""How pydruid logs in, over TLS: at the routes of a router whose queries have one answer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.broker.security.tls import ServerTls, TlsOptions
from penstock.core.metrics import MetricRegistry
from penstock.services.api.asgi import application
from penstock.services.api.sql import SqlRoutes
from penstock.services.host.process import listen
from penstock.services.http_server import HttpServer
from penstock.services.options.option_values import HostPort
from penstock.spark.sql.service import RegisteredQuery, SqlQuery, SqlResult
from penstock.testing.clock import VirtualClock
from tests.broker.broker_access_kit import Installation
from tests.conformance.clients_kit import Client, Refused
from tests.harness.event_kit import KeptEvents

pytestmark = pytest.mark.conformance


class StubSql:
    """Answers with the principal of a query."""

    @contextmanager
    def registered(self, query: SqlQuery) -> Iterator[RegisteredQuery]:
        table = pa.table({"me": [query.principal]})
        yield RegisteredQuery(lambda: SqlResult(table, ("string",), truncated=False), lambda: None)

    def timeout_ms(self, _query: SqlQuery) -> int:
        return 60_000

    def cancel(self, _query_id: str) -> bool:
        return False


@pytest.fixture(scope="module")
def router(
    tmp_path_factory: pytest.TempPathFactory, certificate: Path
) -> Iterator[tuple[int, Installation]]:
    installation = Installation(tmp_path_factory.mktemp("access"))
    queries = SqlRoutes(StubSql(), MetricRegistry(), KeptEvents(), VirtualClock())
    app = application(queries.routes(), access=installation.control)
    tls = ServerTls(TlsOptions(str(certificate), str(certificate.with_name("key.pem"))))
    server = HttpServer(app, listen(HostPort("127.0.0.1", 0), "--http"), tls=tls)
    server.start()
    yield server.port, installation
    server.stop()


def test_pydruid_logs_in_over_tls(router: tuple[int, Installation], certificate: Path) -> None:
    port, installation = router
    installation.user("ann", "secret-enough", "analyst")
    known = {
        "user:ann": {"user": "ann", "password": "secret-enough"},
        "token:tool": {"jwt": installation.token("tool", "analyst")},
    }
    unknown = ({}, {"user": "ann", "password": "wrong"}, {"jwt": "penstock_0"})
    place = {"port": port, "scheme": "https", "ssl_verify_cert": str(certificate)}
    with Client("pydruid") as pydruid:
        for principal, credential in known.items():
            pydruid.ask("connect", "db", **place, **credential)
            assert pydruid.ask("execute", "db", sql="SELECT 1")["rows"] == [[principal]]
        for credential in unknown:
            pydruid.ask("connect", "db", **place, **credential)
            with pytest.raises(Refused, match=r"ProgrammingError: .*no valid credential"):
                pydruid.ask("execute", "db", sql="SELECT 1")
        url = f"druid+https://ann:secret-enough@127.0.0.1:{port}/druid/v2/sql/"
        pydruid.ask("engine", "e", url=f"{url}?ssl_verify_cert={certificate}")
        assert pydruid.ask("scalar", "e", sql="SELECT 1") == "user:ann"
        pydruid.ask("connect", "db", port=port, scheme="https")
        with pytest.raises(Refused, match="CERTIFICATE_VERIFY_FAILED"):
            pydruid.ask("execute", "db", sql="SELECT 1")
