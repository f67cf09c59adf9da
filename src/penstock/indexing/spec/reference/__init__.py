"""The page docs/spec-reference.md, made from the models."""
