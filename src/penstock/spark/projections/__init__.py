"""Druid's projections: aggregated rows of a segment, stored beside it for matching queries.

A projection never changes the answer of a query. `plan` defines the rows of a projection, `matcher`
which queries it answers, `rewriter` how such a query reads it. `builder` and `build_job` create the
files and `file_store` keeps them; `relation` joins existing files with rows that have none yet, and
`selector` chooses the projection of a query.
"""
