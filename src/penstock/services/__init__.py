"""Programs: configuration, lifecycle, processes, HTTP interfaces, command line.

No other package of Penstock imports this one. The roles (`roles`) only combine the parts of the
packages below; `launcher` is `penstock up`; `api` has the HTTP applications; `cli` the commands.
"""
