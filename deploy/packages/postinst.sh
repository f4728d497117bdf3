#!/bin/sh
# After an installation and after an upgrade, of a .deb and of an .rpm.
set -e
systemd-sysusers /usr/lib/sysusers.d/metamcp.conf
systemd-tmpfiles --create /usr/lib/tmpfiles.d/metamcp.conf
if [ -d /run/systemd/system ]; then
    systemctl daemon-reload
    # The new version takes over in the same process, so that servers and sessions stay.
    if systemctl is-active --quiet metamcp.service; then
        metamcp ctl --runtime-dir /run/metamcp upgrade || systemctl restart metamcp.service
    fi
fi
