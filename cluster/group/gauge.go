package group

import (
	"runtime"
	"sync"

	"github.com/hashicorp/raft"
)

// gaugeOf is the function of raft that looks for the oldest entry of a leader's log, each ten seconds, for a
// gauge that nobody reads.
const gaugeOf = "github.com/hashicorp/raft.oldestLog"

// gaugeless is a log that lets raft's gauge wait until the leadership is over: thousands of groups would wake
// their nodes for it.
type gaugeless struct {
	raft.LogStore
	over   func() <-chan struct{} // closed when the replica leads no more
	ending <-chan struct{}
}

// FirstIndex implements raft.LogStore.
func (l gaugeless) FirstIndex() (uint64, error) {
	var caller [1]uintptr
	runtime.Callers(2, caller[:])
	if frame, _ := runtime.CallersFrames(caller[:]).Next(); frame.Function != gaugeOf {
		return l.LogStore.FirstIndex()
	}
	select {
	case <-l.over():
	case <-l.ending:
	}
	return 0, nil
}

// tenure is a channel that is closed when a leadership ends.
type tenure struct {
	mu   sync.Mutex
	done chan struct{} // nil: nobody has asked for it
}

func (t *tenure) over() <-chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.done == nil {
		t.done = make(chan struct{})
	}
	return t.done
}

// end ends it. The next one begins.
func (t *tenure) end() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.done != nil {
		close(t.done)
		t.done = nil
	}
}
