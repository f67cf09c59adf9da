"""How Spark is run and reached: the Connect server, its Java and class archive, Spark sessions."""
