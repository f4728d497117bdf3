"""Words about a gateway, its servers and its calls, the same for a terminal and for a page.

Never: printing (`cli`), pages (`console`), requests to the gateway.
"""
