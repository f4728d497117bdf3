"""What is wanted: configuration files, from bytes to frozen values or every error at once."""
