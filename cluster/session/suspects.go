package session

import "sync"

// suspect is the last process of a node that is not heard any more.
type suspect struct {
	incarnation [16]byte
	since       int64 // ms
	// restarted: the node is back under another incarnation, which proves without asking anybody
	// that this one has ended.
	restarted bool
	tried     int64 // last attempt to have it declared dead, ms; 0: never
}

// suspects are the nodes that this one does not hear.
type suspects struct {
	mu     sync.Mutex
	byName map[string]suspect
}

func (x *suspects) get(node string) (suspect, bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	s, ok := x.byName[node]
	return s, ok
}

func (x *suspects) count() int {
	x.mu.Lock()
	defer x.mu.Unlock()
	return len(x.byName)
}

func (x *suspects) names() []string {
	x.mu.Lock()
	defer x.mu.Unlock()
	names := make([]string, 0, len(x.byName))
	for name := range x.byName {
		names = append(names, name)
	}
	return names
}

// down records that a process is not heard any more.
func (x *suspects) down(node string, s suspect) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.byName[node] = s
}

// up records that a process is heard. If it is not the suspected one, that one has ended.
func (x *suspects) up(node string, incarnation [16]byte) {
	x.mu.Lock()
	defer x.mu.Unlock()
	s, ok := x.byName[node]
	switch {
	case !ok:
	case s.incarnation == incarnation:
		delete(x.byName, node)
	default:
		s.restarted = true
		x.byName[node] = s
	}
}

// absent records a node that has never been heard, unless alive says that it is heard by now.
func (x *suspects) absent(node string, s suspect, alive func() bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if _, ok := x.byName[node]; !ok && !alive() {
		x.byName[node] = s
	}
}

// forget drops the suspect if it is still this process, which the catalog no longer knows.
func (x *suspects) forget(node string, s suspect) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.byName[node].incarnation == s.incarnation {
		delete(x.byName, node)
	}
}

// try reports whether it is time for an attempt to have a suspect declared dead.
func (x *suspects) try(node string, now int64) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	s, ok := x.byName[node]
	if !ok || s.tried != 0 && now-s.tried < declareEvery {
		return false
	}
	s.tried = now
	x.byName[node] = s
	return true
}
