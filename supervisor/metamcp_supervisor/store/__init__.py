"""The database of the gateway: its file, its tables and their versions, backups."""
