package traffic

import "sync"

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

// Flows knows the rates of the connections of a node. The zero value knows none.
type Flows struct {
	mu     sync.Mutex
	newest int64 // slot of the newest sample; 0: there is none
	known  map[FlowOf]sampledFlow
}

type sampledFlow struct {
	octets Octets
	rate   FlowRate
}

// Sample takes the samples of a slot, of all open connections. A connection that was not open at the
// samples before begins with zero octets. Nothing happens unless the slot is above that of the
// samples before.
func (f *Flows) Sample(slot int64, open []Flow) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if slot <= f.newest {
		return
	}
	seconds := Interval.Seconds()
	if f.newest > 0 {
		seconds *= float64(slot - f.newest)
	}
	known := make(map[FlowOf]sampledFlow, len(open))
	for _, c := range open {
		before := f.known[c.Connection].octets
		known[c.Connection] = sampledFlow{c.Octets, FlowRate{
			float64(c.Octets.Received-before.Received) / seconds, float64(c.Octets.Sent-before.Sent) / seconds,
		}}
	}
	f.newest, f.known = slot, known
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
