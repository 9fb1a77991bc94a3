package group

import (
	"bytes"
	"encoding/binary"
	"reflect"
	"time"

	"github.com/quorate/quorate/cluster/raftlog"
	"github.com/quorate/quorate/fsm/invariants"
	"github.com/quorate/quorate/fsm/queue"
)

// What follows runs in builds with the tag invariants only, and panics where a record breaks what it promises.

// checkRest checks R1 and R2 of a replica that has just fallen asleep. led is the term in which it led before, or 0. The
// caller holds the lock of the applier.
func (r *Record) checkRest(i *Instance, led uint64) {
	if !invariants.Enabled {
		return
	}
	invariants.Assert(!r.leads || led == r.at.Raft, "R2: who sleeps as leader has led in the term to the end")
	if r.level {
		last := i.LastStored()
		invariants.Assert(last == r.at.Index && i.Raft().AppliedIndex() == last && i.applier.has(last), "R1: all of the log is applied")
		invariants.Assert(r.configAt <= r.at.Index, "R1: the members are committed")
		invariants.Assert(!r.leads || !i.proposer.busy(), "R1: nobody waits for an answer")
		invariants.Assert(!r.leads || i.applier.machine.Stats().Outbox.Messages == 0, "R1: no letter waits to be forwarded")
		invariants.Assert(!r.leads || !queue.GoesOn(i.applier.machine.Outlook().Redrive), "R1: no redrive goes on")
	}
}

// checkWake checks R3 and R4 of a replica that is about to wake: its log, term and vote are those that it sleeps with.
func (r *Record) checkWake(log *raftlog.Group, node string) {
	if !invariants.Enabled || !r.level || r.failed {
		return
	}
	last, _ := log.LastIndex() // it has no errors
	invariants.Assert(last == r.at.Index, "R3: nobody writes the log of a replica that sleeps")
	is := func(key string, want []byte) bool {
		value, err := log.Get([]byte(key))
		return err == nil && bytes.Equal(value, want)
	}
	term := binary.BigEndian.AppendUint64(nil, r.at.Raft)
	invariants.Assert(is(raftlog.TermKey, term), "R3: term and record of a replica that sleeps change together")
	invariants.Assert(!r.leads || is(raftlog.VoteTermKey, term) && is(raftlog.VotedForKey, []byte(node)), "R4: a leader that sleeps has its own vote")
}

// checkMachine checks that nothing has happened in a machine while its replica slept. Of one in which nothing ever has, the
// record knows when the replica was made.
func (r *Record) checkMachine(m *queue.Machine) {
	if !invariants.Enabled || r.stats.Applied == 0 && m.Index() == 0 {
		return
	}
	is := StatsOf(m)
	if r.stored && is.Use != nil && r.stats.Use != nil {
		is.Use.Capacity = r.stats.Use.Capacity // which is not stored
	}
	invariants.Assert(reflect.DeepEqual(is, r.stats), "R6: a machine that sleeps does not change")
}

// checkArmed checks R6 of a leader that has just fallen asleep: its node wakes it for what is due.
func (r *Record) checkArmed(g *Group) {
	if !invariants.Enabled || !r.leads || r.stats.NextDeadline == 0 || r.stamper.Wait(r.stats.NextDeadline) < time.Second {
		return // the heap may have it no more
	}
	invariants.Assert(g.node.Ticker.Has(g), "R6: the leader's node wakes a group for what is due")
}
