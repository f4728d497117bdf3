"""The verb `metamcp doctor`: checks of a machine, a configuration and a running gateway."""
