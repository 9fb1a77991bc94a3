package cluster

import (
	"context"

	"github.com/quorate/quorate/cluster/mgmt/api"
	"github.com/quorate/quorate/cluster/traffic"
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
	// Flows lists what their connections have received and sent.
	Flows() []traffic.Flow
	// Channels lists their channels.
	Channels() []api.Channel
	// SetAlarm sets the reason why publishing is blocked; empty: it is not. It does not block.
	SetAlarm(reason string)
	// Relieve makes clients give up what they make the node hold, if that is why its memory is short
	// by excess bytes. It does not block.
	Relieve(excess int64)
	// Hold returns a function that sets how much memory is held for a user besides. An error names the bound that
	// it would exceed: then nothing changes. At last it is called with 0, which always succeeds.
	Hold(user string) func(bytes int64) error
	// HeldMemory is what is held for all of them, and besides.
	HeldMemory() api.HeldMemory
	// CloseConnection closes the connection of this name. It returns false if there is none.
	CloseConnection(name, reason string) bool
}

// SetClients sets the node's clients. It is called before Join.
func (n *Node) SetClients(c Clients) {
	n.clients.Store(&c)
	n.placement.SetListeners(c)
	n.alarm.Block(c)
}

// connected returns the node's clients: none as long as it has not been given any.
func (n *Node) connected() Clients {
	if c := n.clients.Load(); c != nil {
		return *c
	}
	return noClients{}
}

// noClients are those of a node that takes none, or not yet.
type noClients struct{}

func (noClients) Shut(context.Context, string)        {}
func (noClients) Open() error                         { return nil }
func (noClients) Expel(string)                        {}
func (noClients) Renew()                              {}
func (noClients) Connections() []api.Connection       { return nil }
func (noClients) Flows() []traffic.Flow               { return nil }
func (noClients) Channels() []api.Channel             { return nil }
func (noClients) SetAlarm(string)                     {}
func (noClients) Relieve(int64)                       {}
func (noClients) Hold(string) func(int64) error       { return func(int64) error { return nil } }
func (noClients) HeldMemory() api.HeldMemory          { return api.HeldMemory{} }
func (noClients) CloseConnection(string, string) bool { return false }
