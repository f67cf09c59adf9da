"""The HTTP front of the broker: NSQ's API, and reading by offset. Decides nothing about topics."""
