"""Following one event: rows of messages without a Spark job, and equal rows in files."""
