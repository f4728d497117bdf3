"""Confinement by the kernel: what a server may do with files, network and other processes."""
