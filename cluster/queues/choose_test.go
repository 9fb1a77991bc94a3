package queues

import (
	"testing"

	"github.com/quorate/quorate/fsm"
)

// Consumers come and go; a search keeps what it knows for those that live, and never much more.
func TestSearchForgetsConsumers(t *testing.T) {
	s := &search{of: map[uint64]*progress{}}
	lives := map[uint64]struct{}{3: {}}
	s.of[3] = &progress{first: 7}
	for age := uint64(10); age < 10_000; age++ {
		if s.crowded() {
			s.keep(lives)
		}
		s.of[age] = &progress{}
		if len(s.of) > 2*len(lives)+sparedSearches+1 {
			t.Fatalf("%d consumers are remembered, %d live", len(s.of), len(lives))
		}
	}
	if p := s.of[3]; p == nil || p.first != 7 {
		t.Errorf("the one that lives is forgotten: %v", p)
	}
}

// So do queues.
func TestChooserForgetsQueues(t *testing.T) {
	x := newWorld(t).queues.dispatcher.chooser
	for id := fsm.GroupID(1); id < 1000; id++ {
		x.mu.Lock()
		x.searches[id] = &search{term: 1}
		x.forget()
		n := len(x.searches)
		x.mu.Unlock()
		if n > sparedSearches {
			t.Fatalf("%d queues are remembered, none is led", n)
		}
	}
}
