"""Running and connecting to Spark: the Connect server, its Java and class archive, sessions."""
