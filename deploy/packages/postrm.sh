#!/bin/sh
# After a removal. State and configuration go with "purge" of a .deb only.
set -e
if [ -d /run/systemd/system ]; then
    systemctl daemon-reload
fi
if [ "$1" = purge ]; then
    rm -rf /etc/metamcp
    for folder in /var/lib /var/cache; do
        rm -rf "$folder/private/metamcp" "$folder/metamcp"
    done
fi
