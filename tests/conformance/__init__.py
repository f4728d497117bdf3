"""The official conformance suite, run against the gateway and through it."""
