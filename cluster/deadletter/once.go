package deadletter

import (
	"sync"
	"sync/atomic"

	"github.com/quorate/quorate/cluster/stream"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/fsm/queue"
	"github.com/quorate/quorate/proto/logpb"
)

const (
	// onceNumber is the number of its session: no client's.
	onceNumber = 1 << 63
	// onceBytes bounds what it has under way.
	onceBytes = 32 << 20
)

// onceSender brings dead messages to their targets that are in no outbox: those
// of queues that deliver at most once, and those that a queue drops or refuses
// because it is too long. What a target refuses, or what this node loses by its
// own end, is gone. All led queues share its stream to a target.
type onceSender struct {
	mu      sync.Mutex
	streams map[fsm.QueueID]*onceStream
	bytes   int // of the payloads in the streams

	missed atomic.Uint64 // letters with nowhere to go, copies that did not arrive
}

// SendOnce routes dead messages of a led queue that are in no outbox, and sets
// them on their way. Their payloads can be read while it runs.
func (s *Sender) SendOnce(from Group, letters []fsm.DeadLetter) {
	var config *logpb.QueueConfig
	from.View(func(m *queue.Machine) { config = m.Config() })
	view, spec, lost := s.host.View(), from.Spec(), 0
	for i := range letters {
		l := &letters[i]
		raw, err := from.Payload(l.Ref)
		if err != nil {
			lost++
			continue
		}
		p := fsm.Readable(raw)
		targets, copies, limits := s.wayTargets(view, spec.VHost, config, l, p)
		for _, q := range targets {
			copies = append(copies, letterCopy{queue: q})
		}
		if len(copies) == 0 {
			s.once.missed.Add(1)
			continue
		}
		for _, c := range copies {
			payload := s.deadPayload(config, l, p)
			if len(c.edit) > 0 {
				payload = s.filters.filters.Edited(payload, c.edit, l.Sequence)
			}
			e := s.reenqueue(config, l, p, payload, c.ceiling(limits).Stored())
			s.comeTo(c.queue, e, payload)
			if !s.addOnce(c.queue, e, payload) {
				lost++
			}
		}
	}
	if lost > 0 {
		s.once.missed.Add(uint64(lost))
		s.slog.Warn("dead letters dropped", "queue", spec.Name, "count", lost)
	}
}

// addOnce puts a letter into the stream to its target; false: there is none, or no
// room.
func (s *Sender) addOnce(q *catalog.Queue, e *logpb.Enqueue, payload fsm.Payload) bool {
	s.once.mu.Lock()
	defer s.once.mu.Unlock()
	x := s.onceStream(s.routes.Route(q))
	if x == nil || x.stream.Over() || s.once.bytes > onceBytes {
		return false
	}
	x.stream.Add(&logpb.Command{Kind: logpb.Command_ENQUEUE, Enqueue: e}, stream.Pending{Payload: payload})
	s.once.bytes += len(payload)
	return true
}

// onceStream is the stream to one target. It is owned under the sender's lock.
type onceStream struct {
	sender *onceSender
	stream *stream.Stream
}

// onceStream finds or makes the stream to a queue; nil: this node has no number yet.
// The lock is held.
func (s *Sender) onceStream(r *stream.Route) *onceStream {
	if x := s.once.streams[r.Queue()]; x != nil {
		return x
	}
	node, boot := s.host.Self()
	if node == 0 {
		return nil
	}
	x := &onceStream{sender: &s.once}
	x.stream = stream.New(x, nil, fsm.SessionID{Node: node, Boot: boot, Num: onceNumber}, r)
	if r.Attach(x.stream); !x.stream.Gone() {
		s.once.streams[r.Queue()] = x
	}
	return x
}

// Restart begins anew with the node's new boot: what is on its way at most once is
// lost.
func (s *Sender) Restart() {
	s.once.mu.Lock()
	defer s.once.mu.Unlock()
	for _, x := range s.once.streams {
		x.Lost()
	}
}

// Lock takes the sender's lock.
func (x *onceStream) Lock() { x.sender.mu.Lock() }

// Unlock gives it back.
func (x *onceStream) Unlock() { x.sender.mu.Unlock() }

// Answered: the target has the message, or has refused it, or is gone.
func (x *onceStream) Answered(p *stream.Pending, r fsm.Result) {
	x.sender.bytes -= len(p.Payload)
	if r.Code != fsm.OK {
		x.sender.missed.Add(1)
	}
}

// Gone: the catalog has lost the target.
func (x *onceStream) Gone() {
	x.Lock()
	defer x.Unlock()
	x.drop()
}

// Lost: the target took this node for dead. What is on its way is gone; the next
// message begins a new stream, if the node has a new boot number.
func (x *onceStream) Lost() {
	for p := range x.stream.Unanswered() {
		x.sender.bytes -= len(p.Payload)
		x.sender.missed.Add(1)
	}
	x.stream.Abandon()
	x.stream.Route().Detach(x.stream)
	x.drop()
}

// Failed is Lost: what is on its way is gone.
func (x *onceStream) Failed() { x.Lost() }

// drop forgets the stream. The lock is held.
func (x *onceStream) drop() {
	if s := x.sender; s.streams[x.stream.Queue()] == x {
		delete(s.streams, x.stream.Queue())
	}
}
