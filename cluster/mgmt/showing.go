package mgmt

import (
	"bytes"
	"encoding/json"
	"net/http"
	"sync"
	"time"

	"github.com/quorate/quorate/cluster/mgmt/api"
)

// Bounds of answers with messages.
const (
	maxShowing  = 2               // answers at a time, and one of each user
	showingWait = 5 * time.Second // for a place
	showingSize = 1 << 20         // more than that keeps its place until it is written
)

// showing bounds the answers with messages in them, whose size nobody knows before the messages are there. An answer
// has a place while its messages are in memory; a small one gives it back before it is written, so that clients
// that read slowly keep nobody waiting. What a large one takes counts as held for its user.
//
// Invariants: len(users) ≤ maxShowing; changed is closed and replaced when a place becomes free.
type showing struct {
	hold func(user string) func(bytes int64) error

	mu      sync.Mutex
	users   map[string]bool
	changed chan struct{}
}

// newShowing: hold nil: there are no bounds.
func newShowing(hold func(string) func(int64) error) *showing {
	if hold == nil {
		hold = func(string) func(int64) error { return func(int64) error { return nil } }
	}
	return &showing{hold: hold, users: map[string]bool{}, changed: make(chan struct{})}
}

// place takes a place for a user, or returns what must change before there is one.
func (s *showing) place(user string) (wait <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.users) == maxShowing || s.users[user] {
		return s.changed
	}
	s.users[user] = true
	return nil
}

func (s *showing) leave(user string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.users, user)
	close(s.changed)
	s.changed = make(chan struct{})
}

// begin waits for a place. It answers the request, and returns nil, if there is none.
func (s *showing) begin(w *responder, r *request) *answering {
	user := r.user.GetName()
	late := time.After(showingWait)
	for {
		wait := s.place(user)
		if wait == nil {
			break
		}
		select {
		case <-wait:
		case <-r.Context().Done():
			return nil
		case <-late:
			w.answer(http.StatusServiceUnavailable, api.Failure{Error: "unavailable", Reason: "too many requests for messages at a time; try again later"})
			return nil
		}
	}
	x := &answering{of: s, user: user, w: w, hold: s.hold(user)}
	if err := x.counts(0); err != nil {
		w.unavailable(err)
		x.end()
		return nil
	}
	return x
}

// answering is one answer that has a place.
type answering struct {
	of   *showing
	user string
	w    *responder
	hold func(bytes int64) error
	left bool
}

// counts counts the memory that messages of this size take. An error names the bound that does not let it.
func (x *answering) counts(size int) error { return x.hold(int64(max(size, showingSize))) }

// end gives up the place.
func (x *answering) end() {
	if !x.left {
		x.left = true
		_ = x.hold(0) // which always succeeds
		x.of.leave(x.user)
	}
}

// messages writes an answer with n messages, of some size together, between two texts. Each is encoded when it is
// written.
func (x *answering) messages(open string, n int, end string, size int, message func(i int) any) {
	var b bytes.Buffer
	b.WriteString(open)
	x.w.Header().Set("Content-Type", "application/json")
	small := size <= showingSize
	for i := range n {
		if i > 0 {
			b.WriteByte(',')
		}
		e := json.NewEncoder(&b)
		e.SetEscapeHTML(false) // it would take six octets of one, and origin tells browsers that this is no page
		if err := e.Encode(message(i)); err != nil {
			x.w.log.Error("message not encoded", "error", err)
			return
		}
		b.Truncate(b.Len() - 1) // the end of the line
		if !small && !x.write(&b) {
			return
		}
	}
	b.WriteString(end)
	if small {
		x.end()
	}
	x.write(&b)
}

// write writes what is encoded.
func (x *answering) write(b *bytes.Buffer) bool {
	_, err := b.WriteTo(x.w)
	x.w.written(err)
	if b.Cap() > showingSize {
		*b = bytes.Buffer{}
	}
	return err == nil
}
