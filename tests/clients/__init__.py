"""Clients by others against the true gateway, and what really large things cost."""
