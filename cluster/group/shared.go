package group

import (
	"sync"

	"github.com/quorate/quorate/fsm"
)

// sharing says from which entry on other members have in memory what their leader has.
type sharing struct {
	mu     sync.Mutex
	missed map[string]uint64 // by node: the newest entry when it said that it had missed something
}

// since returns the last entry of which a node may lack something.
func (s *sharing) since(node string) uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.missed[node]
}

// miss notes that a node may lack something of the entries up to index.
func (s *sharing) miss(node string, index uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.missed == nil {
		s.missed = map[string]uint64{}
	}
	s.missed[node] = max(s.missed[node], index)
}

// Shared is a payload that a leader need not send to a member, because it lies in an entry of that
// member's log. Entries of the same index and term are the same in all logs.
type Shared struct {
	fsm.Ref
	Term uint64
}

// Shares says where a member finds a payload that this leader would send to it. It finds it if it has
// acknowledged the entry, or if the entry is ahead of what is sent now. What is in memory here should be
// there, too; if not, the member says so (Missed).
func (g *Group) Shares(node string, ref fsm.Ref) (at Shared, ok bool) {
	lead := g.leadership.serving()
	if g.store == nil || lead == 0 || g.sharing.since(node) >= ref.Index {
		return Shared{}, false
	}
	payloads, term := g.store.Recent(ref.Index)
	if payloads == nil || g.reached(node, lead).Index < ref.Index && g.transport.Sent(node, lead) < ref.Index {
		return Shared{}, false
	}
	return Shared{ref, term}, true
}

// Missed notes that a node has not found a payload where it was said to be: it may have begun after the
// entries that there are, or have let go of them. It is sent what they carried.
func (g *Group) Missed(node string) {
	if g.store != nil && g.order.opened() {
		g.sharing.miss(node, g.order.applied())
	}
}

// Stored returns a payload that a leader shares with this member; nil: it is not in memory. The entry may
// still be on its way into the log, where its arrival ends.
func (g *Group) Stored(at Shared) []byte {
	if g.store == nil {
		return nil
	}
	payloads := g.mesh.Arriving(g.id, at.Index, at.Term)
	if payloads == nil {
		var term uint64
		if payloads, term = g.store.Recent(at.Index); term != at.Term {
			return nil
		}
	}
	end := uint64(at.Offset) + uint64(at.Size)
	if end > uint64(len(payloads)) {
		return nil
	}
	return payloads[at.Offset:end:end]
}
