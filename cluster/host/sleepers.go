package host

import (
	"cmp"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quorate/quorate/cluster/election"
	"github.com/quorate/quorate/cluster/group"
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
)

// sleepers puts groups to sleep in which nothing happens: first those of their members whose nodes are up, then the
// leader. It wakes those that need a leader, or whose members may lack something.
type sleepers struct {
	host  *Host
	voter *voter
	after time.Duration // how long a group is idle; 0: none sleeps
	keep  int           // so many stay awake

	sweeping, bearing atomic.Bool
	rousing           worker.LongLock // held by who is about to wake a group that nobody waits for

	processes sync.Map // by node: the newest process that has been up
	patience  time.Duration

	mu    sync.Mutex
	rests map[fsm.GroupID]*rest // of leaders whose members are being put to sleep
	// orphans has every group that sleeps, and whose leader is not known, or leads no more.
	orphans map[fsm.GroupID]*group.Group
	changes map[string]uint64 // by node: how often it has come or gone
}

// rest is which members of a group sleep.
type rest struct {
	at        group.RecordedAt
	asleep    map[string]bool
	requested bool // once, in vain: the members may not know what is committed
	found     bool // idle in the present check
}

func (s *sleepers) init(h *Host) {
	s.host, s.voter, s.after, s.keep = h, newVoter(h), h.config.IdleAfter, h.config.KeepAwake
	s.rests, s.orphans, s.changes = map[fsm.GroupID]*rest{}, map[fsm.GroupID]*group.Group{}, map[string]uint64{}
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
	*awake
	at group.RecordedAt
}

// check asks the members of idle groups to sleep, those first in which nothing has happened for longest.
func (s *sleepers) check() {
	h := s.host
	if h.config.Version() < group.Timerless {
		return
	}
	now, all := time.Now(), 0
	var idle []idleGroup
	items := map[string][]byte{}
	for _, i := range h.groups.replicas(func(*awake) bool { return true }) {
		all++
		if now.Sub(i.LastActive()) < i.Shell().IdleAfter() {
			continue
		}
		at, leads := i.Idle(s.after)
		if leads {
			idle = append(idle, idleGroup{i, at})
		} else if leader := i.Leader(); leader != "" && leader != i.Node() && h.config.Mesh.Alive(leader) {
			_, term := i.Role()
			items[leader] = election.AppendItem(items[leader], election.Item{Kind: election.ItemIdle, Group: i.ID(), Term: term, Position: i.LogEnd()})
		}
	}
	for node, list := range items {
		h.elections.Send(node, list)
	}
	slices.SortFunc(idle, func(a, b idleGroup) int { return a.LastActive().Compare(b.LastActive()) })
	s.ask(idle[:max(0, min(len(idle), all-s.keep))])
}

// ask has the other members of groups sleep, and then the leaders.
func (s *sleepers) ask(idle []idleGroup) {
	items := map[string][]byte{}
	var ready []*group.Group
	s.mu.Lock()
	for _, i := range idle {
		id := i.ID()
		r := s.rests[id]
		if r == nil || r.at != i.at {
			r = &rest{at: i.at, asleep: map[string]bool{}}
			s.rests[id] = r
		}
		r.found = true
		if s.awaits(i.Instance, r, func(node string) {
			if r.requested {
				i.Remind(node)
			}
			items[node] = election.AppendItem(items[node], election.Item{Kind: election.ItemRest, Group: id, Term: i.at.Raft, Position: i.at.Position})
		}) == 0 {
			ready = append(ready, i.Shell())
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
func (s *sleepers) awaits(i *group.Instance, r *rest, f func(node string)) (n int) {
	for _, m := range i.Configuration() {
		if m.Node != i.Node() && !r.asleep[m.Node] && s.host.config.Mesh.Alive(m.Node) {
			n++
			f(m.Node)
		}
	}
	return n
}

// lie puts leaders to sleep whose members do.
func (s *sleepers) lie(ready []*group.Group) {
	if len(ready) == 0 {
		return
	}
	s.host.tasks.Go(func() {
		worker.Each(restingAtOnce, ready, func(_ int, g *group.Group) {
			g.Sleep(func(i *group.Instance) bool {
				at, ok := i.Idle(s.after)
				s.mu.Lock()
				defer s.mu.Unlock()
				r := s.rests[g.ID()]
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
	want := placeOf(it)
	g.Sleep(func(i *group.Instance) bool { return i.Follows(from, want) })
	r := g.Record()
	return r != nil && !r.Leads() && r.At() == want && r.IsLevel()
}

// rested takes up that members sleep.
func (s *sleepers) rested(from string, items []election.Item) {
	var ready []*group.Group
	s.mu.Lock()
	for _, it := range items {
		if g := s.host.groups.sleeper(it.Group); g != nil {
			s.level(g, from, it)
		}
		r := s.rests[it.Group]
		if r == nil || r.at != placeOf(it) {
			continue
		}
		r.asleep[from] = true
		if i := s.host.groups.replica(it.Group); i != nil && s.awaits(i.Instance, r, func(string) {}) == 0 {
			ready = append(ready, i.Shell())
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
	orphans := h.groups.sleepers(func(_ *group.Group, r *group.Record) bool { return r.Leader() == node && !r.Leads() })
	if len(orphans) == 0 {
		return
	}
	h.tasks.Go(func() {
		var due, rest []*group.Group
		for _, g := range orphans {
			if r := g.Record(); r != nil && r.Due() != 0 && r.Due() < soon {
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
func byDeadline(groups []*group.Group) {
	due := map[*group.Group]fsm.Time{}
	for _, g := range groups {
		due[g] = math.MaxInt64
		if r := g.Record(); r != nil && r.Due() != 0 {
			due[g] = r.Due()
		}
	}
	slices.SortFunc(groups, func(a, b *group.Group) int { return cmp.Compare(due[a], due[b]) })
}

// succeed has groups elect another leader: asleep, and those that cannot awake.
func (s *sleepers) succeed(orphans []*group.Group, dead string, gone func() bool) {
	if len(orphans) == 0 {
		return
	}
	s.voter.takeOver(orphans, dead, gone)
	orphans = slices.DeleteFunc(orphans, func(g *group.Group) bool { return !g.Record().IsOrphan(dead) })
	if gone() {
		orphans = slices.DeleteFunc(orphans, (*group.Group).Forsake)
	}
	s.wakeAll(orphans, gone)
}

// up wakes the groups led here of which a node may lack something. Where nobody has served in the term, it may lack only the
// word of who leads: it is woken if it does not say so.
func (s *sleepers) up(node string) {
	h := s.host
	var unserved []*group.Group
	lacking := h.groups.sleepers(func(g *group.Group, r *group.Record) bool {
		if !r.Leads() || !r.MayLack(node) {
			return false
		}
		if r.Elected() {
			unserved = append(unserved, g)
		}
		return !r.Elected()
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
				s.wakeAll(slices.DeleteFunc(unserved, func(g *group.Group) bool { return !s.mayLack(g, node) }), still)
			}
		})
	}
}

// wakeAll wakes groups one after the other, as long as there is a reason.
func (s *sleepers) wakeAll(all []*group.Group, reason func() bool) {
	for _, g := range all {
		if !g.Asleep() {
			continue
		}
		if !s.turn(reason) {
			return
		}
		g.Wake()
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
	r := shell.Record()
	switch {
	case r == nil:
		return nil, it.Kind != election.ItemIdle // it has just woken
	case it.Kind == election.ItemIdle:
		if r.Leads() && r.IsLevel() && r.At() == placeOf(it) {
			it.Kind = election.ItemRest
			return election.AppendItem(nil, it), false
		}
		return nil, false
	case it.Kind == election.ItemAsk && r.Leads() && it.Term <= r.At().Raft && !s.host.node.Withdrawn() && r.WakesSoon(time.Now()):
		return election.AppendItem(nil, election.Led(it.Group, r.At().Raft, r.At().Position)), true
	case it.Kind == election.ItemAsk, it.Kind == election.ItemOutOfReach, it.Kind == election.ItemOffer, s.host.node.Withdrawn():
		return nil, true
	}
	led := r.Leads() || r.Leader() != from && s.host.config.Mesh.Alive(r.Leader()) && !s.host.node.Restarted(r)
	return nil, !led || it.Kind == election.ItemWant && !r.Leads() && r.Wish(time.Now())
}

// Disturbed wakes the groups that items of another node concern, and then has them heard. It does not wait.
func (s *sleepers) Disturbed(from string, items []byte) {
	h := s.host
	h.tasks.Go(func() {
		worker.Each(restingAtOnce, slices.Collect(slices.Chunk(items, election.ItemSize)), func(_ int, it []byte) {
			if g := h.Group(election.ParseItem(it).Group); g != nil {
				if i := g.Wake(); i != nil && i.Leaderless() {
					i.Search()
				}
			}
		})
		h.elections.Receive(from, items, time.Now())
	})
}

// sweep sees to it that every replica without a leader looks for one, be it that its leader's node has been restarted since:
// those that sleep are woken, and those that have woken and heard of no leader search.
func (s *sleepers) sweep(now time.Time) {
	h := s.host
	for _, i := range h.groups.replicas(func(i *awake) bool {
		return (i.Slept() != nil || s.after > 0) && i.Leaderless() && !i.Shell().Asleep()
	}) {
		if leader := i.Leader(); !i.IsClosed() && (leader == "" || !h.config.Mesh.Alive(leader) || s.host.node.Restarted(i.Slept())) {
			i.Search()
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
func (s *sleepers) deserted(now time.Time) (all []*group.Group) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, g := range s.orphans {
		switch r := g.Record(); {
		case r == nil || !s.host.node.Orphaned(r) || g.Ended():
			delete(s.orphans, id)
		case r.Leader() != "" && s.overdue(r, now) || r.Leader() == "" && now.Sub(r.Noted()) >= orphanAfter:
			all = append(all, g)
		}
	}
	return all
}

// adopt has groups looked at that may be orphans.
func (s *sleepers) adopt(all []*group.Group) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, g := range all {
		s.orphans[g.ID()] = g
	}
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

// peerChanged passes on that a node has come or gone.
func (s *sleepers) peerChanged(ev peer.Event) {
	changes := s.changed(ev.Node)
	if !ev.Up {
		s.down(ev.Node, func() bool { return s.unchanged(ev.Node, changes) && !s.host.config.Mesh.Alive(ev.Node) })
		return
	}
	if p := s.process(ev.Node); p.of != ev.Incarnation || p.since.IsZero() {
		s.processes.Store(ev.Node, process{ev.Incarnation, time.Now()})
		s.adopt(s.host.groups.sleepers(func(_ *group.Group, r *group.Record) bool { return s.host.node.Restarted(r) }))
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
