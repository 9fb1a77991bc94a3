package session

import (
	"context"
	"errors"
	"maps"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/quorate/quorate/cluster/queues"
	"github.com/quorate/quorate/cluster/self"
	"github.com/quorate/quorate/cluster/worker"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
)

// browser is who is shown the ready messages of a queue and takes none. The queue knows nothing of it: it
// reads at the queue's leader, from the number up to which it has been shown what was ready, so it may
// be another leader at any time.
//
// Invariants: count ≤ limit, or the client has taken credit back; after, last and count never fall.
type browser struct {
	session *Session
	number  uint64
	queue   fsm.QueueID

	// Guarded by the session's lock. count, limit, drain and echo are as in link.
	after, last  uint64 // in the queue; of its own deliveries
	count, limit uint64
	drain, echo  bool
	drainTo      uint64 // the drain ends when it has been shown all up to here; 0: not known yet
	flows        uint64 // that have come
	over         bool
}

// browsers are those of a session.
type browsers struct {
	session *Session
	all     map[uint64]*browser // by number; guarded by the session's lock
}

// browse opens a browser.
func (x *browsers) browse(ctx context.Context, spec *fsm.ConsumeSpec) error {
	s := x.session
	in := s.conn.in
	v := in.node.FreshView(ctx)
	q, err := v.TakeFrom(s.conn.by(), s.conn.vhost, spec.Queue)
	if err != nil {
		return err
	}
	b := &browser{session: s, number: spec.Number, queue: q.ID}
	s.mu.Lock()
	if s.closing {
		s.mu.Unlock()
		return errLost
	}
	if x.all == nil {
		x.all = map[uint64]*browser{}
	}
	x.all[spec.Number] = b
	in.browsing.add(b)
	s.mu.Unlock()
	in.browsing.rounds.Add(q.ID)            // it may be gone
	if err := s.stillReads(q); err != nil { // Renew may have missed it
		x.close(b)
		return err
	}
	return nil
}

// browser returns a browser by its number; nil: there is none.
func (x *browsers) browser(number uint64) *browser {
	x.session.mu.Lock()
	defer x.session.mu.Unlock()
	return x.all[number]
}

// close ends a browser, unless it is nil. It is given nothing more.
func (x *browsers) close(b *browser) (was bool) {
	if b == nil {
		return false
	}
	x.session.mu.Lock()
	defer x.session.mu.Unlock()
	b.leave()
	return true
}

// leave makes a browser be over. The session's lock is held.
func (b *browser) leave() {
	b.over = true
	delete(b.session.browsers.all, b.number)
	b.session.conn.in.browsing.remove(b)
}

// cancel ends a browser, and returns when the client has been given all that it will be given. It
// reports whether there was one.
func (x *browsers) cancel(ctx context.Context, number uint64) bool {
	if !x.close(x.browser(number)) {
		return false
	}
	told := make(chan struct{})
	x.session.lock()
	x.session.add(event{kind: eventPassed, passed: told})
	x.session.unlock()
	select {
	case <-told:
	case <-ctx.Done():
	}
	return true
}

// endAll ends all of a session. The lock is held.
func (x *browsers) endAll() {
	for _, b := range x.all {
		b.leave()
	}
}

// revokeBrowsers ends those of queues that the user may not read any more. The lock is held.
func (x *browsers) revokeBrowsers(v *catalog.View) {
	for _, b := range x.all {
		q, ok := v.QueueByID(b.queue)
		if !ok {
			continue
		}
		if err := v.CheckRead(x.session.conn.user, q); err != nil {
			b.leave()
			x.session.add(event{kind: eventRevoked, consumer: b.number, err: err})
		}
	}
}

// wakeBrowsers has those asked for that may go on.
func (x *browsers) wakeBrowsers() {
	x.session.mu.Lock()
	defer x.session.mu.Unlock()
	for _, b := range x.all {
		x.session.conn.in.browsing.rounds.Add(b.queue)
	}
}

// flow takes in what a client takes. The session's lock is held.
func (b *browser) flow(f *fsm.Flow) {
	behind := int64(int32(uint32(b.count) - f.DeliveryCount))
	b.limit = b.count + uint64(min(max(int64(f.Credit)-behind, 0), math.MaxUint32))
	b.drain, b.echo = f.Drain, b.echo || f.Echo
	b.drainTo = 0
	b.flows++
	b.session.conn.in.browsing.rounds.Add(b.queue)
}

func (b *browser) takes() uint64 { return b.limit - min(b.count, b.limit) }

// browserWish is what a browser wants at the beginning of a round.
type browserWish struct {
	after uint64
	limit int
	flows uint64
}

// wish returns what a browser wants. ok false: nothing.
func (b *browser) wish() (w browserWish, ok bool) {
	s := b.session
	s.mu.Lock()
	defer s.mu.Unlock()
	if b.over || s.closing || s.isLost {
		return w, false
	}
	w = browserWish{after: b.after, limit: int(min(b.takes(), math.MaxInt32)), flows: b.flows}
	if w.limit > 0 && !s.window.fits(1) {
		w.limit = 0 // Written begins a round
	}
	return w, w.limit > 0 || b.drain || b.echo
}

// give gives the client what a queue has shown, as far as it takes it.
func (b *browser) give(page *queues.Browsed) (some bool) {
	s := b.session
	s.lock()
	defer s.unlock()
	if b.over || s.closing || s.isLost {
		return false
	}
	messages := make([]fsm.Message, 0, len(page.Messages))
	for i := range page.Messages {
		p := &page.Messages[i]
		if b.takes() == 0 || !s.window.accept(len(p.Payload)) {
			page.Seen = b.after
			break
		}
		b.last++
		b.count++
		b.after = p.Number
		m := p.Message
		m.Consumer, m.ID, m.ExpireAt = b.number, b.last, p.ExpireAt
		messages = append(messages, m)
	}
	b.after = max(b.after, page.Seen)
	if len(messages) > 0 {
		s.add(event{kind: eventDeliver, messages: messages})
	}
	return len(messages) > 0
}

// answer tells the client what it has asked for before a round in which its queue was asked how far it is.
func (b *browser) answer(w browserWish, at *queues.Browsed) {
	s := b.session
	s.lock()
	defer s.unlock()
	if b.over || b.flows != w.flows || !b.drain && !b.echo {
		return
	}
	if b.drain && b.drainTo == 0 {
		b.drainTo = at.Newest
	}
	drained := b.drain && (b.takes() == 0 || b.after >= b.drainTo)
	if b.drain && !drained {
		return
	}
	if drained {
		b.count = max(b.count, b.limit)
	}
	b.drain, b.echo, b.drainTo = false, false, 0
	s.add(event{kind: eventCredited, consumer: b.number, link: fsm.LinkState{
		DeliveryCount: uint32(b.count), Credit: uint32(b.takes()), Available: at.Ready, Drained: drained,
	}})
}

// Pauses between two rounds in which nothing has come.
const (
	browsePause     = 10 * time.Millisecond
	longBrowsePause = 160 * time.Millisecond
	// browsesAtOnce is how many queues of a node are asked for browsers at a time: one request each.
	browsesAtOnce = 8
)

// browsing are the browsers of this node. In rounds, one after the other, a queue is asked how far it is, and for the
// next messages of each browser that is behind and takes them. So a node has one request of browsers under way to a
// queue, however many there are, and a queue that has nothing new is asked one thing at a time.
type browsing struct {
	*self.Node
	inspector *queues.Inspector
	rounds    *worker.Queue[fsm.QueueID]

	// Taken under locks of sessions.
	mu sync.Mutex
	of map[fsm.QueueID]*browsed
}

// browsed is a queue with browsers.
type browsed struct {
	browsers []*browser
	pause    time.Duration // of rounds only
	newest   uint64        // likewise
}

func newBrowsing(n *self.Node, i *queues.Inspector) *browsing {
	x := &browsing{Node: n, inspector: i, of: map[fsm.QueueID]*browsed{}}
	x.rounds = worker.NewQueue(n.Guard, "ask queues for browsers", browsesAtOnce, x.round)
	x.rounds.Start()
	return x
}

func (x *browsing) add(b *browser) {
	x.mu.Lock()
	defer x.mu.Unlock()
	of := x.of[b.queue]
	if of == nil {
		of = &browsed{}
		x.of[b.queue] = of
	}
	of.browsers = append(of.browsers, b)
}

func (x *browsing) remove(b *browser) {
	x.mu.Lock()
	defer x.mu.Unlock()
	of := x.of[b.queue]
	if of == nil {
		return
	}
	of.browsers = slices.DeleteFunc(of.browsers, func(o *browser) bool { return o == b })
	if len(of.browsers) == 0 {
		delete(x.of, b.queue)
	}
}

// all has all queues with browsers asked.
func (x *browsing) all() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.rounds.Add(slices.Collect(maps.Keys(x.of))...)
}

// list returns a queue with browsers, and these; nil: it has none.
func (x *browsing) list(id fsm.QueueID) (*browsed, []*browser) {
	x.mu.Lock()
	defer x.mu.Unlock()
	of := x.of[id]
	if of == nil {
		return nil, nil
	}
	return of, slices.Clone(of.browsers)
}

// round asks a queue for its browsers. It returns after which time the next round is due; 0: when one of them asks.
func (x *browsing) round(id fsm.QueueID) (again time.Duration) {
	of, all := x.list(id)
	q, ok := x.View().QueueByID(id)
	if !ok {
		endBrowsers(all)
		return 0
	}
	wishes := make([]browserWish, len(all))
	wanted := false
	for i, b := range all {
		var some bool
		if wishes[i], some = b.wish(); some {
			wanted = true
		} else {
			all[i] = nil
		}
	}
	if !wanted {
		return 0
	}
	of.pause = min(max(2*of.pause, browsePause), longBrowsePause)
	at, err := x.inspector.Browse(x.Life(), q, 0, 0)
	if gone := new(fsm.Refusal); errors.As(err, &gone) {
		_, all = x.list(id)
		endBrowsers(all)
		return 0
	} else if err != nil {
		return of.pause
	}
	if at.Newest > of.newest {
		of.newest, of.pause = at.Newest, browsePause
	}
	for i, b := range all {
		if b == nil {
			continue
		}
		if w := wishes[i]; w.limit > 0 && w.after < at.Newest {
			page, err := x.inspector.Browse(x.Life(), q, w.after, w.limit)
			if err != nil {
				continue
			}
			if before := w.after; b.give(&page) || page.Seen > before {
				x.rounds.Add(id)
			}
		}
		b.answer(wishes[i], &at)
	}
	return of.pause
}

// endBrowsers ends the browsers of a queue that is gone, and tells their clients.
func endBrowsers(all []*browser) {
	for _, b := range all {
		b.session.lock()
		if !b.over {
			b.leave()
			b.session.add(event{kind: eventCancelled, consumer: b.number})
		}
		b.session.unlock()
	}
}
