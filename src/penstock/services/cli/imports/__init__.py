"""`penstock import …`: what other servers have kept becomes Penstock's."""
