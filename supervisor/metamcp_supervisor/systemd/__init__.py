"""systemd: notify, watchdog, inherited sockets, the status line.

Never: unit files (`cli.systemd`).
"""
