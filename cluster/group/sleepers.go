package group

import (
	"cmp"
	"math"
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
	// restartPatience is for how long a node that was restarted is waited for to take up what it led.
	restartPatience = 20 * time.Second
	// levelWait is how long a member that was down has to say that it lacks nothing before it is woken.
	levelWait = time.Second
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

	sweeping, bearing atomic.Bool
	rousing           longLock // held by who is about to wake a group that nobody waits for

	processes sync.Map // by node: the newest process that has been up
	patience  time.Duration
	shared    shared

	mu    sync.Mutex
	rests map[fsm.GroupID]*rest // of leaders whose members are being put to sleep
	// orphans has every group that sleeps, and whose leader is not known, or leads no more.
	orphans map[fsm.GroupID]*Group
	changes map[string]uint64 // by node: how often it has come or gone
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
	s.rests, s.orphans, s.changes = map[fsm.GroupID]*rest{}, map[fsm.GroupID]*Group{}, map[string]uint64{}
	s.patience = restartPatience
}

// on reports whether groups sleep: else the members of one that does would stand for election.
func (s *sleepers) on() bool { return s.after > 0 && s.host.config.Heartbeat == 0 }

// run looks for groups that may sleep until stop is closed.
func (s *sleepers) run(stop <-chan struct{}) {
	every := longestSleepWait
	if s.after > 0 {
		every = min(every, s.after/sleepChecks)
	}
	if s.host.config.Heartbeat == 0 { // else the members of one that sleeps would stand for election
		swept := time.Now()
		worker.Every(stop, every, func() {
			if s.after > 0 {
				s.check()
			}
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
		if now.Sub(i.lastActive()) < i.shell.idleAfter() {
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
		if g := s.host.groups.sleeper(it.Group); g != nil {
			s.level(g, from, it)
		}
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
func (s *sleepers) down(node string, gone func() bool) {
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
		s.succeed(due, node, gone)
		for time.Since(began) < election.DeathPatience {
			if !gone() || !s.pause(longestSleepWait/sleepChecks) {
				return
			}
		}
		byDeadline(rest)
		s.succeed(rest, node, gone)
	})
}

// byDeadline sorts groups that sleep: first those in which something is due first.
func byDeadline(groups []*Group) {
	due := map[*Group]fsm.Time{}
	for _, g := range groups {
		due[g] = math.MaxInt64
		if r := g.asleep.Load(); r != nil && r.stats.NextDeadline != 0 {
			due[g] = r.stats.NextDeadline
		}
	}
	slices.SortFunc(groups, func(a, b *Group) int { return cmp.Compare(due[a], due[b]) })
}

// succeed has groups elect another leader: asleep, and those that cannot awake.
func (s *sleepers) succeed(orphans []*Group, dead string, gone func() bool) {
	if len(orphans) == 0 {
		return
	}
	s.voter.takeOver(orphans, dead, gone)
	orphans = slices.DeleteFunc(orphans, func(g *Group) bool { return !g.orphaned(dead) })
	if gone() {
		orphans = slices.DeleteFunc(orphans, (*Group).forsake)
	}
	s.wakeAll(orphans, gone)
}

// up wakes the groups led here of which a node may lack something. Where nobody has served in the term, it may lack only the
// word of who leads: it is woken if it does not say so.
func (s *sleepers) up(node string) {
	h := s.host
	var unserved []*Group
	lacking := h.groups.sleepers(func(g *Group, r *record) bool {
		if !r.leads || !slices.Contains(r.lacking(), node) {
			return false
		}
		if r.elected {
			unserved = append(unserved, g)
		}
		return !r.elected
	})
	still := func() bool { return h.config.Mesh.Alive(node) }
	if len(lacking) > 0 {
		h.tasks.Go(func() { s.wakeAll(lacking, still) })
	}
	if len(unserved) > 0 {
		h.tasks.Go(func() {
			var tell []byte
			for _, g := range unserved {
				tell = s.appendLed(tell, g)
			}
			h.elections.Send(node, tell)
			if s.pause(levelWait) {
				s.wakeAll(slices.DeleteFunc(unserved, func(g *Group) bool { return !s.mayLack(g, node) }), still)
			}
		})
	}
}

// wakeAll wakes groups one after the other, as long as there is a reason.
func (s *sleepers) wakeAll(all []*Group, reason func() bool) {
	for _, g := range all {
		if !g.Asleep() {
			continue
		}
		if !s.turn(reason) {
			return
		}
		g.wake()
	}
}

// turn waits until one more may be woken, and reports whether there still is a reason.
func (s *sleepers) turn(reason func() bool) bool {
	s.rousing.Lock()
	defer s.rousing.Unlock()
	return reason() && s.pause(time.Second/wakesPerSecond)
}

// pause waits, and reports whether the host goes on.
func (s *sleepers) pause(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-s.host.tasks.Life().Done():
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
	case it.Kind == election.ItemAsk && r.leads && it.Term <= r.at.raft && !s.host.withdrawn.Load() && r.wakesSoon(time.Now()):
		return election.AppendItem(nil, election.Led(it.Group, r.at.raft, r.at.Position)), true
	case it.Kind == election.ItemAsk, it.Kind == election.ItemOutOfReach, it.Kind == election.ItemOffer, s.host.withdrawn.Load():
		return nil, true
	}
	led := r.leads || r.leader != from && s.host.config.Mesh.Alive(r.leader) && !s.restarted(r)
	return nil, !led || it.Kind == election.ItemWant && !r.leads && r.wish.note(time.Now())
}

// wakesSoon notes that the leader is asked for, and reports whether those who ask may wait until it has woken, which may take
// longer than they wait for answers. Not if it should be awake by now.
func (r *record) wakesSoon(now time.Time) bool {
	r.sought.CompareAndSwap(0, now.UnixNano())
	return now.UnixNano()-r.sought.Load() < int64(election.DeathPatience)
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
	for _, i := range h.groups.replicas(func(i *instance) bool { return (i.resumes != nil || s.after > 0) && leaderless(i) }) {
		if leader := i.Leader(); !i.IsClosed() && (leader == "" || !h.config.Mesh.Alive(leader) || s.restarted(i.resumes)) {
			search(i)
		}
	}
	orphans := s.bear(s.deserted(now))
	if len(orphans) > 0 && s.sweeping.CompareAndSwap(false, true) {
		h.tasks.Go(func() {
			defer s.sweeping.Store(false)
			s.wakeAll(orphans, func() bool { return true })
		})
	}
}

// deserted returns the groups that sleep and have had no leader for a while.
func (s *sleepers) deserted(now time.Time) (all []*Group) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, g := range s.orphans {
		switch r := g.asleep.Load(); {
		case r == nil || !s.orphaned(r) || g.ended.Load():
			delete(s.orphans, id)
		case r.leader != "" && s.overdue(r, now) || r.leader == "" && now.Sub(r.noted) >= orphanAfter:
			all = append(all, g)
		}
	}
	return all
}

// orphaned reports whether a group that sleeps has no leader as far as is known here.
func (s *sleepers) orphaned(r *record) bool { return !r.leads && r.leader == "" || s.restarted(r) }

// put has a group sleep, or go on to sleep, as the record says.
func (g *Group) put(r *record) {
	g.asleep.Store(r)
	if s := &g.host.sleepers; s.orphaned(r) {
		s.adopt([]*Group{g})
	}
}

// adopt has groups looked at that may be orphans.
func (s *sleepers) adopt(all []*Group) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, g := range all {
		s.orphans[g.spec.Group] = g
	}
}

// sign notes which process of its node leads a group.
func (s *sleepers) sign(r *record) {
	r.process, r.noted = s.process(r.leader).of, time.Now()
}

// process is one of a node.
type process struct {
	of    [16]byte  // its incarnation
	since time.Time // it is known
}

func (s *sleepers) process(node string) (p process) {
	if known, ok := s.processes.Load(node); ok {
		p = known.(process)
	}
	return p
}

// restarted reports whether the leader's node has been restarted since: it leads no more (R4). One that was not up yet may
// be the same as ever.
func (s *sleepers) restarted(r *record) bool {
	if r == nil || r.leads || r.leader == "" {
		return false
	}
	p := s.process(r.leader)
	return r.leader == s.host.config.Node || p.of != r.process && !p.since.IsZero()
}

// peerChanged passes on that a node has come or gone.
func (s *sleepers) peerChanged(ev peer.Event) {
	changes := s.changed(ev.Node)
	if !ev.Up {
		s.down(ev.Node, func() bool { return s.unchanged(ev.Node, changes) && !s.host.config.Mesh.Alive(ev.Node) })
		return
	}
	if p := s.process(ev.Node); p.of != ev.Incarnation || p.since.IsZero() {
		s.processes.Store(ev.Node, process{ev.Incarnation, time.Now()})
		s.adopt(s.host.groups.sleepers(func(_ *Group, r *record) bool { return s.restarted(r) }))
	}
	s.up(ev.Node)
}

// changed notes that a node has come or gone, and returns how often it has.
func (s *sleepers) changed(node string) uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.changes[node]++
	return s.changes[node]
}

// unchanged reports whether a node has neither come nor gone since.
func (s *sleepers) unchanged(node string, changes uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.changes[node] == changes
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
	return at, at.Term != 0 && i.applier.rests(last, func(deadline fsm.Time) bool { return i.proposer.until(deadline) > long }, &i.settings)
}

// follows reports whether a replica has all that a leader has, and its machine as well: raft counts what it has handed over.
// A candidate of the term that has lost is one for raft as long as it is awake.
func (i *instance) follows(leader string, want recordedAt) bool {
	is := i.Raft()
	role, term := i.Role()
	return role != raft.Leader && term == want.raft && i.Leader() == leader && !i.IsLearner() && !i.Barred() && i.usage.writing.Load() == 0 &&
		is.LastIndex() == want.Index && is.AppliedIndex() == want.Index && i.LastStored() == want.Index && i.LogEnd() == want.Position &&
		i.applier.hasUpTo(want.Index)
}

// rests reports whether the machine has every command up to an index, waits for nothing before a deadline that is far, and
// has all settings.
func (a *applier) rests(last uint64, far func(deadline fsm.Time) bool, s *settings) bool {
	if !a.mu.TryLock() {
		return false
	}
	defer a.mu.Unlock()
	if a.given {
		return false
	}
	d := a.machine.NextDeadline()
	return !a.stopped && a.has(last) && (d == 0 || far(d)) && a.machine.Stats().Outbox.Messages == 0 && !s.wait(a.machine.Config())
}
