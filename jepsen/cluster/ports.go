package cluster

import (
	"errors"
	"math/rand/v2"
	"net"
	"strconv"
)

// Offsets of a node's listeners from the base port: AMQP, HTTP, metrics, peers.
var portOffsets = []int{0, 10000, 10020, 20000}

// guardOffset is the offset of a port that no node uses. The process that listens on
// it owns the block.
const guardOffset = 10040

// Base ports are drawn from [portsFrom, portsTo). With the largest offset they stay
// below the system's range of ephemeral ports.
const portsFrom, portsTo = 5700, 12700

// Ports of other programs than nodes are drawn from [othersFrom, othersTo), where no node's are, and which is
// below that range, too: a program gets its own again after a restart.
const othersFrom, othersTo = 22_800, 25_600

// ErrNoPorts means that no block of free ports was found.
var ErrNoPorts = errors.New("no block of free ports on loopback")

// Ports finds so many ports for other programs than nodes, on which nobody listens.
func Ports(n int) (ports []int, err error) {
	for range 100 * n {
		port := othersFrom + rand.IntN(othersTo-othersFrom)
		l := listen(port)
		if l == nil {
			continue
		}
		defer l.Close() // when all are found, so that they differ
		if ports = append(ports, port); len(ports) == n {
			return ports, nil
		}
	}
	return nil, ErrNoPorts
}

// freePorts finds a base port for a cluster of that many nodes. The block is reserved
// until guard is closed.
func freePorts(nodes int) (base int, guard net.Listener, err error) {
	for range 50 {
		base = portsFrom + rand.IntN(portsTo-portsFrom)
		if guard = listen(base + guardOffset); guard == nil {
			continue
		}
		if blockFree(base, nodes) {
			return base, guard, nil
		}
		_ = guard.Close()
	}
	return 0, nil, ErrNoPorts
}

func blockFree(base, nodes int) bool {
	for _, offset := range portOffsets {
		for k := range nodes {
			l := listen(base + offset + k)
			if l == nil {
				return false
			}
			_ = l.Close()
		}
	}
	return true
}

// listen returns nil if the port is taken.
func listen(port int) net.Listener {
	l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		return nil
	}
	return l
}
