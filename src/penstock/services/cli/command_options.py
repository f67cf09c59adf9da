"""Common context of commands: the options, the server's addresses, and clients for it.

Owns how a command finds its server: `--url` or `PENSTOCK_URL`; otherwise `penstock.json` in the
data folder; otherwise the address in the options, if it was configured or no folder was named.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from penstock.core.errors import InvalidRequest, NotReachable, Unavailable
from penstock.services.host.data_folder import DataFolder
from penstock.services.json_client import COMMAND_LINE, JsonClient
from penstock.services.options import resolution
from penstock.services.options.option_values import HostPort
from penstock.services.options.table import PenstockOptions

if TYPE_CHECKING:
    from penstock.broker.broker_client import BrokerClient

QUERY_TIMEOUT_S = 600.0
NO_OPTIONS: Mapping[str, str | None] = MappingProxyType({})


@dataclass(slots=True)
class CommandOptions:
    """Options given before or within a command."""

    data_dir: str | None = None
    url: str | None = None
    broker_url: str | None = None
    token_file: str | None = None
    config_file: Path | None = None
    debug: bool = False

    def options(self, **more: object) -> PenstockOptions:
        """Resolve the options.

        Raises:
            InvalidRequest: An option is wrong.
        """
        line = {"data_dir": self.data_dir, "token_file": self.token_file, **more}
        return resolution.resolve(line, os.environ, self.config_file)

    def start_command(self, data_dir: str, given: Mapping[str, str | None] = NO_OPTIONS) -> str:
        """Return the command that starts a Penstock as these options describe it.

        Args:
            data_dir: Its data folder.
            given: Further options with their values; None: not given.
        """
        words = ["penstock", "up", "--data-dir", data_dir]
        config = None if self.config_file is None else str(self.config_file)
        common = {"--config": config, "--token-file": self.token_file}
        for option, value in (common | dict(given)).items():
            if value is not None:
                words += [option, value]
        return shlex.join(words)

    def _found(self, name: str, configured: HostPort, default: HostPort) -> str:
        """Return an address of the data folder's server.

        Raises:
            NotReachable: The Penstock in the folder is not ready; or there is none, and the folder
                was named. The default address may then belong to another Penstock, which a mistyped
                folder must not reach.
        """
        folder = DataFolder(self.options().data_dir)
        try:
            found = (folder.read_client_file() or {}).get(name)
        except Unavailable as error:
            raise Unavailable(f"{error}, or name the server with --url") from None
        if isinstance(found, str):
            return found
        if configured != default:
            return configured.url
        holder = folder.live_holder()
        if holder is not None:
            children = folder.launcher_record()
            awaited = [child for child, one in children.items() if not one.get("ready")]
            why = f": it waits for {', '.join(awaited)}" if awaited else ""
            raise NotReachable(
                f"the Penstock in {folder.path} (process {holder}) is not ready yet{why}; try again"
                " in a moment, or see penstock status"
            )
        if self.data_dir or os.environ.get("PENSTOCK_DATA_DIR"):
            start = self.start_command(str(folder.path))
            raise NotReachable(
                f"no Penstock runs in {folder.path}; start it with {start}, or name a server "
                "with --url"
            )
        return configured.url

    def api_url(self) -> str:
        """Return the URL of the API."""
        named = self.url or os.environ.get("PENSTOCK_URL")
        return named or self._found("http", self.options().http, PenstockOptions().http)

    def api(self, timeout_s: float = 30.0) -> JsonClient:
        """Return a client of the API."""
        return JsonClient(self.api_url(), token=self.options().token, timeout_s=timeout_s)

    def broker(self) -> BrokerClient:
        """Return a client of the broker."""
        # Imported here, because most commands do not need it and its imports.
        from penstock.broker.broker_client import BrokerClient  # noqa: PLC0415

        token = self.options().token
        return BrokerClient(self.found_broker_url(), token=token, remedies=COMMAND_LINE)

    def found_broker_url(self) -> str:
        """Return the URL of the broker; with `--url`, from the API."""
        if self.broker_url:
            return self.broker_url
        if self.url or os.environ.get("PENSTOCK_URL"):
            status = self.api().get("/status")
            broker = status.get("broker_http") if isinstance(status, dict) else None
            if not isinstance(broker, str):
                raise InvalidRequest(
                    f"{self.api_url()} does not know its broker's address; use --broker-url"
                )
            return broker
        return self._found(
            "broker_http", self.options().broker_http_address, PenstockOptions().broker_http_address
        )


CLI: Final = CommandOptions()
"""The options of the running command. Set before it runs; one command runs in a process."""
