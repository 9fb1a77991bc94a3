package queues

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/quorate/quorate/cluster/group"
	"github.com/quorate/quorate/cluster/group/grouptest"
	"github.com/quorate/quorate/cluster/stream"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/peerpb"
)

// sharedLog is a group of which a leader has the payloads, and the session's node those in there.
type sharedLog struct {
	stored
	of    group.Spec
	there stored
	knows bool // the leader knows what is there
}

func (l sharedLog) Spec() group.Spec { return l.of }

func (l sharedLog) HeldBy(_ string, ref fsm.Ref) (group.Shared, bool) {
	return group.Shared{Ref: ref, Term: 3}, l.knows
}

func (l sharedLog) Missed(string) {}

func (l sharedLog) Stored(at group.Shared) []byte {
	if p := l.there[at.Index]; at.Term == 3 && int(at.Size) == len(p) {
		return p
	}
	return nil
}

// A payload that the node of a session has in its own log is not sent to it, and arrives all the same;
// also if it turns out not to be there, since the session asks. Small ones are sent, and those of gets.
func TestSharedPayloads(t *testing.T) {
	body := strings.Repeat("0123456789", 100)
	long, short := grouptest.Payload(body), grouptest.Payload("short")
	whole := stored{1: long, 2: short, 3: long, 4: long}
	for _, c := range []struct {
		name         string
		reads, knows bool
		there        stored
		sent         int // of bytes, in the first message
		asks         bool
	}{
		{"an older program", false, true, whole, 3*len(long) + len(short), false},
		{"not known to be there", true, false, whole, 3*len(long) + len(short), false},
		{"there", true, true, whole, len(long) + len(short), false},
		{"partly there", true, true, stored{1: long}, len(long) + len(short), true},
		{"gone", true, true, nil, len(long) + len(short), true},
		{"another one there", true, true, stored{1: short, 3: short}, len(long) + len(short), true},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t)
			rec := w.mustClient(w.MustQueue("q"))
			l, get := rec.stream, rec.get()
			log := sharedLog{whole, group.Spec{Group: 8, Queue: l.Queue()}, c.there, c.knows}
			n, links, sent := otherNode(w)
			x := &dispatcher{Node: n, routes: stream.NewTable(host{Node: n}), links: links, readsStored: func(node string) bool { return node == "n1" && c.reads }}
			_, back, told := otherNode(w)
			r := &dispatcher{Node: w.node, routes: w.queues.Routes, links: back, replica: func(id fsm.GroupID) member {
				if id == 8 {
					return log
				}
				return nil
			}}
			to := fsm.ConsumerID{Session: rec.id, Number: 5}
			delivery := func(id uint64, to fsm.ConsumerID) fsm.Delivery {
				return fsm.Delivery{To: to, ID: id, Ref: fsm.Ref{Index: id, Size: uint32(len(whole[id]))}, Acquired: uint32(id)}
			}
			held := []fsm.Delivery{delivery(1, to), delivery(2, to), delivery(3, to)}
			x.deliveries(log, l.Queue(), append(slices.Clone(held), delivery(4, fsm.ConsumerID{Session: rec.id})))
			if len(*sent) != 1 || len((*sent)[0].payload) != c.sent {
				t.Fatalf("%d messages, the first with %d bytes, want %d", len(*sent), len((*sent)[0].payload), c.sent)
			}
			r.onDeliveries("n2", (*sent)[0].head, (*sent)[0].payload)
			after, asked := rec.position()
			if asked != c.asks || len(*told) > 0 != asked {
				t.Fatalf("it asks after delivery %d: %v; it says %v", after, asked, *told)
			}
			for _, said := range *told {
				var m peerpb.Notice
				if err := m.UnmarshalVT(said.head); err != nil || said.node != "n2" || m.Kind != peerpb.Notice_MISSED || m.Group != 8 {
					t.Errorf("it says %v to %s; %v", &m, said.node, err)
				}
			}
			if asked {
				*sent = nil
				x.resync(log, l.Queue(), &group.Resynced{To: to, Last: 3, Held: held[after:]})
				r.onDeliveries("n2", (*sent)[0].head, (*sent)[0].payload)
			}
			if len(rec.messages) != 3 || get.Got == nil || !bytes.Equal(get.Got.Payload, long) {
				t.Fatalf("%d messages, got %v", len(rec.messages), get.Got)
			}
			for i, m := range rec.messages {
				if m.ID != uint64(i+1) || m.Acquired != uint32(i+1) || !bytes.Equal(m.Payload, whole[m.ID]) {
					t.Errorf("message %d has the number %d and %d bytes", i+1, m.ID, len(m.Payload))
				}
			}
		})
	}
}

// A group of another queue shares nothing.
func TestSharedByOtherQueue(t *testing.T) {
	log := sharedLog{of: group.Spec{Group: 8, Queue: 2}, there: stored{1: grouptest.Payload("x")}}
	r := &dispatcher{replica: func(fsm.GroupID) member { return log }}
	at := group.Shared{Ref: fsm.Ref{Index: 1, Size: uint32(len(log.there[1]))}, Term: 3}
	if r.read(2, 8, at) == nil {
		t.Error("what is there is not found")
	}
	if r.read(3, 8, at) != nil {
		t.Error("a message of another queue is found")
	}
}
