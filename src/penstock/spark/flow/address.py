"""Where the Spark of this service is, for processors that name none.

Owns one address. Whoever starts the service says it, before a processor is scheduled; processors
are made from a flow's file and have no other way to be told.
"""

from __future__ import annotations

from penstock.core.errors import InvalidRequest


class ServiceSpark:
    """The address of the service's Spark; set once, read from any thread."""

    def __init__(self) -> None:
        self._address = ""

    def set(self, address: str | None) -> None:
        """Say where it is; None or empty: there is none."""
        self._address = address or ""

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
