package cluster

import (
	"context"

	"github.com/quorate/quorate/cluster/mgmt/api"
)

// Clients are the client listeners and the connections accepted by them.
type Clients interface {
	// Shut closes the listeners, disconnects all clients, and returns when they are gone or ctx
	// ends.
	Shut(ctx context.Context, reason string)
	// Open reopens the listeners. It does nothing if they are open.
	Open() error
	// Expel disconnects all clients without waiting.
	Expel(reason string)
	// Renew checks the rights of each client again and disconnects those that have lost theirs. It
	// does not wait.
	Renew()
	// Connections lists the connected clients.
	Connections() []api.Connection
	// SetAlarm sets the reason why publishing is blocked; empty: it is not. It does not block.
	SetAlarm(reason string)
	// CloseConnection closes the connection of this name. It returns false if there is none.
	CloseConnection(name, reason string) bool
}

// SetClients sets the node's clients. It is called before Join.
func (n *Node) SetClients(c Clients) {
	n.clients = c
	n.placement.SetListeners(c)
	n.alarm.Block(c)
}
