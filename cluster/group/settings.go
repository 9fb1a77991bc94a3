package group

import (
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/quorate/quorate/fsm/queue"
	"github.com/quorate/quorate/proto/logpb"
)

// settings brings the settings in a queue's log in line with the catalog's while this node leads.
// Every leader does this when its term begins, so none has to remember whether its predecessor
// did.
type settings struct {
	wanted func() *QueueConfig            // what the queue should have; owned by the caller
	view   func(f func(m *queue.Machine)) // reads the machine
	submit func(b Batch) error
	active func()      // called when there is work
	leads  func() bool // whether this node serves as the leader
	spawn  func(f func())
	ending <-chan struct{}
	guard  *guard
	slog   *slog.Logger

	changed  atomic.Bool // the catalog's, since the log's were last seen to be the same
	mu       sync.Mutex
	proposed *QueueConfig // in this term; nil: none
	retry    bool         // the proposed settings may be lost, and are proposed again soon
}

// settingsRetry is the pause before settings that may be lost are proposed again. During a
// leadership transfer, the leader refuses entries.
const settingsRetry = 250 * time.Millisecond

// propose proposes the settings of the catalog if those in the log differ. A new leader does so
// ahead of everything that clients submit. again means that earlier proposals are ignored, as they
// may be lost.
//
// It proposes nothing while the machine's settings come from a newer view of the catalog than this
// node's: it is called again when that view has arrived.
func (s *settings) propose(again bool) {
	defer s.guard.contain("bring in the settings")
	s.mu.Lock()
	defer s.mu.Unlock()
	if again {
		s.proposed = nil
	}
	want := s.wanted()
	last := s.proposed
	if last == nil {
		s.view(func(m *queue.Machine) { last = m.Config() })
	}
	if last == nil {
		return // it is quarantined
	}
	if want.Revision < last.Revision || proto.Equal(last, want) {
		return
	}
	c := &logpb.Command{Kind: logpb.Command_CONFIGURE, Configure: &logpb.Configure{Config: want}}
	if err := s.submit(Batch{Commands: AppendCommand(nil, c), Count: 1, Light: true}); err != nil {
		s.slog.Debug("settings not proposed", "error", err) // the next leader does it
		return
	}
	s.proposed = want
}

// change is propose for changed settings of the catalog, if this node leads.
func (s *settings) change() {
	if !s.leads() {
		return
	}
	s.changed.Store(true)
	s.active()
	s.propose(false)
}

// lost records that an entry may be lost. If it could have been the one with the settings, these
// are proposed again unless they are in effect by then.
func (s *settings) lost() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.proposed == nil || s.retry {
		return
	}
	var hold bool
	s.view(func(m *queue.Machine) { hold = proto.Equal(m.Config(), s.proposed) })
	if hold {
		return
	}
	s.retry = true
	s.spawn(func() {
		pause := time.NewTimer(settingsRetry)
		defer pause.Stop()
		select {
		case <-pause.C:
		case <-s.ending:
		}
		s.mu.Lock()
		s.retry = false
		s.mu.Unlock()
		if s.leads() {
			s.propose(true)
		}
	})
}

// wait reports whether the catalog has settings for the queue that its log lacks; have are the
// machine's.
func (s *settings) wait(have *QueueConfig) bool {
	if !s.changed.Load() {
		return false
	}
	if want := s.wanted(); want.Revision >= have.GetRevision() && !proto.Equal(want, have) {
		return true
	}
	s.changed.Store(false)
	return false
}
