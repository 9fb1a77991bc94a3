package queue

import (
	"bytes"
	"fmt"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// redriveSlack is by how much, in ms, a redrive may make up for steps that came late.
const redriveSlack = 100

// redriving is the last redrive of a queue, a record: who began it, at which rate, how far it is. The queue's leader finds what is next, and each
// step that it proposes says where it begins, so that no change of leader repeats or leaves out anything. The time
// that a step takes at the rate counts from its entry, so no new leader hurries. The record stays when it has ended.
//
// Invariants: last = nil, or since ≤ clock, next ≤ up_to, and ended = 0 ⇒ next < up_to, and taken < limit if
// there is one. A record is replaced and never changed.
type redriving struct{ last *logpb.RedriveState }

// goesOn reports whether there is a redrive that has not ended.
func (x *redriving) goesOn() bool { return GoesOn(x.last) }

// GoesOn reports whether a redrive has not ended; nil: there was none.
func GoesOn(r *logpb.RedriveState) bool { return r != nil && r.Ended == 0 }

// change begins a redrive of what is ready, or ends the one that goes on. Count is then not 0: the number of what
// has begun.
//
// InUse if another one goes on. Invalid, and nothing has changed, before version 3, for more text or conditions
// than there may be, and if it is to its own queue.
func (x *redriving) change(cmd *logpb.Redrive, m *Machine, eff *fsm.Effects) fsm.Result {
	if !m.since(3) || max(len(cmd.GetBy()), len(cmd.GetWhy()), len(cmd.GetTo())) > fsm.MaxPauseText || len(cmd.GetConditions()) > fsm.MaxConditions ||
		fsm.QueueID(cmd.GetTarget()) == m.id {
		return fsm.Result{Code: fsm.Invalid}
	}
	goesOn, now := x.goesOn(), int64(m.clock.atOnce())
	if cmd.GetEnds() != 0 || cmd.GetCancels() {
		if !goesOn || !cmd.Cancels && x.last.Number != cmd.Ends {
			return fsm.Result{}
		}
		r := proto.CloneOf(x.last)
		r.Ended, r.Why = now, strings.Clone(cmd.Why)
		x.last = r
		return fsm.Result{Count: 1}
	}
	if goesOn {
		return fsm.Result{Code: fsm.InUse}
	}
	r := &logpb.RedriveState{
		Redrive: &logpb.Redrive{By: strings.Clone(cmd.GetBy()), Rate: cmd.GetRate(), Limit: cmd.GetLimit(), Target: cmd.GetTarget(), Conditions: bytes.Clone(cmd.GetConditions()), To: strings.Clone(cmd.GetTo())},
		Number:  x.last.GetNumber() + 1, Since: now, Paced: now, UpTo: m.messages.nextSeq() - 1,
	}
	if m.messages.readyCount() == 0 {
		r.Next = r.UpTo
	}
	m.lease.touch()
	x.goOn(r, m.clock.atOnce(), eff)
	return fsm.Result{Count: r.Number}
}

// step takes what the leader has found, if it has looked from where the redrive is. Count is how many messages.
//
// Invalid, and nothing has changed, before version 3, for more messages than a Take may name, and for a Take that is
// invalid or redrives nothing.
func (x *redriving) step(cmd *logpb.RedriveStep, m *Machine, eff *fsm.Effects) fsm.Result {
	n := 0
	for _, t := range cmd.GetTakes() {
		if n += len(t.GetMessages()); !m.takes(t) || t.Action != logpb.Take_REDRIVE {
			return fsm.Result{Code: fsm.Invalid}
		}
	}
	if !m.since(3) || n > takenAtOnce || cmd.GetNext() < cmd.GetAfter() {
		return fsm.Result{Code: fsm.Invalid}
	}
	if !x.goesOn() || x.last.Number != cmd.Number || x.last.Next != cmd.After {
		return fsm.Result{}
	}
	var taken uint64
	for _, t := range cmd.Takes {
		taken += m.take(t, eff).Count
	}
	r := proto.CloneOf(x.last)
	r.Next, r.Taken = min(cmd.Next, r.UpTo), r.Taken+taken
	r.SourceGone, r.NoSource, r.Refused = r.SourceGone+cmd.SourceGone, r.NoSource+cmd.NoSource, r.Refused+cmd.Refused
	if rate := r.Redrive.Rate; rate > 0 {
		r.Paced = max(r.Paced, int64(m.clock.now())-redriveSlack) + int64((taken*1000+rate-1)/rate)
	}
	x.goOn(r, m.clock.atOnce(), eff)
	return fsm.Result{Count: taken}
}

// goOn keeps the record of a redrive, which ends if it is at its end.
func (x *redriving) goOn(r *logpb.RedriveState, now fsm.Time, eff *fsm.Effects) {
	if limit := r.Redrive.Limit; r.Next == r.UpTo || limit > 0 && r.Taken >= limit {
		r.Ended = int64(now)
	}
	x.last = r
	eff.Redrive = eff.Redrive || x.goesOn()
}

func (x *redriving) check(k *checker) {
	m := k.m
	r, now := x.last, int64(max(m.clock.now(), 1))
	if r == nil {
		return
	}
	of := r.GetRedrive()
	k.that(of != nil && of.Ends == 0 && !of.Cancels && of.Why == "" && max(len(of.By), len(of.To), len(r.Why)) <= fsm.MaxPauseText && len(of.Conditions) <= fsm.MaxConditions && fsm.QueueID(of.Target) != m.id,
		"a redrive that nobody could begin: %v", r)
	k.that(r.Number > 0 && 0 < r.Since && r.Since <= now && 0 <= r.Ended && r.Ended <= now && r.Paced >= r.Since && r.Next <= r.UpTo && r.UpTo < m.messages.nextSeq(), "clock %d, the redrive: %v", now, r)
	k.that(r.Ended != 0 || r.Why == "" && r.Next < r.UpTo && (of.GetLimit() == 0 || r.Taken < of.Limit), "a redrive goes on at its end: %v", r)
}

func (x *redriving) describe(b *strings.Builder) {
	r := x.last
	if r == nil {
		return
	}
	of := r.Redrive
	fmt.Fprintf(b, "redrive %d by=%q since=%d next=%d of %d paced=%d taken=%d", r.Number, of.By, r.Since, r.Next, r.UpTo, r.Paced, r.Taken)
	numberText(b, " rate=%d", of.Rate)
	numberText(b, " limit=%d", of.Limit)
	numberText(b, " to=%d", of.Target)
	numberText(b, " source-gone=%d", r.SourceGone)
	numberText(b, " no-source=%d", r.NoSource)
	numberText(b, " refused=%d", r.Refused)
	numberText(b, " ended=%d", uint64(r.Ended))
	if r.Why != "" {
		fmt.Fprintf(b, " why=%q", r.Why)
	}
	b.WriteString("\n")
}
