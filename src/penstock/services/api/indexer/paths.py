"""Path of the overlord's API, and its largest request."""

from __future__ import annotations

from typing import Final

PREFIX: Final = "/druid/indexer/v1"

# Tasks announce and publish thousands of files at once when they read a backlog of years.
ACTION_BYTES_MAX: Final = 64 << 20
