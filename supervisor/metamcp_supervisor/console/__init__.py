"""The web console: its process, its pages, sessions of browsers, and the files that a browser gets.

Never: carrying out an order or checking a right (`control`).
"""
