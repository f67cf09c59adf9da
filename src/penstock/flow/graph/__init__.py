"""The flow graph: what a flow is made of, read from YAML or Python, checked, compared, exported."""
