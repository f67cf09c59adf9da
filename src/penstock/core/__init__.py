"""Basic modules for every other package: errors, clock, intervals, durations, metrics."""
