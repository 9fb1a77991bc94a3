package stats

import (
	"cmp"
	"fmt"
	"strings"
	"time"
)

// isolatedAfter is how long a node has to be without a lease before it reports that it is cut off.
// An election of the catalog's leader is over sooner.
const isolatedAfter = 2 * time.Second

// Isolated says why this node can neither route nor have anything defined, and has not been able to
// for a while; empty: it can.
func (l *Local) Isolated() string {
	if left, _ := l.c.Catalog.LeaseLeft(); left > -isolatedAfter {
		return ""
	}
	if !l.c.Catalog.Started() {
		return "the node is not part of a cluster yet"
	}
	voters := l.c.Catalog.Voters()
	var away []string
	for _, v := range voters {
		if !l.c.Mesh.Alive(v) {
			away = append(away, v)
		}
	}
	switch leader := l.c.Catalog.Leader(); {
	case len(voters) == 0:
		return "the node is not a member of a cluster yet"
	case 2*len(away) >= len(voters):
		return fmt.Sprintf("the cluster has no majority here: of %d nodes that vote on the catalog, %s cannot be reached", len(voters), strings.Join(away, ", "))
	case leader == "":
		return "the catalog has no leader"
	default:
		return fmt.Sprintf("the catalog's leader %s does not confirm that the node is up to date", leader)
	}
}

// NotReady says why the node does not serve clients; empty: it does.
func (l *Local) NotReady() string {
	isolated := cmp.Or(l.Isolated(), l.c.Lacks())
	switch {
	case l.c.Draining():
		return "the node is in maintenance mode"
	case l.c.Watchdog.Unfit() != "":
		return l.c.Watchdog.Unfit()
	case !l.c.Serving() && isolated != "":
		return "the node does not serve clients yet: " + isolated
	case !l.c.Serving():
		return "the node does not serve clients yet"
	}
	return isolated
}

// Ready reports whether the node serves clients.
func (l *Local) Ready() bool { return l.NotReady() == "" }
