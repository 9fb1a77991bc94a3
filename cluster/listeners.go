package cluster

import (
	"context"

	"github.com/quorate/quorate/cluster/mgmt/api"
)

// Clients are the listeners for clients, and the connections of those that have
// come.
type Clients interface {
	// Shut closes the listeners, disconnects all clients, and returns when they
	// have gone, or ctx ends.
	Shut(ctx context.Context, reason string)
	// Open opens the listeners again. It does nothing if they are open.
	Open() error
	// Expel disconnects all clients. It does not wait.
	Expel(reason string)
	// Renew checks what each client may do now, and disconnects those that may not
	// be there any more. It does not wait.
	Renew()
	// Connections describes who is connected.
	Connections() []api.Connection
	// SetAlarm says why nobody may publish for now; empty: everybody may. It
	// does not block.
	SetAlarm(reason string)
	// CloseConnection closes the connection of this name, and returns false if
	// there is none.
	CloseConnection(name, reason string) bool
}

// SetClients gives the node its clients. It is called before Join.
func (n *Node) SetClients(c Clients) {
	n.clients = c
	n.placement.SetListeners(c)
	n.alarm.Block(c)
}
