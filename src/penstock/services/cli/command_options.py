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
from urllib.parse import urlsplit

from penstock.core.clock import SystemClock
from penstock.core.errors import (
    Conflict,
    InvalidRequest,
    NotReachable,
    PenstockError,
    Unavailable,
)
from penstock.services.cli.server_tokens import Logins, operator_token_for, origin_of
from penstock.services.host.data_folder import DataFolder
from penstock.services.host.tls_settings import use_trust
from penstock.services.json_client import COMMAND_LINE, JsonClient
from penstock.services.options import resolution
from penstock.services.options.option_values import HostPort
from penstock.services.options.table import PenstockOptions
from penstock.storage.secrets.secret_sources import Secrets

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
    tls_ca: str | None = None
    config_file: Path | None = None
    debug: bool = False

    def options(self, **more: object) -> PenstockOptions:
        """Resolve the options.

        Raises:
            InvalidRequest: An option is wrong.
        """
        line = {
            "data_dir": self.data_dir,
            "token_file": self.token_file,
            "tls_ca": self.tls_ca,
            **more,
        }
        return resolution.resolve(line, os.environ, self.config_file)

    def client_options(self) -> PenstockOptions:
        """Resolve the options for a client of a server, and trust its authorities from here on.

        Raises:
            InvalidRequest: An option is wrong.
        """
        options = self.options()
        use_trust(options)
        return options

    def secrets(self) -> Secrets:
        """Return the secrets of the data folder, for use on this host."""
        return Secrets(DataFolder(self.options().data_dir.absolute()).secrets, os.environ)

    def resolved_options(self, **more: object) -> PenstockOptions:
        """Resolve the options, with the values of secrets: never store or show them.

        Raises:
            InvalidRequest: An option is wrong, or a secret has no value.
            CorruptData: The file of sealed secrets is damaged.
            Unavailable: The command that prints a secret fails.
        """
        return resolution.with_secrets(self.options(**more), self.secrets())

    def start_command(self, data_dir: str, given: Mapping[str, str | None] = NO_OPTIONS) -> str:
        """Return the command that starts a Penstock as these options describe it.

        Args:
            data_dir: Its data folder.
            given: Further options with their values; None: not given.
        """
        words = ["penstock", "up", "--data-dir", data_dir]
        config = None if self.config_file is None else str(self.config_file)
        common = {
            "--config": config,
            "--token-file": self.token_file,
            "--tls-ca": self.tls_ca,
        }
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
        self.client_options()
        url = self.api_url()
        return JsonClient(url, token=self.token_for(url), timeout_s=timeout_s)

    def token_for(self, url: str) -> str | None:
        """Return the token to send to the API or the broker of a server; None: none.

        Args:
            url: The URL, from `api_url` or `found_broker_url`.

        Raises:
            InvalidRequest: The file of logins is damaged, or other users may read it; or the secret
                that the option names has no value.
            CorruptData: The file of sealed secrets is damaged.
            Unavailable: The command that prints a secret fails.
        """
        options = self.options()
        if options.token is not None:
            return self.secrets().text(options.token, "token")
        kept = Logins(os.environ, SystemClock()).read()
        if kept:
            for server in (origin_of(url), self._api_of_broker(url)):
                if server in kept:
                    return kept[server]
        if self._is_named(url):
            return None
        return operator_token_for(url, self.access_path())

    def access_path(self) -> Path:
        """Return the folder of access that the Penstock in the data folder uses, or will use."""
        given = self.options()
        if given.access_folder is not None:
            return given.access_path
        try:
            running = self.live_options()
        except PenstockError:  # narrow: it is starting, or is one of another user
            running = None
        return (running or given).access_path

    def _is_named(self, url: str) -> bool:
        """Return whether the user named the server, instead of its data folder."""
        named = self.url or os.environ.get("PENSTOCK_URL")
        return bool(named) or url == self.broker_url

    def _api_of_broker(self, url: str) -> str:
        """Return the server whose login is also valid for a broker that this server named.

        It is on the same host, and the way to it is as well protected.
        """
        named = self.url or os.environ.get("PENSTOCK_URL")
        if not named or self.broker_url:
            return ""
        api, broker = urlsplit(origin_of(named)), urlsplit(origin_of(url))
        is_weaker = (api.scheme, broker.scheme) == ("https", "http")
        return "" if api.hostname != broker.hostname or is_weaker else api.geturl()

    def live_options(self) -> PenstockOptions | None:
        """Return the options of the Penstock that runs in the data folder, None if none runs.

        Raises:
            Conflict: It is starting, and has not written them yet.
        """
        folder = DataFolder(self.options().data_dir.absolute())
        if folder.live_holder() is None:
            return None
        try:
            return resolution.from_json(folder.children_options.read_text())
        except OSError as error:
            raise Conflict(
                f"the Penstock in {folder.path} is starting: repeat the command in a moment"
                f" ({error.strerror})"
            ) from None

    def broker(self) -> BrokerClient:
        """Return a client of the broker."""
        # Imported here, because most commands do not need it and its imports.
        from penstock.broker.broker_client import BrokerClient  # noqa: PLC0415

        url = self.found_broker_url()
        return BrokerClient(url, token=self.token_for(url), remedies=COMMAND_LINE)

    def found_broker_url(self) -> str:
        """Return the URL of the broker; with `--url`, from the API."""
        self.client_options()
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
