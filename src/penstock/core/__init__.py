"""What every other package may use: errors, the clock, intervals, durations, metric records."""
