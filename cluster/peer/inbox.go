package peer

import (
	"sync"
	"sync/atomic"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/fsm"
)

const (
	// depth is how many requests raft is given at a time. Its loop finds the
	// next one without waiting for a goroutine to bring it.
	depth = 8
	// maxQueued and maxQueuedBytes bound what waits for raft per group: a full
	// pipeline window, and reserve for votes and heartbeats.
	maxQueued      = window + 32
	maxQueuedBytes = 2 * windowBytes
)

// request is one of raft that came from another node.
type request struct {
	in      *inbound // who asks; nil: this node itself, no answer
	number  uint64
	cmd     any
	size    int
	urgency urgency // of the answer
}

func (r *request) respond(response any, err error) {
	if r.in != nil {
		r.in.respond(r.number, response, err, r.urgency)
	}
}

// from names the node that asks.
func (r *request) from() string {
	if r.in != nil {
		return r.in.p.name
	}
	return ""
}

// inbox takes what other members ask of the local one, keeps what may not reach
// raft from it, and hands it the rest in order. Nothing here blocks who brings
// a request. Raft answers in the order in which it was asked.
type inbox struct {
	validator Validator // nil: everything that makes sense is taken
	memory    *budget   // of all groups of the node
	spawn     func(func())
	complain  func(node, what string, err error)
	shutdown  <-chan struct{} // closed when raft shuts down

	consumer  chan raft.RPC         // raft reads from it
	answers   chan raft.RPCResponse // of the requests in inflight, in order
	heartbeat atomic.Pointer[func(raft.RPC)]
	term      atomic.Uint64               // last one raft showed in an answer
	withheld  atomic.Pointer[func() bool] // see Mesh.Withhold
	log       awaitedLog

	// mu guards what follows.
	//
	//	len(inflight) ≤ depth
	//	len(queue) ≤ maxQueued; queue is empty, or consumer was full
	//	queued = Σ size of queue; used = queued + Σ size of inflight, of which memory knows
	//	running, if there is anything in queue or inflight
	mu       sync.Mutex
	shutting bool
	queue    []request // that did not fit into consumer
	queued   int       // bytes
	used     int       // bytes
	inflight []request // handed to raft and not answered, oldest first
	running  bool      // a goroutine waits for answers
}

func newInbox(v Validator, g *groups, shutdown <-chan struct{}) *inbox {
	return &inbox{
		validator: v, memory: &g.memory, spawn: g.spawn, complain: g.complain, shutdown: shutdown,
		consumer: make(chan raft.RPC, depth),
		answers:  make(chan raft.RPCResponse, depth),
	}
}

// take handles a request that came over a link.
func (b *inbox) take(r request) {
	if a, ok := r.cmd.(*raft.AppendEntriesRequest); ok && isHeartbeat(a) && b.beat(a, &r) {
		return
	}
	b.enqueue(r)
}

// beat handles a heartbeat on the calling goroutine if that cannot mean a
// write: a term that raft has not shown yet would be stored.
func (b *inbox) beat(a *raft.AppendEntriesRequest, r *request) bool {
	h := b.heartbeat.Load()
	if h == nil || a.Term != b.term.Load() {
		return false
	}
	(*h)(raft.RPC{Command: a, RespChan: r.in.beat})
	select {
	case resp := <-r.in.beat:
		r.respond(resp.Response, resp.Error)
	default: // raft has shut down
		r.respond(nil, ErrUnknownGroup)
	}
	return true
}

// enqueue hands r to raft, now or when it takes more. A goroutine exists only
// while requests are unanswered.
func (b *inbox) enqueue(r request) {
	if err := validate(b.validator, r.cmd); err != nil {
		b.complain(r.from(), "refused a request of raft", err)
		r.respond(nil, err)
		return
	}
	if b.withholds(&r) {
		return
	}
	b.free(&r)
	b.mu.Lock()
	var refusal error
	switch {
	case b.shutting:
		refusal = ErrUnknownGroup
	case !b.memory.allows(b.used, r.size):
		refusal = ErrBusy
	case len(b.queue) == 0 && b.offer(r):
	case len(b.queue) >= maxQueued, len(b.queue) > 0 && b.queued+r.size > maxQueuedBytes:
		refusal = ErrBusy
	default:
		b.queue = append(b.queue, r)
		b.queued += r.size
	}
	if refusal == nil {
		b.use(r.size)
	}
	if refusal == nil && !b.running {
		b.running = true
		b.spawn(b.run)
	}
	b.mu.Unlock()
	if refusal != nil {
		r.respond(nil, refusal)
	}
}

// withholds answers what raft is not to see while the member must neither vote
// nor lead, and reports whether it has.
func (b *inbox) withholds(r *request) bool {
	if yes := b.withheld.Load(); yes == nil || !(*yes)() {
		return false
	}
	switch cmd := r.cmd.(type) {
	case *raft.RequestPreVoteRequest:
		r.respond(&raft.RequestPreVoteResponse{RPCHeader: cmd.RPCHeader, Term: cmd.Term}, nil)
	case *raft.TimeoutNowRequest:
		r.respond(nil, ErrLearner)
	default:
		return false
	}
	return true
}

// free makes a follower of a member that is told by its leader to stand for election and has lost one before:
// raft would remain a candidate, of the term in which another one won, and do nothing. As in every election,
// the term is a later one.
func (b *inbox) free(r *request) {
	if _, ok := r.cmd.(*raft.TimeoutNowRequest); ok && r.in != nil && b.validator != nil && b.validator.Stands() {
		b.enqueue(voteFor(r.from(), b.validator.Term()+1, true))
	}
}

// arriving returns the payloads of an entry among the requests that raft has not answered; nil: none of
// them has it.
func (b *inbox) arriving(index, term uint64) []byte {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, requests := range [][]request{b.inflight, b.queue} {
		for i := range requests {
			a, ok := requests[i].cmd.(*raft.AppendEntriesRequest)
			if !ok || len(a.Entries) == 0 {
				continue
			}
			// Without a gap: see vetCommand.
			if at := index - a.Entries[0].Index; at < uint64(len(a.Entries)) && a.Entries[at].Term == term {
				return a.Entries[at].Extensions
			}
		}
	}
	return nil
}

// offer gives r to raft if it takes more now. b.mu is held. The number of requests
// in flight never exceeds the buffer of answers, so raft never waits.
func (b *inbox) offer(r request) bool {
	if len(b.inflight) >= depth {
		return false
	}
	select {
	case b.consumer <- b.rpc(r):
		b.inflight = append(b.inflight, r)
		return true
	default:
		return false
	}
}

func (b *inbox) rpc(r request) raft.RPC {
	return raft.RPC{Command: r.cmd, RespChan: b.answers}
}

// run answers requests in the order in which raft gets them, which is the order
// in which it answers, until none is left.
func (b *inbox) run() {
	for {
		b.mu.Lock()
		b.refill()
		switch {
		case b.shutting:
			b.refuseAll()
			return
		case len(b.inflight) == 0 && len(b.queue) == 0:
			b.running = false
			b.mu.Unlock()
			return
		case len(b.inflight) == 0:
			// Others (snapshots) fill the consumer.
			r := b.queue[0]
			b.mu.Unlock()
			b.offerWait(r)
		default:
			b.mu.Unlock()
			select {
			case a := <-b.answers:
				b.answered(a)
			case <-b.shutdown:
			}
		}
	}
}

// offerWait gives raft r, the oldest queued request, when it takes more.
func (b *inbox) offerWait(r request) {
	select {
	case b.consumer <- b.rpc(r):
		b.mu.Lock()
		b.dequeue()
		b.inflight = append(b.inflight, r)
		b.mu.Unlock()
	case <-b.shutdown:
	}
}

// refill moves requests from the queue to raft. b.mu is held.
func (b *inbox) refill() {
	for len(b.queue) > 0 && b.offer(b.queue[0]) {
		b.dequeue()
	}
}

// dequeue removes the oldest queued request. b.mu is held.
func (b *inbox) dequeue() {
	b.queued -= b.queue[0].size
	b.queue[0] = request{}
	b.queue = b.queue[1:]
	if len(b.queue) == 0 {
		b.queue = nil
	}
}

func (b *inbox) answered(a raft.RPCResponse) {
	b.mu.Lock()
	r := b.inflight[0]
	n := copy(b.inflight, b.inflight[1:])
	b.inflight[n] = request{}
	b.inflight = b.inflight[:n]
	b.use(-r.size)
	b.refill()
	b.mu.Unlock()
	if _, term := answerBody(a.Response); term > 0 {
		b.term.Store(term)
	}
	if promises(a.Response) {
		b.log.whenDurable(b.log.written(), func() { r.respond(a.Response, a.Error) })
		return
	}
	r.respond(a.Response, a.Error)
}

// promises reports whether others act upon what this member has stored. That it refuses, or in which term it is, it may
// forget.
func promises(response any) bool {
	switch r := response.(type) {
	case *raft.AppendEntriesResponse:
		return r.Success
	case *raft.RequestVoteResponse:
		return r.Granted
	}
	return false
}

// refuseAll answers what raft, shut down, will not. It unlocks b.mu.
func (b *inbox) refuseAll() {
	all := append(b.inflight, b.queue...)
	b.inflight, b.queue, b.queued, b.running = nil, nil, 0, false
	b.use(-b.used)
	b.mu.Unlock()
	for _, r := range all {
		r.respond(nil, ErrUnknownGroup)
	}
}

// use counts so many bytes more, or less. b.mu is held.
func (b *inbox) use(bytes int) {
	b.used += bytes
	b.memory.used.Add(int64(bytes))
}

// shut has everything that waits refused.
func (b *inbox) shut() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.shutting = true
}

const (
	// inboundBudget is about how much memory the requests of all groups of a node
	// use together, in bytes: enough for every disk to be busy, little beside what
	// a node has. Where a disk hangs, leaders send until it is used up.
	inboundBudget = 256 << 20
	// smallRequest is what costs nothing to keep: votes, questions, and entries
	// of queues in which little happens.
	smallRequest = 4 << 10
)

// budget bounds the memory that the requests of all groups take together.
//
//	0 ≤ used; small requests, and what comes at the same moment, aside: ≤ 2 × limit
type budget struct {
	limit int64
	used  atomic.Int64
}

// allows reports whether a group that uses so many bytes may keep a request of
// this size. A group may use as much as is free for everybody: one alone uses
// half of the budget, and however many use something, there is memory for the
// next. A group that uses nothing may always go on, unless the budget is used up
// twice.
//
// What is refused is sent again (see insist).
func (b *budget) allows(uses, size int) bool {
	if size <= smallRequest {
		return true
	}
	free := b.limit - b.used.Load()
	if uses == 0 {
		return free+b.limit >= int64(size)
	}
	return int64(uses+size) <= free
}

// Durability is what acknowledgements wait for: a log whose writes become durable after
// raft has been told that they are done.
type Durability interface {
	// Written numbers the writes so far.
	Written() uint64
	// WhenDurable calls f once the writes up to a number are durable, which may be at
	// once. f does not block. Calls for numbers that grow are made in order.
	WhenDurable(seq uint64, f func())
	// WhenVoted is the same for the vote of a term, or of a later one, which may not be written yet.
	WhenVoted(term uint64, f func())
}

// Await makes acknowledgements of entries, and votes, wait for the group's log: those of this node
// leave when its own writes are durable, and those of others reach raft, which counts
// this node among those that have an entry, or vote for it, when that is true. The group's transport
// must exist, and raft not run yet.
func (m *Mesh) Await(group fsm.GroupID, log Durability) {
	if t := m.groups.find(group); t != nil {
		t.log().set(log)
	}
}

// awaitedLog is a log that is waited for. The zero value is one in which all is durable.
type awaitedLog struct {
	d atomic.Pointer[Durability] // nil: all is durable
}

func (l *awaitedLog) set(d Durability) { l.d.Store(&d) }

// written numbers the last write of the log.
func (l *awaitedLog) written() uint64 {
	if d := l.d.Load(); d != nil {
		return (*d).Written()
	}
	return 0
}

// whenDurable calls f once the writes up to a number are durable.
func (l *awaitedLog) whenDurable(seq uint64, f func()) {
	if d := l.d.Load(); d != nil {
		(*d).WhenDurable(seq, f)
	} else {
		f()
	}
}

// await returns when the writes up to a number are durable, or with an error when stop
// is closed.
func (l *awaitedLog) await(seq uint64, stop <-chan struct{}) error {
	return l.wait(func(d Durability, f func()) { d.WhenDurable(seq, f) }, stop)
}

// awaitVote is await for the vote of a term.
func (l *awaitedLog) awaitVote(term uint64, stop <-chan struct{}) error {
	return l.wait(func(d Durability, f func()) { d.WhenVoted(term, f) }, stop)
}

func (l *awaitedLog) wait(when func(d Durability, f func()), stop <-chan struct{}) error {
	d := l.d.Load()
	if d == nil {
		return nil
	}
	done := make(chan struct{})
	when(*d, func() { close(done) })
	select {
	case <-done:
		return nil
	case <-stop:
		return ErrClosed
	}
}
