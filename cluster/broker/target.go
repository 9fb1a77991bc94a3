package broker

import (
	"sync"

	"github.com/quorate/quorate/cluster/group"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/proto/peerpb"
)

// target is this node's way to the leader of one queue. It carries the lanes
// of all sessions that use the queue; the goroutine that submits their
// commands lives only while there are some.
type target struct {
	broker *Broker
	id     fsm.QueueID
	group  fsm.GroupID
	local  bool // the queue is not replicated
	// submit hands a batch to the leader, and reports whether it was taken.
	submit func(leader string, b group.Batch) bool

	mu         sync.Mutex
	leader     string // name of the node that serves; empty: unknown
	term       uint64
	leaderless int64 // since when there is no leader, ms
	led        chan struct{}
	lanes      map[fsm.SessionID]*lane
	dirty      []*lane
	running    bool
	asking     bool // somebody asks the members who leads
	watched    bool // the watch looks at it, or will: see watchlist
	ended      bool
	peekedAt   int64 // when the queue was last told of a look at it, ms
}

func newTarget(b *Broker, q *catalog.Queue) *target {
	t := &target{
		broker: b, id: q.ID, group: q.Group, local: q.Local, lanes: map[fsm.SessionID]*lane{},
		leaderless: b.now(), led: make(chan struct{}),
	}
	t.submit = t.submitTo
	if q.Local {
		t.leader, t.term = b.nodeName(q.Home()), group.LocalTerm // and nobody else, ever
		return t
	}
	t.watch() // nobody else has it yet
	return t
}

// attach adds a lane. A lane to a queue that is gone is over from the start.
func (t *target) attach(l *lane) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ended {
		l.gone = true
		return
	}
	t.lanes[l.id] = l
	t.watch()
}

// detach removes a lane.
func (t *target) detach(l *lane) {
	t.mu.Lock()
	if t.lanes[l.id] == l {
		delete(t.lanes, l.id)
	}
	t.mu.Unlock()
}

func (t *target) lane(id fsm.SessionID) *lane {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.lanes[id]
}

func (t *target) all() []*lane {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := make([]*lane, 0, len(t.lanes))
	for _, l := range t.lanes {
		all = append(all, l)
	}
	return all
}

// wake submits what l has, now or as soon as there is a leader.
func (t *target) wake(l *lane) {
	t.mu.Lock()
	t.dirty = append(t.dirty, l)
	t.start()
	t.mu.Unlock()
}

// start runs the submitting goroutine if there is a leader. mu is held.
func (t *target) start() {
	if !t.running && t.leader != "" && len(t.dirty) > 0 {
		t.running = true
		go t.run()
	}
}

// run submits as long as there is something. A panic ends the sessions that use
// the queue here.
func (t *target) run() {
	if !t.broker.guard("submit to a queue", t.submitDirty) {
		t.rebuild()
	}
}

func (t *target) submitDirty() {
	var lanes []*lane
	for {
		t.mu.Lock()
		if t.leader == "" || len(t.dirty) == 0 {
			t.running = false
			t.mu.Unlock()
			return
		}
		leader, term := t.leader, t.term
		lanes, t.dirty = t.dirty, lanes[:0]
		t.mu.Unlock()
		t.submitAll(lanes, leader)
		if !t.leads(leader, term) {
			// Whoever changed that has made the lanes send again, perhaps
			// before the commands were taken for the former leader.
			for _, l := range lanes {
				l.sendAgain()
			}
		}
		clear(lanes)
	}
}

func (t *target) isLeader(node string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.leader == node
}

func (t *target) leads(node string, term uint64) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.leader == node && t.term == term
}

// submitAll sends what the lanes hold, in as few batches as the bounds allow.
func (t *target) submitAll(lanes []*lane, leader string) {
	b := newLoad()
	for i := 0; i < len(lanes); {
		l := lanes[i]
		full := l.take(&b)
		if !full {
			i++
		}
		if full || i == len(lanes) {
			if !b.submit(func(b group.Batch) bool { return t.submit(leader, b) }) {
				t.lose(leader)
				t.keep(lanes[i:])
				return
			}
			b = newLoad()
		}
	}
}

// keep puts lanes back that have not been looked at.
func (t *target) keep(lanes []*lane) {
	t.mu.Lock()
	t.dirty = append(t.dirty, lanes...)
	t.mu.Unlock()
}

func (t *target) submitTo(leader string, b group.Batch) bool {
	if leader == t.broker.config.Node {
		g := t.broker.host.Group(t.group)
		return g != nil && g.Submit(b) == nil
	}
	head, err := (&peerpb.Submit{
		Group: uint32(t.group), Queue: uint64(t.id), Commands: b.Commands, Count: uint32(b.Count), Light: b.Light,
	}).MarshalVT()
	// Its lanes are bounded: what waits here holds up their clients, nobody else.
	return err == nil && t.broker.mesh.SendWait(leader, kindSubmit, head, b.Payloads...) == nil
}

// lead is told who serves the queue. The leader gets everything that is
// unanswered, and is asked for deliveries: also one that is known already, for
// it says so again when it could not send something.
func (t *target) lead(node string, term uint64) {
	t.mu.Lock()
	if t.ended || term < t.term {
		t.mu.Unlock()
		return
	}
	if t.leader == "" {
		close(t.led)
		t.led = make(chan struct{})
	}
	t.leader, t.term = node, term
	t.mu.Unlock()
	t.refresh()
}

// refresh sends everything unanswered again and asks for lost deliveries.
func (t *target) refresh() {
	for _, l := range t.all() {
		t.ask(l.restart())
	}
	t.mu.Lock()
	t.start()
	t.mu.Unlock()
}

// lose forgets a leader that does not serve, or cannot be reached.
func (t *target) lose(node string) {
	t.mu.Lock()
	if t.leader != node {
		t.mu.Unlock()
		return
	}
	t.leader = ""
	t.leaderless = t.broker.now()
	t.watch()
	t.mu.Unlock()
	for _, l := range t.all() {
		l.sendAgain()
	}
}

// leaderNow returns the serving node, or since when there is none and a
// channel that is closed when there is one.
func (t *target) leaderNow() (node string, since int64, led <-chan struct{}) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.leader, t.leaderless, t.led
}

// leadsHere reports whether this node serves a queue.
func (b *Broker) leadsHere(q *catalog.Queue) bool {
	node, _, _ := b.target(q).leaderNow()
	return node == b.config.Node
}

// end answers all lanes: the queue is gone.
func (t *target) end() {
	t.mu.Lock()
	t.ended = true
	lanes := t.lanes
	t.lanes, t.dirty = map[fsm.SessionID]*lane{}, nil
	close(t.led)
	t.led = make(chan struct{})
	t.mu.Unlock()
	for _, l := range lanes {
		if !t.broker.guard("end a queue", func() {
			l.finish()
			l.owner.told(l, told{kind: peerpb.Notice_GONE})
		}) {
			t.broker.guard("end a queue", l.fail)
		}
	}
}

// The four that follow take the owner's lock, and leave it whatever happens: a
// lane that is broken must not hold up whoever comes next.

// take is collect.
func (l *lane) take(to *load) (full bool) {
	l.owner.lock().Lock()
	defer l.owner.lock().Unlock()
	return l.collect(to)
}

// sendAgain is resend.
func (l *lane) sendAgain() {
	l.owner.lock().Lock()
	defer l.owner.lock().Unlock()
	l.resend()
}

// restart is resend and resync.
func (l *lane) restart() []resyncAsk {
	l.owner.lock().Lock()
	defer l.owner.lock().Unlock()
	l.resend()
	return l.resync()
}

// finish is end, and passes on what comes of it.
func (l *lane) finish() {
	l.owner.lock().Lock()
	defer l.owner.release()
	l.end()
}

// resyncAsk asks a leader for a consumer's deliveries.
type resyncAsk struct {
	session         fsm.SessionID
	consumer, after uint64
}

// resync lists what to ask after a change of leader. The lock is held.
func (l *lane) resync() []resyncAsk {
	var asks []resyncAsk
	for number, c := range l.consumers {
		if number != 0 || c.last != 0 {
			c.asked = l.target.broker.now()
			asks = append(asks, l.askFor(number, c))
		}
	}
	return asks
}

// askFor asks what a consumer has missed. Gets miss notices only: one whose
// message got lost is repeated.
func (l *lane) askFor(number uint64, c *consumer) resyncAsk {
	if number == 0 {
		return resyncAsk{l.id, 0, ^uint64(0)}
	}
	return resyncAsk{l.id, number, c.last}
}

// unanswered lists what was asked longer than limit ago and has to be asked
// again. The lock is held.
func (l *lane) unanswered(now, limit int64) []resyncAsk {
	var asks []resyncAsk
	for number, c := range l.consumers {
		if c.asked != 0 && now-c.asked > limit {
			c.asked = now
			asks = append(asks, l.askFor(number, c))
		}
	}
	return asks
}

// ask sends resync requests to the leader.
func (t *target) ask(asks []resyncAsk) {
	leader, _, _ := t.leaderNow()
	if leader == "" {
		return
	}
	for _, a := range asks {
		if leader == t.broker.config.Node {
			t.broker.answerResync(t.group, a)
			continue
		}
		head, err := (&peerpb.Resync{
			Group: uint32(t.group), Queue: uint64(t.id), Session: a.session.Num, Boot: a.session.Boot,
			Consumer: a.consumer, After: a.after,
		}).MarshalVT()
		if err == nil {
			_ = t.broker.mesh.Send(leader, kindResync, head) // a broken link starts all over
		}
	}
}
