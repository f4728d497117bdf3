"""The process that writes the audit: segments of a chain of records."""
