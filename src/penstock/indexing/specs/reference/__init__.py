"""The page docs/spec-reference.md, generated from the models."""
