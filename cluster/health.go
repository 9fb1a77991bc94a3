package cluster

import (
	"fmt"
	"strings"
	"time"
)

// isolatedAfter is for how long a node has to be without a lease before it says
// that it is cut off. An election of the catalog's leader is over sooner.
const isolatedAfter = 2 * time.Second

// Isolated says why this node can neither route nor have anything defined, and
// has not been able to for a while; empty: it can.
func (n *Node) Isolated() string {
	if left, _ := n.catalog.LeaseLeft(); left > -isolatedAfter {
		return ""
	}
	if !n.catalog.Started() {
		return "the node is not part of a cluster yet"
	}
	voters := n.catalog.Voters()
	var away []string
	for _, v := range voters {
		if !n.Online(v) {
			away = append(away, v)
		}
	}
	switch leader := n.catalog.Leader(); {
	case len(voters) == 0:
		return "the node has no place in a cluster yet"
	case 2*len(away) >= len(voters):
		return fmt.Sprintf("the cluster has no majority here: of %d nodes that vote on the catalog %s cannot be reached", len(voters), strings.Join(away, ", "))
	case leader == "":
		return "the catalog has no leader"
	default:
		return fmt.Sprintf("the catalog's leader %s does not say that the node is up to date", leader)
	}
}

// NotReady says why the node does not serve clients; empty: it does.
func (n *Node) NotReady() string {
	isolated := n.Isolated()
	switch {
	case n.placement.Draining():
		return "the node is in maintenance mode"
	case n.watchdog.Unfit() != "":
		return n.watchdog.Unfit()
	case !n.ready.Load() && isolated != "":
		return "the node does not serve clients yet: " + isolated
	case !n.ready.Load():
		return "the node does not serve clients yet"
	}
	return isolated
}

// Ready reports whether the node serves clients.
func (n *Node) Ready() bool { return n.NotReady() == "" }
