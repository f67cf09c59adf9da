"""Tables that stand alone: each has a small store whose methods are one transaction each."""
