"""Gateways by others, measured beside ours in one run: `make bench-peers`, and docs/peers.md."""
