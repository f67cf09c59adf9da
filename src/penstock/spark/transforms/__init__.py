"""A transform's expression: the names in its text, and whether Spark accepts it."""
