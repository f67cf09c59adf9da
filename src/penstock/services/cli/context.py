"""What every command needs: the options, the addresses of the server, and clients for it.

Owns how a command finds its server: `--url` or `PENSTOCK_URL`; else `penstock.json` in the data
folder; else the address in the options, which is the default one when nothing is configured.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.core.errors import InvalidRequest
from penstock.services import config
from penstock.services.config import Options
from penstock.services.host.datafolder import DataFolder
from penstock.services.httpclient import JsonClient

if TYPE_CHECKING:
    from penstock.broker.client import BrokerClient

QUERY_TIMEOUT_S = 600.0


@dataclass(slots=True)
class Given:
    """The options that stand before a command or in it."""

    data_dir: str | None = None
    url: str | None = None
    broker_url: str | None = None
    token: str | None = None
    config_file: Path | None = None
    debug: bool = False

    def options(self, **more: object) -> Options:
        """Resolve the options of this Penstock.

        Raises:
            InvalidRequest: One is wrong.
        """
        line = {"data_dir": self.data_dir, "token": self.token, **more}
        return config.resolve(line, os.environ, self.config_file)

    def _client_file(self) -> Mapping[str, object]:
        return DataFolder(self.options().data_dir).read_client_file() or {}

    def api_url(self) -> str:
        """Return the address of the API."""
        named = self.url or os.environ.get("PENSTOCK_URL")
        return named or str(self._client_file().get("http") or self.options().http.url)

    def api(self, timeout_s: float = 30.0) -> JsonClient:
        """Return a client of the API."""
        return JsonClient(self.api_url(), token=self.options().token, timeout_s=timeout_s)

    def broker(self) -> BrokerClient:
        """Return a client of the broker."""
        # Here, because most commands do without it and without what it imports.
        from penstock.broker.client import BrokerClient  # noqa: PLC0415

        return BrokerClient(self.found_broker_url(), token=self.options().token)

    def found_broker_url(self) -> str:
        """Return the address of the broker; with `--url` the API is asked for it."""
        if self.broker_url:
            return self.broker_url
        if self.url or os.environ.get("PENSTOCK_URL"):
            status = self.api().get("/status")
            broker = status.get("broker_http") if isinstance(status, dict) else None
            if not isinstance(broker, str):
                raise InvalidRequest(
                    f"{self.api_url()} does not say where its broker is; use --broker-url"
                )
            return broker
        return str(self._client_file().get("broker_http") or self.options().broker_http.url)


GIVEN = Given()
