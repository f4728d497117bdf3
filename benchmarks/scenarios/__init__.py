"""A file per scenario, all of one shape: `measure(effort)` gives a table of rows and its bars."""
