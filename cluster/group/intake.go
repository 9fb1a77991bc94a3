package group

import (
	"slices"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/queue"
)

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
