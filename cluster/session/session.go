package session

import (
	"context"
	"time"

	"github.com/quorate/quorate/cluster/stream"
	"github.com/quorate/quorate/cluster/traffic"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
)

// closeWait bounds how long closing a session waits for its queues.
const closeWait = 3 * time.Second

// Session is one channel of one client of this node. Its parts share one lock, that of calls,
// because an answer may concern several of them.
type Session struct {
	conn *Connection
	id   fsm.SessionID // set before the session is used

	traffic *traffic.Channel

	calls
	streams
	definer
	publisher
	consumers
	replies
	exchange commandExchange
}

func newSession(c *Connection, client fsm.SessionEvents) *Session {
	b, s := c.broker, &Session{conn: c}
	s.calls = calls{client: client, tasks: b.tasks, reroute: &s.publisher, router: b.replies}
	s.streams = streams{session: s, routes: b.routes, available: b.available, queues: map[fsm.QueueID]*sessionQueue{}}
	s.definer = definer{
		conn: c, calls: &s.calls, streams: &s.streams, replies: &s.replies,
		definitions: b.definitions, available: b.available, inspector: b.Inspector,
	}
	s.publisher = publisher{
		conn: c, calls: &s.calls, streams: &s.streams, replies: &s.replies, exchange: &s.exchange,
		node: b.node, tasks: b.tasks, answers: b.answers, properties: b.config.Properties,
		publishMemo: publishMemo{message: catalog.Message{Local: b.leadsHere, Passed: b.definitions.uses.exchange}},
	}
	s.consumers = consumers{
		conn: c, calls: &s.calls, streams: &s.streams, replies: &s.replies,
		node: b.node, available: b.available, inspector: b.Inspector, defaults: b.config.Defaults, known: map[uint64]*consumer{},
	}
	s.replies = replies{conn: c, id: &s.id, calls: &s.calls, window: &s.consumers.window, router: b.replies}
	s.exchange = commandExchange{
		conn: c, calls: &s.calls, streams: &s.streams, consumers: &s.consumers, replies: &s.replies,
		node: b.node, tasks: b.tasks, answers: b.answers, properties: b.config.Properties,
	}
	return s
}

func (s *Session) broker() *Broker { return s.conn.broker }

// Refresh brings this node's view up to date: afterwards it holds every change that has been
// reported as done to a client of any node.
func (s *Session) Refresh(ctx context.Context) error { return s.broker().catalog.Refresh(ctx) }

// abandon ends the session in all queues because its boot is over.
func (s *Session) abandon() {
	s.lock()
	defer s.unlock()
	s.strays = nil
	s.streams.abandon()
	s.lose(errLost)
}

// Close returns what the session holds and ends its consumers. Publishes whose queue is gone are
// routed again first. It does not wait for queues without a leader: they are told once they have
// one.
func (s *Session) Close(ctx context.Context) {
	s.mu.Lock()
	if !s.closing {
		s.broker().limits.removeChannel(s.conn)
	}
	s.closing = true
	ends, strays := s.end()
	s.mu.Unlock()
	if len(ends) == 0 && !strays {
		s.forget()
		return
	}
	done := make(chan struct{})
	s.broker().spawn("end a session", func() {
		defer close(done)
		s.finish(ends)
	})
	limit := time.NewTimer(closeWait)
	defer limit.Stop()
	select {
	case <-done:
	case <-limit.C:
	case <-ctx.Done():
	}
}

// strayRetry is the pause before a closing session checks again whether publishes wait for the end
// of their queue.
const strayRetry = 50 * time.Millisecond

// finish waits until the queues know that the session has ended.
func (s *Session) finish(ends []*stream.Call) {
	stop := s.broker().stop
	for {
		for _, k := range ends {
			select {
			case <-k.Done():
			case <-stop:
				return
			}
		}
		s.mu.Lock()
		var strays bool
		ends, strays = s.end()
		s.mu.Unlock()
		switch {
		case len(ends) > 0:
		case !strays:
			s.forget()
			return
		default:
			select {
			case <-time.After(strayRetry):
			case <-stop:
				return
			}
		}
	}
}

// forget removes the session from this node.
func (s *Session) forget() {
	s.broker().clients.remove(s)
	s.closeTraffic()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.detach()
}
