"""Dispatch of runs: run slots, readiness checks and threads."""
