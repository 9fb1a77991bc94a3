package replica

import (
	"runtime"
	"sync"

	"github.com/hashicorp/raft"
)

// gaugeOf is the function of raft that looks for the oldest entry of a leader's log, each ten seconds, for a
// gauge that nobody reads.
const gaugeOf = "github.com/hashicorp/raft.oldestLog"

// raftsLog is a log as raft gets it. It lets raft's gauge wait until the leadership is over, since thousands of
// groups would wake their nodes for it, and tells when there is more.
type raftsLog struct {
	raft.LogStore
	over   func() <-chan struct{} // closed when the replica leads no more
	ending <-chan struct{}
	grown  func() // nil: nobody wants to know
	first  *first // of a leader that resumes its term; nil: it does not
}

// StoreLogs implements raft.LogStore.
func (l raftsLog) StoreLogs(logs []*raft.Log) error {
	isFirst := l.first != nil && l.first.fill(logs)
	err := l.LogStore.StoreLogs(logs)
	if isFirst {
		l.first.keep(err)
	}
	if l.grown != nil {
		l.grown()
	}
	return err
}

// FirstIndex implements raft.LogStore.
func (l raftsLog) FirstIndex() (uint64, error) {
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
