"""Druid's projections: sums of a segment's rows, kept beside them, for queries that ask for such.

No answer is another because of one. `plan` says what one holds, `matching` which query it answers
and how that query then reads, `making` and `shelf` make and keep the files, `relation` puts made
and not yet made parts together.
"""
