package cluster

import (
	"context"

	"github.com/quorate/quorate/cluster/mgmt/api"
)

// Door is how clients come in.
type Door interface {
	// Shut keeps new clients out, tells those that are in to leave, and
	// returns when they have, or ctx ends.
	Shut(ctx context.Context, reason string)
	// Open lets clients in again. It does nothing if they are let in.
	Open() error
	// Expel tells all clients to leave. It does not wait.
	Expel(reason string)
	// Renew looks at what each client that is in may do now: who may not be there
	// any more is told to leave. It does not wait.
	Renew()
	// Connections describes who is in.
	Connections() []api.Connection
	// SetAlarm says why nobody may publish for now; empty: everybody may. It
	// does not block.
	SetAlarm(reason string)
	// CloseConnection sends away whose connection has this name, and returns
	// false if there is none.
	CloseConnection(name, reason string) bool
}

// SetDoor gives the node the clients' way in. It is called before Join.
func (n *Node) SetDoor(d Door) {
	n.door = d
	n.placement.SetListeners(d)
	n.alarm.Block(d)
}
