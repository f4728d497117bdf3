"""How it is watched and steered: journal, logs, control socket, metrics, health."""
