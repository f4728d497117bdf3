"""Mistakes that people make, and the message that each of them gets: `mistakes.md`."""
