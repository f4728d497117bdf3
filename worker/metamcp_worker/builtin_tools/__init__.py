"""The gateway's own tools: discover, search, equip, activate, load, and the texts of their answers.

Never: carrying out an order (`front`), the engine of the search (`search`).
"""
