package group

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/cluster/election"
	"github.com/quorate/quorate/cluster/peer"
	"github.com/quorate/quorate/cluster/worker"
	"github.com/quorate/quorate/fsm"
)

const (
	// Leaders are looked at sleepChecks times in the time for which they have to be idle, or more often.
	sleepChecks      = 4
	longestSleepWait = time.Second
	// restingAtOnce is how many groups of a node fall asleep at a time, and wakesPerSecond how many are woken for
	// the reason that a node came or went, where nobody waits.
	restingAtOnce  = 4
	wakesPerSecond = 500
	// dueSoon is how long before something is due a group is woken whose leader's node has died.
	dueSoon = fsm.Millis(10_000)
	// sweepEvery is how often orphans are looked for, and orphanAfter how long a replica without a leader is one.
	sweepEvery  = time.Second
	orphanAfter = 2 * time.Second
	// sleepless bounds how many times longer a group is idle before it sleeps again if it was soon woken each time.
	sleepless = 32
)

// sleepers puts groups to sleep in which nothing happens: first those of their members whose nodes are up, then the
// leader. It wakes those that need a leader, or whose members may lack something.
type sleepers struct {
	host  *Host
	voter *voter
	after time.Duration // how long a group is idle; 0: none sleeps
	keep  int           // so many stay awake

	sweeping atomic.Bool

	processes sync.Map // by node: the incarnation of the newest one that has been up

	mu    sync.Mutex
	rests map[fsm.GroupID]*rest // of leaders whose members are being put to sleep
}

// rest is which members of a group sleep.
type rest struct {
	at        recordedAt
	asleep    map[string]bool
	requested bool // once, in vain: the members may not know what is committed
	found     bool // idle in the present check
}

func (s *sleepers) init(h *Host) {
	s.host, s.voter, s.after, s.keep = h, newVoter(h), h.config.IdleAfter, h.config.KeepAwake
	s.rests = map[fsm.GroupID]*rest{}
}

// run looks for groups that may sleep until stop is closed.
func (s *sleepers) run(stop <-chan struct{}) {
	if s.after > 0 && s.host.config.Heartbeat == 0 { // else the members of one that sleeps would stand for election
		swept := time.Now()
		worker.Every(stop, min(s.after/sleepChecks, longestSleepWait), func() {
			s.check()
			if now := time.Now(); now.Sub(swept) >= sweepEvery {
				swept = now
				s.sweep(now)
			}
		})
	}
}

// idleGroup is a leader in whose group nothing happens.
type idleGroup struct {
	*instance
	at recordedAt
}

// check asks the members of idle groups to sleep, those first in which nothing has happened for longest.
func (s *sleepers) check() {
	h := s.host
	if h.config.Version() < timerless {
		return
	}
	now, awake := time.Now(), 0
	var idle []idleGroup
	items := map[string][]byte{}
	for _, i := range h.groups.replicas(func(*instance) bool { return true }) {
		awake++
		if now.Sub(i.lastActive()) < s.after*time.Duration(max(1, i.shell.sleepless.Load())) {
			continue
		}
		at, leads := i.idle(s.after)
		if leads {
			idle = append(idle, idleGroup{i, at})
		} else if leader := i.Leader(); leader != "" && leader != i.Node() && h.config.Mesh.Alive(leader) {
			_, term := i.Role()
			items[leader] = election.AppendItem(items[leader], election.Item{Kind: election.ItemIdle, Group: i.spec.Group, Term: term, Position: i.LogEnd()})
		}
	}
	for node, list := range items {
		h.elections.Send(node, list)
	}
	slices.SortFunc(idle, func(a, b idleGroup) int { return a.lastActive().Compare(b.lastActive()) })
	s.ask(idle[:max(0, min(len(idle), awake-s.keep))])
}

// ask has the other members of groups sleep, and then the leaders.
func (s *sleepers) ask(idle []idleGroup) {
	items := map[string][]byte{}
	var ready []*Group
	s.mu.Lock()
	for _, i := range idle {
		id := i.spec.Group
		r := s.rests[id]
		if r == nil || r.at != i.at {
			r = &rest{at: i.at, asleep: map[string]bool{}}
			s.rests[id] = r
		}
		r.found = true
		if s.awaits(i.instance, r, func(node string) {
			if r.requested {
				i.Remind(node)
			}
			items[node] = election.AppendItem(items[node], election.Item{Kind: election.ItemRest, Group: id, Term: i.at.raft, Position: i.at.Position})
		}) == 0 {
			ready = append(ready, i.shell)
		}
		r.requested = true
	}
	for id, r := range s.rests {
		if !r.found {
			delete(s.rests, id)
		}
		r.found = false
	}
	s.mu.Unlock()
	for node, list := range items {
		s.host.elections.Send(node, list)
	}
	s.lie(ready)
}

// awaits counts the members that are up and do not sleep, and calls f for each.
func (s *sleepers) awaits(i *instance, r *rest, f func(node string)) (n int) {
	for _, m := range i.Configuration() {
		if m.Node != i.Node() && !r.asleep[m.Node] && i.host.config.Mesh.Alive(m.Node) {
			n++
			f(m.Node)
		}
	}
	return n
}

// lie puts leaders to sleep whose members do.
func (s *sleepers) lie(ready []*Group) {
	if len(ready) == 0 {
		return
	}
	s.host.tasks.Go(func() {
		worker.Each(restingAtOnce, ready, func(_ int, g *Group) {
			g.sleep(func(i *instance) bool {
				at, ok := i.idle(s.after)
				s.mu.Lock()
				defer s.mu.Unlock()
				r := s.rests[g.spec.Group]
				return ok && r != nil && r.at == at && s.awaits(i, r, func(string) {}) == 0
			})
		})
	})
}

// Receive implements election.Sleeping.
func (s *sleepers) Receive(kind byte, from string, items []election.Item) {
	switch kind {
	case election.ItemRest:
		s.requested(from, items)
	case election.ItemRests:
		s.rested(from, items)
	case election.ItemVote:
		s.voter.requested(from, items)
	case election.ItemVoted:
		s.voter.voted(from, items)
	case election.ItemWon:
		s.voter.heard(from, items)
	}
}

// requested puts replicas to sleep whose leaders ask for that, and answers for those that do.
func (s *sleepers) requested(from string, items []election.Item) {
	s.host.tasks.Go(func() {
		asleep := make([]bool, len(items))
		worker.Each(restingAtOnce, items, func(n int, it election.Item) { asleep[n] = s.follow(from, it) })
		var answer []byte
		for n, it := range items {
			if asleep[n] {
				it.Kind = election.ItemRests
				answer = election.AppendItem(answer, it)
			}
		}
		if len(answer) > 0 {
			s.host.elections.Send(from, answer)
		}
	})
}

// follow puts a replica to sleep that has everything its leader has.
func (s *sleepers) follow(from string, it election.Item) bool {
	g := s.host.Group(it.Group)
	if g == nil || g.IsLocal() {
		return false
	}
	want := recordedAt{it.Position, it.Term}
	g.sleep(func(i *instance) bool { return i.follows(from, want) })
	r := g.asleep.Load()
	return r != nil && !r.leads && r.at == want && r.level
}

// rested takes up that members sleep.
func (s *sleepers) rested(from string, items []election.Item) {
	var ready []*Group
	s.mu.Lock()
	for _, it := range items {
		r := s.rests[it.Group]
		if r == nil || r.at != (recordedAt{it.Position, it.Term}) {
			continue
		}
		r.asleep[from] = true
		if i := s.host.groups.replica(it.Group); i != nil && s.awaits(i, r, func(string) {}) == 0 {
			ready = append(ready, i.shell)
		}
	}
	s.mu.Unlock()
	s.lie(ready)
}

// down finds other leaders for the groups whose leader's node has died: at once for those in which something is soon
// due, for the others when it has been away for deathPatience. Who waits for one of them wakes it.
func (s *sleepers) down(node string) {
	h := s.host
	soon := h.config.Clock.Now() + fsm.Time(dueSoon)
	orphans := h.groups.sleepers(func(_ *Group, r *record) bool { return r.leader == node && !r.leads })
	if len(orphans) == 0 {
		return
	}
	h.tasks.Go(func() {
		var due, rest []*Group
		for _, g := range orphans {
			if r := g.asleep.Load(); r != nil && r.stats.NextDeadline != 0 && r.stats.NextDeadline < soon {
				due = append(due, g)
			} else {
				rest = append(rest, g)
			}
		}
		began := time.Now()
		s.succeed(due, node)
		for time.Since(began) < election.DeathPatience {
			if h.config.Mesh.Alive(node) || !h.pause(longestSleepWait/sleepChecks) {
				return
			}
		}
		s.succeed(rest, node)
	})
}

// succeed has groups elect another leader: asleep, and those that cannot awake.
func (s *sleepers) succeed(orphans []*Group, dead string) {
	if len(orphans) == 0 {
		return
	}
	s.voter.takeOver(orphans, dead)
	s.wakeAll(slices.DeleteFunc(orphans, func(g *Group) bool { return !g.orphaned(dead) }), func() bool { return !s.host.config.Mesh.Alive(dead) })
}

// up wakes the groups led here of which a node may lack something.
func (s *sleepers) up(node string) {
	h := s.host
	lacking := h.groups.sleepers(func(_ *Group, r *record) bool { return r.leads && slices.Contains(r.lacks, node) })
	if len(lacking) > 0 {
		h.tasks.Go(func() { s.wakeAll(lacking, func() bool { return h.config.Mesh.Alive(node) }) })
	}
}

// wakeAll wakes groups one after the other, as long as there is a reason.
func (s *sleepers) wakeAll(all []*Group, reason func() bool) {
	for _, g := range all {
		if !g.Asleep() {
			continue
		}
		if !reason() || !s.host.pause(time.Second/wakesPerSecond) {
			return
		}
		g.wake()
	}
}

// pause waits, and reports whether the host goes on.
func (h *Host) pause(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-h.tasks.Life().Done():
		return false
	}
}

// Heard answers an item of another node that concerns a group which sleeps, or says that the group has to be woken for it.
func (s *sleepers) Heard(from string, it election.Item) (answer []byte, wakes bool) {
	shell := s.host.Group(it.Group)
	if shell == nil || shell.IsLocal() {
		return nil, false
	}
	r := shell.asleep.Load()
	switch {
	case r == nil:
		return nil, it.Kind != election.ItemIdle // it has just woken
	case it.Kind == election.ItemIdle:
		if r.leads && r.level && r.at == (recordedAt{it.Position, it.Term}) {
			it.Kind = election.ItemRest
			return election.AppendItem(nil, it), false
		}
		return nil, false
	case it.Kind == election.ItemAsk, it.Kind == election.ItemOutOfReach, it.Kind == election.ItemOffer, s.host.withdrawn.Load():
		return nil, true
	}
	led := r.leads || r.leader != from && s.host.config.Mesh.Alive(r.leader) && !s.restarted(r)
	return nil, !led || it.Kind == election.ItemWant && !r.leads && r.wish.note(time.Now())
}

// Disturbed wakes the groups that items of another node concern, and then has them heard. It does not wait.
func (s *sleepers) Disturbed(from string, items []byte) {
	h := s.host
	h.tasks.Go(func() {
		worker.Each(restingAtOnce, slices.Collect(slices.Chunk(items, election.ItemSize)), func(_ int, it []byte) {
			if g := h.Group(election.ParseItem(it).Group); g != nil {
				if i := g.wake(); i != nil && leaderless(i) {
					search(i)
				}
			}
		})
		h.elections.Receive(from, items, time.Now())
	})
}

// leaderless reports whether raft knows of no leader.
func leaderless(i *instance) bool { return i.Replica.Leader() == "" }

// search begins an election if there is none.
func search(i *instance) {
	if !i.host.elections.Runs(i.spec.Group) {
		i.host.elections.Begin(i)
	}
}

// wish is when somebody has first and last waited for a leader, in ns. Who finds one that leads asks no more.
type wish struct{ first, last atomic.Int64 }

// note notes that somebody waits, and reports whether that has gone on for long.
func (w *wish) note(now time.Time) bool {
	if at := now.UnixNano(); at-w.last.Swap(at) >= int64(election.WantValid) {
		w.first.Store(at)
	}
	return now.UnixNano()-w.first.Load() >= int64(election.WantValid)
}

// sweep sees to it that every replica without a leader looks for one, be it that its leader's node has been restarted since:
// those that sleep are woken, and those that have woken and heard of no leader search.
func (s *sleepers) sweep(now time.Time) {
	h := s.host
	for _, i := range h.groups.replicas(leaderless) {
		if leader := i.Leader(); !i.IsClosed() && (leader == "" || !h.config.Mesh.Alive(leader) || s.restarted(i.resumes)) {
			search(i)
		}
	}
	orphans := h.groups.sleepers(func(_ *Group, r *record) bool {
		return !r.leads && (r.leader == "" && now.Sub(r.noted) >= orphanAfter || s.restarted(r))
	})
	if len(orphans) > 0 && s.sweeping.CompareAndSwap(false, true) {
		h.tasks.Go(func() {
			defer s.sweeping.Store(false)
			s.wakeAll(orphans, func() bool { return true })
		})
	}
}

// sign notes which process of its node leads a group.
func (s *sleepers) sign(r *record) {
	r.process, r.noted = s.process(r.leader), time.Now()
}

func (s *sleepers) process(node string) (of [16]byte) {
	if p, ok := s.processes.Load(node); ok {
		of = p.([16]byte)
	}
	return of
}

// restarted reports whether the leader's node has been restarted since: it leads no more (R4).
func (s *sleepers) restarted(r *record) bool {
	return r != nil && !r.leads && r.leader != "" && s.process(r.leader) != r.process
}

// peerChanged passes on that a node has come or gone.
func (s *sleepers) peerChanged(ev peer.Event) {
	if ev.Up {
		s.processes.Store(ev.Node, ev.Incarnation)
		s.up(ev.Node)
	} else {
		s.down(ev.Node)
	}
}

// lastActive is when the group last applied something, or woke.
func (i *instance) lastActive() time.Time {
	return time.Unix(0, max(i.usage.active.Load(), i.began))
}

// idle returns where the log of a leader ends if nothing happens in its group, and nothing is due for so long.
func (i *instance) idle(long time.Duration) (at recordedAt, ok bool) {
	term, leads := i.LeadsIn()
	switch {
	case !leads, i.leadership.term.Load() != term, i.Barred(), i.proposer.busy(), i.watched.Load(), i.Moves(), i.usage.writing.Load() > 0:
		return at, false
	}
	is := i.Raft()
	last := is.LastIndex()
	if is.CommitIndex() != last || is.AppliedIndex() != last || i.LastStored() != last {
		return at, false
	}
	for _, m := range i.Configuration() {
		if !m.Voter || m.Node != i.Node() && i.host.config.Mesh.Alive(m.Node) && i.Reached(m.Node, term).Index < last {
			return at, false
		}
	}
	at = recordedAt{i.PositionOf(last), term}
	return at, at.Term != 0 && i.applier.rests(func(deadline fsm.Time) bool { return i.proposer.until(deadline) > long }, &i.settings)
}

// follows reports whether a replica has all that a leader has, and has applied it. A candidate of the term that has lost
// is one for raft as long as it is awake.
func (i *instance) follows(leader string, want recordedAt) bool {
	is := i.Raft()
	role, term := i.Role()
	return role != raft.Leader && term == want.raft && i.Leader() == leader && !i.IsLearner() && !i.Barred() && i.usage.writing.Load() == 0 &&
		is.LastIndex() == want.Index && is.AppliedIndex() == want.Index && i.LastStored() == want.Index && i.LogEnd() == want.Position
}

// rests reports whether the machine waits for nothing before a deadline that is far, and has all settings.
func (a *applier) rests(far func(deadline fsm.Time) bool, s *settings) bool {
	if !a.mu.TryLock() {
		return false
	}
	defer a.mu.Unlock()
	d := a.machine.NextDeadline()
	return !a.stopped && (d == 0 || far(d)) && a.machine.Stats().Outbox.Messages == 0 && !s.wait(a.machine.Config())
}
