"""The bridge from a client's pipes to a running gateway: `metamcp connect`."""
