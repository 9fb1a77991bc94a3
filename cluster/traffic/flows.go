package traffic

import (
	"sync"
	"time"
)

// Flow is what an open connection has received and sent since it began, in octets.
type Flow struct {
	Connection FlowOf
	Octets     Octets
}

// FlowOf names a connection. Another one that gets the same name later has another time.
type FlowOf struct {
	Name     string
	OpenedAt int64 // ms since 1970
}

// Octets are those received and sent.
type Octets struct{ Received, Sent uint64 }

// FlowRate is a change in a second.
type FlowRate struct{ Received, Sent float64 }

// Flows knows the rates of the connections of a node. The zero value knows none. It holds no more
// than the connections that were open at the newest samples.
type Flows struct {
	mu     sync.Mutex
	newest moment // of the samples
	known  map[FlowOf]sampledFlow
}

type sampledFlow struct {
	octets Octets
	rate   FlowRate
}

// Sample takes the samples of a time's slot, of all open connections. A connection that was not open
// at the samples before begins with zero octets. Nothing happens unless the slot is above that of the
// samples before.
func (f *Flows) Sample(at time.Time, open []Flow) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now, due := f.newest.next(at)
	if !due {
		return
	}
	known, seconds := make(map[FlowOf]sampledFlow, len(open)), now.since.Seconds()
	for _, c := range open {
		more := c.Octets.since(f.known[c.Connection].octets)
		known[c.Connection] = sampledFlow{c.Octets, FlowRate{float64(more.Received) / seconds, float64(more.Sent) / seconds}}
	}
	f.newest, f.known = now, known
}

// since is what came after. Fewer octets than before are those of another connection: of clients
// whose sockets have no address, several may have one name.
func (o Octets) since(before Octets) Octets {
	if o.Received < before.Received || o.Sent < before.Sent {
		return o
	}
	return Octets{o.Received - before.Received, o.Sent - before.Sent}
}

// Rate is that of a connection, between the newest samples: zero until it is sampled.
func (f *Flows) Rate(of FlowOf) FlowRate {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.known[of].rate
}

// Forget makes all rates zero until the next samples, which count from the newest ones.
func (f *Flows) Forget() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for of, s := range f.known {
		f.known[of] = sampledFlow{octets: s.octets}
	}
}
