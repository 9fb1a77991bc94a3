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
