"""What a broker holds in memory, and the one bound on all of it."""
