"""What must be true: after each commit, and when all is over."""
