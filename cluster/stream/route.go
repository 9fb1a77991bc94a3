package stream

import (
	"errors"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/quorate/quorate/cluster/group"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
)

// Route is this node's way to the leader of one queue. It carries the streams of all sessions that
// use the queue. The goroutine that submits their commands lives only while there are some.
type Route struct {
	table *Table
	host  Host
	id    fsm.QueueID
	group fsm.GroupID
	local bool // the queue is not replicated
	// classic: the queue has the defaults of a classic one
	classic bool

	mu         sync.Mutex // may be taken under the lock of an owner
	leader     string     // name of the node that serves; empty: unknown
	term       uint64     // of the newest leader that is known; it only grows
	newest     string     // that leader
	pause      pause
	leaderless int64 // since when there is no leader, ms
	wantAgain  int64 // when it may be said again that somebody waits for one, ms
	led        chan struct{}
	streams    map[fsm.SessionID]*Stream
	dirty      []*Stream // those with something to send
	running    bool      // the submitting goroutine is running
	searching  bool      // the members are being asked who leads
	watched    bool      // it is on the table's list, or being handled by Watch
	ended      bool      // the queue is gone: there are no more streams
}

func newRoute(t *Table, q *catalog.Queue) *Route {
	r := &Route{
		table: t, host: t.host, id: q.ID, group: q.Group, local: q.Local, classic: q.Type() == catalog.ClassicType, streams: map[fsm.SessionID]*Stream{},
		leaderless: t.host.Now(), led: make(chan struct{}),
	}
	if q.Local {
		r.setLeader(r.host.NodeName(q.Home())) // and never any other node
		r.newest, r.term = r.leader, group.LocalTerm
		return r
	}
	r.watch() // no other goroutine has it yet
	return r
}

// Queue returns the id of the queue.
func (r *Route) Queue() fsm.QueueID { return r.id }

// Group returns the id of the queue's group.
func (r *Route) Group() fsm.GroupID { return r.group }

// Attach adds a stream, whose owner's lock is held. A stream to a queue that is gone is over from
// the start.
func (r *Route) Attach(s *Stream) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ended {
		s.gone = true
		return
	}
	r.streams[s.id] = s
	r.watch()
}

// Detach removes a stream.
func (r *Route) Detach(s *Stream) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.streams[s.id] == s {
		delete(r.streams, s.id)
	}
}

// Stream returns the stream of a session, or nil if there is none.
func (r *Route) Stream(id fsm.SessionID) *Stream {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.streams[id]
}

// Streams returns all streams.
func (r *Route) Streams() []*Stream {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Collect(maps.Values(r.streams))
}

// wake submits the commands of s, now or as soon as there is a leader.
func (r *Route) wake(s *Stream) {
	r.mu.Lock()
	r.dirty = append(r.dirty, s)
	r.want()
	r.start()
	r.mu.Unlock()
}

// submits reports whether there is a leader that takes commands. mu is held.
func (r *Route) submits() bool { return r.leader != "" && r.pause.until == 0 }

// Want says that somebody waits for a leader, if there is none: those who could elect one are otherwise
// patient with one that is silent.
func (r *Route) Want() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.want()
}

// wantEvery is how often it is said that somebody waits for a leader.
const wantEvery = 200 // milliseconds

// wantIfUnanswered is Want if a stream waits for an answer.
func (r *Route) wantIfUnanswered() {
	if slices.ContainsFunc(r.Streams(), (*Stream).waits) {
		r.Want()
	}
}

// want is Want. mu is held.
func (r *Route) want() {
	if now := r.host.Now(); r.leader == "" && now >= r.wantAgain {
		r.wantAgain = now + wantEvery
		r.host.Want(r)
	}
}

// start runs the submitting goroutine if there is a leader. mu is held.
func (r *Route) start() {
	if !r.running && r.submits() && len(r.dirty) > 0 {
		r.running = true
		go r.run()
	}
}

// run submits as long as there are commands. A panic ends the sessions that use the queue here.
func (r *Route) run() {
	if !r.host.Try("submit to a queue", r.submitDirty) {
		r.rebuild()
	}
}

func (r *Route) submitDirty() {
	var streams []*Stream
	for {
		r.mu.Lock()
		if !r.submits() || len(r.dirty) == 0 {
			r.running = false
			r.mu.Unlock()
			return
		}
		leader, term := r.leader, r.term
		streams, r.dirty = r.dirty, streams[:0]
		r.mu.Unlock()
		r.submitAll(streams, leader)
		if !r.leads(leader, term) {
			// Whoever changed the leader has made the streams send again, perhaps before the
			// commands were taken for the former leader.
			for _, s := range streams {
				s.sendAgain()
			}
		}
		clear(streams)
	}
}

// submitAll sends what the streams hold, in as few batches as the bounds allow.
func (r *Route) submitAll(streams []*Stream, leader string) {
	b := NewLoad()
	for i := 0; i < len(streams); {
		full := streams[i].Take(&b)
		if !full {
			i++
		}
		if full || i == len(streams) {
			if err := b.Submit(func(b group.Batch) error { return r.host.Submit(r, leader, b) }); err != nil {
				r.refused(leader, err)
				r.keep(streams[i:])
				return
			}
			b = NewLoad()
		}
	}
}

// keep puts back streams that have not been read.
func (r *Route) keep(streams []*Stream) {
	r.mu.Lock()
	r.dirty = append(r.dirty, streams...)
	r.mu.Unlock()
}

// Leader returns the serving node; or, if there is none, since when, and a channel that is closed
// when there is one.
func (r *Route) Leader() (node string, since int64, led <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.leader, r.leaderless, r.led
}

// IsLeader reports whether a node serves the queue.
func (r *Route) IsLeader(node string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.leader == node
}

func (r *Route) leads(node string, term uint64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.leader == node && r.term == term
}

// setLeader notes who serves the queue; empty: nobody. mu is held, or nobody else has the route yet.
func (r *Route) setLeader(node string) {
	r.table.leaders.move(r, r.leader, node)
	r.leader = node
}

// Lead records which node serves the queue. A new leader is sent everything unanswered, and asked for
// missing deliveries. A known one is asked what it has: it announces itself again when it could not send
// something, or takes commands again.
func (r *Route) Lead(node string, term uint64) {
	r.mu.Lock()
	if r.ended || term < r.term {
		r.mu.Unlock()
		return
	}
	if r.leader == "" {
		close(r.led)
		r.led = make(chan struct{})
	}
	isNew := node != r.newest || term != r.term
	r.setLeader(node)
	r.newest, r.term, r.pause = node, term, pause{}
	r.mu.Unlock()
	r.refresh(isNew)
}

// refresh sends a new leader everything unanswered, or asks the one there was what it has. It requests lost
// deliveries.
func (r *Route) refresh(isNew bool) {
	r.askAll(func(s *Stream) []Resync { return s.restart(isNew) })
}

// Lose forgets a leader that does not serve or cannot be reached.
func (r *Route) Lose(node string) {
	r.mu.Lock()
	lost := r.leader == node
	if lost {
		r.setLeader("")
		r.leaderless, r.wantAgain = r.host.Now(), 0
		r.watch()
	}
	r.mu.Unlock()
	if lost {
		r.wantIfUnanswered()
	}
}

// pause says that a leader that leads is not sent anything. The watch ends it, or the leader does when it
// announces itself.
type pause struct {
	until  int64 // ms; 0: there is none
	ended  int64 // when the last one ended, ms
	length int64 // of the present or the last one, ms
}

// The first and the longest of several pauses in a row, in milliseconds.
const (
	minPause = 100
	maxPause = 2000
)

// begin begins a pause, which is longer if the last one has just ended.
func (p *pause) begin(now int64) {
	if p.length = min(2*p.length, maxPause); p.length == 0 || now-p.ended > maxPause {
		p.length = minPause
	}
	p.until = now + p.length
}

// Pause stops submitting for a while: the leader has too much waiting, or is handing its leadership over.
// It keeps what it has taken.
func (r *Route) Pause(node string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.leader == node && r.pause.until == 0 {
		r.pause.begin(r.host.Now())
		r.watch()
	}
}

// resume ends a pause that has lasted long enough, and reports whether it has. What was refused meanwhile is
// among what the leader is asked for. mu is held.
func (r *Route) resume(now int64) bool {
	if r.pause.until == 0 || now < r.pause.until {
		return false
	}
	r.pause.until, r.pause.ended = 0, now
	return true
}

// refused deals with a leader that has not taken a batch.
func (r *Route) refused(leader string, why error) {
	if errors.Is(why, group.ErrFull) || errors.Is(why, group.ErrTransferring) {
		r.Pause(leader)
	} else {
		r.Lose(leader)
	}
}

// end ends all streams: the queue is gone.
func (r *Route) end() {
	r.mu.Lock()
	r.ended = true
	r.table.leaders.move(r, r.leader, "")
	streams := r.streams
	r.streams, r.dirty = map[fsm.SessionID]*Stream{}, nil
	close(r.led)
	r.led = make(chan struct{})
	r.mu.Unlock()
	for _, s := range streams {
		if !r.host.Try("end a queue", s.end) {
			r.host.Try("end a queue", s.fail)
		}
	}
}

// rebuild starts over after a panic, when the state of the route and its streams may be half
// changed. Their sessions end, dead letters are sent again from where their queue's log says, and
// the leader is searched for again.
func (r *Route) rebuild() {
	r.mu.Lock()
	streams := r.streams
	r.streams, r.dirty, r.running, r.searching = map[fsm.SessionID]*Stream{}, nil, false, false
	if !r.local {
		r.setLeader("")
		r.leaderless = r.host.Now()
	}
	r.watch()
	r.mu.Unlock()
	for _, s := range streams {
		r.host.Try("end what a queue was used by", s.fail)
	}
}

// askAll asks the leader what each stream has to ask, and goes on to submit.
func (r *Route) askAll(what func(*Stream) []Resync) {
	for _, s := range r.Streams() {
		r.ask(what(s))
	}
	r.mu.Lock()
	r.start()
	r.mu.Unlock()
}

// ask sends resync requests to the leader.
func (r *Route) ask(asks []Resync) {
	if len(asks) == 0 {
		return
	}
	leader, _, _ := r.Leader()
	if leader == "" {
		return
	}
	for _, a := range asks {
		r.host.Ask(r, leader, a)
	}
}

// Table holds the routes of a node, by queue.
type Table struct {
	host Host

	mu     sync.RWMutex // may be taken under the lock of an owner
	routes map[fsm.QueueID]*Route
	early  map[fsm.QueueID]earlyLeader // of queues that this node's catalog does not hold yet

	watchlist watchlist
	leaders   leaders
	resent    atomic.Uint64 // commands, see Resent
}

// Resent returns how many commands were to be sent to a leader again.
func (t *Table) Resent() uint64 { return t.resent.Load() }

// leaders are the routes of a table by the nodes that serve their queues.
type leaders struct {
	mu     sync.Mutex // may be taken under Route.mu
	byNode map[string]map[*Route]struct{}
}

// move notes that a queue is served by another node than before; empty: by none.
func (l *leaders) move(r *Route, from, to string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if from != "" {
		delete(l.byNode[from], r)
	}
	if to == "" {
		return
	}
	if l.byNode[to] == nil {
		if l.byNode == nil {
			l.byNode = map[string]map[*Route]struct{}{}
		}
		l.byNode[to] = map[*Route]struct{}{}
	}
	l.byNode[to][r] = struct{}{}
}

// of returns the routes to a node.
func (l *leaders) of(node string) []*Route {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Collect(maps.Keys(l.byNode[node]))
}

// maxEarly bounds how many leaders of unknown queues are kept.
const maxEarly = 1 << 16

type earlyLeader struct {
	node string
	term uint64
}

// NewTable returns an empty table.
func NewTable(h Host) *Table {
	return &Table{host: h, routes: map[fsm.QueueID]*Route{}, early: map[fsm.QueueID]earlyLeader{}}
}

// IsOver reports whether a queue that v does not hold is gone rather than not yet known here: its
// id tells which entry of the catalog created it.
func IsOver(v *catalog.View, id fsm.QueueID) bool {
	_, ok := v.QueueByID(id)
	return !ok && uint64(id)>>16 <= v.Index()
}

// Route returns the way to a queue's leader, creating it if needed. Locks of owners may be held.
func (t *Table) Route(q *catalog.Queue) *Route {
	if r := t.Find(q.ID); r != nil {
		return r
	}
	t.mu.Lock()
	r := t.routes[q.ID]
	if r == nil {
		r = newRoute(t, q)
		t.routes[q.ID] = r
	}
	t.mu.Unlock()
	if IsOver(t.host.View(), q.ID) {
		// The end was reported before r was created: the caller has an older view.
		t.host.Spawn("end a queue", func() { t.host.QueueGone(q.ID) })
	}
	return r
}

// Find returns the way to a queue's leader if it exists.
func (t *Table) Find(id fsm.QueueID) *Route {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.routes[id]
}

// Stream returns the stream of a session to a queue, or nil if there is none.
func (t *Table) Stream(id fsm.QueueID, s fsm.SessionID) *Stream {
	if r := t.Find(id); r != nil {
		return r.Stream(s)
	}
	return nil
}

// Deliver passes messages of a queue to the stream of a session. If there is none, nobody waits
// for them, as with Answer and Notice.
func (t *Table) Deliver(id fsm.QueueID, s fsm.SessionID, d DeliveryBatch) {
	if to := t.Stream(id, s); to != nil {
		to.Receive(d)
	}
}

// Answer passes outcomes received from a node to their stream.
func (t *Table) Answer(from string, id fsm.QueueID, s fsm.SessionID, outcomes []group.Outcome) {
	if to := t.Stream(id, s); to != nil {
		to.Answer(from, outcomes)
	}
}

// Notice passes a notice from a queue's leader to a session.
func (t *Table) Notice(id fsm.QueueID, s fsm.SessionID, n Notice) {
	if to := t.Stream(id, s); to != nil {
		to.Notice(n)
	}
}

// All returns the routes.
func (t *Table) All() []*Route {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return slices.Collect(maps.Values(t.routes))
}

// Lead records which node serves a queue; for a queue that the catalog does not hold yet, the
// leader is remembered.
func (t *Table) Lead(id fsm.QueueID, node string, term uint64) {
	if q := t.queueOrEarly(id, earlyLeader{node, term}); q != nil {
		t.Route(q).Lead(node, term)
	}
}

// queueOrEarly returns the queue, or keeps l until the catalog here holds it. QueueAdded is called
// after the view has changed, and takes the lock.
func (t *Table) queueOrEarly(id fsm.QueueID, l earlyLeader) *catalog.Queue {
	t.mu.Lock()
	defer t.mu.Unlock()
	v := t.host.View()
	q, ok := v.QueueByID(id)
	if !ok && !IsOver(v, id) && len(t.early) < maxEarly {
		t.early[id] = l
	}
	return q
}

// Lose records that a node does not serve a queue.
func (t *Table) Lose(id fsm.QueueID, node string) {
	if r := t.Find(id); r != nil {
		r.Lose(node)
	}
}

// Pause records that a node leads a queue, and takes no commands for now.
func (t *Table) Pause(id fsm.QueueID, node string) {
	if r := t.Find(id); r != nil {
		r.Pause(node)
	}
}

// NodeDown records that a node cannot be reached, so it serves no queue.
func (t *Table) NodeDown(node string) {
	for _, r := range t.leaders.of(node) {
		r.Lose(node)
	}
}

// NodeUp records that a node can be reached again. Messages may have been lost in between.
func (t *Table) NodeUp(node string) {
	for _, r := range t.leaders.of(node) {
		if r.IsLeader(node) {
			r.refresh(false)
		}
	}
}

// QueueAdded is called when the catalog holds a new queue.
func (t *Table) QueueAdded(q *catalog.Queue) {
	r := t.Route(q)
	t.mu.Lock()
	l, known := t.early[q.ID]
	delete(t.early, q.ID)
	t.mu.Unlock()
	if known {
		r.Lead(l.node, l.term)
	}
}

// QueueGone is called when the catalog has lost a queue. Its streams end.
func (t *Table) QueueGone(id fsm.QueueID) {
	t.mu.Lock()
	r := t.routes[id]
	delete(t.routes, id)
	t.mu.Unlock()
	if r != nil {
		r.end()
	}
}
