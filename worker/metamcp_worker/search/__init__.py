"""Search over tools by words and by meaning, as pure values.

Never: the texts of answers (`builtin_tools`).
"""
