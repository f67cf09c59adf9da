"""The coordinator's HTTP API: retention rules and segments, below `/druid/coordinator/v1`."""
