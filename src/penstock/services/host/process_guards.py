"""Setup of a process before it runs anything of a user: secrets, guards, and trust.

Owns the order. References of the options are resolved first, because the guards name files and
hosts of the options. Used by every role and by peons, so that none of them lacks a guard.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

from penstock.core.clock import Clock
from penstock.core.guarded_connections import NETWORK_GUARD
from penstock.core.read_guard import READ_GUARD
from penstock.services.host.data_folder import DataFolder
from penstock.services.host.private_files import network_guard, read_guard
from penstock.services.host.tls_settings import use_trust
from penstock.services.options.resolution import with_secrets
from penstock.services.options.table import PenstockOptions
from penstock.storage.secrets.secret_sources import SECRETS, Secrets


def guard_process(
    options: PenstockOptions,
    variables: Mapping[str, str],
    clock: Clock,
    role: str,
    listening: Iterable[int] = (),
) -> PenstockOptions:
    """Set the secrets, the guards and the trusted authorities of this process.

    Args:
        options: The options of this Penstock, which may have references to secrets.
        variables: Environment variables with secrets.
        clock: Time.
        role: The role of the process, whose certificate its clients show.
        listening: Ports of Penstock on this host besides those of the options.

    Returns:
        The options with the values of secrets.

    Raises:
        InvalidRequest: A secret is unknown, or a list of the options is invalid.
        Unavailable: A secret cannot be read now.
    """
    SECRETS.set(Secrets(DataFolder(options.data_dir).secrets, variables, clock=clock))
    options = with_secrets(options, SECRETS.get())
    READ_GUARD.set(read_guard(options, os.environ))
    NETWORK_GUARD.set(network_guard(options, listening))
    use_trust(options, role)
    return options
