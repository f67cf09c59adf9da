"""The overlord's HTTP API, in Druid's paths and shapes, below `/druid/indexer/v1`."""
