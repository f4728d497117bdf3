"""Values of `Host` that no listener of the gateway takes for one of its own names."""

MORE_THAN_A_HOST = (
    "127.0.0.1:6271, evil.example",
    "127.0.0.1:6271,evil.example",
    "127.0.0.1:6271 evil.example",
    "127.0.0.1:6271@evil.example",
    "127.0.0.1@evil.example",
    "evil.example@127.0.0.1",
    "localhost:6271#evil.example",
    "localhost/evil.example",
    "localhost?evil.example",
    "localhost\\evil.example",
    "[::1]evil.example",
    "[::1]:6271, evil.example",
    "[::1",
    "127.0.0.1:",
    "127.0.0.1:99999",
    "127.0.0.1:6271:6271",
    "http://127.0.0.1",
)
"""More than a host and a port: proxies and browsers take a part of it for the name, but which?"""
