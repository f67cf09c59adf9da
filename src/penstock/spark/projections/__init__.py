"""Druid's projections: aggregated rows of a segment, in files of their own, for matching queries.

A projection never changes the answer of a query. `plan` defines the rows of a projection, `matcher`
which queries it answers, `rewriter` how such a query reads it. `projection_builder` and `build_job`
create the files and `file_store` keeps them; `relation` joins existing files with rows that have no
file yet, and `selector` chooses the projection of a query.
"""
