"""`penstock import …`: import data of other servers."""
