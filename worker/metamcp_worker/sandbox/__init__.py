"""The process of the sandboxes, in which code of users runs."""
