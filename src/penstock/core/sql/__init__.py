"""Statements of Spark SQL as trees: their parser, the kinds of nodes, and the writer."""
