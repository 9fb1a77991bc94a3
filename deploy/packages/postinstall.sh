#!/bin/sh
# After the files are there. A node is neither enabled nor started: one that starts founds a cluster of its
# own, so it needs its settings first. One that runs is not restarted by an upgrade: whoever upgrades a
# cluster restarts its nodes in turn.
set -e
systemd-sysusers quorate.conf
systemd-tmpfiles --create quorate.conf
if [ -d /run/systemd/system ]; then
	systemctl daemon-reload
fi
