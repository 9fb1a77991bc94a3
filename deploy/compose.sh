#!/bin/sh
# Tests the compose files with the image that `make image` has made: three nodes, one of which is killed
# under load, and one in the place of the emulator of Azure Service Bus. If no Docker daemon answers, one is started in network and mount namespaces of its
# own, with its data in a temporary folder: that needs root, and Debian's packages docker.io,
# docker-compose and iptables, and leaves nothing behind.
set -eu
cd "$(dirname "$0")/.."
image=$(ls bin/release/quorate-*-linux-"$(go env GOARCH)".image.tar)
check() {
	docker load -i "$image"
	go test ./jepsen/deployed -count 1 -v -deployed.compose
}
# Limits of open files cannot be above the daemon's own.
most=$(ulimit -Hn)
if [ "$most" != unlimited ] && [ "$most" -lt 65536 ]; then
	export QUORATE_OPEN_FILES="$most"
fi
if docker info >/dev/null 2>&1; then
	check
	exit
fi
if [ "${1:-}" != inside ]; then
	exec unshare --mount --net --pid --fork --mount-proc sh deploy/compose.sh inside # all processes end with this one
fi
ip link set lo up
mount -t tmpfs tmpfs /run
at=$(mktemp -d)
export DOCKER_HOST="unix://$at/docker.sock"
dockerd --data-root "$at/data" --exec-root "$at/exec" --pidfile "$at/pid" --host "$DOCKER_HOST" >"$at/log" 2>&1 &
daemon=$!
trap 'kill $daemon; wait $daemon || true; umount "$at"/data/*/* 2>/dev/null || true; rm -rf "$at"' EXIT
for i in $(seq 300); do
	docker info >/dev/null 2>&1 && break
	kill -0 $daemon 2>/dev/null || { tail "$at/log"; exit 1; }
	sleep 0.1
done
check
