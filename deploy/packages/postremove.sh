#!/bin/sh
# After the files are gone. Data, logs and the user stay, even when a package is purged: the data of a node is
# the replicas of its queues.
set -e
if [ -d /run/systemd/system ]; then
	systemctl daemon-reload
fi
