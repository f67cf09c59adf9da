"""State of access in one process: its files and the keys of issuers, as last read.

Owns the snapshot that is in force and the order in which a new one takes effect. `access_folder`
reads the files, `oidc` the keys; `access_control` decides when.
"""

from __future__ import annotations

import threading
from typing import Final

from penstock.core.access.access_folder import AccessFolder, AccessReader, AccessSnapshot
from penstock.core.access.oidc import OidcAuthenticator
from penstock.core.clock import Clock


class AccessState:
    """The snapshot in force and the keys of issuers. Any thread; only `read` is slow.

    The mutex serializes readers of the files: the thread that reads them again, and callers who
    wait for the result.

    Args:
        folder: The folder; its files are read now. None: there are no files and never will be.
        clock: Time.

    Attributes:
        snapshot: The content of the files that is in force.
        oidc: Authenticates with the issuers of the snapshot.
    """

    def __init__(self, folder: AccessFolder | None, clock: Clock) -> None:
        self.oidc: Final = OidcAuthenticator(clock)
        self.snapshot = AccessSnapshot()
        self._mutex = threading.Lock()
        self._reader = None if folder is None else AccessReader(folder)
        self.read(must_rest=False)

    @property
    def problems(self) -> tuple[str, ...]:
        """Problems of files that are not valid and therefore have no effect."""
        return () if self._reader is None else self._reader.problems

    def read(self, *, must_rest: bool) -> None:
        """Read the files if they have changed. Not on an event loop.

        Args:
            must_rest: As in `AccessReader.read`.
        """
        if self._reader is not None:
            with self._mutex:
                snapshot = self._reader.read(must_rest=must_rest)
                # First, so that no principal of former issuers meets the new rules.
                self.oidc.configure(snapshot.policy.issuers)
                self.snapshot = snapshot
