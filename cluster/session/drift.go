package session

import (
	"sync"
	"sync/atomic"

	"google.golang.org/protobuf/proto"

	"github.com/quorate/quorate/cluster/self"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/proto/logpb"
	"github.com/quorate/quorate/proto/peerpb"
)

// Drifts remembers the arguments with which clients of this node have declared otherwise what
// exists, and counts such declares. A restart forgets them.
type Drifts struct {
	node               *self.Node
	tolerated, adopted atomic.Uint64 // declares

	mu   sync.Mutex
	rows map[drifted]*peerpb.Drift // at most maxDrifts
}

// drifted is what is counted together.
type drifted struct {
	queue                                     fsm.QueueID // 0: it is an exchange
	vhost, exchange, argument, received, user string
}

const (
	// maxDrifts is how many different ones a node remembers; those not seen for longest are forgotten.
	maxDrifts = 1000
	// maxDriftValue is how long the encoding of a value may be.
	maxDriftValue = 2048
)

// Counts returns how many declares were answered although they differed, and how many of their
// queues had the arguments from then on.
func (d *Drifts) Counts() (tolerated, adopted uint64) { return d.tolerated.Load(), d.adopted.Load() }

// note records what differs in a declare of a session's client, as far as its node knew. Each difference
// is logged once for as long as it is remembered.
func (d *Drifts) note(s *Session, of drifted, name string, list []catalog.Difference, adopted bool) {
	switch {
	case adopted:
		d.adopted.Add(1)
	case len(list) > 0:
		d.tolerated.Add(1)
	}
	if len(list) == 0 {
		return
	}
	of.vhost, of.user = s.conn.vhost, s.conn.user
	client, connection := "", ""
	if at, ok := s.client.(located); ok {
		connection, client, _, _ = at.Where()
		client = fsm.Short(client)
	}
	now := int64(d.node.Stamp())
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, difference := range list {
		of.argument, of.received = difference.Argument, encodedValue(difference.Received)
		row := d.rows[of]
		if row == nil {
			d.dropOldest()
			row = &peerpb.Drift{
				Vhost: of.vhost, Queue: uint64(of.queue), Exchange: of.exchange, Argument: of.argument, Received: []byte(of.received), User: of.user, First: now,
			}
			d.rows[of] = row
			d.node.Logger.Info("declared with another argument", "name", name, "vhost", of.vhost, "argument", of.argument,
				"received", shown(difference.Received), "has", shown(difference.Current), "adopted", adopted, "user", of.user, "client", client, "connection", connection)
		}
		row.Client, row.Connection, row.Times, row.Last = client, connection, row.Times+1, now
	}
}

// dropOldest forgets the row that has not been seen for longest if there are as many as may be. The
// lock is held.
func (d *Drifts) dropOldest() {
	if len(d.rows) < maxDrifts {
		return
	}
	var oldest drifted
	last := int64(-1)
	for of, row := range d.rows {
		if last < 0 || row.Last < last {
			oldest, last = of, row.Last
		}
	}
	delete(d.rows, oldest)
}

// encodedValue is a value of an argument; empty: it was not given. Of a long one it is the beginning of its text.
func encodedValue(v *logpb.Value) string {
	if v == nil {
		return ""
	}
	b, err := logpb.Marshal(v)
	if err != nil || len(b) > maxDriftValue {
		b, _ = logpb.Marshal(&logpb.Value{Tag: 'S', Str: []byte(catalog.Term(v))}) // it is a text
	}
	return string(b)
}

// shown is a value in the log.
func shown(v *logpb.Value) string {
	if v == nil {
		return "none"
	}
	return catalog.Term(v)
}

// List returns what is remembered, in no particular order.
func (d *Drifts) List() *peerpb.DriftsReply {
	d.mu.Lock()
	defer d.mu.Unlock()
	r := &peerpb.DriftsReply{Drifts: make([]*peerpb.Drift, 0, len(d.rows))}
	for _, row := range d.rows {
		r.Drifts = append(r.Drifts, proto.CloneOf(row))
	}
	return r
}
