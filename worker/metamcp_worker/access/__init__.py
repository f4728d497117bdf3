"""Who may do what: API keys, principals, and the one gate."""
