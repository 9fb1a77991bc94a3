package fsmtest

import (
	"fmt"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/queue"
	"github.com/quorate/quorate/proto/logpb"
)

// observer holds a machine to its promises by what goes in and what comes out
// alone: commands, answers, effects, and the record of ends, which is what the
// machine tells users about messages that are gone. Unlike the witness it lists
// nothing between two commands, so it can follow histories that are long enough to
// pass every bound of a command.
//
//   - What was refused is never delivered. An ended session is not served.
//   - What was delivered has a single holder. A second delivery has a cause in
//     between, and says how many there were before.
//   - What was acked, or has ended, is never delivered again and never ends again.
//   - Nothing is handed out, taken back or ended before its time, and nothing is
//     handed out once its time is over.
//   - First deliveries of a priority, and of a group, are in the order of publishing.
//   - No consumer holds more than it asked for, is handed more than it has credit for,
//     or gets anything once it is cancelled, suspected, or late.
//   - The payload of a message is not released before the message has ended, nor that
//     of a letter before every target has answered.
//   - At the end of a history each message is there or has one end that was said, and
//     what is not there is released.
//
// It must see all commands, from the first one on. It follows no queue that forwards,
// or that stores the messages of an exchange.
type observer struct {
	m       *queue.Machine
	clock   fsm.Time
	ticked  fsm.Time // clock of the last tick: only a tick ends what is held too long
	credit  fsm.Time // by which the ends of what is held may have moved, at most
	term    uint64
	config  *logpb.QueueConfig
	ever    everSet
	stories map[fsm.Ref]*story
	entries map[uint64][]*story
	streams map[fsm.SessionID]*observedStream
	holders map[fsm.ConsumerID]*holder
	// suspects are since when lives of nodes have been suspected.
	suspects map[queue.Boot]fsm.Time
	newest   map[rank]uint64 // the last first delivery, by order of publishing
	ids      map[string]fsm.Time
	copies   map[copyOf]*story // transfers without an answer
	nextEnd  uint64
	order    uint64
	sum      sums
	// renewedEver: somebody has renewed what he holds.
	renewedEver bool
	d           diffs
}

// everSet is what the settings have been at some time.
type everSet struct {
	limited, deadlineOrder, leastTTL, notSingle, notGrouped, together bool
	unique                                                            bool
	window, otherWindow                                               uint64
	disconnected                                                      fsm.Millis // the shortest
	deliveryLimit                                                     int64      // the smallest; negative: none
	exceeding                                                         bool       // what exceeds it may have died: somebody has set it, or there was a dead-letter exchange
}

// sums are what the observer has counted.
type sums struct {
	taken, refused, acked, duplicates, purged, letters, arrived uint64
	commands, deliveries                                        uint64
}

// rank says among which messages the order of first deliveries is that of
// publishing.
type rank struct {
	priority, highest uint32
	group             string
}

// story is what is known of one publish.
type story struct {
	ref      fsm.Ref
	order    uint64
	rank     rank
	refused  bool
	plain    bool     // its place in the order is known
	over     string   // how it has ended, for certain; empty: it has not
	mayBe    string   // how it may have ended
	recorded bool     // its end is in the record
	due      fsm.Time // not handed out before
	expires  fsm.Time // does not end for its time before; 0: never
	deadline fsm.Time // not handed out from then on; 0: always
	handed   uint32
	hand     *hand // the last delivery
	letter   *letterStory
	released bool
}

// letterStory is what is known of a story that goes on as a letter.
type letterStory struct {
	pending int
	arrived bool
}

// hand is one delivery.
type hand struct {
	of    *story
	to    fsm.ConsumerID
	id    uint64
	at    fsm.Time // when it was handed out, or renewed
	moved fsm.Time // observer.credit then
	// limit and lock are after how long it is taken back; 0: never by that.
	limit, lock fsm.Millis
	grouped     bool
	cause       string // why nobody holds it any more; empty: it is held
	mayEnd      bool   // somebody may have ended it
}

// holder is what is known of a consumer, or of the gets of a session.
type holder struct {
	terms     *logpb.Consume // nil: gets
	last      uint64
	hands     map[uint64]*hand // that are not settled
	held      int              // of those, without a cause
	late      map[uint64]bool
	lateSince uint64 // the command, by number
	groups    map[string]groupHeld
	cancelled bool
	count     uint32 // in credit mode: of what it was handed and what drains have used up
	credit    uint32
}

// groupHeld is how many messages of a group a consumer holds, and when its hold of
// the group began, or began anew with a settlement, at the latest.
type groupHeld struct {
	n     int
	since fsm.Time
}

func newHolder(terms *logpb.Consume) *holder {
	return &holder{terms: terms, hands: map[uint64]*hand{}, late: map[uint64]bool{}, groups: map[string]groupHeld{}}
}

// observedStream is what is known of a session.
type observedStream struct {
	next    uint64
	answers map[uint64]fsm.Code // of publishes
	over    bool
}

func newObserver(m *queue.Machine) *observer {
	return &observer{
		m: m, config: &logpb.QueueConfig{DeliveryLimit: 20}, stories: map[fsm.Ref]*story{}, entries: map[uint64][]*story{},
		streams: map[fsm.SessionID]*observedStream{}, holders: map[fsm.ConsumerID]*holder{}, suspects: map[queue.Boot]fsm.Time{},
		newest: map[rank]uint64{}, ids: map[string]fsm.Time{}, copies: map[copyOf]*story{}, nextEnd: 1,
		ever: everSet{disconnected: 60_000, deliveryLimit: -1},
	}
}

func (o *observer) saw(format string, a ...any) {
	o.d = append(o.d, fmt.Sprintf("promise: at %d: "+format, append([]any{o.clock - start}, a...)...))
}

// see takes in one command, with what it alone has caused. Effects that count for
// the entry as a whole come with endEntry.
func (o *observer) see(s step, r fsm.Result, eff *fsm.Effects) {
	o.sum.commands++
	before := o.clock
	if o.clock = max(o.clock, min(s.meta.Now, fsm.MaxTime)); s.meta.Term != o.term {
		if o.term != 0 {
			o.credit += o.clock - before
		}
		o.term = s.meta.Term
	}
	if o.m.Clock() < o.clock {
		o.saw("the clock is at %d", o.m.Clock()-start)
	}
	var own *story
	if s.cmd.Kind == logpb.Command_TICK {
		o.ticked = o.clock
	}
	if s.cmd.Kind == logpb.Command_PURGE { // what was due has ended before
		o.ends(s.cmd)
	}
	first := o.handedBefore(s, eff.Deliveries)
	for i := range eff.Deliveries[:first] {
		o.delivery(s.cmd, &eff.Deliveries[i], nil)
	}
	if performed := o.performed(s, r); performed || s.cmd.Kind == logpb.Command_ENQUEUE && r.Code == fsm.Rejected {
		own = o.perform(s, r, performed)
	}
	o.timeouts(s.cmd.Kind, eff.Timeouts)
	for i := range eff.Deliveries[first:] {
		o.delivery(s.cmd, &eff.Deliveries[first+i], own)
	}
	o.ends(s.cmd)
}

// performed follows the streams of sessions. It reports whether a command was
// performed, and not refused or repeated.
func (o *observer) performed(s step, r fsm.Result) bool {
	id, seq := s.meta.Session, s.cmd.Seq
	if seq == 0 {
		return r.Code != fsm.NoSession && r.Code != fsm.Invalid
	}
	if r.Code == fsm.Gap || r.Code == fsm.NoSession || r.Code == fsm.Late || id == (fsm.SessionID{}) {
		return false
	}
	st := o.streams[id]
	if st == nil {
		st = &observedStream{next: 1, answers: map[uint64]fsm.Code{}}
		o.streams[id] = st
	}
	switch {
	case st.over:
		o.saw("command %d of %v is answered %d, and the session has ended", seq, id, r.Code)
		return false
	case seq > st.next:
		o.saw("command %d of %v is performed before %d", seq, id, st.next)
		return false
	case seq < st.next:
		if first, ok := st.answers[seq]; ok && first != r.Code {
			o.saw("publish %d of %v was answered %d, and now %d", seq, id, first, r.Code)
		}
		return false
	}
	st.next++
	if s.cmd.Kind == logpb.Command_ENQUEUE {
		st.answers[seq] = r.Code
	}
	return r.Code != fsm.Invalid
}

// perform takes in what a command does for certain. It returns the story of a
// publish.
func (o *observer) perform(s step, r fsm.Result, performed bool) *story {
	c := s.cmd
	switch c.Kind {
	case logpb.Command_ENQUEUE:
		if !performed && c.Seq != 0 { // a repetition: what it brings again is nothing
			own := &story{ref: fsm.Ref{Index: s.meta.Index, Offset: s.meta.Offset, Size: c.GetEnqueue().GetSize()}, refused: true}
			o.stories[own.ref] = own
			return nil
		}
		return o.published(s.meta, c.Enqueue, r.Code)
	case logpb.Command_CONFIGURE:
		o.configured(c.Configure.GetConfig())
	case logpb.Command_CONSUME:
		if r.Code == fsm.OK {
			o.consumes(fsm.ConsumerID{Session: s.meta.Session, Number: c.Consume.Consumer}, c.Consume)
		}
	case logpb.Command_CREDIT:
		if h := o.holders[fsm.ConsumerID{Session: s.meta.Session, Number: c.Credit.Consumer}]; h != nil && r.Code == fsm.OK {
			o.credited(h, c.Credit, r)
		}
	case logpb.Command_CANCEL:
		if h := o.holders[fsm.ConsumerID{Session: s.meta.Session, Number: c.Cancel.Consumer}]; h != nil && r.Code == fsm.OK {
			h.cancelled = true
		}
	case logpb.Command_SETTLE:
		o.settled(s.meta.Session, c.Settle, r)
	case logpb.Command_RENEW:
		o.renewed(s.meta.Session, c.Renew)
	case logpb.Command_GROUP:
		o.groupReleased(s.meta.Session, c.Group)
	case logpb.Command_SESSION_DOWN:
		if r.Code == fsm.OK {
			o.sessionEnds(s.meta.Session)
		}
	case logpb.Command_NODE_DOWN:
		o.nodeEnds(fsm.NodeID(c.NodeDown.Node), c.NodeDown.Boot)
	case logpb.Command_NODE_SUSPECTED:
		o.suspected(queue.Boot{Node: fsm.NodeID(c.NodeSuspected.Node), Boot: c.NodeSuspected.Boot}, c.NodeSuspected.Back)
	case logpb.Command_PURGE:
		o.purged(r.Count)
	case logpb.Command_SCHEDULE, logpb.Command_KICK:
		o.rescheduled()
	case logpb.Command_SETTLE_DEAD:
		o.answered(c.SettleDead)
	}
	return nil
}

// published takes in a publish that was answered for the first time.
func (o *observer) published(at fsm.Meta, e *logpb.Enqueue, code fsm.Code) *story {
	o.order++
	x := &story{
		ref: fsm.Ref{Index: at.Index, Offset: at.Offset, Size: e.Size}, order: o.order, refused: code != fsm.OK,
		rank: rank{priority: e.PriorityPlusOne, highest: o.config.MaxPriorityPlusOne},
	}
	o.stories[x.ref] = x
	o.entries[at.Index] = append(o.entries[at.Index], x)
	if x.refused {
		o.sum.refused++
		return x
	}
	o.sum.taken++
	due := fsm.Time(e.DueAt)
	switch {
	case due > 0:
	case e.DelayPlusOne > 0:
		due = o.clock.Add(fsm.Millis(e.DelayPlusOne - 1))
	case o.config.DeliveryDelay > 0:
		due = o.clock.Add(fsm.Millis(o.config.DeliveryDelay))
	}
	x.plain = due <= o.clock && !o.ever.deadlineOrder && !o.ever.leastTTL && (e.GroupId == "" || !o.ever.notGrouped)
	if e.GroupId != "" && o.config.Groups != logpb.QueueConfig_NO_GROUPS {
		x.rank.group = e.GroupId
	}
	o.lifetime(x, e, due)
	o.duplicate(x, e)
	return x
}

// lifetime sets when a publish may be handed out and when it ends.
func (o *observer) lifetime(x *story, e *logpb.Enqueue, due fsm.Time) {
	least := func(at fsm.Time, stored ...uint64) (end fsm.Time) {
		for _, n := range stored {
			if n == 0 || n > 1<<50 {
				continue
			}
			if t := max(at.Add(fsm.Millis(n-1)), 1); end == 0 || t < end {
				end = t
			}
		}
		return end
	}
	if due > o.clock { // its life begins when it is due, with the settings of then
		x.due, x.expires = due, due
		if e.TtlPlusOne != 1 { // that is offered whenever it becomes ready
			x.deadline = least(due, e.TtlPlusOne)
		}
		return
	}
	from := o.clock
	if e.TtlFrom > 0 {
		from = min(from, fsm.Time(e.TtlFrom))
	}
	queues := o.config.TtlPlusOne
	if e.TtlPlusOne != 0 && o.config.MessageTtlFirst {
		queues = 0
	}
	x.expires = least(from, e.TtlPlusOne, e.TtlCeilingPlusOne, queues)
	if e.TtlPlusOne|e.TtlCeilingPlusOne == 0 {
		x.expires = least(o.clock, queues) // nobody else has counted it
	}
	x.deadline = x.expires
}

// duplicate finds out whether a publish was taken in before.
func (o *observer) duplicate(x *story, e *logpb.Enqueue) {
	if o.ever.unique && len(e.UniqueKey) > 0 {
		x.mayBe = "a second one"
	}
	if e.MessageId == "" || o.ever.window == 0 {
		return
	}
	was, ok := o.ids[e.MessageId]
	switch {
	case !ok:
	case o.ever.otherWindow != 0 || o.config.DedupWindow == 0:
		x.mayBe = "a duplicate"
	case o.clock-was < fsm.Time(o.ever.window):
		x.over = "a duplicate"
		o.sum.duplicates++
		return
	}
	o.ids[e.MessageId] = o.clock
}

// configured takes in settings, unless they are older than those that there are.
func (o *observer) configured(c *logpb.QueueConfig) {
	if c == nil || c.Revision < o.config.Revision {
		return
	}
	o.config = c
	o.ever.note(c)
	for _, x := range o.stories { // det: each on its own
		if c.DeadlineOrder || c.Groups != logpb.QueueConfig_NO_GROUPS || c.TtlPlusOne != 0 && x.due > o.clock {
			x.plain = x.plain && !c.DeadlineOrder && (x.rank.group == "") == (c.Groups == logpb.QueueConfig_NO_GROUPS)
		}
	}
}

// note remembers what settings have.
func (s *everSet) note(c *logpb.QueueConfig) {
	s.limited = s.limited || c.MaxLengthPlusOne|c.MaxLengthBytesPlusOne != 0
	s.deadlineOrder = s.deadlineOrder || c.DeadlineOrder
	s.notSingle = s.notSingle || !c.SingleActive
	s.notGrouped = s.notGrouped || c.Groups == logpb.QueueConfig_NO_GROUPS
	s.together = s.together || c.GroupExpiry
	s.exceeding = s.exceeding || c.DeliveryLimitSet || c.DeadLetter || c.DelayedStore
	if s.window != 0 && c.DedupWindow != s.window {
		s.otherWindow = c.DedupWindow + 1
	}
	s.window = max(s.window, c.DedupWindow)
	s.unique = s.unique || c.Unique
	if n := c.DisconnectedTimeoutPlusOne; n != 0 {
		s.disconnected = min(s.disconnected, fsm.Millis(n-1))
	}
	if c.DeliveryLimit >= 0 && (s.deliveryLimit < 0 || c.DeliveryLimit < s.deliveryLimit) {
		s.deliveryLimit = c.DeliveryLimit
	}
}

// delivery checks one message that is handed out.
func (o *observer) delivery(c *logpb.Command, d *fsm.Delivery, own *story) {
	o.sum.deliveries++
	x, to := o.stories[d.Ref], o.holders[d.To]
	if x == nil {
		o.saw("%v is delivered and was never published", d.Ref)
		return
	}
	if to == nil {
		to = newHolder(nil)
		o.holders[d.To] = to
		if d.To.Number != 0 {
			o.saw("%v is delivered to %v, who never consumed", d.Ref, d.To)
		}
	}
	if d.ID <= to.last { // a get is repeated
		if h := to.hands[d.ID]; h == nil || h.of != x || c.Kind != logpb.Command_GET {
			o.saw("%v is delivery %d of %v again", d.Ref, d.ID, d.To)
		}
		return
	}
	if d.ID != to.last+1 {
		o.saw("delivery %d of %v follows %d", d.ID, d.To, to.last)
	}
	to.last = d.ID
	o.mayBeDelivered(c, d, x, own)
	o.mayGet(d, to)
	o.handOut(c, d, x, to)
}

// mayBeDelivered checks whether a message may be handed out.
func (o *observer) mayBeDelivered(c *logpb.Command, d *fsm.Delivery, x, own *story) {
	switch {
	case x.refused:
		o.saw("%v was refused and is delivered", d.Ref)
	case x.over != "":
		o.saw("%v was %s and is delivered", d.Ref, x.over)
	case o.clock < x.due && c.Kind != logpb.Command_RECEIVE_DEFERRED:
		o.saw("%v is delivered, due at %d", d.Ref, x.due-start)
	case x.released:
		o.saw("%v is delivered and its payload is released", d.Ref)
	}
	if h := x.hand; h != nil && h.cause == "" && !o.mayHaveEnded(h) {
		o.saw("%v is delivered to %v, and %v has it", d.Ref, d.To, h.to)
	}
	if x.deadline != 0 && o.clock >= x.deadline && x != own && !(x.rank.group != "" && o.ever.together) && c.Kind != logpb.Command_RECEIVE_DEFERRED {
		o.saw("%v is delivered, its time ended at %d", d.Ref, x.deadline-start)
	}
	if d.Acquired != x.handed {
		o.saw("%v is delivered for the %d. time and says %d", d.Ref, x.handed+1, d.Acquired+1)
	}
	if x.handed == 0 && x.plain {
		if x.order < o.newest[x.rank] {
			o.saw("%v (%d.) is delivered after the %d. of %v", d.Ref, x.order, o.newest[x.rank], x.rank)
		}
		o.newest[x.rank] = max(o.newest[x.rank], x.order)
	}
	x.mayBe = ""
}

// mayGet checks whether a consumer may be given something.
func (o *observer) mayGet(d *fsm.Delivery, to *holder) {
	if st := o.streams[d.To.Session]; st == nil || st.over {
		o.saw("%v is delivered to %v, whose session has ended", d.Ref, d.To)
	}
	if to.terms == nil {
		return
	}
	_, suspected := o.suspects[queue.Boot{Node: d.To.Session.Node, Boot: d.To.Session.Boot}]
	n := int(to.terms.Prefetch)
	if to.terms.Credit {
		n = 0
	}
	switch {
	case to.terms.Credit && to.credit == 0:
		o.saw("%v is delivered to %v, which has no credit", d.Ref, d.To)
	case to.cancelled:
		o.saw("%v is delivered to %v, which is cancelled", d.Ref, d.To)
	case suspected:
		o.saw("%v is delivered to %v, which is suspected", d.Ref, d.To)
	case len(to.late) > 0 && (to.lateSince != o.sum.commands || d.Acquired > 0): // what becomes due in a tick may go out before
		o.saw("%v is delivered to %v, which is late with %d", d.Ref, d.To, len(to.late))
	case to.held >= n && n != 0 && !o.doubted(to):
		o.saw("%v is delivered to %v, which holds %d of %d", d.Ref, d.To, to.held, n)
	}
}

// doubted reports whether a consumer may hold less than is known.
func (o *observer) doubted(to *holder) bool {
	for _, h := range to.hands { // det: any
		if h.cause == "" && o.mayHaveEnded(h) {
			return true
		}
	}
	return false
}

// handOut notes a delivery.
func (o *observer) handOut(c *logpb.Command, d *fsm.Delivery, x *story, to *holder) {
	o.leave(x.hand, "")
	h := &hand{of: x, to: d.To, id: d.ID, at: o.clock, moved: o.credit, grouped: x.rank.group != ""}
	timeout, lock, longest := o.config.ConsumerTimeoutPlusOne, o.config.Lock, o.config.MaxLock
	if to.terms != nil {
		if to.terms.MaxLock != 0 {
			longest = to.terms.MaxLock
		}
		if n := to.terms.TimeoutPlusOne; n != 0 {
			timeout = n
		}
		if to.terms.NoAck {
			timeout = 0
		}
		if to.terms.Lock != 0 {
			lock = to.terms.Lock
		}
	}
	if timeout > 0 && timeout < 1<<50 {
		h.limit = fsm.Millis(timeout)
	}
	if h.lock = fsm.Millis(min(lock, 1<<50)); longest != 0 {
		h.lock = min(h.lock, fsm.Millis(longest))
	}
	if h.grouped { // it is the group that is locked
		g, ok := to.groups[x.rank.group]
		if g.n++; !ok {
			g.since = o.clock
		}
		h.at = g.since
		to.groups[x.rank.group] = g
	}
	x.hand, x.due = h, 0
	x.handed++
	if to.count++; to.credit > 0 {
		to.credit--
	}
	to.hands[d.ID] = h
	to.held++
	if c.Kind == logpb.Command_GET && c.GetGet().GetNoAck() && d.To.Number == 0 {
		o.leave(h, "settled")
		delete(to.hands, d.ID)
		o.acked(x)
	}
}

// leave notes that nobody holds a delivery any more; nil: nobody did.
func (o *observer) leave(h *hand, cause string) {
	if h == nil || h.cause != "" {
		return
	}
	if h.cause = cause; cause == "" {
		h.cause = "ended by itself"
	}
	to := o.holders[h.to]
	if to.held--; h.grouped {
		g := to.groups[h.of.rank.group]
		if g.n--; g.n == 0 && cause == "settled" {
			g.since = o.clock
		}
		to.groups[h.of.rank.group] = g
	}
}

// mayHaveEnded reports whether a delivery that is held may have ended by itself,
// with the last tick: its lock, the lock of its group, or the wait for its consumer.
func (o *observer) mayHaveEnded(h *hand) bool {
	to := o.holders[h.to]
	if h.mayEnd || h.grouped && len(to.late) > 0 {
		return true
	}
	if h.lock > 0 && o.ticked >= h.at.Add(h.lock) {
		return true
	}
	since, ok := o.suspects[queue.Boot{Node: h.to.Session.Node, Boot: h.to.Session.Boot}]
	return ok && o.ticked >= since.Add(o.ever.disconnected)
}

func (o *observer) acked(x *story) {
	x.over = "acked"
	o.sum.acked++
}

// timeouts checks what was taken from consumers.
func (o *observer) timeouts(kind logpb.Command_Kind, all []fsm.Timeout) {
	for _, t := range all {
		to := o.holders[t.To]
		if to == nil || kind != logpb.Command_TICK {
			o.saw("%v times out with a command of kind %v", t.To, kind)
			continue
		}
		for _, id := range t.Deliveries {
			h := to.hands[id]
			switch {
			case h == nil || h.cause != "":
				o.saw("delivery %d of %v times out, and is not held", id, t.To)
				continue
			case h.limit == 0 || o.clock < h.at.Add(h.limit-1):
				o.saw("delivery %d of %v times out after %d of %d ms", id, t.To, o.clock-h.at, h.limit-1)
			}
			o.leave(h, "late")
			if len(to.late) == 0 {
				to.lateSince = o.sum.commands
			}
			to.late[id] = true
		}
	}
}
