"""Queues of connections: in memory up to a bound, in sorted swap files beyond it."""
