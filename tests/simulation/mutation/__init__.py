"""The mutation gate: faults that the simulation must notice, and the tool that tries them."""
