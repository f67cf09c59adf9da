"""Flow graph: the model of a flow, read from YAML or Python, checked, compared, exported."""
