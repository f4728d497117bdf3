"""Steps of calls that settings switch on: built-in tools, code, the engine, rules."""
