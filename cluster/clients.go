package cluster

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/quorate/quorate/cluster/mgmt/api"
	"github.com/quorate/quorate/cluster/peer"
	"github.com/quorate/quorate/cluster/self"
	"github.com/quorate/quorate/cluster/stats"
	"github.com/quorate/quorate/cluster/traffic"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
)

// clientsWait bounds how long other nodes may take to answer.
const clientsWait = 5 * time.Second

// handleClients registers the handlers for requests about this node's clients. The answers end up
// with people and tools, so they are sent as the JSON that these see.
func (n *Node) handleClients() {
	n.mesh.HandleCall(self.KindConnections, func(context.Context, string, []byte) ([]byte, error) {
		return json.Marshal(n.myConnections())
	})
	n.mesh.HandleCall(self.KindChannels, func(context.Context, string, []byte) ([]byte, error) {
		return json.Marshal(n.myChannels())
	})
	n.mesh.HandleCall(self.KindSessions, func(_ context.Context, _ string, req []byte) ([]byte, error) {
		var connection string
		if err := json.Unmarshal(req, &connection); err != nil {
			return nil, err
		}
		return json.Marshal(n.connected().Sessions(connection))
	})
	n.mesh.HandleCall(self.KindCloseConnection, func(_ context.Context, _ string, req []byte) ([]byte, error) {
		var c closing
		if err := json.Unmarshal(req, &c); err != nil {
			return nil, err
		}
		return json.Marshal(n.connected().CloseConnection(c.Name, c.Reason))
	})
	n.mesh.HandleCall(self.KindCancelConsumer, func(ctx context.Context, _ string, req []byte) ([]byte, error) {
		var c cancelling
		if err := json.Unmarshal(req, &c); err != nil {
			return nil, err
		}
		found, err := n.cancelHere(ctx, c)
		if err != nil {
			return nil, err
		}
		return json.Marshal(found)
	})
}

// cancelling is a request to another node to cancel a consumer of its clients.
type cancelling struct {
	Queue      fsm.QueueID
	Connection string
	Channel    uint32
	Tag        string
}

func (n *Node) cancelHere(ctx context.Context, c cancelling) (bool, error) {
	return n.sessions.CancelConsumer(ctx, c.Queue, c.Connection, c.Channel, c.Tag)
}

// CancelConsumer makes the node that a consumer's client is connected to cancel the consumer. It returns
// false if the consumer is gone.
func (n *Node) CancelConsumer(ctx context.Context, q *catalog.Queue, at api.ChannelDetails, tag string) (bool, error) {
	ask := cancelling{q.ID, at.ConnectionName, at.Number, tag}
	if at.Node == n.config.Name {
		return n.cancelHere(ctx, ask)
	}
	return askJSON[bool](ctx, n, at.Node, self.KindCancelConsumer, ask)
}

// askJSON makes a request to another node that is sent as JSON, as is the answer.
func askJSON[T any](ctx context.Context, n *Node, node string, kind peer.Kind, ask any) (answer T, err error) {
	ctx, cancel := context.WithTimeout(ctx, clientsWait)
	defer cancel()
	req, err := json.Marshal(ask)
	if err != nil {
		return answer, err
	}
	raw, err := n.mesh.Call(ctx, node, kind, req)
	if err != nil {
		return answer, err
	}
	return answer, json.Unmarshal(raw, &answer)
}

// maxListed bounds the number of connections, channels or sessions accepted from another node: an empty one takes three
// bytes in a list, and hundreds once decoded.
const maxListed = 1 << 17

// decodeClients reads another node's list of connections, channels or sessions.
func decodeClients[T any](answer []byte) (list []T, err error) {
	d := json.NewDecoder(bytes.NewReader(answer))
	switch first, err := d.Token(); {
	case err != nil || first == nil: // the node takes no clients
		return nil, err
	case first != json.Delim('['):
		return nil, fmt.Errorf("a list of clients begins with %v", first)
	}
	for d.More() {
		if len(list) == maxListed {
			return nil, fmt.Errorf("more than %d in a list of clients", maxListed)
		}
		var next T
		list = append(list, next)
		if err := d.Decode(&list[len(list)-1]); err != nil {
			return nil, err
		}
	}
	return list, nil
}

// closing is a request to another node to close a connection.
type closing struct{ Name, Reason string }

func (n *Node) myConnections() []api.Connection {
	all := n.connected().Connections()
	for i := range all {
		c := &all[i]
		rate := n.traffic.Flow(traffic.FlowOf{Name: c.Name, OpenedAt: c.ConnectedAt})
		c.Node, c.ReceivedDetails, c.SentDetails = n.config.Name, &api.Details{Rate: rate.Received}, &api.Details{Rate: rate.Sent}
	}
	return all
}

// Connections lists the client connections of all nodes that answer, sorted by name.
func (n *Node) Connections(ctx context.Context) []api.Connection {
	all := askClients(ctx, n, self.KindConnections, "list connections", n.myConnections)
	slices.SortFunc(all, func(a, b api.Connection) int { return strings.Compare(a.Name, b.Name) })
	return all
}

func (n *Node) myChannels() []api.Channel {
	all := n.connected().Channels()
	for i := range all {
		c := &all[i]
		c.Node, c.Name = n.config.Name, traffic.ChannelName(c.Connection.Name, c.Number)
	}
	return all
}

// Channels lists the channels of the clients of all nodes that answer, sorted by connection and
// number.
func (n *Node) Channels(ctx context.Context) []api.Channel {
	all := askClients(ctx, n, self.KindChannels, "list channels", n.myChannels)
	slices.SortFunc(all, func(a, b api.Channel) int {
		return cmp.Or(strings.Compare(a.Connection.Name, b.Connection.Name), cmp.Compare(a.Number, b.Number))
	})
	return all
}

// SessionsOf lists the sessions of a connection of AMQP 1.0, ordered by their channels: none if the connection is gone.
func (n *Node) SessionsOf(ctx context.Context, c api.Connection) ([]api.Session, error) {
	if c.Node == n.config.Name {
		return n.connected().Sessions(c.Name), nil
	}
	ctx, cancel := context.WithTimeout(ctx, clientsWait)
	defer cancel()
	name, err := json.Marshal(c.Name)
	if err != nil {
		return nil, err
	}
	answer, err := n.mesh.Call(ctx, c.Node, self.KindSessions, name)
	if err != nil {
		return nil, err
	}
	return decodeClients[api.Session](answer)
}

// askClients concatenates the lists of all nodes that answer.
func askClients[T any](ctx context.Context, n *Node, kind peer.Kind, doing string, here func() []T) []T {
	nodes := &stats.Nodes{Self: n.config.Name, Mesh: n.mesh, Try: n.guard.Try, Logger: n.slog}
	answers := stats.AskAll(ctx, nodes, stats.Question[[]T]{
		Doing: doing, Wait: clientsWait, Here: here,
		Ask: func(ctx context.Context, node string) ([]T, error) {
			answer, err := n.mesh.Call(ctx, node, kind, nil)
			if err != nil {
				return nil, err
			}
			return decodeClients[T](answer)
		},
	})
	return slices.Concat(slices.Collect(maps.Values(answers.Of))...)
}

// renewClients checks all clients again whenever their rights may have changed.
func (n *Node) renewClients() {
	n.rights.Run(n.loops.Life().Done(), func(time.Time) (again time.Duration) {
		if n.ready.Load() { // otherwise no client is connected
			n.connected().Renew()
		}
		return 0
	})
}

// CloseConnection makes the node that a client is connected to close the connection with this
// reason. It returns false if the connection is gone.
func (n *Node) CloseConnection(ctx context.Context, c api.Connection, reason string) (bool, error) {
	if c.Node == n.config.Name {
		return n.connected().CloseConnection(c.Name, reason), nil
	}
	return askJSON[bool](ctx, n, c.Node, self.KindCloseConnection, closing{c.Name, reason})
}

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
	// Sessions lists the sessions of a connection, ordered by their channels; empty: it has none, or is gone.
	Sessions(connection string) []api.Session
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
func (noClients) Sessions(string) []api.Session       { return nil }
func (noClients) SetAlarm(string)                     {}
func (noClients) Relieve(int64)                       {}
func (noClients) Hold(string) func(int64) error       { return func(int64) error { return nil } }
func (noClients) HeldMemory() api.HeldMemory          { return api.HeldMemory{} }
func (noClients) CloseConnection(string, string) bool { return false }
