package fsmtest

import (
	"fmt"
	"slices"
	"strings"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/queue"
)

// trial applies one history to the model and to the machine, step by step,
// and to further replicas of the machine, entry by entry.
type trial struct {
	model    *model
	bounds   queue.Bounds
	straight *queue.Machine
	witness  *witness    // of straight
	eff      fsm.Effects // of the entry under way
	results  []fsm.Result
	history  history

	restored  *queue.Machine  // replaced by its own snapshot now and then
	follower  *queue.Machine  // nobody looks at its effects
	wired     *queue.Machine  // reads entries as they are on disk
	snapshot  string          // of straight, the newest one
	suffix    history         // entries since snapshot
	view      *queue.Snapshot // what snapshot was written from
	entry     history         // the entry under way, if any
	liveUntil []uint64        // live indexes of the model before the entry
	enqueued  uint64          // messages before the entry
}

func newTrial(b queue.Bounds) *trial {
	r := &trial{model: newModel(), bounds: b}
	r.model.bounds = b
	for _, m := range []**queue.Machine{&r.straight, &r.restored, &r.follower, &r.wired} {
		*m = r.machine()
	}
	r.witness = newWitness(r.straight)
	return r
}

// machine returns a new machine of the trial's bounds.
func (r *trial) machine() *queue.Machine {
	m := newMachine()
	m.SetBounds(r.bounds)
	return m
}

// mustRestore returns such a machine made from a snapshot.
func (r *trial) mustRestore(t fataler, snapshot string) *queue.Machine {
	m := r.machine()
	if err := m.Restore(strings.NewReader(snapshot)); err != nil {
		t.Fatalf("restore: %v", err)
	}
	return m
}

// step applies one command to model and machine and says how they differ.
func (r *trial) step(s step) diffs {
	if !s.more {
		r.entry, r.results = nil, nil
		r.eff.Reset()
		r.liveUntil, r.enqueued = r.model.liveIndexes(), r.model.counters.Enqueued
	}
	r.history.add(s)
	r.entry.add(s)
	want, _ := r.model.apply(s.meta, s.cmd)
	own := r.eff // what the commands before have caused
	r.eff.Outbox, r.eff.Redrive, r.eff.Gone, r.eff.SuspicionChanged = false, false, false, false
	got := r.straight.Apply(s.meta, s.cmd, &r.eff)
	r.results = append(r.results, got)
	caused := fsm.Effects{
		Deliveries: r.eff.Deliveries[len(own.Deliveries):], Timeouts: r.eff.Timeouts[len(own.Timeouts):],
		LateAcks:    r.eff.LateAcks[len(own.LateAcks):],
		DeadLetters: r.eff.DeadLetters[len(own.DeadLetters):],
		Short:       r.eff.Short[len(own.Short):],
		Tellings:    r.eff.Tellings[len(own.Tellings):],
		Cancelled:   r.eff.Cancelled[len(own.Cancelled):], Outbox: r.eff.Outbox, Redrive: r.eff.Redrive, Gone: r.eff.Gone, SuspicionChanged: r.eff.SuspicionChanged,
	}
	d := r.witness.verify(s, got, &caused)
	compareAnswer(&d, r.model, want, got, &caused)
	compareState(&d, r.model, r.straight)
	return d
}

// choice says what happens to the replicas after an entry.
type choice struct{ restore, snapshot, restart, last bool }

// endEntry brings the other replicas to where straight is.
func (r *trial) endEntry(t fataler, c choice) diffs {
	if len(r.entry) == 0 {
		return nil
	}
	var d diffs
	r.compareReleased(&d)
	e := r.entry[0]
	r.entry = nil
	r.suffix = append(r.suffix, e)
	r.compareEffects(&d, "restored", r.restored, e)
	r.compareEffects(&d, "wired", r.wired, e.overWire(t))
	applyAll(r.follower, e)
	hash := r.straight.Hash()
	others := []struct {
		name string
		m    *queue.Machine
	}{{"restored", r.restored}, {"a follower", r.follower}, {"wired", r.wired}}
	for i, o := range others {
		// Hashes are dear, and a replica that has gone astray stays there: one
		// is looked at after each entry, all of them at the end.
		if !c.last && uint64(i) != e.index%3 {
			continue
		}
		if o.m.Hash() != hash {
			d.add("hash of the replica that is "+o.name, r.straight.String(), o.m.String())
		}
	}
	if c.restore {
		r.restored = r.mustRestore(t, mustSnapshot(t, r.restored))
		if r.restored.Hash() != hash {
			d.add("hash after a restore", r.straight.String(), r.restored.String())
		}
		// What a snapshot leaves out, its hash does not tell.
		compareState(&d, r.model, r.restored)
	}
	if c.restart {
		r.restart(t, &d)
	}
	if c.snapshot {
		r.snapshot, r.suffix, r.view = mustSnapshot(t, r.straight), nil, r.straight.Snapshot()
	}
	return d
}

// restart starts a replica from the newest snapshot and the entries since.
func (r *trial) restart(t fataler, d *diffs) {
	m := r.machine()
	if r.view != nil {
		var late strings.Builder
		if _, err := r.view.WriteTo(&late); err != nil {
			t.Fatalf("snapshot: %v", err)
		}
		if late.String() != r.snapshot {
			*d = append(*d, "a snapshot has changed while the machine went on")
		}
		m = r.mustRestore(t, r.snapshot)
	}
	for _, e := range r.suffix {
		applyAll(m, e)
	}
	if m.Hash() != r.straight.Hash() {
		d.add(fmt.Sprintf("hash after a restart with %d entries", len(r.suffix)), r.straight.String(), m.String())
	}
	if err := m.Check(); err != nil {
		*d = append(*d, "check after a restart: "+err.Error())
	}
}

// compareEffects applies an entry to a replica, which answers and causes what
// straight did.
func (r *trial) compareEffects(d *diffs, name string, m *queue.Machine, e entry) {
	results, eff := applyAll(m, e)
	equal(d, "result of the replica that is "+name, r.results, results, identical[fsm.Result])
	equal(d, "delivery by the replica that is "+name, r.eff.Deliveries, eff.Deliveries, sameDelivery)
	equal(d, "dead letter by the replica that is "+name, r.eff.DeadLetters, eff.DeadLetters, sameDeadLetter)
	equal(d, "timeout by the replica that is "+name, r.eff.Timeouts, eff.Timeouts, sameTimeout)
	equal(d, "cancelled by the replica that is "+name, r.eff.Cancelled, eff.Cancelled, identical[fsm.ConsumerID])
	equal(d, "news by the replica that is "+name, flatNews(r.eff.Tellings), flatNews(eff.Tellings), identical[notice])
	equal(d, "short by the replica that is "+name, r.eff.Short, eff.Short, identical[fsm.ConsumerID])
	equal(d, "released by the replica that is "+name, released(&r.eff), released(&eff), identical[uint64])
}

// released are all entries that effects release.
func released(eff *fsm.Effects) []uint64 {
	if eff.Rest == nil {
		return eff.Released
	}
	return slices.AppendSeq(slices.Clone(eff.Released), eff.Rest)
}

func applyAll(m *queue.Machine, e entry) (results []fsm.Result, eff fsm.Effects) {
	for _, s := range e.steps() {
		results = append(results, m.Apply(s.meta, s.cmd, &eff))
	}
	return results, eff
}

// compareReleased looks at what the entry as a whole has released: the
// indexes that were live before it, or got a message in it, and are live no
// more. Only the entry's own index may be released more than once.
func (r *trial) compareReleased(d *diffs) {
	own := r.entry[0].index
	before := r.liveUntil
	if r.model.counters.Enqueued > r.enqueued || r.model.unneeded == own {
		before = append(before, own)
	}
	live := r.model.liveIndexes()
	var want []uint64
	for _, index := range before {
		if !slices.Contains(live, index) {
			want = append(want, index)
		}
	}
	got := slices.Sorted(slices.Values(released(&r.eff)))
	for i, index := range got {
		if i > 0 && got[i-1] == index && index != own {
			d.add("released twice", want, got)
		}
	}
	equal(d, "released index", want, slices.Compact(got), identical[uint64])
}
