"""API keys: who gets one, what it may do, until when; the table that fronts have."""
