"""The control plane of indexing on a virtual clock and a seed, with everything failing.

`run` runs one seed, `python -m cluster_simulation` many. The page about it is
`docs/simulation.md`.
"""
