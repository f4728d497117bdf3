"""Middleware: code of packages around requests, each in a process of its own."""
