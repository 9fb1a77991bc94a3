package group

import (
	"bytes"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/raft"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/quorate/quorate/cluster/clock"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/queue"
	"github.com/quorate/quorate/proto/logpb"
)

// Bounds of one entry, and of a group's entries under way: of one more, with its bytes, for each perPending
// of the round trip that entries need.
const (
	maxEntryBytes    = 256 << 10
	maxEntryCommands = 512
	maxEntryLight    = maxEntryCommands / 2 // of these, commands that overtook others
	maxPending       = 4
	maxPendingBytes  = maxPending * maxEntryBytes
	perPending       = 32 * time.Millisecond
)

// Field numbers of logpb.Entry: version, now, commands.
const (
	fieldVersion  = 1
	fieldNow      = 2
	fieldCommands = 4
)

// Batch is a run of commands from one node.
type Batch struct {
	// Commands is the encoded commands field of a logpb.Entry; see AppendCommand. Submit passes
	// its ownership to the group.
	Commands []byte
	Count    int
	// Payloads of the enqueues among the commands, in order. They must not be changed any more.
	Payloads [][]byte
	Bytes    int    // sum of the payloads' lengths
	From     string // the submitting node; empty: this one
	// Light says that the batch may overtake batches that are not light: nothing in it has to
	// follow anything in them. It has no payloads.
	Light bool
	// Patient says that the batch may be held back until consumers can take more: it comes from
	// publishers whose connections settle nothing. It is not light.
	Patient bool

	after uint64 // the light batch of this number goes into the log before it, see cursor
	waits int    // what it counts for while it waits, see admission
}

// AppendCommand appends c to the encoded commands of a batch.
func AppendCommand(dst []byte, c *logpb.Command) []byte {
	n := c.SizeVT()
	dst = protowire.AppendTag(dst, fieldCommands, protowire.BytesType)
	dst = protowire.AppendVarint(dst, uint64(n))
	at := len(dst)
	dst = append(dst, make([]byte, n)...)
	if _, err := c.MarshalToSizedBufferVT(dst[at:]); err != nil {
		panic(err) // a buffer of the computed size is always enough
	}
	return dst
}

// BatchOf returns a batch of commands without payloads.
func BatchOf(cs ...*logpb.Command) Batch {
	var b Batch
	for _, c := range cs {
		b.Commands = AppendCommand(b.Commands, c)
		b.Count++
	}
	return b
}

// proposer gathers batches while earlier entries are under way. Its two goroutines live only while
// there is work: one builds entries, the other waits for them.
//
//	bytes = sum of the pending entries' bytes ≤ maxPendingBytes + far * maxEntryBytes + one entry
//	len(pending) ≤ maxPending + far, as long as far does not fall
type proposer struct {
	lead      *leadership
	admission *admission // of the node
	version   func() uint32
	commit    func(l *raft.Log) raft.ApplyFuture // see order
	active    func()                             // called when there is work
	undecided func(from string)                  // called when submissions of a node may be lost
	committed func(took time.Duration)           // called when an entry has been applied
	roundTrip func() time.Duration               // to the nearest members that are a majority
	lost      func()                             // called when the group's own proposals may be lost
	guard     *guard

	fromMachine

	mu      sync.Mutex
	changed sync.Cond // an entry has been committed or applied, something is to be done, or building has ended
	queued  queued
	running bool // entries are being built
	gathers bool // none is begun, see gather
	underWay
	idle    chan struct{} // closed when neither runs any more; nil: nobody waits for that. See drained
	commits uint64        // entries of a local queue that have been applied
	refused bool          // a submission, since doze
	stamper clock.Stamper
	done    sync.WaitGroup
}

// underWay is what raft has accepted.
type underWay struct {
	pending []pendingEntry
	bytes   int
	far     int  // how many entries more than maxPending may be under way
	waiting bool // a goroutine waits for pending entries
}

// full reports whether no other entry may be under way.
func (u *underWay) full() bool {
	return len(u.pending) >= maxPending+u.far || u.bytes >= maxPendingBytes+u.far*maxEntryBytes
}

// pendingEntry is an entry that raft has accepted.
type pendingEntry struct {
	future raft.ApplyFuture
	bytes  int
	heavy  int // commands that are not light
	from   []string
	since  time.Time // it has been on its way
	term   uint64    // in which it was made
}

// proposeTick requests an entry with a tick. It reports whether there will be one: there will not
// while the group takes no commands.
func (p *proposer) proposeTick() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.lead.serving() == 0 {
		return false
	}
	p.queued.tick = true
	p.start()
	return true
}

// gather has what f submits go into one entry, with a tick if that is asked for. That alone waits for company,
// until goOn; one that is due meanwhile does not.
func (p *proposer) gather(tick bool, f func()) {
	p.mu.Lock()
	p.gathers = true
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.gathers = false
		p.queued.tick = p.queued.tick || tick && p.lead.serving() != 0
		if p.queued.any() || len(p.queued.errands) > 0 || p.queued.tick && !tick {
			p.start()
		}
	}()
	f()
}

// goOn makes an entry of a tick that still waits for company.
func (p *proposer) goOn() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.queued.tick {
		p.start()
	}
}

// start starts the proposer's goroutine unless it is running. The caller holds mu.
func (p *proposer) start() {
	if p.gathers {
		return // gather does it
	}
	if p.running {
		p.changed.Broadcast()
		return
	}
	p.running = true
	p.active()
	p.done.Add(1)
	go p.run()
}

func (p *proposer) run() {
	defer p.done.Done()
	defer p.guard.contain("propose an entry")
	p.mu.Lock()
	defer p.mu.Unlock()
	defer p.ended()
	for q := &p.queued; ; {
		switch {
		case len(q.errands) > 0:
			p.doErrands()
		case !q.any() && !q.tick:
			return
		case p.lead.term.Load() == 0:
			p.giveUp()
		case len(q.incoming) > 0:
			p.resolve()
		case p.lead.pauses():
			return // what is queued is kept, see Transfer
		case p.full():
			p.changed.Wait()
		default:
			p.propose()
		}
	}
}

// ended records that the goroutine that builds entries ends. The caller holds mu.
func (p *proposer) ended() {
	p.running = false
	p.changed.Broadcast()
	p.signalIdle()
}

// giveUp reports everything that is waiting as undecided. The caller holds mu.
func (p *proposer) giveUp() {
	q := &p.queued
	for i := range q.incoming {
		q.light = append(q.light, q.incoming[i].Batch)
	}
	from := origins(origins(nil, q.light), q.heavy)
	p.admission.release(q.light)
	p.admission.release(q.heavy)
	q.back.entering -= countCommands(q.heavy)
	q.left = q.lights
	q.incoming, q.light, q.heavy, q.tick = nil, drop(q.light, len(q.light)), drop(q.heavy, len(q.heavy)), false
	p.mu.Unlock()
	defer p.mu.Lock()
	p.report(from)
}

// leadershipEnded makes the proposer give up what is waiting.
func (p *proposer) leadershipEnded() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.queued.heavy = p.queued.back.releaseAll(p.queued.heavy)
	if p.queued.any() {
		p.start()
	}
}

// releaseHeld queues what need not be held back any more. The caller holds mu.
func (p *proposer) releaseHeld() {
	before := len(p.queued.heavy)
	p.queued.heavy = p.queued.back.release(p.queued.heavy)
	if len(p.queued.heavy) > before {
		p.start()
	}
}

// checkHeld is releaseHeld, called again and again while something is held back.
func (p *proposer) checkHeld() {
	defer p.guard.contain("let publishes in")
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.releaseHeld(); len(p.queued.back.batches) > 0 {
		p.queued.back.arm()
	}
}

// report tells nodes that their submissions may be lost.
func (p *proposer) report(from []string) {
	defer p.guard.contain("report undecided commands")
	for _, f := range from {
		p.undecided(f)
	}
}

// propose makes one entry of what is waiting. The caller holds mu, which is released while raft
// takes the entry.
func (p *proposer) propose() {
	light, commands := take(p.queued.light, 0, maxEntryLight)
	p.queued.left += uint64(len(light))
	heavy, _ := take(p.queued.heavy, commands, maxEntryCommands)
	heavy = heavy[:p.following(heavy)]
	bytes := 0
	for i := range heavy {
		bytes += heavy[i].Bytes
	}
	log := raft.Log{Data: p.header(p.version(), p.stamper.Next(), light, heavy)}
	if bytes > 0 {
		log.Extensions = joinPayloads(heavy)
	}
	e := pendingEntry{since: time.Now(), bytes: bytes + len(log.Data), heavy: countCommands(heavy), from: origins(origins(nil, light), heavy)}
	e.term = p.lead.term.Load()
	p.admission.release(light)
	p.admission.release(heavy)
	p.queued.light, p.queued.heavy = drop(p.queued.light, len(light)), drop(p.queued.heavy, len(heavy))
	if e.future = p.enter(&log); e.future == nil {
		p.commits++
		p.answered(&e)
		p.changed.Broadcast()
		return
	}
	p.bytes += e.bytes
	p.pending = append(p.pending, e)
	if !p.waiting {
		p.waiting = true
		p.done.Add(1)
		go p.await()
	}
}

// following counts the leading batches that have no light one of their sessions before them in the queue.
func (p *proposer) following(heavy []Batch) (n int) {
	for n < len(heavy) && heavy[n].after <= p.queued.left {
		n++
	}
	return n
}

// answered takes account of an entry that has been applied or may be lost. The caller holds mu.
func (p *proposer) answered(e *pendingEntry) {
	p.queued.back.entering -= e.heavy
	p.releaseHeld()
}

// enter puts an entry into the log; a nil result means that it has been applied. The caller holds
// mu, which is released meanwhile.
func (p *proposer) enter(log *raft.Log) raft.ApplyFuture {
	p.mu.Unlock()
	defer p.mu.Lock()
	return p.commit(log)
}

// take returns the leading batches that fit into an entry which already has the given number of
// commands, and the resulting number of commands. One batch of each kind always fits.
func take(from []Batch, commands, limit int) ([]Batch, int) {
	n, bytes := 0, 0
	for n < len(from) {
		b := &from[n]
		if n > 0 && (bytes+b.Bytes > maxEntryBytes || commands+b.Count > limit) {
			break
		}
		commands, bytes = commands+b.Count, bytes+b.Bytes
		n++
	}
	return from[:n], commands
}

// countCommands counts the commands of batches.
func countCommands(batches []Batch) (n int) {
	for i := range batches {
		n += batches[i].Count
	}
	return n
}

// drop removes the first n batches.
func drop(from []Batch, n int) []Batch {
	rest := append(from[:0], from[n:]...)
	clear(from[len(rest):])
	return rest
}

// header encodes the entry's header and clears the request for a tick.
func (p *proposer) header(version uint32, now fsm.Time, light, heavy []Batch) []byte {
	size := 32
	for _, batches := range [][]Batch{light, heavy} {
		for i := range batches {
			size += len(batches[i].Commands)
		}
	}
	h := make([]byte, 0, size)
	h = protowire.AppendTag(h, fieldVersion, protowire.VarintType)
	h = protowire.AppendVarint(h, uint64(version))
	h = protowire.AppendTag(h, fieldNow, protowire.VarintType)
	h = protowire.AppendVarint(h, protowire.EncodeZigZag(int64(now)))
	for _, batches := range [][]Batch{light, heavy} {
		for i := range batches {
			h = append(h, batches[i].Commands...)
		}
	}
	if p.queued.tick {
		p.queued.tick = false
		h = AppendCommand(h, &tickCommand)
	}
	return h
}

var tickCommand = logpb.Command{Kind: logpb.Command_TICK}

// joinPayloads returns the payload section of an entry. bytes.Join takes memory without filling it with
// zeros first.
func joinPayloads(batches []Batch) []byte {
	if len(batches) == 1 && len(batches[0].Payloads) == 1 {
		return batches[0].Payloads[0]
	}
	count := 0
	for i := range batches {
		count += len(batches[i].Payloads)
	}
	all := make([][]byte, 0, count)
	for i := range batches {
		all = append(all, batches[i].Payloads...)
	}
	return bytes.Join(all, nil)
}

// origins appends the distinct submitting nodes of batches to from.
func origins(from []string, batches []Batch) []string {
	for i := range batches {
		if !slices.Contains(from, batches[i].From) {
			from = append(from, batches[i].From)
		}
	}
	return from
}

// await waits for entries in order and reports those that may have failed.
func (p *proposer) await() {
	defer p.done.Done()
	for {
		p.mu.Lock()
		if len(p.pending) == 0 {
			p.waiting = false
			p.signalIdle()
			p.mu.Unlock()
			return
		}
		e := p.pending[0]
		p.mu.Unlock()
		err := e.future.Error()
		took := time.Since(e.since)
		far := p.distance(took)
		p.mu.Lock()
		p.far = far
		p.pending[0] = pendingEntry{}
		p.pending = p.pending[1:]
		p.bytes -= e.bytes
		p.answered(&e)
		if err != nil && e.term == p.lead.term.Load() {
			p.restart()
		}
		p.changed.Signal()
		p.mu.Unlock()
		if err != nil {
			p.lost()
			p.report(e.from)
			continue
		}
		p.committed(took)
	}
}

// distance returns how many entries more than among near members may be under way when one has taken so long.
// Only what links add to that counts: with a disk or a member that is slow, more entries would wait for longer.
func (p *proposer) distance(took time.Duration) int {
	if took < perPending {
		return 0
	}
	return int(min(took, p.roundTrip()) / perPending)
}

// restart gives up what is queued behind an entry that may be lost: it would come too early. The caller
// holds mu.
func (p *proposer) restart() {
	p.queued.cursors = cursors{}
	p.queued.heavy = p.queued.back.releaseAll(p.queued.heavy)
	if p.queued.any() {
		p.giveUp()
	}
}

// transfer makes the proposer refuse commands and make no entries although the group leads, or go on.
func (p *proposer) transfer(yes bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lead.transferring.Store(yes)
	p.lead.dozing.Store(0)
	if !yes && (p.queued.any() || p.queued.tick) {
		p.start()
	}
}

// doze makes the proposer refuse commands as transfer does, if nothing waits or is under way. transfer(false) undoes it.
func (p *proposer) doze(term uint64) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	q := &p.queued
	if p.running || p.waiting || p.gathers || q.any() || q.tick || len(q.errands)+len(q.back.batches) > 0 {
		return false
	}
	p.refused = false
	p.lead.dozing.Store(term)
	return true
}

// missed reports whether somebody was refused since doze, and waits for word of the leader.
func (p *proposer) missed() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.refused
}

// stamp returns the state of the stamps, from which they go on.
func (p *proposer) stamp() clock.Stamper {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.stamper
}

// drained waits until everything that raft has taken is committed and answered, and reports whether
// this happened in time. No entry is made meanwhile: the leadership is being transferred.
func (p *proposer) drained(limit time.Duration) bool {
	p.mu.Lock()
	if !p.running && !p.waiting {
		p.mu.Unlock()
		return true
	}
	idle := make(chan struct{})
	p.idle = idle
	p.mu.Unlock()
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-idle:
		return true
	case <-timer.C:
		return false
	}
}

// signalIdle wakes the goroutine that waits until nothing is under way. The caller holds mu.
func (p *proposer) signalIdle() {
	if p.idle != nil && !p.running && !p.waiting {
		close(p.idle)
		p.idle = nil
	}
}

// busy reports whether entries are being built or are under way.
func (p *proposer) busy() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.running || p.waiting
}

// nextApplied returns when an entry made after this call has been applied, or when nothing is
// waiting to become one. It is for local queues.
func (p *proposer) nextApplied() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for end := p.commits + 2; p.running && p.commits < end; { // one may be under construction
		p.changed.Wait()
	}
}

// begin makes the stamps of a leader's term start, not earlier than last. Of the sessions it knows nothing
// yet.
func (p *proposer) begin(c *clock.Clock, last fsm.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stamper.Begin(c, max(p.stamper.Last(), last))
	p.queued.cursors = cursors{}
}

// resume makes the stamps of a leader that has slept go on in its term: a step of the clock that is refused in the middle of a
// term is not followed because the queue has slept.
func (p *proposer) resume(s clock.Stamper) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stamper = s
}

// now returns the stamp an entry would get.
func (p *proposer) now() fsm.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.stamper.Peek()
}

// until returns the least time until entries are stamped with t; 0 if they already are.
func (p *proposer) until(t fsm.Time) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.stamper.Wait(t)
}

// wait returns when nothing is being proposed any more.
func (p *proposer) wait() { p.done.Wait() }

// fromMachine is what the machine and its effects do for the proposer. Nothing of it is called with the
// proposer's lock held: each may take the machine's.
type fromMachine struct {
	positions func(runs []run)                                     // asks the machine where sessions stand, see cursors.lacks
	again     func(commands []byte, copies map[fsm.SessionID]bool) // answers commands that have been applied
	answer    func(outcomes []Outcome)
	meters    *meters
}

// queued is what has been submitted and is not in an entry yet.
type queued struct {
	cursors      cursors
	incoming     []incoming // the first has a session without a cursor
	light, heavy []Batch
	back         backpressure
	tick         bool // a tick is wanted
	// Light batches so far, and how many of them are in an entry or given up.
	lights, left uint64
	errands      []func() // see later
}

// incoming is a batch that waits for the machine to say where its sessions stand.
type incoming struct {
	Batch
	runs []run
}

// any reports whether commands wait that were submitted.
func (q *queued) any() bool { return len(q.incoming)+len(q.light)+len(q.heavy) > 0 }

// submit queues commands for the log: those of a session in the order of their numbers, each once. Of
// copies, those that have been applied are answered again; so is at once what comes too early, with the
// number that is expected. It does not wait for the machine: it is called for links that carry other
// groups' messages as well.
func (p *proposer) submit(b Batch) error {
	var few [2]run // mostly there are no more, and they need no memory
	runs := runsOf(few[:0], b.Commands)
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.lead.refuses(); err != nil {
		p.refused = true
		return err
	}
	if !p.admission.take(&b, runs) {
		return ErrFull
	}
	if len(p.queued.incoming) > 0 || p.queued.cursors.lacks(runs) {
		p.queued.incoming = append(p.queued.incoming, incoming{b, slices.Clone(runs)})
		p.start()
	} else {
		p.accept(b, runs)
	}
	return nil
}

// accept takes of a batch what its sessions' cursors say, and has the rest answered. The caller holds mu.
func (p *proposer) accept(b Batch, runs []run) {
	if !p.queued.cursors.admit(runs) {
		commands, kept := b.Commands, slices.Clone(runs)
		p.later(func() { p.answerRest(commands, kept) })
		if b = b.only(runs); b.Count == 0 {
			p.admission.release([]Batch{b})
			return
		}
	}
	p.sort(b, runs)
}

// sort puts a batch where it waits, behind everything that its sessions have submitted before. The
// caller holds mu.
func (p *proposer) sort(b Batch, runs []run) {
	q := &p.queued
	light, held := p.queued.cursors.newest(runs)
	switch {
	case b.Light:
		q.lights++
		p.queued.cursors.mark(runs, q.lights, 0)
		q.light = append(q.light, b)
	case q.back.takes(&b):
		p.queued.cursors.mark(runs, 0, q.back.taken)
		return
	default:
		if held > q.back.taken-uint64(len(q.back.batches)) {
			q.heavy = q.back.releaseAll(q.heavy) // a publisher has become a consumer
		}
		b.after = light
		q.heavy = append(q.heavy, b)
	}
	p.start()
}

// resolve has the machine say where sessions stand that have no cursor, and accepts what came of them. The
// caller holds mu, which is released meanwhile.
func (p *proposer) resolve() {
	p.askMachine(p.queued.incoming)
	for len(p.queued.incoming) > 0 && !p.queued.cursors.lacks(p.queued.incoming[0].runs) {
		x := p.queued.incoming[0]
		p.queued.incoming = p.queued.incoming[1:]
		p.accept(x.Batch, x.runs)
	}
	if len(p.queued.incoming) == 0 {
		p.queued.incoming = nil
	}
}

func (p *proposer) askMachine(all []incoming) {
	p.mu.Unlock()
	defer p.mu.Lock()
	for i := range all {
		p.positions(all[i].runs)
		for j := range all[i].runs {
			all[i].runs[j].known = true
		}
	}
}

// maxErrands bounds what waits to be answered without an entry: who misses an answer asks for it.
const maxErrands = 256

// later has the goroutine that builds entries do something that may wait for the machine. The caller holds
// mu.
func (p *proposer) later(f func()) {
	if len(p.queued.errands) < maxErrands {
		p.queued.errands = append(p.queued.errands, f)
		p.start()
	}
}

// doErrands does what was left for later. The caller holds mu, which is released meanwhile.
func (p *proposer) doErrands() {
	all := p.queued.errands
	p.queued.errands = nil
	p.mu.Unlock()
	defer p.mu.Lock()
	for _, f := range all {
		f()
	}
}

// recall is Group.Recall.
func (p *proposer) recall(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.lead.term.Load() != 0 {
		p.later(f)
	}
}

// answerRest answers what has not been taken of a batch.
func (p *proposer) answerRest(commands []byte, runs []run) {
	var refused []Outcome
	copies := map[fsm.SessionID]bool{}
	for i := range runs {
		switch r := &runs[i]; {
		case r.refused.Code != fsm.OK:
			p.meters.early.Add(uint64(r.count))
			refused = append(refused, Outcome{Session: r.session, First: r.first, Run: 1, Result: r.refused})
		case r.take > r.first:
			p.meters.copies.Add(min(r.take, r.end()) - r.first)
			copies[r.session] = true
		}
	}
	if len(copies) > 0 {
		p.again(commands, copies)
	}
	if len(refused) > 0 {
		p.answer(refused)
	}
}

// tidy forgets sessions that have ended if there are many. The machine's lock is held.
func (p *proposer) tidy(m *queue.Machine) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.queued.cursors.crowded() {
		p.queued.cursors.forgetEnded(m)
	}
}

// expects returns the number that is taken next of a session of which the machine expects a number.
func (p *proposer) expects(s fsm.SessionID, next uint64) uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return max(p.queued.cursors.of[s].next, next)
}

// doubt forgets where a session stands: something has been refused that was taken, or the session has
// ended.
func (p *proposer) doubt(s fsm.SessionID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.queued.cursors.of, s)
}
