"""SQL that writes: what its statements say, taken apart into the specs of tasks. Pure."""
