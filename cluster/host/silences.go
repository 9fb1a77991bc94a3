package host

import (
	"sync"
	"time"

	"github.com/quorate/quorate/cluster/peer"
)

// majorityWait is how long a leader goes on without a majority of its voters in reach.
const majorityWait = 30 * time.Second

// silences are the nodes that cannot be reached, and since when. It is a leader's lease, for all groups of the
// node at once.
type silences struct {
	mu    sync.Mutex
	since map[string]time.Time
}

// long takes up which nodes can be reached, and returns those that could not be for majorityWait.
func (s *silences) long(peers []peer.PeerStatus, now time.Time) map[string]bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	was := s.since
	s.since = nil
	var long map[string]bool
	for _, p := range peers {
		if p.Alive {
			continue
		}
		since, known := was[p.Node]
		if !known {
			since = now
		}
		if s.since == nil {
			s.since = map[string]time.Time{}
		}
		if s.since[p.Node] = since; now.Sub(since) >= majorityWait {
			if long == nil {
				long = map[string]bool{}
			}
			long[p.Node] = true
		}
	}
	return long
}

// outnumbered returns a voter that a leader steps down for: so many cannot be reached that the rest is no
// majority. Empty: there is none.
func outnumbered(voters []string, silent map[string]bool) (other string) {
	n := 0
	for _, v := range voters {
		if silent[v] {
			n, other = n+1, v
		}
	}
	if 2*(len(voters)-n) > len(voters) {
		return ""
	}
	return other
}
