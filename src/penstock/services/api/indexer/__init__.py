"""The overlord's HTTP API, with Druid's paths and formats, below `/druid/indexer/v1`."""
