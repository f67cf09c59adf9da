"""What batch tasks read: files found, cut into splits, and turned into typed Arrow columns."""
