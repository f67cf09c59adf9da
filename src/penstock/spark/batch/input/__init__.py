"""Input of batch tasks: files are found, divided into splits, and converted to Arrow columns."""
