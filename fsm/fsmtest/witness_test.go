package fsmtest

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/queue"
	"github.com/quorate/quorate/proto/logpb"
)

// witness holds a machine to what is promised to its users, by what goes into
// it, what it answers and causes, and what it lists. It repeats none of the
// machine's rules, as the model does: a rule that is misread in both shows here.
//
//   - What was refused is never delivered, and a publish has one answer: its
//     repetitions are answered alike, and enqueue nothing.
//   - What was confirmed is held, or its end is counted: acked, purged, cancelled,
//     dead, arrived, lost.
//   - What was acked or has died is never delivered again.
//   - Nothing is delivered for the first time to a consumer when the time that
//     its publisher gave it is over, and nothing expires before.
//   - A letter that counts as arrived has a target that holds it, and every
//     target that it went to has answered.
//   - Nothing of a group is handed out while another consumer has something of it,
//     unless it was deferred, and what is handed out for the first time follows the
//     order of its group. Where the messages of a group expire together its holder
//     may get some of them later than their time.
type witness struct {
	m       *queue.Machine
	clock   fsm.Time
	born    map[fsm.Ref]*life
	fresh   map[fsm.Ref]bool // of born, by the command under way
	answers map[publish]publishAnswer
	last    map[fsm.ConsumerID]uint64       // the newest delivery
	copies  map[uint64]map[copyOf]copyState // of letters that have not left
	groups  witnessedGroups
	held    holding // what the machine held after the last command
	d       diffs
}

// life is what is known of one publish that was offered to the queue.
type life struct {
	refused bool
	over    string   // how it has ended; empty: it has not
	expires fsm.Time // not before; 0: never
	deadly  fsm.Time // when its publisher wants it to be over at the latest; 0: never
	grouped bool
}

// publish names a publish as its session numbers it.
type publish struct {
	session fsm.SessionID
	seq     uint64
}

type publishAnswer struct {
	code     fsm.Code
	enqueued bool
}

// newWitness returns the witness of a machine that is new.
func newWitness(m *queue.Machine) *witness {
	w := &witness{
		m: m, born: map[fsm.Ref]*life{}, answers: map[publish]publishAnswer{}, last: map[fsm.ConsumerID]uint64{},
		copies: map[uint64]map[copyOf]copyState{}, groups: witnessedGroups{last: map[string]uint64{}, deferred: map[fsm.Ref]bool{}},
	}
	w.held = w.observe()
	return w
}

func (w *witness) saw(format string, a ...any) {
	w.d = append(w.d, fmt.Sprintf("promise: "+format, a...))
}

// holding is what the machine holds between two commands.
type holding struct {
	counters queue.Counters
	phase    queue.Phase
	live     map[fsm.Ref]queue.Message
	copies   map[uint64]bool // letters that are copies and wait: a purge counts them, and nothing else does
	config   *logpb.QueueConfig
	sessions []fsm.SessionID
}

func (w *witness) observe() holding {
	b := holding{
		counters: w.m.Stats().Counters, phase: w.m.Stats().Phase, live: map[fsm.Ref]queue.Message{}, copies: map[uint64]bool{}, config: w.m.Config(),
		sessions: w.m.Sessions(),
	}
	for x := range w.m.Messages() {
		if !x.Copy {
			b.live[x.Ref] = x
		} else if x.Place == queue.Waiting {
			b.copies[x.Letter] = true
		}
	}
	return b
}

// verify is called after each command, with what this command alone has caused,
// and says which promises are broken.
func (w *witness) verify(s step, r fsm.Result, eff *fsm.Effects) diffs {
	w.d = nil
	b := w.held
	w.clock = max(w.clock, min(s.meta.Now, fsm.MaxTime))
	now := w.observe()
	w.fresh = map[fsm.Ref]bool{}
	w.published(b, now, s, r)
	if s.cmd.Kind == logpb.Command_UNIT && now.counters.Enqueued > b.counters.Enqueued {
		at := fsm.Ref{Index: s.meta.Index, Offset: s.meta.Offset}
		for _, c := range s.cmd.Unit.Commands {
			if at.Size = c.GetEnqueue().GetSize(); at.Size > 0 {
				w.born[at], w.fresh[at] = w.lifeOf(b.config, c.Enqueue, false), true
				at.Offset += at.Size
			}
		}
	}
	w.letters(b, now, s.cmd)
	w.groups.together = w.groups.together || b.config.GroupExpiry || now.config.GroupExpiry
	w.deliveries(eff)
	w.groupDeliveries(b, now, s.cmd, eff)
	w.deaths(b, now, eff)
	if b.phase == queue.Active && now.phase == queue.Active {
		w.accounts(b, now, s.cmd, eff)
	}
	w.held = now
	return w.d
}

// published takes in a publish and its answer.
func (w *witness) published(b, now holding, s step, r fsm.Result) {
	e := s.cmd.GetEnqueue()
	if s.cmd.Kind != logpb.Command_ENQUEUE || e == nil {
		return
	}
	own := fsm.Ref{Index: s.meta.Index, Offset: s.meta.Offset, Size: e.Size}
	enqueued := now.counters.Enqueued > b.counters.Enqueued
	if enqueued && r.Code != fsm.OK {
		w.saw("publish %v is enqueued and answered %d", own, r.Code)
	}
	if id := (publish{s.meta.Session, s.cmd.Seq}); s.cmd.Seq != 0 && (r.Code == fsm.OK || r.Code == fsm.Rejected) {
		first, repeated := w.answers[id]
		if repeated && id.seq == 1 && s.cmd.OpenedAt == 0 && !slices.Contains(b.sessions, id.session) {
			// It does not say when it was made, so nothing is promised of it once
			// the end of its session is forgotten: another one begins, and may be
			// answered otherwise.
			maps.DeleteFunc(w.answers, func(p publish, _ publishAnswer) bool { return p.session == id.session })
			repeated = false
		}
		switch {
		case repeated && first.code != r.Code:
			w.saw("publish %d of %v was answered %d, and now %d", id.seq, id.session, first.code, r.Code)
		case repeated && enqueued && first.enqueued:
			w.saw("publish %d of %v is enqueued twice", id.seq, id.session)
		case !repeated:
			w.answers[id] = publishAnswer{r.Code, enqueued}
		}
	}
	if enqueued || r.Code == fsm.Rejected {
		w.born[own], w.fresh[own] = w.lifeOf(b.config, e, r.Code == fsm.Rejected), true
	}
}

// lifeOf says when a publish of this moment may and must expire, as far as that
// is plain: what waits for its time first is not looked at.
func (w *witness) lifeOf(c *logpb.QueueConfig, e *logpb.Enqueue, refused bool) *life {
	l := &life{refused: refused, grouped: e.GroupId != ""}
	from := w.clock
	if e.TtlFrom > 0 {
		from = min(from, fsm.Time(e.TtlFrom))
	}
	for _, stored := range []uint64{e.TtlPlusOne, e.TtlCeilingPlusOne, c.TtlPlusOne} {
		if stored == 0 || stored > 1<<60 {
			continue
		}
		if at := from.Add(fsm.Millis(stored - 1)); l.expires == 0 || at < l.expires {
			l.expires = at
		}
	}
	// The life of what waits for its time begins when it is due, with the
	// settings of then.
	waits := e.DueAt != 0 || e.DelayPlusOne != 0 || c.DeliveryDelay != 0 || c.DelayedStore
	if waits {
		l.expires = w.clock
	}
	if n := e.TtlPlusOne; n != 0 && n < 1<<60 && !waits {
		l.deadly = from.Add(fsm.Millis(n - 1))
	}
	return l
}

// deliveries judges what is handed out. What was published just now may be handed out at
// the very instant of its end.
func (w *witness) deliveries(eff *fsm.Effects) {
	for i := range eff.Deliveries {
		d := &eff.Deliveries[i]
		l := w.born[d.Ref]
		switch {
		case l == nil:
			w.saw("%v is delivered and was never published", d.Ref)
			continue
		case l.refused:
			w.saw("%v was refused and is delivered", d.Ref)
		case l.over != "" && d.ID > w.last[d.To]:
			w.saw("%v is delivered and was %s", d.Ref, l.over)
		}
		if d.ID > w.last[d.To] {
			w.last[d.To] = d.ID
			if l.deadly != 0 && w.clock >= l.deadly && !w.fresh[d.Ref] && !(l.grouped && w.groups.together) {
				w.saw("%v is delivered at %d, its life ended at %d", d.Ref, w.clock, l.deadly)
			}
		}
	}
}

// deaths judges the dead letters that have come into being.
func (w *witness) deaths(b, now holding, eff *fsm.Effects) {
	died := func(ref fsm.Ref, reason logpb.Death_Reason) {
		l := w.born[ref]
		if l == nil || l.over != "" {
			return
		}
		l.over = "dead"
		if reason == logpb.Death_EXPIRED && (l.expires == 0 || w.clock < l.expires) {
			w.saw("%v expires at %d, not to end before %d", ref, w.clock, l.expires)
		}
	}
	for i := range eff.DeadLetters {
		died(eff.DeadLetters[i].Ref, eff.DeadLetters[i].Reason)
	}
	for ref, x := range now.live {
		if was, ok := b.live[ref]; x.Letter != 0 && (!ok || was.Letter == 0) && len(x.Deaths) > 0 && !x.Forwarded {
			died(ref, x.Deaths[0].Reason)
		}
	}
}

// ends counts what has ended, by the machine's own account. A purge counts its
// scheduled messages twice.
func ends(c queue.Counters, purge bool) uint64 {
	n := c.Acked + c.Purged + c.DeadConfirmed + c.Forwarded + c.Deleted + c.DeadDropped
	if !purge {
		n += c.Unscheduled
	}
	for _, by := range c.Deaths {
		n += by[queue.Dropped] + by[queue.SentOnce]
	}
	return n
}

// accounts compares what is listed with what is counted.
func (w *witness) accounts(b, now holding, c *logpb.Command, eff *fsm.Effects) {
	purge := c.Kind == logpb.Command_PURGE
	ended := ends(now.counters, purge) - ends(b.counters, purge)
	if purge { // which does not end those that have begun to wait since
		for letter := range b.copies { // det: a sum
			if !now.copies[letter] {
				ended--
			}
		}
	}
	came := now.counters.Enqueued - b.counters.Enqueued
	if b.config.Overflow == logpb.QueueConfig_REJECT_PUBLISH_DLX {
		// What is refused for its length dies without having been in the queue.
		came += min(now.counters.Refused-b.counters.Refused, now.counters.Died(logpb.Death_MAXLEN)-b.counters.Died(logpb.Death_MAXLEN))
	}
	if uint64(len(b.live))+came != uint64(len(now.live))+ended {
		w.saw("%d messages and %d more are %d, and %d have ended", len(b.live), came, len(now.live), ended)
	}
	acked := now.counters.Acked - b.counters.Acked
	for ref := range now.live {
		l := w.born[ref]
		if _, old := b.live[ref]; l == nil || l.refused || !old && came == 0 {
			w.saw("%v comes from nowhere", ref)
		}
	}
	for ref, x := range b.live {
		if _, still := now.live[ref]; still {
			continue
		}
		if l := w.born[ref]; l != nil && l.over == "" {
			l.over = "ended"
		}
		handed := x.Place == queue.CheckedOut || slices.ContainsFunc(eff.Deliveries, func(d fsm.Delivery) bool { return d.Ref == ref })
		if acked == ended && !handed {
			w.saw("%v counts as acked and nobody held it", ref)
		}
	}
}

// copyState is what is known of one transfer of a letter.
type copyState uint8

const (
	pendingCopy copyState = iota
	arrived               // the target has it
	missed                // it has refused, or is gone
)

// letters notes where letters go and what their targets have answered, and
// judges those that have left the outbox.
func (w *witness) letters(b, now holding, c *logpb.Command) {
	if s := c.GetSettleDead(); c.Kind == logpb.Command_SETTLE_DEAD && s != nil {
		w.answered(s)
	}
	in := map[uint64]bool{}
	for x := range w.m.Messages() { // copies among them
		in[x.Letter] = true
	}
	confirmed := uint64(0)
	for letter, of := range w.copies { // det: what is found is a set
		if in[letter] {
			continue
		}
		delete(w.copies, letter)
		has := false
		for t, how := range of { // det: as above
			has = has || how == arrived
			if how == pendingCopy && now.phase != queue.Gone {
				w.saw("letter %d has left, and target %d has not answered transfer %d", letter, t.target, t.number)
			}
		}
		if has {
			confirmed++
		}
	}
	if got := now.counters.DeadConfirmed + now.counters.Forwarded - b.counters.DeadConfirmed - b.counters.Forwarded; got > confirmed {
		w.saw("%d letters count as arrived, targets hold %d", got, confirmed)
	}
	targets := map[fsm.QueueID]bool{}
	for _, t := range w.m.DeadLetterTargets(0, 1<<20) {
		targets[t.ID] = true
	}
	for _, of := range w.copies { // det: each on its own
		// A target that comes back after it is gone counts its transfers anew.
		maps.DeleteFunc(of, func(t copyOf, how copyState) bool { return how == missed && !targets[t.target] })
	}
	for _, t := range w.m.DeadLetterTargets(0, 1<<20) {
		for _, o := range w.m.PendingTransfers(t.ID, t.Confirmed+1, int(t.Next-t.Confirmed)) {
			if w.copies[o.Letter.Number] == nil {
				w.copies[o.Letter.Number] = map[copyOf]copyState{}
			}
			to := copyOf{t.ID, o.Number}
			if _, known := w.copies[o.Letter.Number][to]; !known { // what is answered may end later
				w.copies[o.Letter.Number][to] = pendingCopy
			}
		}
	}
}

// copyOf names one of the source's transfers to a target.
type copyOf struct {
	target fsm.QueueID
	number uint64
}

// answered takes what a target has answered, as far as the queue has taken it.
func (w *witness) answered(s *logpb.SettleDead) {
	upto := s.Last
	for _, t := range w.m.DeadLetterTargets(0, 1<<20) {
		if uint64(t.ID) == s.Target {
			upto = min(upto, t.Confirmed)
		}
	}
	for _, of := range w.copies { // det: each on its own
		for t, how := range of { // det: as above
			switch {
			case how != pendingCopy || uint64(t.target) != s.Target || !s.Gone && t.number > upto:
			case s.Gone || slices.Contains(s.Refused, t.number):
				of[t] = missed
			default:
				of[t] = arrived
			}
		}
	}
}

// TestWitness: each promise that is broken is noticed. What the machine answers
// and causes is falsified on its way to the witness.
func TestWitness(t *testing.T) {
	publisher, consumer := fsm.SessionID{Node: 1, Boot: 1, Num: 1}, fsm.SessionID{Node: 2, Boot: 1, Num: 1}
	enqueue := func(ttlPlusOne uint64) *logpb.Command {
		return &logpb.Command{Kind: logpb.Command_ENQUEUE, Session: publisher.Proto(), Enqueue: &logpb.Enqueue{Size: 8, TtlPlusOne: ttlPlusOne}}
	}
	consume := &logpb.Command{Kind: logpb.Command_CONSUME, Session: consumer.Proto(), Consume: &logpb.Consume{Consumer: 1, Prefetch: 1}}
	ack := &logpb.Command{Kind: logpb.Command_SETTLE, Session: consumer.Proto(), Settle: &logpb.Settle{Consumer: 1, Ranges: []uint64{1, 1}}}
	tick := &logpb.Command{Kind: logpb.Command_TICK}
	first := fsm.Ref{Index: 1, Size: 8}
	full := &logpb.Command{Kind: logpb.Command_CONFIGURE, Configure: &logpb.Configure{Config: &logpb.QueueConfig{
		MaxLengthPlusOne: 1, Overflow: logpb.QueueConfig_REJECT_PUBLISH,
	}}}
	to := fsm.ConsumerID{Session: consumer, Number: 1}
	again := func(_ *fsm.Result, eff *fsm.Effects) {
		eff.Deliveries = append(eff.Deliveries, fsm.Delivery{To: to, ID: 2, Ref: first})
	}
	type falsify func(r *fsm.Result, eff *fsm.Effects)
	for _, tc := range []struct {
		name     string
		commands []*logpb.Command // one a second
		repeat   bool             // the last one has the number of the one before
		falsify  falsify          // the last step
		want     string
	}{
		{"nothing", []*logpb.Command{enqueue(0), consume, ack, enqueue(500), tick}, false, func(*fsm.Result, *fsm.Effects) {}, ""},
		{"delivered after its ack", []*logpb.Command{enqueue(0), consume, ack, tick}, false, again, "is delivered and was ended"},
		{"delivered after its death", []*logpb.Command{enqueue(500), tick, consume}, false, again, "is delivered and was ended"},
		{"delivered too late", []*logpb.Command{enqueue(1001), consume}, false, again, "its life ended"},
		{"from nowhere", []*logpb.Command{consume, tick}, false, again, "was never published"},
		{"delivered though refused", []*logpb.Command{full, enqueue(0), tick}, false, func(_ *fsm.Result, eff *fsm.Effects) {
			eff.Deliveries = append(eff.Deliveries, fsm.Delivery{To: to, ID: 1, Ref: fsm.Ref{Index: 2, Size: 8}})
		}, "was refused and is delivered"},
		{"another answer", []*logpb.Command{enqueue(0), enqueue(0)}, true, func(r *fsm.Result, _ *fsm.Effects) { r.Code = fsm.Rejected }, "was answered 0, and now"},
		{"enqueued and refused", []*logpb.Command{enqueue(0)}, false, func(r *fsm.Result, _ *fsm.Effects) { r.Code = fsm.Rejected }, "is enqueued and answered"},
		{"dead too early", []*logpb.Command{enqueue(9001), tick}, false, func(_ *fsm.Result, eff *fsm.Effects) {
			eff.DeadLetters = append(eff.DeadLetters, fsm.DeadLetter{Ref: first, Reason: logpb.Death_EXPIRED})
		}, "not to end before"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m := newMachine()
			w := newWitness(m)
			next := map[fsm.SessionID]uint64{}
			var found diffs
			for i, c := range tc.commands {
				meta := fsm.Meta{Index: uint64(i + 1), Term: 1, Now: start + fsm.Time(1000*i), Session: fsm.SessionFrom(c.Session), Version: 1}
				last := i == len(tc.commands)-1
				if c.Session != nil && !(last && tc.repeat) {
					next[meta.Session]++
				}
				c.Seq = next[meta.Session]
				var eff fsm.Effects
				r := m.Apply(meta, c, &eff)
				if last {
					tc.falsify(&r, &eff)
				}
				found = append(found, w.verify(step{meta, c, false}, r, &eff)...)
			}
			text := strings.Join(found, "\n")
			if (tc.want == "") != (text == "") || !strings.Contains(text, tc.want) {
				t.Errorf("found %q, want %q", text, tc.want)
			}
		})
	}
}

// TestWitnessCounts: what vanishes without being counted is noticed, and so is a
// letter that leaves before its target has answered.
func TestWitnessCounts(t *testing.T) {
	m := newMachine()
	w := newWitness(m)
	ref := fsm.Ref{Index: 9, Size: 8}
	w.held.live[ref] = queue.Message{Ref: ref} // it is not there any more
	w.born[ref] = &life{}
	w.copies[4] = map[copyOf]copyState{{target: 500, number: 1}: pendingCopy}
	var eff fsm.Effects
	meta := fsm.Meta{Index: 10, Term: 1, Now: start, Version: 1}
	c := &logpb.Command{Kind: logpb.Command_TICK}
	text := strings.Join(w.verify(step{meta, c, false}, m.Apply(meta, c, &eff), &eff), "\n")
	for _, want := range []string{"1 messages and 0 more are 0, and 0 have ended", "target 500 has not answered transfer 1"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q does not say %q", text, want)
		}
	}
}
