"""`penstock processor …`: what processors there are, and the beginning of a new one."""
