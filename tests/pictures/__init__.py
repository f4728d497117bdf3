"""Pictures of README and docs, made by the program itself: `make pictures`."""
