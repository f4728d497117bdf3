#!/bin/sh
# Before a removal: "remove" of a .deb, 0 of an .rpm. An upgrade leaves the service running.
set -e
case "$1" in
remove | 0)
    if [ -d /run/systemd/system ]; then
        systemctl disable --quiet --now metamcp.service metamcp.socket
    fi
    ;;
esac
