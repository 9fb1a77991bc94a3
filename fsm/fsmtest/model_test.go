package fsmtest

import (
	"cmp"
	"slices"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/queue"
	"github.com/quorate/quorate/proto/logpb"
)

// Bounds of the rules.
const (
	defaultPriority = 4
	maxPriority     = 31
	prefetchCeiling = 65535
	beginWithin     = 60_000  // how old the first command of a stream may be
	endedFor        = 120_000 // how long an ended session is remembered, at least
	lateConsumers   = 64      // of a session, cancelled, kept for what is late
	drainTime       = fsm.Millis(60_000)
)

// place is where a message is. Each message is in exactly one.
type place uint8

const (
	ready place = iota + 1
	returned
	checkedOut
	outbox
	scheduled
	waiting // a dead letter that has nowhere to go
	purged
	delayed // returned, and tried again later
)

// phase is how far a queue's life has come.
type phase uint8

const (
	live     phase = iota
	draining       // the lease has ended, dead letters are still under way
	gone
)

// model is the naive queue: records of what the rules speak of, and the rules.
type model struct {
	modelTime
	modelMessages
	modelSessions
	modelCommand

	version  uint32 // the highest stamped on an entry
	config   *logpb.QueueConfig
	phase    phase
	goneAt   fsm.Time // while draining: when it ends at the latest
	counters queue.Counters
	bounds   queue.Bounds
}

// modelTime is what instants are counted from.
type modelTime struct {
	clock      fsm.Time
	lockCredit fsm.Millis // time that holders of messages were given back
	term       uint64
	lastUsed   fsm.Time
	active     fsm.Time // for auto-delete on idle
}

// modelMessages are the messages and the letters.
type modelMessages struct {
	messages    []*message // all there are, by seq
	nextMessage uint64
	returns     []*message // the returned ones, the next to hand out first
	letters     []*message // the outbox, oldest first
	nextLetter  uint64
	waitingOnes []*message // letters, in the order in which they began to wait
	purgedOnes  []*message // oldest first
	delayedOnes []*message // in the order in which they were returned
	targets     []*target
	// unneeded is the last entry with a message that was not taken in.
	unneeded uint64
}

// modelSessions are the sessions and the consumers.
type modelSessions struct {
	sessions  []*session
	consumers []*consumer // in order of registration; gets are among them
	single    *consumer   // alone is served, if the settings say so
	service   []*consumer // who gets the next message, highest priority first
	down      []nodeDown
	suspected []suspicion
	ended     []ended // all, oldest first
	orders    int     // of settlements that were not finished at once
}

// modelCommand is what the command under way has done and may still do.
type modelCommand struct {
	out fsm.Effects
	// touched: the outbox got a letter or a letter got a route.
	touched bool
	// budget: due actions that it may still do.
	budget int
	// handOuts: messages that it may still hand out.
	handOuts int
	overdue  *back // what comes back in this command
	// fresh is a message with TTL 0 while it is offered.
	fresh *message
}

type message struct {
	seq       uint64
	ref       fsm.Ref
	expireAt  fsm.Time // 0: never
	priority  uint32
	acquired  uint32 // hand-outs that have ended
	failed    uint32
	hasExpiry bool
	deaths    []*logpb.Death
	head      uint32
	place     place

	schedule
	delivered
	letterState
}

// schedule is what a message has that becomes ready later.
type schedule struct {
	// scheduledFor is when it was to become ready; 0: it never was scheduled.
	scheduledFor fsm.Time
	// While it is scheduled or delayed: when it is due, its name, its TTLs as the
	// log stores them.
	dueAt        fsm.Time
	id           string
	ttl, ceiling uint64
}

// delivered is what a message has while it is checked out.
type delivered struct {
	holder   *consumer
	delivery uint64
	deadline fsm.Time // of the delivery; 0: never
	limit    fsm.Millis
	since    fsm.Time // when it was handed out
	back     *back    // it is on its way back, or being settled
	failing  bool     // it goes back as failed
}

// letterState is what a message has that has died.
type letterState struct {
	letter    uint64 // number in the outbox
	reason    logpb.Death_Reason
	diedAt    fsm.Time
	routed    bool
	transfers []transfer
	done      []uint64 // targets that have the letter
	refused   bool     // a target has refused it since it last waited
}

// transfer is a letter's place in the stream to one target.
type transfer struct {
	target, number, ceiling uint64
}

// target is a queue that dead letters go to.
type target struct {
	id, next, settled uint64
	gone              bool
}

type session struct {
	id      fsm.SessionID
	nextSeq uint64
	// The last synchronous command and its answer.
	opSeq      uint64
	opAnswer   fsm.Result
	opDelivery uint64 // of a get
	refused    []uint64
}

type consumer struct {
	id        fsm.ConsumerID
	tag       string
	requested uint32 // prefetch as asked for
	prefetch  uint32
	priority  int32
	noAck     bool
	exclusive bool
	timeout   uint64 // +1; 0: the queue's
	cancelled bool
	revoked   bool   // cancelled by the queue
	next      uint64 // number of the next delivery
	timedOut  []late // deliveries taken back and not settled since
	lateAcks  uint64
}

// late is a delivery that was taken back.
type late struct {
	id    uint64
	since fsm.Time
	limit fsm.Millis
}

// suspicion is a life of a node from which nothing is heard.
type suspicion struct {
	of    queue.Boot
	until fsm.Time // when what it holds goes back; 0: it has gone back
}

type nodeDown struct {
	node fsm.NodeID
	boot uint64
}

func newModel() *model {
	return &model{
		modelMessages: modelMessages{nextMessage: 1, nextLetter: 1}, modelCommand: modelCommand{overdue: &back{}},
		config: &logpb.QueueConfig{}, bounds: rules,
	}
}

// apply performs one command. The effects are the model's until the next call.
func (q *model) apply(m fsm.Meta, c *logpb.Command) (fsm.Result, *fsm.Effects) {
	q.out, q.touched = fsm.Effects{}, false
	before := q.liveIndexes()
	r := q.perform(m, c)
	after := q.liveIndexes()
	for _, index := range before {
		if !slices.Contains(after, index) {
			q.out.Released = append(q.out.Released, index)
		}
	}
	return r, &q.out
}

func (q *model) perform(m fsm.Meta, c *logpb.Command) fsm.Result {
	before := q.clock
	q.clock = max(q.clock, m.Now)
	q.version = max(q.version, m.Version, 1)
	if m.Term != q.term && q.term != 0 {
		q.extend(min(fsm.Millis(q.clock-before), millis(q.config.LockCredit)))
	}
	if m.Term != q.term {
		q.term, q.lastUsed, q.active = m.Term, q.clock, q.clock
	}
	if q.phase != live {
		return q.applyEnded(c)
	}
	q.budget, q.handOuts = q.bounds.Before, q.bounds.HandOuts
	if c.Kind == logpb.Command_TICK {
		q.budget = q.bounds.Tick
	}
	q.catchUp()
	if c.Kind != logpb.Command_TICK {
		q.budget = q.bounds.Before // for what is in the way of the hand-out
	}
	inUse, consumers := q.inUse(), q.liveConsumers()
	r, performed := q.stream(m, c)
	if q.phase != live {
		return r
	}
	q.bringBack(c.Kind)
	q.goOn(c.Kind)
	if performed && c.Kind == logpb.Command_TICK {
		q.endUnused(inUse)
	}
	if q.phase != live {
		return r
	}
	q.elect()
	q.handOut()
	q.trim()
	q.sweep(c.Kind)
	q.afterUse(inUse, consumers)
	return r
}

// catchUp lets messages expire and become ready that are due, in this order of
// time, as many as the command may.
func (q *model) catchUp() {
	for q.budget > 0 {
		x, y := q.nextExpiring(), q.nextScheduled()
		if y == nil || y.dueAt > q.clock || x != nil && cmp.Or(cmp.Compare(x.expireAt, y.dueAt), cmp.Compare(x.seq, y.seq)) < 0 {
			if !q.expireOne() {
				return
			}
			continue
		}
		q.budget--
		if y.place == delayed {
			q.tryAgain(y)
		} else {
			q.promote(y)
		}
	}
}

// expireOne kills the message that has been due for longest; false: there is
// none, or the command may do no more of it.
func (q *model) expireOne() bool {
	first := q.nextExpiring()
	if first == nil || q.budget == 0 {
		return false
	}
	q.budget--
	q.die(first, logpb.Death_EXPIRED)
	return true
}

func (q *model) nextExpiring() *message {
	var first *message
	for _, x := range q.messages {
		if x.due(q.clock) && x != q.fresh && (first == nil || x.expireAt < first.expireAt) {
			first = x
		}
	}
	return first
}

// due reports whether a message waits that is too old to be handed out.
func (x *message) due(now fsm.Time) bool {
	return x.waits() && x.expireAt != 0 && x.expireAt <= now
}

// bytes is what limits count.
func (x *message) bytes() uint64 { return uint64(x.ref.Size - x.head) }

func (x *message) waits() bool { return x.place == ready || x.place == returned }

// handOut gives waiting messages to consumers with credit.
func (q *model) handOut() {
	if q.phase != live {
		return
	}
	for len(q.service) > 0 && q.handOuts > 0 && q.ending() == nil {
		x := q.nextWaiting()
		if x == nil {
			return
		}
		q.handOuts--
		c := q.service[0]
		q.service = q.service[1:]
		q.checkOut(x, c)
		q.serve(c)
	}
}

// nextWaiting is the message that is handed out next; nil: none. If one that
// is due is in front of it, those that are due expire first; if they are too
// many for one command, nobody gets anything now.
func (q *model) nextWaiting() *message {
	for {
		x := q.nextReady()
		if x == nil || x == q.fresh || !x.due(q.clock) {
			return x
		}
		if !q.expireOne() {
			return nil
		}
	}
}

// nextReady is the first of those that wait.
func (q *modelMessages) nextReady() *message {
	if len(q.returns) > 0 {
		return q.returns[0]
	}
	var best *message
	for _, x := range q.messages {
		if x.place == ready && (best == nil || x.priority > best.priority) {
			best = x
		}
	}
	return best
}

// checkOut hands x to c.
func (q *model) checkOut(x *message, c *consumer) {
	q.leave(x)
	x.place, x.holder, x.delivery = checkedOut, c, c.next
	c.next++
	q.counters.Delivered++
	if x.acquired > 0 {
		q.counters.Redelivered++
	}
	x.deadline, x.limit, x.since = 0, 0, max(q.clock, 1)
	if t := q.timeoutOf(c); t != 0 {
		x.limit = millis(t - 1)
		x.deadline = q.clock.Add(x.limit)
	}
	q.out.Deliveries = append(q.out.Deliveries, q.deliveryOf(x))
}

// deliveryOf describes the delivery of x, which is checked out.
func (q *modelMessages) deliveryOf(x *message) fsm.Delivery {
	d := fsm.Delivery{
		To: x.holder.id, ID: x.delivery, Ref: x.ref, Acquired: x.acquired, Failed: x.failed, Deaths: x.deaths,
		ExpireAt: x.expireAt, ScheduledFor: x.scheduledFor,
	}
	if d.To.Number == 0 {
		d.Ready = q.count(ready) + q.count(returned)
	}
	return d
}

// timeoutOf is a consumer's timeout + 1; 0: none.
func (q *model) timeoutOf(c *consumer) uint64 {
	if c.noAck {
		return 0 // settled when it is written
	}
	if c.timeout != 0 {
		return c.timeout
	}
	return q.config.ConsumerTimeoutPlusOne
}

// serve puts c at the end of those who wait for messages, if it may get one.
func (q *model) serve(c *consumer) {
	if slices.Contains(q.service, c) || !q.hasCredit(c) {
		return
	}
	at := 0
	for at < len(q.service) && q.service[at].priority >= c.priority {
		at++
	}
	q.service = slices.Insert(q.service, at, c)
}

func (q *model) hasCredit(c *consumer) bool {
	return q.isUp(c) && len(q.held(c)) < int(c.prefetch) && (!q.config.SingleActive || c == q.single && !q.quiescing())
}

// held are the messages c holds, by delivery.
func (q *modelMessages) held(c *consumer) []*message {
	var held []*message
	for _, x := range q.messages {
		if x.place == checkedOut && x.holder == c && x.back == nil {
			held = append(held, x)
		}
	}
	slices.SortFunc(held, func(a, b *message) int { return int(a.delivery) - int(b.delivery) })
	return held
}

// leave takes x out of the list it waits in.
func (q *modelMessages) leave(x *message) {
	isX := func(y *message) bool { return x == y }
	q.returns = slices.DeleteFunc(q.returns, isX)
	q.letters = slices.DeleteFunc(q.letters, isX)
	q.waitingOnes = slices.DeleteFunc(q.waitingOnes, isX)
	q.purgedOnes = slices.DeleteFunc(q.purgedOnes, isX)
	q.delayedOnes = slices.DeleteFunc(q.delayedOnes, isX)
}

// remove forgets x.
func (q *modelMessages) remove(x *message) {
	q.leave(x)
	q.messages = slices.DeleteFunc(q.messages, func(y *message) bool { return x == y })
}

// liveIndexes are the log indexes whose payloads are still wanted, ascending.
func (q *modelMessages) liveIndexes() []uint64 {
	var live []uint64
	for _, x := range q.messages {
		live = append(live, x.ref.Index)
	}
	slices.Sort(live)
	return slices.Compact(live)
}

// millis is a duration in a command, saturated.
func millis(ms uint64) fsm.Millis { return fsm.Millis(min(ms, uint64(fsm.MaxTime))) }
