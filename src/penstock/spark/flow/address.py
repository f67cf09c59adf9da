"""Where the Spark of this service is, and where files for it are, for processors that do not say.

Owns an address and a folder. Whoever starts the service says them, before a processor is
scheduled; processors are made from a flow's file and have no other way to be told.
"""

from __future__ import annotations

from pathlib import Path

from penstock.core.errors import InvalidRequest


class ServiceSpark:
    """The address of the service's Spark; set once, read from any thread.

    Attributes:
        work_folder: Where files for it are; None: where the system has temporary ones.
    """

    def __init__(self) -> None:
        self._address = ""
        self.work_folder: Path | None = None

    def set(self, address: str | None, work_folder: Path | None = None) -> None:
        """Say where it is; None or empty: there is none."""
        self._address = address or ""
        self.work_folder = work_folder

    def address(self) -> str:
        """Return where it is.

        Raises:
            InvalidRequest: Nobody said.
        """
        if not self._address:
            raise InvalidRequest(
                "this service has no Spark: set the processor's property `spark`, such as to "
                "sc://host:15002"
            )
        return self._address


SERVICE_SPARK = ServiceSpark()
