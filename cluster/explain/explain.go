// Package explain tells the life of a message of a queue: it restores a snapshot,
// replays the log behind it through queue.Machine, and compares what the machine
// says of the message before and after each command. What it tells is therefore
// what the replicas did, not what somebody logged.
//
// It is the same on a running node and for the data folder of a node that has
// stopped. It reads no payload: messages are known by the id that came with their
// enqueue, or by their number.
package explain

import (
	"fmt"
	"io"
	"slices"

	"github.com/quorate/quorate/cluster/mgmt/api"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/fsm/queue"
	"github.com/quorate/quorate/proto/logpb"
)

const (
	// maxLives bounds the messages that are followed, maxEvents what is told of
	// each.
	maxLives  = 64
	maxEvents = 1000
	// keptEnds are remembered while the log is replayed.
	keptEnds = 100_000
)

// Wanted says which messages are to be told of.
type Wanted struct {
	MessageID string // empty: by number
	Number    uint64
}

// Names names queues and nodes.
type Names interface {
	QueueByID(id fsm.QueueID) (*catalog.Queue, bool)
	Node(id fsm.NodeID) (*logpb.NodeState, bool)
}

// Tracer follows messages through the log of one queue. Restore comes first, if
// there is a snapshot; then Apply for each entry.
type Tracer struct {
	wanted Wanted
	names  Names
	m      *queue.Machine
	lives  []*life
	eff    fsm.Effects
	ends   uint64 // number of the next record that was not read
	from   uint64 // entry that the snapshot covers
}

// life is what is known of one message.
type life struct {
	api.Life
	ref    fsm.Ref
	follow queue.Follow
	lives  bool // the machine has it
	// why it left its holder, if it has and the machine has not finished with it
	why     string
	letter  uint64
	arrived int
	settled bool
}

// New returns a tracer for a queue. newest is the version of the machine that the
// program supports.
func New(q *catalog.Queue, newest uint32, wanted Wanted, names Names) *Tracer {
	t := &Tracer{wanted: wanted, names: names, m: queue.New(q.Name, q.ID), ends: 1}
	t.wanted.MessageID = fsm.Label([]byte(wanted.MessageID))
	t.m.Supports(newest)
	queue.KeepEnds(t.m, keptEnds)
	return t
}

// Machine is the machine in its present state.
func (t *Tracer) Machine() *queue.Machine { return t.m }

// Restore begins with a snapshot: with the records of those that ended before, and
// with the messages that it holds.
func (t *Tracer) Restore(state io.Reader) error {
	if err := t.m.Restore(state); err != nil {
		return err
	}
	t.from = t.m.Index()
	queue.EndsOf(t.m).From(0, func(e queue.End) bool {
		if t.isWanted(e.MessageID, e.Seq) && e.Count == 0 {
			t.fromRecord(&e)
		}
		return true
	})
	t.ends = queue.EndsOf(t.m).Next()
	for x := range t.m.Messages() {
		if t.isWanted(x.MessageID, x.Seq) {
			t.found(&x)
		}
	}
	return nil
}

// isWanted reports whether a message is to be told of.
func (t *Tracer) isWanted(messageID string, number uint64) bool {
	if t.wanted.MessageID != "" {
		return messageID == t.wanted.MessageID
	}
	return number == t.wanted.Number && number != 0
}

// begin begins a life; nil: there are too many.
func (t *Tracer) begin(ref fsm.Ref, messageID, correlationID string, number uint64) *life {
	if len(t.lives) >= maxLives {
		return nil
	}
	l := &life{ref: ref, Life: api.Life{Message: number, MessageID: messageID, CorrelationID: correlationID, State: "ended", Events: []api.LifeEvent{}}}
	t.lives = append(t.lives, l)
	return l
}

// fromRecord tells of a message that had ended before the snapshot.
func (t *Tracer) fromRecord(e *queue.End) {
	l := t.begin(e.Ref, e.MessageID, e.CorrelationID, e.Seq)
	if l == nil {
		return
	}
	if e.EnqueuedAt != 0 {
		l.add(api.LifeEvent{At: int64(e.EnqueuedAt), Index: e.Ref.Index, Event: "enqueued", ExpiresAt: int64(e.ExpireAt)})
	}
	t.died(l, e)
	t.letterNews(l)
}

// found tells of a message that is in the snapshot.
func (t *Tracer) found(x *queue.Message) {
	i := slices.IndexFunc(t.lives, func(l *life) bool { return l.ref == x.Ref })
	var l *life
	if i >= 0 {
		l = t.lives[i] // it has died, and its letter is there
	} else if l = t.begin(x.Ref, x.MessageID, x.CorrelationID, x.Seq); l == nil {
		return
	}
	l.follow, l.lives = queue.FollowRef(t.m, x.Ref)
	l.follow.HandedTo(x.Holder, x.Delivery)
	if i < 0 {
		e := t.event("in the snapshot")
		e.Why, e.ExpiresAt, e.Until, e.Letter = x.Place.String(), int64(x.ExpireAt), int64(max(x.DueAt, x.Deadline)), x.Letter
		if x.Acquired > 0 {
			e.Why += fmt.Sprintf(", delivered %d times before", x.Acquired)
		}
		t.by(&e, x.Holder, x.Delivery)
		l.add(e)
		l.letter = x.Letter
	}
	l.State = x.Place.String()
}

// event returns an event of the present entry.
func (t *Tracer) event(what string) api.LifeEvent {
	return api.LifeEvent{At: int64(t.m.Clock()), Index: t.m.Index(), Event: what}
}

// by adds who holds or held a message.
func (t *Tracer) by(e *api.LifeEvent, of fsm.ConsumerID, delivery uint64) {
	if of == (fsm.ConsumerID{}) {
		return
	}
	e.Session, e.Delivery = t.session(of.Session), delivery
	if e.ConsumerTag == "" {
		e.ConsumerTag = queue.TagOf(t.m, of)
	}
}

// session names a session: its node, the node's boot, its number.
func (t *Tracer) session(id fsm.SessionID) string { return SessionName(t.names, id) }

// SessionName names a session: its node, the node's boot, its number.
func SessionName(names Names, id fsm.SessionID) string {
	node := fmt.Sprint(id.Node)
	if n, ok := names.Node(id.Node); ok {
		node = n.Name
	}
	return fmt.Sprintf("%s/%d/%d", node, id.Boot, id.Num)
}

// QueueName names a queue.
func QueueName(names Names, id fsm.QueueID) string {
	if q, ok := names.QueueByID(id); ok {
		return q.Name
	}
	return fmt.Sprintf("queue %d (deleted)", id)
}

func (l *life) add(e api.LifeEvent) {
	if len(l.Events) < maxEvents {
		l.Events = append(l.Events, e)
	}
}

// Apply applies one entry, and notes what it does to the messages.
func (t *Tracer) Apply(index, term uint64, e *logpb.Entry) error {
	for meta, c := range queue.Commands(index, term, e) {
		t.apply(meta, c)
	}
	return nil
}

// apply applies one command.
func (t *Tracer) apply(meta fsm.Meta, c *logpb.Command) {
	before := make([]queue.Followed, len(t.lives))
	for i, l := range t.lives {
		before[i], l.lives = l.follow.Describe(t.m)
	}
	next, events := queue.NextSeq(t.m), make([]int, len(t.lives))
	for i, l := range t.lives {
		events[i] = len(l.Events)
	}
	t.eff.Reset()
	r := t.m.Apply(meta, c, &t.eff)
	s := step{t, meta, c, r}
	for i, l := range t.lives {
		if l.lives {
			s.compare(l, &before[i])
		}
	}
	s.births(next)
	t.readEnds()
	for i, l := range t.lives {
		t.letterNews(l)
		from := 0
		if i < len(events) {
			from = events[i]
		}
		for j := from; j < len(l.Events); j++ {
			if l.Events[j].Index == meta.Index && l.Events[j].Term == 0 {
				l.Events[j].Term = meta.Term
			}
		}
	}
}

// readEnds reads the records of what has just ended.
func (t *Tracer) readEnds() {
	queue.EndsOf(t.m).From(t.ends, func(e queue.End) bool {
		for _, l := range t.lives {
			if l.ref == e.Ref && e.Count == 0 {
				l.Message = max(l.Message, e.Seq)
				t.died(l, &e)
			}
		}
		return true
	})
	t.ends = queue.EndsOf(t.m).Next()
}

// died tells how a message ended.
func (t *Tracer) died(l *life, e *queue.End) {
	x := api.LifeEvent{At: int64(e.At), Index: e.Index, Term: e.Term, Event: "died", Why: queue.ReasonName(e.Reason), ExpiresAt: int64(e.ExpireAt), Letter: e.Letter}
	switch e.Reason {
	case logpb.EndState_CANCELLED, logpb.EndState_REPLACED:
		x.Event, x.Why = x.Why, ""
	case logpb.EndState_FORWARDED:
		x.Event, x.Why = x.Why, ""
		for _, a := range e.Arrivals {
			x.Queues = append(x.Queues, QueueName(t.names, a.Queue))
		}
	}
	x.ConsumerTag = e.Tag
	t.by(&x, e.Holder, 0)
	if e.Letter != 0 || e.Disposition == queue.SentOnce {
		x.Why += ", dead-lettered " + e.Disposition.String()
	}
	l.add(x)
	if l.letter = e.Letter; e.Letter == 0 {
		l.State = "ended"
	}
}

// letterNews tells what has become of a letter.
func (t *Tracer) letterNews(l *life) {
	if l.letter == 0 || l.settled {
		return
	}
	e, ok := queue.EndsOf(t.m).OfLetter(l.letter)
	if !ok {
		return
	}
	for ; l.arrived < len(e.Arrivals); l.arrived++ {
		a := e.Arrivals[l.arrived]
		x := t.event("dead letter arrived")
		if x.Index = a.Index; a.Index != t.m.Index() {
			x.At = 0
		}
		x.Letter, x.Queues = l.letter, []string{QueueName(t.names, a.Queue)}
		l.add(x)
	}
	if l.settled = e.Settled != 0; l.settled {
		l.State = "ended"
		if len(e.Arrivals) == 0 {
			x := t.event("dead letter dropped")
			x.Index, x.Letter = e.Settled, l.letter
			l.add(x)
		}
	}
}

// Explanation is what was found.
func (t *Tracer) Explanation(q *catalog.Queue, node string) api.Explanation {
	x := api.Explanation{VHost: q.VHost, Queue: q.Name, Node: node, From: t.from, To: t.m.Index(), Lives: []api.Life{}}
	for _, l := range t.lives {
		if d, ok := l.follow.Describe(t.m); ok && l.State != "ended" {
			l.State, l.Message = d.Place.String(), d.Seq
		}
		x.Lives = append(x.Lives, l.Life)
	}
	return x
}
