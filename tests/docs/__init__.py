"""Documentation that is written from the program, and the site that is built from it."""
