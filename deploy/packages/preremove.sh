#!/bin/sh
# Before the files go. The argument is "remove" (deb) or 0 (rpm) if the package goes for good.
set -e
case "$1" in remove | 0)
	if [ -d /run/systemd/system ]; then
		systemctl disable --now quorate.service
	fi
	;;
esac
