"""Tasks of the broker's process besides serving: limits, memory, periodic work."""
