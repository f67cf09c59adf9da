"""Everything that runs: configuration, lifecycle, processes, HTTP interfaces, command line.

Nothing of Penstock imports this package. The roles (`roles`) only compose what the packages below
offer; `launcher` is `penstock up`; `api` holds the HTTP applications; `cli` the commands.
"""
