"""`penstock processor …`: list processors, and create a new one."""
