"""Certificates that the gateway makes itself: a local authority, and the one that clients see."""
