"""Calls of a front: what a request asks for, and its way to the pipe of a server and back."""
