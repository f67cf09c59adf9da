"""Commands of access: users, tokens, roles, explanations of decisions, logins."""
