"""The fast path of SQL: an embedded engine answers the statements that dashboards send.

It reads the files of the same snapshot as Spark, and gives the same answers or none: Spark answers
each statement that is not covered or that fails here.
"""
