"""`penstock flow …`: flows are applied, run and looked at."""
