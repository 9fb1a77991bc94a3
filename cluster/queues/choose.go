package queues

import (
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/quorate/quorate/cluster/group"
	"github.com/quorate/quorate/cluster/self"
	"github.com/quorate/quorate/cluster/worker"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/queue"
	"github.com/quorate/quorate/fsm/selector"
	"github.com/quorate/quorate/proto/logpb"
)

// Bounds of one round of the search for the consumers of a queue that have selectors.
const (
	searchedAtOnce = 10_000   // messages, for each consumer
	searchedBytes  = 16 << 20 // of their payloads, likewise
	searchedPage   = 256      // messages that are read in one go
	chosenAtOnce   = 256      // messages that one Choose names, see fsm/queue
	choosersAtOnce = 4        // queues
	// sparedSearches is how many more searches are remembered than were in use when that was last looked at,
	// or than twice as many: of consumers of a queue, and of queues. A selector is 4 KiB of text, and more as read.
	sparedSearches = 16
	// choiceWait is when a Choose that has not been applied counts as lost. Two of one number
	// do no harm.
	choiceWait  = time.Second
	searchAgain = time.Millisecond
)

// Fields reads stored messages for selectors.
type Fields func(p fsm.Payload) selector.Message

// chooser finds, for the consumers with selectors of the queues that this node leads, the messages that match, and has
// them handed out. What it has passed over for a consumer does not match, unless it comes back: then it is read
// again. Nothing of this is state: another leader searches from the front.
type chooser struct {
	node   *self.Node
	fields Fields
	rounds *worker.Queue[fsm.GroupID]

	mu       sync.Mutex
	searches map[fsm.GroupID]*search
	limit    int // searches before those are forgotten that are over
}

func newChooser(n *self.Node, fields Fields) *chooser {
	x := &chooser{node: n, fields: fields, searches: map[fsm.GroupID]*search{}}
	x.rounds = worker.NewQueue(n.Guard, "search for consumers with selectors", choosersAtOnce, x.round)
	x.rounds.Start()
	return x
}

// search is how far a queue was searched in one term of this node. Rounds use it one at a time.
type search struct {
	term  uint64
	turn  int
	of    map[uint64]*progress // by the age of a consumer
	limit int                  // of them before those are forgotten whose consumers are gone
}

// crowded reports whether consumers that are gone are to be forgotten.
func (s *search) crowded() bool { return len(s.of) > max(s.limit, sparedSearches) }

// keep forgets all consumers but these.
func (s *search) keep(ages map[uint64]struct{}) {
	maps.DeleteFunc(s.of, func(age uint64, _ *progress) bool {
		_, lives := ages[age]
		return !lives
	})
	s.limit = 2*len(s.of) + sparedSearches
}

// progress is how far a queue was searched for a consumer.
type progress struct {
	selector *selector.Selector // nil: it is none, and nothing matches
	first    uint64             // what was never handed out was searched up to this number
	again    uint64             // and what was returned, unless whole
	whole    bool               // all that was returned was searched
	cameBack uint64             // as of the beginning of that

	number uint64   // of the newest Choose
	named  []uint64 // by it; nil: it is known what became of them
	since  time.Time
}

// restart begins the search again from a number on, and anew for what was returned.
func (p *progress) restart(from uint64) {
	p.first = min(p.first, from-1)
	p.again, p.whole, p.named = 0, false, nil
}

// of returns the search of a group in a term; nil: this node does not lead it.
func (x *chooser) of(id fsm.GroupID) (*group.Group, *search) {
	g := x.node.Groups.Group(id)
	x.mu.Lock()
	defer x.mu.Unlock()
	term := uint64(0)
	if g != nil {
		term = g.Leading()
	}
	if term == 0 {
		delete(x.searches, id)
		return nil, nil
	}
	s := x.searches[id]
	if s == nil || s.term != term {
		s = &search{term: term, of: map[uint64]*progress{}}
		x.searches[id] = s
		x.forget()
	}
	return g, s
}

// forget forgets the searches of queues that are gone or led by others, now and then. mu is held.
func (x *chooser) forget() {
	if len(x.searches) <= max(x.limit, sparedSearches) {
		return
	}
	maps.DeleteFunc(x.searches, func(id fsm.GroupID, s *search) bool {
		g := x.node.Groups.Group(id)
		return g == nil || g.Leading() != s.term
	})
	x.limit = 2*len(x.searches) + sparedSearches
}

// round searches a queue for each of its consumers that may be handed messages.
func (x *chooser) round(id fsm.GroupID) (again time.Duration) {
	g, s := x.of(id)
	if s == nil {
		return 0
	}
	var all []queue.Chooser
	g.View(func(m *queue.Machine) {
		if all = queue.Choosers(m); s.crowded() {
			s.keep(queue.Selective(m))
		}
	})
	s.turn++
	for i := range all {
		c := &all[(s.turn+i)%len(all)]
		p := s.of[c.Age]
		if p == nil {
			p = &progress{}
			p.selector, _ = selector.Parse(c.Selector) // the consumer was refused if it is none
			s.of[c.Age] = p
		}
		if d := x.choose(g, p, c); d > 0 && (again == 0 || d < again) {
			again = d
		}
	}
	return again
}

// choose searches for one consumer, and proposes what it finds. It returns when it is to go on; 0: when the queue has
// changed.
func (x *chooser) choose(g *group.Group, p *progress, c *queue.Chooser) (again time.Duration) {
	if p.number >= c.Number {
		if left := choiceWait - time.Since(p.since); left > 0 {
			return left
		}
		if len(p.named) > 0 {
			p.restart(p.named[0])
		}
	} else if len(p.named) > 0 {
		p.settle(g)
	}
	if p.selector == nil {
		return 0
	}
	found, searched, more := x.find(g, p, c.Least, min(c.Credit, chosenAtOnce))
	if more {
		again = searchAgain
	}
	if len(found) == 0 && !(c.Drains && searched > 0) {
		return again
	}
	slices.Sort(found)
	p.number, p.named, p.since = c.Number, found, time.Now()
	b := group.BatchOf(&logpb.Command{Kind: logpb.Command_CHOOSE, Choose: &logpb.Choose{
		Session: c.ID.Session.Proto(), Consumer: c.ID.Number, Number: c.Number, Messages: found, Searched: searched,
	}})
	b.Light = true
	if g.Submit(b) != nil && len(found) > 0 {
		p.restart(found[0])
		p.number--
	}
	return choiceWait
}

// settle goes back if something that was named is still ready: the consumer had no credit for it.
func (p *progress) settle(g *group.Group) {
	named := p.named
	p.named = nil
	g.View(func(m *queue.Machine) {
		for _, n := range named {
			b := queue.Browse{After: n - 1, Limit: 1}
			if b.Scan(m); len(b.Found) > 0 && b.Found[0].Seq == n {
				p.restart(n)
				return
			}
		}
	})
}

// find searches on, for at most so many messages that match. searched is the entry up to which all was searched;
// 0: not all was. more: it has stopped at a bound.
func (x *chooser) find(g *group.Group, p *progress, least fsm.Millis, limit int) (found []uint64, searched uint64, more bool) {
	left, bytes := searchedAtOnce, searchedBytes
	page := func(in queue.Part, cursor *uint64) (end bool, index, back uint64) {
		b := queue.Browse{After: *cursor, Limit: min(searchedPage, left), Now: g.Now(), In: in}
		g.View(func(m *queue.Machine) {
			b.Scan(m)
			index = m.Index()
		})
		back = b.CameBack
		for i := range b.Found {
			of := &b.Found[i]
			if len(found) == limit || left == 0 || bytes <= 0 {
				return false, index, back
			}
			left--
			bytes -= int(of.Ref.Size)
			*cursor = of.Seq
			if of.ExpireAt != 0 && of.ExpireAt < b.Now.Add(least) {
				continue // which it never gets
			}
			if payload, err := g.Payload(of.Ref); err == nil && p.selector.Matches(x.fields(fsm.Readable(payload))) {
				found = append(found, of.Seq)
			}
		}
		*cursor = max(*cursor, b.Seen)
		return b.Seen >= b.Newest, index, back
	}
	for _, in := range [2]queue.Part{queue.Again, queue.First} {
		for end := false; !end; {
			if len(found) == limit || left == 0 || bytes <= 0 {
				return found, 0, len(found) < limit
			}
			var back uint64
			if in == queue.First {
				end, searched, back = page(in, &p.first)
				if back != p.cameBack {
					p.again, p.whole = 0, false
					return found, 0, true
				}
				continue
			}
			if p.whole {
				break
			}
			if p.again == 0 {
				var b queue.Browse
				g.View(b.Scan)
				p.cameBack = b.CameBack
			}
			end, _, _ = page(in, &p.again)
			p.whole = end
		}
	}
	return found, searched, false
}
