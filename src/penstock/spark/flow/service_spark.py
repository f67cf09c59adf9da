"""Address of this service's Spark, and folder of files for it, for processors without their own.

Owns an address and a folder. The service sets them at its start, before a processor is scheduled;
processors are created from a flow's file and cannot receive them in another way.
"""

from __future__ import annotations

from pathlib import Path

from penstock.core.errors import InvalidRequest


class ServiceSpark:
    """Address of the service's Spark; set once, read from any thread.

    Attributes:
        work_folder: Folder of files for it; None: the system's folder of temporary files.
    """

    def __init__(self) -> None:
        self._address = ""
        self.work_folder: Path | None = None

    def set(self, address: str | None, work_folder: Path | None = None) -> None:
        """Set the address; None or empty: there is no Spark."""
        self._address = address or ""
        self.work_folder = work_folder

    def address(self) -> str:
        """Return the address.

        Raises:
            InvalidRequest: The address was not set.
        """
        if not self._address:
            raise InvalidRequest(
                "this service has no Spark: set the processor's property `spark`, such as to "
                "sc://host:15002"
            )
        return self._address


SERVICE_SPARK = ServiceSpark()
