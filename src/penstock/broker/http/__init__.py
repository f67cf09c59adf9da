"""The broker's HTTP API: NSQ's API, and reading by offset. Contains no logic of topics."""
