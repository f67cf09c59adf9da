"""The control plane of indexing on a virtual clock and a seed, with everything failing.

`run` runs one seed, `make simulate` many. The page about it is
`docs/simulation.md`.
"""
