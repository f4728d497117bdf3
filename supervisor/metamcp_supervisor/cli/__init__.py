"""The `metamcp` command, one file per group of verbs."""
