package host

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/cluster/group"
	"github.com/quorate/quorate/cluster/peer"
	"github.com/quorate/quorate/cluster/replica"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// mustStop ends a host as a process ends.
func (c *trio) mustStop(at int) { c.hosts[at].shut(c.t) }

// pour has a leader take so many entries with a message of a size and a life
// each, from a number on, and waits until all are in the log.
func pour(t *testing.T, g *group.Group, first uint64, entries, size int, life fsm.Millis) (next uint64) {
	t.Helper()
	for range entries {
		body := fmt.Sprintf("%06d", first)
		mustSubmit(t, g, enqueues(first, life, body+strings.Repeat("x", size-len(body))))
		first++
	}
	await(t, "all to be in the log", func() bool {
		return !in(g).Busy()
	})
	return first
}

// mustMatch waits until a replica has applied what another has.
func mustMatch(t *testing.T, g, other *group.Group) {
	t.Helper()
	await(t, "the replica catches up", func() bool { return g.AppliedIndex() >= other.AppliedIndex() && ready(g) == ready(other) })
}

// sent is how many snapshots hosts have sent.
func (c *trio) sent() (n peer.SnapshotCounts) {
	for _, h := range c.hosts {
		if !h.closed {
			s := h.mesh.SnapshotCounts()
			n.Sent, n.SentBytes, n.LeftOut = n.Sent+s.Sent, n.SentBytes+s.SentBytes, n.LeftOut+s.LeftOut
		}
	}
	return n
}

// leadAt has the first host lead a
func (c *trio) leadAt(id fsm.GroupID) *group.Group {
	c.t.Helper()
	c.mustOpen(id)
	g := c.hosts[0].Group(id)
	await(c.t, "the first member leads", func() bool {
		if g.Leading() == 0 {
			_ = c.mustLead(id).Transfer("n1")
		}
		return g.Leading() != 0
	})
	return g
}

// A member that was away gets the entries that it has missed, although the
// others have written snapshots meanwhile; when it has them, they go.
func TestFollowerCatchesUpFromTheLog(t *testing.T) {
	t.Parallel()
	c := mustTrio(t)
	for _, h := range c.hosts {
		h.config.Retained = 1 << 40
	}
	g := c.leadAt(1)
	c.mustStop(2)
	before := in(g).LastIndex()
	next := uint64(1)
	for in(g).LastIndex() < before+2*trailingMany {
		next = pour(t, g, next, 20, 64<<10, 1)
	}
	expire(t, g)
	if err := in(g).WriteSnapshot(); err != nil {
		t.Fatal(err)
	}
	if first, err := in(g).Store().FirstIndex(); err != nil || first > before {
		t.Errorf("the log begins at %d, the member ends at %d (%v)", first, before, err)
	}
	await(t, "a member that does not lead to keep less than the leader", func() bool {
		return in(c.hosts[1].Group(1)).Store().Retained(0, 1<<40) <= in(g).Store().Retained(0, 1<<40)/2
	})
	back := c.start(2, 1)
	mustMatch(t, back, g)
	if n := c.sent(); n.Sent != 0 {
		t.Errorf("%d snapshots were sent", n.Sent)
	}
	pour(t, g, next, 800, 16<<10, 1)
	expire(t, g)
	await(t, "what nobody needs to go", func() bool { return in(g).Store().Retained(0, 1<<40) < 12<<20 })
	mustMatch(t, back, g)
}

// A member that was away for longer than entries are kept gets a snapshot, once,
// without the payloads that it has, and has all of them afterwards.
func TestInstallBringsWhatIsMissing(t *testing.T) {
	t.Parallel()
	const backlog, size, more = 300, 64 << 10, 20
	c := mustTrio(t)
	for _, h := range c.hosts {
		h.config.Retained = 1
	}
	g := c.leadAt(1)
	next := pour(t, g, 1, backlog, size, -1)
	mustMatch(t, g, g)
	await(t, "the backlog", func() bool { return ready(g) == backlog })
	mustMatch(t, c.hosts[2].Group(1), g)
	c.mustStop(2)
	before := in(g).LastIndex()
	next = pour(t, g, next, more, size, -1)
	next = pour(t, g, next, 1500, 16<<10, 1)
	await(t, "what was to expire", func() bool { return ready(g) == backlog+more })
	await(t, "the log to be cut", func() bool {
		next = pour(t, g, next, 20, 64<<10, 1)
		first, err := in(g).Store().FirstIndex()
		return err == nil && first > before+1
	})
	await(t, "what was to expire", func() bool { return ready(g) == backlog+more })
	back := c.start(2, 1)
	mustMatch(t, back, g)
	n := c.sent()
	if n.Sent != 1 || n.LeftOut < backlog*size*9/10 || n.SentBytes > 3*more*size {
		t.Errorf("sent: %+v", n)
	}
	await(t, "the member that was away leads", func() bool { // it may lose what it is given before it serves
		for _, h := range c.hosts {
			if g := h.Group(1); g != back && g.Leading() != 0 {
				_ = g.Transfer("n3")
			}
		}
		return back.Leading() != 0
	})
	mustSubmit(t, back, group.Batch{Count: 1, Commands: group.AppendCommand(nil, &logpb.Command{
		Kind: logpb.Command_CONSUME, Session: session.Proto(), Seq: next, Consume: &logpb.Consume{Consumer: 1},
	})})
	o := c.hosts[2].outside
	o.await(t, "all deliveries", func() bool { return len(o.bodies) == backlog+more })
	for i, body := range o.bodies {
		if want := fmt.Sprintf("%06d", i+1); len(body) != size || body[:6] != want {
			t.Fatalf("delivery %d has %d bytes and begins with %.20q", i+1, len(body), body)
		}
	}
}

// A member with a snapshot newer than its leader's refuses that one, and the
// leader writes one that is new enough although nothing else asks for it.
func TestRefusedSnapshotIsWrittenAnew(t *testing.T) {
	t.Parallel()
	c := mustTrio(t)
	g := c.leadAt(1)
	next := pour(t, g, 1, 10, 100, -1)
	await(t, "messages", func() bool { return ready(g) == 10 })
	if err := in(g).WriteSnapshot(); err != nil {
		t.Fatal(err)
	}
	pour(t, g, next, 10, 100, -1)
	await(t, "messages", func() bool { return ready(g) == 20 })
	ahead := c.hosts[2].Group(1)
	await(t, "the member has them", func() bool { return ready(ahead) == 20 || g.Barrier(patience) != nil })
	await(t, "the member has them", func() bool { return ready(ahead) == 20 })
	if err := in(ahead).WriteSnapshot(); err != nil {
		t.Fatal(err)
	}
	old, newer := g.SnapshotIndex(), ahead.SnapshotIndex()
	if old >= newer {
		t.Fatalf("the leader's snapshot is of entry %d, the member's of %d", old, newer)
	}
	install := func() error {
		list, err := in(g).Store().Snapshots().List()
		if err != nil {
			return err
		}
		meta, data, err := in(g).Store().Snapshots().Open(list[0].ID)
		if err != nil {
			return err
		}
		defer data.Close()
		_, term := in(g).Role()
		req := &raft.InstallSnapshotRequest{
			RPCHeader: raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax, ID: []byte("n1"), Addr: []byte("n1")}, SnapshotVersion: meta.Version,
			Term: term, LastLogIndex: meta.Index, LastLogTerm: meta.Term, Size: meta.Size,
			Configuration: raft.EncodeConfiguration(meta.Configuration), ConfigurationIndex: meta.ConfigurationIndex,
		}
		return in(g).Transport().InstallSnapshot("n3", "n3", req, &raft.InstallSnapshotResponse{}, data)
	}
	if err := install(); !errors.Is(err, peer.ErrSuperseded) {
		t.Fatalf("an older snapshot: %v", err)
	}
	await(t, "a new snapshot", func() bool { return g.SnapshotIndex() >= newer })
	if err := install(); err != nil {
		t.Fatal(err)
	}
	mustMatch(t, ahead, g)
	c.mustServe(1, 21)
	mustMatch(t, ahead, g)
}

// Snapshots cost in proportion to what has changed: little traffic beside a
// large backlog writes none, and what a start has to apply again is bounded.
func TestSnapshotsInProportion(t *testing.T) {
	t.Parallel()
	const mb = 1 << 20
	for _, tc := range []struct {
		name string
		w    worth
		busy int
		due  bool
	}{
		{"nothing", worth{}, 1, false},
		{"an empty queue with a long log", worth{replay: replayMin}, 1, true},
		{"an empty queue with much that is dead", worth{reclaimable: snapshotBytes}, 1, true},
		{"many busy queues", worth{reclaimable: group.Noteworthy}, 50, true},
		{"little traffic beside a large backlog", worth{state: 96 * mb, live: 200 * mb, replay: 10 * mb, reclaimable: 90 * mb}, 1, false},
		{"as much was applied as the state is large", worth{state: 5 * mb, live: 50 * mb, replay: 5 * mb}, 1, true},
		{"a start may not take longer", worth{state: 480 * mb, live: 1000 * mb, replay: replayMax}, 1, true},
		{"a state that is larger than what it frees", worth{state: 96 * mb, live: 10 * mb, reclaimable: 50 * mb}, 1, false},
		{"payloads as large as the state", worth{state: 96 * mb, live: 10 * mb, reclaimable: 96 * mb}, 1, true},
		{"large payloads", worth{state: mb, live: 1000 * mb, reclaimable: 4 * mb}, 1, true},
	} {
		if got := tc.w.due(tc.busy); got != tc.due {
			t.Errorf("%s: due %v", tc.name, got)
		}
	}
	n := mustHost(t, t.TempDir())
	g := n.mustGroup(t, 1, &group.QueueConfig{DeliveryLimit: 20})
	const messages = 120_000
	for first := uint64(1); first <= messages; first += 500 {
		mustSubmit(t, g, enqueues(first, -1, slices.Repeat([]string{"m"}, 500)...))
	}
	await(t, "the backlog", func() bool { return ready(g) == messages })
	if err := in(g).WriteSnapshot(); err != nil {
		t.Fatal(err)
	}
	if in(g).Usage().Replay() != 0 || n.node.Replays() != 0 {
		t.Errorf("%d bytes to apply again after a snapshot", in(g).Usage().Replay())
	}
	at := g.SnapshotIndex()
	for i := range uint64(4200) { // more than fit into a few entries
		if err := in(g).Raft().Barrier(0).Error(); err != nil {
			t.Fatal(err)
		}
		if i%600 == 0 {
			mustSubmit(t, g, enqueues(messages+1+i/600, -1, "m"))
		}
	}
	n.snapshots.schedule()
	if now := g.SnapshotIndex(); now != at {
		t.Errorf("a snapshot of %d messages for 4200 small entries", messages)
	}
}

// Entries are held for members that lack more than is kept in any case, or soon
// will: a member that keeps up holds nothing.
func TestWhoLags(t *testing.T) {
	for _, tc := range []struct {
		has, last, trailing uint64
		lags                bool
	}{
		{100, 100, 16, false},
		{92, 100, 16, false},
		{91, 100, 16, true},
		{1, 100, 256, false},
		{1, 1000, 256, true},
		{99, 100, 0, true},
		{100, 100, 0, false},
	} {
		if got := lags(tc.has, tc.last, tc.trailing); got != tc.lags {
			t.Errorf("a member with entry %d of %d, %d are kept: %v", tc.has, tc.last, tc.trailing, got)
		}
	}
}

// Of members that lag the log is kept for the one that lags most.
func TestNeededByTwo(t *testing.T) {
	t.Parallel()
	c := mustTrio(t)
	g := c.leadAt(1)
	for i := range uint64(20) {
		c.mustServe(1, i+1) // an entry each
	}
	if err := in(g).Reload(func(c *raft.ReloadableConfig) { c.TrailingLogs = 4 }); err != nil {
		t.Fatal(err)
	}
	term := g.Term()
	for _, h := range c.hosts[1:] {
		mustMatch(t, h.Group(1), g)
	}
	await(t, "nothing is on its way", func() bool { return !in(g).Reached("n2", term).Busy && !in(g).Reached("n3", term).Busy })
	for _, tc := range [][3]uint64{{9, 5, 5}, {4, 5, 4}} {
		in(g).Transport().Lacks("n2", term, tc[0])
		in(g).Transport().Lacks("n3", term, tc[1])
		if from := in(g).needed(1 << 30); from != tc[2] {
			t.Errorf("members that have %d and %d need what follows %d", tc[0], tc[1], from)
		}
	}
}

// What a node keeps for members that lag is shared by the groups that keep much.
func TestGroupsShareWhatIsKept(t *testing.T) {
	t.Parallel()
	c := mustTrio(t)
	g, h := c.leadAt(1), c.hosts[0]
	for i := range uint64(20) {
		c.mustServe(1, i+1) // an entry each
	}
	if err := in(g).Reload(func(c *raft.ReloadableConfig) { c.TrailingLogs = 4 }); err != nil {
		t.Fatal(err)
	}
	term, s := g.Term(), h.snapshots
	mustMatch(t, c.hosts[1].Group(1), g)
	await(t, "nothing is on its way", func() bool { return !in(g).Reached("n2", term).Busy })
	for _, tc := range []struct {
		others []bool // much
		kept   bool
	}{{nil, true}, {[]bool{false, false}, true}, {[]bool{true}, false}} {
		for intact := false; !intact; { // the scheduler lets go of groups that are closed
			in(g).Transport().Lacks("n2", term, 3)
			all := in(g).Store().Retained(3, 1<<30)
			s.mu.Lock()
			h.config.Retained = all + all/2
			clear(s.retained)
			for _, much := range tc.others {
				x := &awake{Instance: &group.Instance{Replica: replica.New(replica.Config{})}}
				x.End()
				s.retained[x] = kept{much: much}
			}
			s.mu.Unlock()
			s.retainFor(in(g))
			s.mu.Lock()
			others := maps.Clone(s.retained)
			delete(others, in(g))
			intact = len(others) == len(tc.others)
			s.mu.Unlock()
		}
		s.mu.Lock()
		if _, kept := s.retained[in(g)]; kept != tc.kept {
			t.Errorf("beside %v: kept %v, want %v", tc.others, kept, tc.kept)
		}
		s.mu.Unlock()
	}
}

// As many entries are kept behind a snapshot as fit, shared by busy groups, within limits.
func TestTrailing(t *testing.T) {
	for _, tc := range []struct{ size, busy, want uint64 }{
		{0, 1, trailingMany},
		{1 << 10, 1, trailingMany},
		{1 << 15, 1, 128},
		{1 << 15, 8, 16},
		{1 << 18, 1, 16},
		{1 << 18, 10, trailingFew},
		{1 << 18, 10_000, trailingFew},
	} {
		if got := trailing(tc.size, tc.busy); got != tc.want {
			t.Errorf("of entries with %d bytes in one of %d groups %d are kept, want %d", tc.size, tc.busy, got, tc.want)
		}
	}
}

// A few large entries are cut soon after their messages died: they are considered by their bytes, and
// what is kept behind them fits their size from the first ones on.
func TestLargeEntriesAreCutSoon(t *testing.T) {
	const size, entries = 192 << 10, group.NotedEntries - 4
	g := mustHost(t, t.TempDir()).mustGroup(t, 1, &group.QueueConfig{DeliveryLimit: 20})
	pour(t, g, 1, entries, size, 1)
	expire(t, g)
	await(t, "the entries to be cut", func() bool { return in(g).Store().Retained(0, 1<<40) <= trailingBytes+snapshotBytes+size })
}

// What is held for a member that has caught up is let go at the next look, not a second later.
func TestHoldsFollowMembers(t *testing.T) {
	t.Parallel()
	c := mustTrio(t)
	g, s := c.leadAt(1), c.hosts[0].snapshots
	for i := range uint64(20) {
		c.mustServe(1, i+1) // an entry each
	}
	if err := in(g).Reload(func(c *raft.ReloadableConfig) { c.TrailingLogs = 4 }); err != nil {
		t.Fatal(err)
	}
	term := g.Term()
	for _, h := range c.hosts[1:] {
		mustMatch(t, h.Group(1), g)
	}
	await(t, "nothing is on its way", func() bool { return !in(g).Reached("n2", term).Busy && !in(g).Reached("n3", term).Busy })
	holds := func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.retained[in(g)].from != 0
	}
	await(t, "entries are held", func() bool {
		in(g).Transport().Lacks("n2", term, 3)
		s.retainFor(in(g))
		return holds()
	})
	c.mustServe(1, 21)
	await(t, "the member has all", func() bool { return in(g).needed(1<<30) == 0 })
	if s.schedule(); holds() {
		t.Error("entries are held for a member that has them")
	}
}
