package fsmtest

import (
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/queue"
	"github.com/quorate/quorate/proto/logpb"
)

// consumes takes in the terms of a consumer.
func (o *observer) consumes(id fsm.ConsumerID, terms *logpb.Consume) {
	h := o.holders[id]
	if h == nil {
		h = newHolder(terms)
		o.holders[id] = h
	}
	if h.terms == nil || h.terms.Credit != terms.Credit {
		h.count, h.credit = 0, 0
	}
	h.terms = terms
	if terms.MinTtl > 0 {
		o.ever.leastTTL = true
		for _, x := range o.stories { // det: each on its own
			x.plain = false
		}
	}
}

// credited takes in what a consumer may be handed, and checks the answer: whatever the
// command has handed out is in it, and comes afterwards.
func (o *observer) credited(h *holder, c *logpb.Credit, r fsm.Result) {
	limit := int64(c.Credit) + int64(int32(c.DeliveryCount-h.count)) // from the present count
	h.credit = uint32(min(max(limit, 0), 1<<32-1))
	handed := uint32(r.Next - 1 - h.last)
	left := h.credit - min(handed, h.credit)
	switch {
	case handed > h.credit || !c.Drain && (r.Credit != left || r.DeliveryCount != h.count+handed):
		o.saw("a credit of %d to one that has had %d is answered %+v, with %d handed out", c.Credit, h.count, r, handed)
	case c.Drain && (r.Credit != 0 && r.Credit != left || r.DeliveryCount+r.Credit != h.count+h.credit):
		o.saw("a drain of %d by one that has had %d is answered %+v, with %d handed out", c.Credit, h.count, r, handed)
	case r.Credit == 0 && c.Drain:
		h.count += left // what is handed out follows
		h.credit -= left
	}
}

// ranged calls f with the deliveries of a consumer that ranges name.
func (h *holder) ranged(ranges []uint64, f func(id uint64)) {
	for ; len(ranges) > 1; ranges = ranges[2:] {
		first, n := ranges[0], ranges[1]
		if n > uint64(len(h.hands)) {
			for id := range h.hands { // det: each on its own
				if id >= first && id-first < n {
					f(id)
				}
			}
			continue
		}
		for id := first; id-first < n; id++ {
			if h.hands[id] != nil {
				f(id)
			}
		}
	}
}

// settled takes in a settlement that was performed.
func (o *observer) settled(by fsm.SessionID, c *logpb.Settle, r fsm.Result) {
	if c.Holder != nil {
		by = fsm.SessionFrom(c.Holder)
	}
	to := o.holders[fsm.ConsumerID{Session: by, Number: c.Consumer}]
	if to == nil || r.Code != fsm.OK && r.Code != fsm.NotFound {
		return
	}
	to.ranged(c.Ranges, func(id uint64) {
		h := to.hands[id]
		delete(to.late, id)
		if r.Code == fsm.NotFound {
			return // what was late is settled nevertheless
		}
		delete(to.hands, id)
		switch {
		case h.cause != "": // it comes too late
		case o.mayHaveEnded(h):
			h.mayEnd = true
			o.mayConclude(h, c)
		default:
			o.conclude(h, c)
		}
	})
}

// conclude takes in that a delivery was settled in time.
func (o *observer) conclude(h *hand, c *logpb.Settle) {
	o.leave(h, "settled")
	x := h.of
	switch c.Outcome {
	case logpb.Settle_ACK:
		o.acked(x)
	case logpb.Settle_DISCARD:
		x.over = "discarded"
	default:
		x.mayBe = ""
		switch {
		case c.DueAt > 0:
			x.due = fsm.Time(c.DueAt)
		case c.DelayPlusOne > 0:
			x.due = o.clock.Add(fsm.Millis(c.DelayPlusOne - 1))
		case c.Outcome == logpb.Settle_DEFER:
			x.due = fsm.MaxTime
		default:
			x.due = o.clock.Add(o.leastRetry(c.Outcome))
		}
	}
}

// leastRetry is how long the settings make a returned message wait, at least.
func (o *observer) leastRetry(as logpb.Settle_Outcome) fsm.Millis {
	c := o.config
	fails := as == logpb.Settle_REQUEUE_FAILED
	waits := c.Retry == logpb.QueueConfig_ALL || c.Retry == logpb.QueueConfig_FAILED && fails || c.Retry == logpb.QueueConfig_RETURNED && !fails
	if !waits || c.RetryStrategy == logpb.QueueConfig_STEPS || c.RetryJitter != 0 {
		return 0
	}
	return fsm.Millis(min(c.RetryMin, c.RetryMax))
}

// mayConclude takes in that a delivery was settled, perhaps too late.
func (o *observer) mayConclude(h *hand, c *logpb.Settle) {
	o.leave(h, "perhaps settled")
	switch c.Outcome {
	case logpb.Settle_ACK:
		h.of.mayBe = "acked"
	case logpb.Settle_DISCARD:
		h.of.mayBe = "discarded"
	}
}

// renewed takes in a renewal: the time of what it names begins anew.
func (o *observer) renewed(by fsm.SessionID, c *logpb.Renew) {
	if c.Holder != nil {
		by = fsm.SessionFrom(c.Holder)
	}
	o.renewedEver = true
	to := o.holders[fsm.ConsumerID{Session: by, Number: c.Consumer}]
	if to == nil {
		return
	}
	all := func(id uint64) {
		h := to.hands[id]
		h.mayEnd = h.mayEnd || o.mayHaveEnded(h)
		if d := fsm.Millis(min(c.Duration, 1<<50)); h.lock > 0 && d > 0 && !h.mayEnd {
			h.mayEnd = d < h.lock // it may end sooner
		}
	}
	if len(c.Ranges) == 0 {
		for id := range to.hands { // det: each on its own
			all(id)
		}
	}
	to.ranged(c.Ranges, all)
}

// groupReleased takes in that a consumer may have given a group up.
func (o *observer) groupReleased(by fsm.SessionID, c *logpb.Group) {
	if to := o.holders[fsm.ConsumerID{Session: by, Number: c.Consumer}]; to != nil {
		for _, h := range to.hands { // det: each on its own
			h.mayEnd = h.mayEnd || h.grouped
		}
	}
}

// handedBefore is how many deliveries precede what a command does: what became due
// may go to somebody whom the command then cancels, suspects or ends.
func (o *observer) handedBefore(s step, all []fsm.Delivery) (n int) {
	for i, d := range all {
		of, c := d.To.Session, s.cmd
		switch c.Kind {
		case logpb.Command_SESSION_DOWN:
			if of != s.meta.Session {
				continue
			}
		case logpb.Command_NODE_DOWN:
			if of.Node != fsm.NodeID(c.NodeDown.Node) || of.Boot > c.NodeDown.Boot {
				continue
			}
		case logpb.Command_NODE_SUSPECTED:
			if c.NodeSuspected.Back || of.Node != fsm.NodeID(c.NodeSuspected.Node) || of.Boot != c.NodeSuspected.Boot {
				continue
			}
		case logpb.Command_CANCEL:
			if of != s.meta.Session || d.To.Number != c.Cancel.Consumer {
				continue
			}
		default:
			return 0
		}
		n = i + 1
	}
	return n
}

// sessionEnds takes in the end of a session.
func (o *observer) sessionEnds(id fsm.SessionID) {
	st := o.streams[id]
	if st == nil {
		st = &observedStream{next: 1}
		o.streams[id] = st
	}
	if st.over {
		return
	}
	st.over = true
	for to, h := range o.holders { // det: each on its own
		if to.Session != id {
			continue
		}
		h.cancelled = true
		clear(h.late)
		for _, x := range h.hands { // det: each on its own
			if h.terms.GetLockDetachGrace() > 0 && (x.lock > 0 || x.grouped) {
				x.mayEnd = true
				continue
			}
			o.leave(x, "lost session")
		}
	}
}

// nodeEnds takes in the end of lives of a node.
func (o *observer) nodeEnds(node fsm.NodeID, boot uint64) {
	for id := range o.streams { // det: each on its own
		if id.Node == node && id.Boot <= boot {
			o.sessionEnds(id)
		}
	}
}

// suspected takes in that a node is suspected, or not any more.
func (o *observer) suspected(of queue.Boot, back bool) {
	if !back {
		if _, ok := o.suspects[of]; !ok {
			o.suspects[of] = o.clock
		}
		return
	}
	for to, h := range o.holders { // det: each on its own
		if to.Session.Node == of.Node && to.Session.Boot == of.Boot {
			for _, x := range h.hands { // det: each on its own
				x.mayEnd = x.mayEnd || o.mayHaveEnded(x)
			}
		}
	}
	delete(o.suspects, of)
}

// purged takes in a purge of n messages.
func (o *observer) purged(n uint64) {
	o.sum.purged += n
	for _, x := range o.stories { // det: each on its own
		if x.refused || x.over != "" {
			continue
		}
		switch {
		case x.hand == nil && x.letter == nil && x.mayBe == "":
			x.over = "purged"
			x.mayBe = "purged"
		case x.hand == nil || x.hand.cause != "" || o.mayHaveEnded(x.hand):
			x.mayBe = "purged"
		}
	}
}

// rescheduled takes in that what waits may be due at another time.
func (o *observer) rescheduled() {
	for _, x := range o.stories { // det: each on its own
		if x.over == "" && x.due > o.clock {
			x.due, x.expires, x.deadline = 0, min(max(x.expires, 0), o.clock), 0
		}
	}
}

// ends reads the record of what has ended with a command.
func (o *observer) ends(c *logpb.Command) {
	all := queue.EndsOf(o.m)
	all.From(o.nextEnd, func(e queue.End) bool {
		if e.Count > 0 {
			return true
		}
		o.end(c, &e)
		return true
	})
	o.nextEnd = all.Next()
}

// end checks one record.
func (o *observer) end(c *logpb.Command, e *queue.End) {
	x := o.stories[e.Ref]
	switch {
	case x == nil:
		o.saw("%v has ended and was never published", e.Ref)
		return
	case x.refused:
		if e.Seq != 0 {
			o.saw("%v was refused and has ended", e.Ref)
		}
		return
	case x.recorded:
		o.saw("%v has ended twice", e.Ref)
	case x.over != "" && x.over != "discarded":
		o.saw("%v was %s and has ended: %v", e.Ref, x.over, e.Reason)
	case x.over == "discarded" && e.Reason != logpb.EndState_REJECTED:
		o.saw("%v was discarded and has ended: %v", e.Ref, e.Reason)
	case x.hand != nil && x.hand.cause == "" && !o.mayHaveEnded(x.hand):
		o.saw("%v has ended, %v, and %v has it", e.Ref, e.Reason, x.hand.to)
	}
	o.reason(c, x, e)
	x.over, x.mayBe, x.recorded = queue.ReasonName(e.Reason), "", true
	o.leave(x.hand, "ended")
	if e.Disposition >= queue.Transactional && e.Letter != 0 {
		x.letter = &letterStory{}
		o.sum.letters++
	}
}

// reason checks why a message has ended.
func (o *observer) reason(c *logpb.Command, x *story, e *queue.End) {
	ok := true
	switch e.Reason {
	case logpb.EndState_EXPIRED:
		ok = x.expires != 0 && o.clock >= x.expires || o.config.TtlPlusOne != 0 && x.expires != 0 && x.deadline == 0
	case logpb.EndState_REJECTED:
		ok = x.over == "discarded" || x.mayBe == "discarded"
	case logpb.EndState_MAXLEN:
		ok = o.ever.limited
	case logpb.EndState_DELIVERY_LIMIT:
		ok = o.ever.deliveryLimit >= 0 && int64(x.handed) > o.ever.deliveryLimit && (o.ever.exceeding || o.m.Version() < 3)
	case logpb.EndState_GROUP_EXPIRED:
		ok = x.rank.group != "" && o.ever.together
	case logpb.EndState_CANCELLED:
		ok = c.Kind == logpb.Command_SCHEDULE
	case logpb.EndState_REPLACED:
		ok = c.Kind == logpb.Command_ENQUEUE
	}
	if !ok {
		o.saw("%v has ended: %v, handed out %d times, its time is %d, it was %q", e.Ref, e.Reason, x.handed, x.expires-start, x.over+x.mayBe)
	}
}

// sent takes in a transfer of a letter.
func (o *observer) sent(to fsm.QueueID, t queue.Outgoing) {
	x := o.stories[t.Letter.Ref]
	if x == nil || x.letter == nil {
		o.saw("%v is sent to %d and has not died", t.Letter.Ref, to)
		return
	}
	if at := (copyOf{to, t.Number}); o.copies[at] != x {
		o.copies[at] = x
		x.letter.pending++
	}
}

// answered takes in what a target has answered.
func (o *observer) answered(c *logpb.SettleDead) {
	refused := map[uint64]bool{}
	for _, n := range c.Refused {
		refused[n] = true
	}
	for at, x := range o.copies { // det: each on its own
		if uint64(at.target) != c.Target || !c.Gone && at.number > c.Last {
			continue
		}
		delete(o.copies, at)
		x.letter.pending--
		if !c.Gone && !refused[at.number] && !x.letter.arrived {
			x.letter.arrived = true
			o.sum.arrived++
		}
	}
}

// endEntry checks what an entry as a whole has released.
func (o *observer) endEntry(eff *fsm.Effects) {
	for _, index := range released(eff) {
		for _, x := range o.entries[index] {
			x.released = true
			switch {
			case x.refused:
			case x.over == "" && x.mayBe == "":
				o.saw("%v is released and has not ended", x.ref)
			case x.letter != nil && x.letter.pending > 0:
				o.saw("%v is released, and %d targets have not answered", x.ref, x.letter.pending)
			case x.letter != nil && o.config.DeadLetterStrategy == logpb.QueueConfig_AT_LEAST_ONCE && !x.letter.arrived && !o.mayLose():
				o.saw("%v is released, and nobody has it", x.ref)
			}
		}
	}
}

// mayLose reports whether a letter that is delivered at least once may have been
// lost: by a purge, or by settings.
func (o *observer) mayLose() bool { return o.sum.purged > 0 }

// finish compares what has come with what is there and what has ended.
func (o *observer) finish() {
	present := map[fsm.Ref]queue.Message{}
	for x := range o.m.Messages() {
		present[x.Ref] = x
	}
	var unclear uint64
	for ref, x := range o.stories { // det: what is found is a set
		at, there := present[ref]
		delete(present, ref)
		dead := x.letter != nil
		switch {
		case there && x.refused:
			o.saw("%v was refused and is there", ref)
		case there && x.over != "" && !dead:
			o.saw("%v was %s and is there", ref, x.over)
		case there && x.released:
			o.saw("%v is there and its payload is released", ref)
		case there && x.hand != nil && x.hand.cause == "" && !o.mayHaveEnded(x.hand) && (at.Place != queue.CheckedOut || at.Holder != x.hand.to):
			o.saw("%v is in place %v of %v, and %v had it", ref, at.Place, at.Holder, x.hand.to)
		case there || x.refused || x.over != "":
		case x.mayBe == "":
			o.saw("%v is lost: %+v", ref, *x)
		case x.mayBe == "acked":
			unclear++
		}
		if !there && x.order != 0 && !x.released && !o.m.Live(ref.Index) {
			o.saw("%v is gone and its payload was never released", ref)
		}
	}
	for ref := range present { // det: what is found is a set
		o.saw("%v is there and was never published", ref)
	}
	c := o.m.Stats().Counters
	if c.Acked < o.sum.acked || c.Acked > o.sum.acked+unclear {
		o.saw("%d count as acked, %d were and %d may have been", c.Acked, o.sum.acked, unclear)
	}
	if o.ever.otherWindow == 0 && !o.ever.unique && c.SameID != o.sum.duplicates {
		o.saw("%d count as duplicates, %d are", c.SameID, o.sum.duplicates)
	}
	if c.DeadConfirmed > o.sum.arrived {
		o.saw("%d letters count as arrived, %d have", c.DeadConfirmed, o.sum.arrived)
	}
	if c.Enqueued+c.SameID != o.sum.taken {
		o.saw("%d count as taken in and %d as duplicates, of %d", c.Enqueued, c.SameID, o.sum.taken)
	}
}

// audit lists what is held at a time when nothing is due: nobody has it for longer
// than may be.
func (o *observer) audit(now fsm.Time) {
	for x := range o.m.Messages() {
		y := o.stories[x.Ref]
		if x.Place != queue.CheckedOut || y == nil || y.hand == nil || y.hand.cause != "" {
			continue
		}
		h := y.hand
		limit := h.limit - 1
		since, suspected := o.suspects[queue.Boot{Node: h.to.Session.Node, Boot: h.to.Session.Boot}]
		if suspected && (h.limit == 0 || o.sessionWait() < limit) {
			limit = o.sessionWait()
		} else if since = h.at; h.limit == 0 {
			continue
		}
		if over := max(since, h.at).Add(limit) + o.credit - h.moved; now > over && !h.grouped && !o.renewedEver {
			o.saw("%v is still with %v, until %d", x.Ref, h.to, over-start)
		}
	}
}

// sessionWait is how long what a suspected node has stays with it.
func (o *observer) sessionWait() fsm.Millis {
	if n := o.config.DisconnectedTimeoutPlusOne; n != 0 {
		return fsm.Millis(n - 1)
	}
	return 60_000
}
