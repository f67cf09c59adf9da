"""Where the overlord's API is, and the largest request that it takes."""

from __future__ import annotations

from typing import Final

PREFIX: Final = "/druid/indexer/v1"

# Tasks announce and publish thousands of files at once when they read the backlog of years.
ACTION_BYTES_MAX: Final = 64 << 20
