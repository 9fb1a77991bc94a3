package group

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"
	"google.golang.org/protobuf/proto"

	"github.com/quorate/quorate/cluster/clock"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/queue"
	"github.com/quorate/quorate/proto/logpb"
)

// review brings the group's role in line with raft's state: a new leader
// takes office, a former one leaves it. A quarantined one does not take it, and
// looks for somebody else.
func (g *Group) review() {
	defer g.contain("change the leader")
	g.office.Lock()
	defer g.office.Unlock()
	if g.closed.Load() {
		return
	}
	lead := g.order.leads()
	if had := g.leading.Load(); had != 0 && (!lead || g.barred() || had != g.Term()) {
		g.leave()
	}
	switch {
	case !lead || g.leading.Load() != 0:
	case !g.barred():
		g.enter()
	default:
		g.order.vacant()
	}
}

// enter waits until everything earlier leaders committed has been applied,
// and then starts to serve.
func (g *Group) enter() {
	term := g.order.takeOver()
	if term == 0 {
		return // lost again; the next change of state comes here once more
	}
	deadline, ok := g.begin(term)
	if !ok {
		return
	}
	if g.IsLocal() && g.closed.Load() { // meanwhile; the end of a replica waits for the office
		g.leave()
		return
	}
	g.order.filled()
	g.configure(true)
	g.announce(term)
	if deadline != 0 {
		// The first entry of a new term is a tick, so that time that passed
		// without a leader is accounted for before anything is handed out.
		g.proposeTick()
	}
}

// barrierRetry is the pause after a barrier that raft has refused to a leader.
const barrierRetry = 50 * time.Millisecond

// catchUp returns when everything that earlier leaders have committed is applied,
// and the term that this is known for; 0: this replica leads no more.
func (g *Group) catchUp() (term uint64) {
	leads := func() bool { return !g.closed.Load() && !g.barred() && g.raft.State() == raft.Leader }
	return awaitBarrier(g.raft.CurrentTerm, leads, g.barrier, g.ending)
}

// awaitBarrier returns the term of a leader that a barrier was given in; 0: it
// leads no more. The term is read first: what a barrier of a later term says is
// not about that one. Raft refuses a barrier while it hands the leadership over,
// and may keep it after all.
func awaitBarrier(term func() uint64, leads func() bool, barrier func() error, ending <-chan struct{}) uint64 {
	pause := time.NewTimer(0)
	defer pause.Stop()
	for {
		select {
		case <-pause.C:
		case <-ending:
			return 0
		}
		began := term()
		err := barrier()
		switch {
		case !leads():
			return 0
		case err == nil && term() == began:
			return began
		}
		pause.Reset(barrierRetry)
	}
}

// begin starts a term of office, unless raft has changed its mind.
func (g *Group) begin(term uint64) (deadline fsm.Time, ok bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.order.leads() || g.order.term() != term {
		return 0, false
	}
	g.effects.Reset()
	g.machine.Resume(&g.effects)
	deadline = g.machine.NextDeadline()
	g.proposer.begin(g.host.clock, g.machine.Clock())
	g.leading.Store(term)
	g.outgoing.lock()
	defer g.outgoing.unlockAndRun(g)
	g.outgoing.add(&g.effects)
	g.effects.Reset()
	g.timer.begin(g, deadline) // before entries of this term can change it
	return deadline, true
}

// announce tells the outside that this node leads, or no longer does (0).
func (g *Group) announce(term uint64) {
	defer g.contain("announce the leader")
	g.host.outside.Led(g, term)
}

// awaitClocks waits until a majority of the wall clocks is known, so that the
// first stamp of the term can take the time without a leader into account. It
// mostly is: votes and clocks come over the same links.
func (g *Group) awaitClocks() {
	select {
	case <-g.host.clock.Sampled():
		return
	default:
	}
	limit := time.NewTimer(clock.Settle)
	defer limit.Stop()
	select {
	case <-g.host.clock.Sampled():
	case <-g.ending:
	case <-limit.C:
	}
}

// settings are what a leader has proposed as the queue's settings.
type settings struct {
	changed  atomic.Bool // the catalog's, since the log's were last seen to be the same
	mu       sync.Mutex
	proposed *QueueConfig // in this term of office; nil: nothing
	retry    bool         // what was proposed may be lost, and is looked at soon
}

// settingsRetry is the pause before settings that may be lost are looked at. A
// leader that hands its office over refuses entries for as long as that takes.
const settingsRetry = 250 * time.Millisecond

// configure brings the settings in the log in line with the catalog's. A new
// leader does so ahead of everything that clients submit. again: what was
// proposed before counts for nothing, as it may be lost.
//
// It proposes nothing while the machine's settings come from a newer view of
// the catalog than this node's: it is called once more when that has come.
func (g *Group) configure(again bool) {
	defer g.contain("bring in the settings")
	s := &g.settings
	s.mu.Lock()
	defer s.mu.Unlock()
	if again {
		s.proposed = nil
	}
	want := g.wantSettings()
	last := s.proposed
	if last == nil {
		g.View(func(m *queue.Machine) { last = m.Config() })
	}
	if last == nil {
		return // it is quarantined
	}
	if want.Revision < last.Revision || proto.Equal(last, want) {
		return
	}
	c := &logpb.Command{Kind: logpb.Command_CONFIGURE, Configure: &logpb.Configure{Config: want}}
	if err := g.Submit(Batch{Commands: AppendCommand(nil, c), Count: 1, Light: true}); err != nil {
		g.slog.Debug("settings not proposed", "error", err) // the next leader does it
		return
	}
	s.proposed = want
}

// reconfigure is configure for settings of the catalog that have changed.
func (g *Group) reconfigure() {
	g.settings.changed.Store(true)
	g.host.watch.add(g)
	g.configure(false)
}

// settingsLost is told that an entry may be lost. If it could have been the one
// with the settings, these are proposed again unless they hold by then.
func (g *Group) settingsLost() {
	s := &g.settings
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.proposed == nil || s.retry {
		return
	}
	var hold bool
	g.View(func(m *queue.Machine) { hold = proto.Equal(m.Config(), s.proposed) })
	if hold {
		return
	}
	s.retry = true
	g.host.spawn(func() {
		pause := time.NewTimer(settingsRetry)
		defer pause.Stop()
		select {
		case <-pause.C:
		case <-g.ending:
		}
		s.mu.Lock()
		s.retry = false
		s.mu.Unlock()
		if g.leading.Load() != 0 {
			g.configure(true)
		}
	})
}

// wantSettings returns the settings that the queue should have. They are the
// caller's.
func (g *Group) wantSettings() *QueueConfig {
	var want *QueueConfig
	if newest := g.host.config.Settings; newest != nil {
		want = newest(g.spec.Queue)
	}
	if want == nil {
		want = proto.Clone(g.spec.Config).(*QueueConfig)
	}
	want.LockCredit = uint64(g.host.config.LockCredit())
	return want
}

// leave ends the term of office. What was proposed and not yet answered is
// reported as undecided by the proposer.
func (g *Group) leave() {
	g.leading.Store(0)
	g.host.ticker.remove(g)
	g.proposer.mu.Lock()
	if len(g.proposer.light)+len(g.proposer.heavy) > 0 {
		g.proposer.start(g)
	}
	g.proposer.mu.Unlock()
	g.announce(0)
}
