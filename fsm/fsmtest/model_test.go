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
	maxMinTTLs      = 8
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
	delayed  // returned, and tried again later
	deferred // put aside until somebody asks for it
	grouped  // ready, and of a group
	parked   // it has failed too often for the default limit
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
	modelPause
	modelRedrive
	modelCommand

	modelEnds
	modelGroups

	version  uint32 // the highest stamped on an entry
	config   *logpb.QueueConfig
	phase    phase
	endedBy  queue.QueueEnd
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
	deferrals   []*message // in the order in which they were deferred
	groupedOnes []*message // ready ones of groups, in the order of their list
	parkedOnes  []*message // in the order in which they were parked
	targets     []*target
	ids         []seenID // oldest first
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
	// Without session, in the order in which their time ends.
	detachedOnes []detached
	registered   int // consumers so far
	orders       int // of settlements that were not finished at once
}

// modelCommand is what the command under way has done and may still do.
type modelCommand struct {
	out fsm.Effects
	// news is what consumers in credit mode are told, and consumed who is told last.
	news     []notice
	consumed *consumer
	// touched: the outbox got a letter or a letter got a route.
	touched bool
	// budget: due actions that it may still do.
	budget int
	// handOuts: messages that it may still hand out.
	handOuts int
	overdue  *back // what comes back in this command
	hasSpace bool  // for the unit that is performed
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
	remark    fsm.Remark // of who has discarded it
	added     []addition // by receivers, the newest first
	head      uint32
	hops      uint32 // how often it was forwarded
	place     place
	came      fsm.Time // when its entry was applied
	tally              // by the value of a header
	label              // what its publisher calls it
	key       string   // while it is there no other one with the key is taken; empty: it has none

	schedule
	delivered
	letterState
	member
}

// schedule is what a message has that becomes ready later.
type schedule struct {
	// scheduledFor is when it was to become ready; 0: it never was scheduled.
	scheduledFor fsm.Time
	// While it is scheduled, delayed or deferred: when it is due, its name, its TTLs
	// as the log stores them.
	dueAt        fsm.Time
	id           string
	ttl, ceiling uint64
	deferral     string // the token
}

// delivered is what a message has while it is checked out.
type delivered struct {
	holder   *consumer
	delivery uint64
	deadline fsm.Time // of the delivery; 0: never
	limit    fsm.Millis
	since    fsm.Time // when it was handed out
	locked
	back    *back // it is on its way back, or being settled
	failing bool  // it goes back as failed
	lapsed  bool  // its lock has ended, so it goes back
	heldBy  lastHolder
	tagThen *string // of holder when it lost or settled x; nil: it has x
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
	forwarded bool     // it has not died, but goes on
	failures  uint32   // before it died, without a rejection
	taken
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
	nextGet    uint64 // the next delivery of its gets, which are no consumer; 0: 1
}

type consumer struct {
	id        fsm.ConsumerID
	tag       string
	requested uint32 // prefetch as asked for
	prefetch  uint32
	shared    bool // with others of its session
	noticed   bool // its session, that messages are ready for which it has no credit
	priority  int32
	noAck     bool
	exclusive bool
	timeout   uint64 // +1; 0: the queue's
	cancelled bool
	revoked   bool   // cancelled by the queue
	next      uint64 // number of the next delivery
	timedOut  []late // deliveries taken back and not settled since
	order     int    // of registration
	lockTerms
	minTTL uint64 // 0: any
	groupTerms
	lateAcks uint64
	link     link
	chooses
	numbered bool // its deliveries can be named by number
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
		modelMessages: modelMessages{nextMessage: 1, nextLetter: 1}, modelCommand: modelCommand{overdue: &back{}}, modelEnds: modelEnds{nextEnd: 1},
		config: &logpb.QueueConfig{}, bounds: rules,
	}
}

// apply performs one command. The effects are the model's until the next call.
func (q *model) apply(m fsm.Meta, c *logpb.Command) (fsm.Result, *fsm.Effects) {
	q.out, q.touched, q.toGoOn = fsm.Effects{}, false, false
	q.news, q.consumed = nil, nil
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
	former := q.version
	q.version = max(q.version, m.Version, 1)
	if former < 3 {
		for _, c := range q.consumers {
			q.review(c)
		}
	}
	q.index = m.Index
	if m.Term != q.term && q.term != 0 {
		q.extend(min(fsm.Millis(q.clock-before), millis(q.config.LockCredit)))
	}
	if m.Term != q.term && q.phase == draining && q.hasWill() {
		q.goneAt = q.clock.Add(drainTime)
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
	q.endPause()
	q.catchUp()
	q.settleParked(c.Kind)
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
	if q.config.SingleActive {
		q.tellServed(q.consumed)
	}
	q.forward()
	q.handOut()
	if performed && c.Kind == logpb.Command_CREDIT && r.Code == fsm.OK {
		r = q.answerCredit(q.consumer(fsm.ConsumerID{Session: m.Session, Number: c.Credit.Consumer}), c.Credit, m.Index)
	}
	q.trim()
	q.sweep(c.Kind)
	q.settleGroups()
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
			q.active = q.clock
		}
		if y.place == scheduled {
			q.promote(y)
		} else {
			q.tryAgain(y)
		}
	}
}

// expireOne kills the message that has been due for longest; false: there is
// none, or the command may do no more of it.
func (q *model) expireOne() bool {
	first := cmp.Or(q.endingOne(), q.nextExpiring())
	if first == nil || q.budget == 0 {
		return false
	}
	q.budget--
	q.expire(first)
	return true
}

func (q *model) nextExpiring() *message {
	var first *message
	for _, x := range q.messages {
		if (x.due(q.clock) || x.aside() && x.expired(q.clock)) && x != q.fresh && !x.covered && (first == nil || x.expireAt < first.expireAt) {
			first = x
		}
	}
	return first
}

// due reports whether a message waits that is too old to be handed out.
func (x *message) due(now fsm.Time) bool {
	return x.waits() && x.expired(now)
}

// expired reports whether the TTL of x has passed.
func (x *message) expired(now fsm.Time) bool { return x.expireAt != 0 && x.expireAt <= now }

// bytes is what limits count.
func (x *message) bytes() uint64 {
	return uint64(x.ref.Size-x.head) + uint64(len(fsm.EditOf(x.annotations())))
}

// aside reports whether x was set aside after a delivery, or parked.
func (x *message) aside() bool {
	return x.place == delayed || x.place == deferred || x.place == parked
}

func (x *message) waits() bool { return x.place == ready || x.place == returned || x.place == grouped }

// handOut gives waiting messages to consumers with credit.
func (q *model) handOut() {
	if q.phase != live || q.config.Forward {
		return
	}
	q.settleGroups()
	for (len(q.service) > 0 || q.servesAny()) && q.handOuts > 0 && q.ending() == nil {
		var c *consumer
		x := q.toGive(func() (x *message) {
			x, c = q.candidate()
			return x
		})
		if y, _ := q.nextOfGroups(); x == nil && y != nil {
			return // what is in its way goes first
		}
		if x == nil {
			break
		}
		q.handOuts--
		q.unserve(c)
		q.checkOut(x, c)
		q.serve(c)
	}
	var short []*consumer
	for _, c := range q.consumers {
		if c.shared && !c.noticed && q.isServed(c) && !q.hasCredit(c) && !q.isFull(c) {
			short = append(short, c)
		}
	}
	if len(short) == 0 || q.ending() != nil || q.readyCount() == 0 ||
		q.version < 3 && len(q.service) > 0 && (q.leastServed() == 0 || q.wouldHandOut()) || q.version >= 3 && q.servesAny() {
		return
	}
	for _, c := range short {
		if q.version >= 3 && !q.anythingFor(c) {
			continue
		}
		c.noticed = true
		q.out.Short = append(q.out.Short, c.id)
	}
}

// anythingFor reports whether a message is ready that c may have if it gets credit.
func (q *model) anythingFor(c *consumer) bool {
	if c.only == "" && q.nextReady(c.minTTL) != nil {
		return true
	}
	for _, x := range q.heads() {
		to, free := q.taker(x.group)
		switch holder := q.holderOfGroup(x); {
		case holder != nil:
			if holder == c {
				return true
			}
		case !free: // somebody takes only this group
			if to == c {
				return true
			}
		case c.only == x.group || c.only == "" && len(q.holds(c)) < max(c.limit, 1):
			return true
		}
	}
	return false
}

// nextReady is the first of those that wait, are of no group, and have so much left of
// their TTL.
func (q *model) nextReady(least uint64) *message {
	if q.config.DeadlineOrder {
		return q.firstToExpire(least)
	}
	for _, x := range q.returns {
		if q.mayHave(x, least) {
			return x
		}
	}
	var best *message
	for _, x := range q.messages {
		if x.place == ready && q.mayHave(x, least) && (best == nil || x.priority > best.priority) {
			best = x
		}
	}
	return best
}

// checkOut hands x to c.
func (q *model) checkOut(x *message, c *consumer) { q.handOver(x, c, false) }

// handOver is checkOut, or, if apart, for a message whose group c does not get.
func (q *model) handOver(x *message, c *consumer, apart bool) {
	q.leave(x)
	x.place, x.holder, x.delivery = checkedOut, c, c.next
	x.lapsed = false
	c.next++
	c.link.used()
	q.counters.Delivered++
	if x.acquired > 0 {
		q.counters.Redelivered++
	}
	x.deadline, x.limit, x.since = 0, 0, max(q.clock, 1)
	if t := q.timeoutOf(c); t != 0 {
		x.limit = millis(t - 1)
		x.deadline = q.clock.Add(x.limit)
	}
	if x.group != "" {
		q.takeGroup(x, c, apart) // which is locked
	}
	if x.group != "" && !apart {
		x.locked = locked{}
	} else if x.locked = q.lockOf(c); !c.head || len(q.held(c)) == 1 {
		q.startLock(x)
	}
	q.out.Deliveries = append(q.out.Deliveries, q.deliveryOf(x))
}

// deliveryOf describes the delivery of x, which is checked out.
func (q *model) deliveryOf(x *message) fsm.Delivery {
	d := fsm.Delivery{
		To: x.holder.id, ID: x.delivery, Ref: x.ref, Acquired: x.acquired, Failed: x.failed, Deaths: x.deaths,
		ExpireAt: x.expireAt, ScheduledFor: x.scheduledFor, EnqueuedAt: max(x.came, x.scheduledFor), LockedUntil: x.lockUntil,
		Annotations: fsm.AnnotationMap(x.annotations()), Edit: fsm.EditOf(x.annotations()),
	}
	if x.holder.link.mode || x.holder.numbered {
		d.Sequence = x.seq
	}
	if q.holderOfGroup(x) == x.holder {
		d.LockedUntil = q.group(x.group).until
		d.LockRemaining = max(fsm.Millis(d.LockedUntil-q.clock), 0)
	}
	if x.lockUntil > q.clock {
		d.LockRemaining = fsm.Millis(x.lockUntil - q.clock)
	}
	if d.To.Number == 0 {
		d.Ready = q.readyCount()
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
	if slices.Contains(q.service, c) || !q.hasCredit(c) || c.only != "" || c.selector != "" {
		return
	}
	at := 0
	for at < len(q.service) && q.service[at].priority >= c.priority {
		at++
	}
	q.service = slices.Insert(q.service, at, c)
}

func (q *model) hasCredit(c *consumer) bool {
	return len(q.held(c)) < int(c.prefetch) && !q.isFull(c) && (!c.link.mode || c.link.left > 0) && q.isServed(c)
}

// maxHeld is how many messages the queue lets c hold, whatever c asks for.
func (q *model) maxHeld(c *consumer) int {
	if n := q.config.GetMaxPrefetch(); n != 0 && !c.noAck && c.id.Number != 0 {
		return int(n)
	}
	return prefetchCeiling
}

// isFull reports whether c holds as many as the queue lets it.
func (q *model) isFull(c *consumer) bool { return len(q.held(c)) >= q.maxHeld(c) }

// isServed reports whether c may get messages, if it has credit.
func (q *model) isServed(c *consumer) bool {
	return !q.isPaused() && q.isUp(c) && (!q.config.SingleActive || c == q.single && !q.quiescing())
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
	q.deferrals = slices.DeleteFunc(q.deferrals, isX)
	q.groupedOnes = slices.DeleteFunc(q.groupedOnes, isX)
	q.parkedOnes = slices.DeleteFunc(q.parkedOnes, isX)
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
