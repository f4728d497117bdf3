"""Clients of a front: the eras of the protocol, sessions, questions, streams, REST."""
