"""`penstock flow …`: apply, run and inspect flows."""
