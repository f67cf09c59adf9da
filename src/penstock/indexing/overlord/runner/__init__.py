"""The runner: tracks the workers and assigns tasks to them."""
