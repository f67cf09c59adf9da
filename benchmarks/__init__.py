"""Benchmarks: ours against a peer and a limit, measured in the same run."""
