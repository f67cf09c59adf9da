"""Drives the hooks and the operator of Airflow's provider for Druid, with stand-ins for Airflow.

The provider is installed without the packages of Airflow itself: of those, it uses a connection,
three base classes and an exception.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import sysconfig
import types
from pathlib import Path
from typing import Any

from tests.conformance.lines_kit import serve

CONNECTIONS: dict[str, Any] = {}


class AirflowException(Exception):
    pass


class BaseHook:
    log = logging.getLogger("airflow")

    def get_connection(self, name: str) -> Any:
        return CONNECTIONS[name]


class DbApiHook(BaseHook):
    """As Airflow's, which runs SQL on a cursor of `get_conn`."""

    def __init__(self, **names: str) -> None:
        self._names = names

    def get_conn_id(self) -> str:
        return self._names["druid_broker_conn_id"]

    def get_records(self, sql: str, parameters: Any = None) -> Any:
        cursor = self.get_conn().cursor()  # type: ignore[attr-defined]
        cursor.execute(sql, parameters)
        return cursor.fetchall()


class BaseOperator:
    log = logging.getLogger("airflow")

    def __init__(self, task_id: str) -> None:
        self.task_id = task_id


def stand_in(name: str, **contents: object) -> None:
    module = types.ModuleType(name)
    for what, value in contents.items():
        setattr(module, what, value)
    sys.modules[name] = module


stand_in(
    "airflow",
    __version__="3.3.2",
    __path__=[str(Path(sysconfig.get_paths()["purelib"]) / "airflow")],
)
stand_in("airflow.providers.common", __path__=[])
stand_in("airflow.providers.common.compat", __path__=[])
stand_in(
    "airflow.providers.common.compat.sdk",
    AirflowException=AirflowException, BaseHook=BaseHook, BaseOperator=BaseOperator,
)  # fmt: skip
stand_in("airflow.providers.common.sql", __path__=[])
stand_in("airflow.providers.common.sql.hooks", __path__=[])
stand_in("airflow.providers.common.sql.hooks.sql", DbApiHook=DbApiHook)

from airflow.providers.apache.druid.hooks.druid import (  # noqa: E402 - after the stand-ins
    DruidDbApiHook,
    IngestionType,
)
from airflow.providers.apache.druid.operators.druid import DruidOperator  # noqa: E402


class Driver:
    async def connection(self, name: str, port: int, **more: Any) -> None:
        fields = {"conn_type": "http", "schema": None, "login": None, "password": None}
        extra = {
            "endpoint": "druid/indexer/v1/task", "msq_endpoint": "druid/v2/sql/task",
            "schema": "http", **more.pop("extra", {}),
        }  # fmt: skip
        CONNECTIONS[name] = types.SimpleNamespace(
            host="127.0.0.1", port=port, extra_dejson=extra, **{**fields, **more}
        )

    async def ingest(self, name: str, spec: str, kind: str, limit_s: int | None = None) -> None:
        """Run the operator, which submits a task and waits for its end."""
        operator = DruidOperator(
            task_id="operator", json_index_file=spec, druid_ingest_conn_id=name,
            max_ingestion_time=limit_s, ingestion_type=IngestionType[kind],
        )  # fmt: skip
        operator.execute({})

    async def query(self, name: str, sql: str) -> list[list[Any]]:
        hook = DruidDbApiHook(druid_broker_conn_id=name, context={"sqlOuterLimit": 10})
        return [list(row) for row in hook.get_records(sql)]

    async def port(self, name: str) -> int:
        return int(CONNECTIONS[name].port)


if __name__ == "__main__":
    asyncio.run(serve(Driver()))
