"""Tasks that wait: for their locks, in which order, and how that is told."""
