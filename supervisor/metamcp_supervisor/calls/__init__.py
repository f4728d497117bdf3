"""Calls of tools as clients make them: arguments by their schema, questions, answers."""
