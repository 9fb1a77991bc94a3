package peer

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/fsm"
)

// tape is a raft.FSM that keeps what it applied.
type tape struct {
	mu         sync.Mutex
	data       [][]byte
	extensions [][]byte
	restored   int
}

func (f *tape) Apply(l *raft.Log) any {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.data = append(f.data, l.Data)
	f.extensions = append(f.extensions, l.Extensions)
	return nil
}

func (f *tape) len() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.data)
}

func (f *tape) Snapshot() (raft.FSMSnapshot, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return tapeSnapshot(bytes.Join(f.data, []byte("\n"))), nil
}

func (f *tape) Restore(r io.ReadCloser) error {
	defer r.Close()
	all, err := io.ReadAll(r)
	if err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.data = bytes.Split(all, []byte("\n"))
	f.extensions = make([][]byte, len(f.data))
	f.restored++
	return nil
}

type tapeSnapshot []byte

func (s tapeSnapshot) Persist(sink raft.SnapshotSink) error {
	if _, err := sink.Write(s); err != nil {
		return err
	}
	return sink.Close()
}

func (s tapeSnapshot) Release() {}

// replica is one member of a raft group under test.
type replica struct {
	*raft.Raft
	m     *member
	group fsm.GroupID
	tape  *tape
}

// raftConfig has timers so long that elections happen only when injected.
func raftConfig(name string) *raft.Config {
	cfg := raft.DefaultConfig()
	cfg.LocalID = raft.ServerID(name)
	cfg.HeartbeatTimeout, cfg.ElectionTimeout = time.Minute, time.Minute
	cfg.LeaderLeaseTimeout = 30 * time.Second
	cfg.CommitTimeout = 20 * time.Millisecond
	cfg.MaxAppendEntries = 32
	cfg.SnapshotThreshold = 1 << 40
	cfg.TrailingLogs = 10
	cfg.Logger = hclog.NewNullLogger()
	cfg.NoLegacyTelemetry = true
	return cfg
}

// startReplica runs a member of group; voters are the group's nodes.
func startReplica(t testing.TB, m *member, group fsm.GroupID, voters []string, tune ...func(*raft.Config)) *replica {
	t.Helper()
	r := &replica{m: m, group: group, tape: new(tape)}
	store := raft.NewInmemStore()
	snaps := raft.NewInmemSnapshotStore()
	trans := m.Transport(group)
	cfg := raftConfig(m.name)
	for _, f := range tune {
		f(cfg)
	}
	if len(voters) > 0 {
		var servers []raft.Server
		for _, name := range voters {
			servers = append(servers, raft.Server{ID: raft.ServerID(name), Address: raft.ServerAddress(name)})
		}
		if err := raft.BootstrapCluster(cfg, store, store, snaps, trans, raft.Configuration{Servers: servers}); err != nil {
			t.Fatal(err)
		}
	}
	var err error
	if r.Raft, err = raft.NewRaft(cfg, r.tape, store, store, snaps, trans); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.stop)
	return r
}

func (r *replica) stop() {
	f := r.Shutdown()
	r.m.DropGroup(r.group)
	f.Error()
}

// mustLead makes r campaign and waits until it leads.
func (r *replica) mustLead(t testing.TB) {
	t.Helper()
	r.m.Campaign(r.group)
	mustWait(t, func() bool { return r.State() == raft.Leader }, "%s does not lead group %d: %v", r.m.name, r.group, r.Raft)
	if err := r.Barrier(patience).Error(); err != nil {
		t.Fatal(err)
	}
}

// mustHave waits until r has applied count entries.
func (r *replica) mustHave(t testing.TB, count int) {
	t.Helper()
	mustWait(t, func() bool { return r.tape.len() >= count }, "%s has %d of %d entries", r.m.name, r.tape.len(), count)
}

// mustApply applies count entries with extensions and waits for them.
func (r *replica) mustApply(t testing.TB, first, count int) {
	t.Helper()
	var futures []raft.ApplyFuture
	for i := first; i < first+count; i++ {
		futures = append(futures, r.ApplyLog(testEntry(i), patience))
	}
	for _, f := range futures {
		if err := f.Error(); err != nil {
			t.Fatal(err)
		}
	}
}

// testEntry is entry i; every tenth is longer than what is copied.
func testEntry(i int) raft.Log {
	data := fmt.Appendf(nil, "entry %d ", i)
	if i%10 == 0 {
		data = append(data, bytes.Repeat([]byte{'x'}, copyLimit+i)...)
	}
	return raft.Log{Data: data, Extensions: fmt.Appendf(nil, "extension %d", i)}
}

func names(c *cluster) []string {
	var all []string
	for i := range c.configs {
		all = append(all, i)
	}
	return all
}

// group starts a group on all nodes.
func (c *cluster) group(g fsm.GroupID) map[string]*replica {
	c.t.Helper()
	replicas := make(map[string]*replica)
	for _, m := range c.members {
		replicas[m.name] = startReplica(c.t, m, g, names(c))
	}
	return replicas
}

func TestRaftGroup(t *testing.T) {
	onBoth(t, func(t *testing.T, tcp bool) {
		const count = 1000
		c := newCluster(t, tcp, 3, nil)
		c.startAll(nil)
		g := c.group(7)
		g["n1"].mustLead(t)
		g["n1"].mustApply(t, 0, count)
		for _, r := range g {
			r.mustHave(t, count)
			for i := range count {
				want := testEntry(i)
				if !bytes.Equal(r.tape.data[i], want.Data) || !bytes.Equal(r.tape.extensions[i], want.Extensions) {
					t.Fatalf("%s: entry %d differs", r.m.name, i)
				}
			}
		}

		if err := g["n1"].LeadershipTransferToServer("n2", "n2").Error(); err != nil {
			t.Fatalf("transfer: %v", err)
		}
		mustWait(t, func() bool { return g["n2"].State() == raft.Leader }, "n2 does not lead")
		g["n2"].mustApply(t, count, 10)
		for _, r := range g { // a candidate with a shorter log would not win
			r.mustHave(t, count+10)
		}

		// The death of the leader: the survivors learn it and one campaigns.
		c.members["n2"].Close()
		mustEvent(t, c.members["n3"], isDown("n2"), "down")
		start := time.Now()
		g["n3"].mustLead(t)
		t.Logf("new leader after %v", time.Since(start))
		g["n3"].mustApply(t, count+10, 10)
		g["n1"].mustHave(t, count+20)
	})
}

func TestOrdinaryElection(t *testing.T) {
	c := newCluster(t, false, 3, nil)
	c.startAll(nil)
	var replicas []*replica
	for _, m := range c.members {
		replicas = append(replicas, startReplica(t, m, 1, names(c), func(cfg *raft.Config) {
			cfg.HeartbeatTimeout, cfg.ElectionTimeout = time.Second, time.Second
			cfg.LeaderLeaseTimeout = time.Second
		}))
	}
	leader := func() *replica {
		for _, r := range replicas {
			if r.State() == raft.Leader {
				return r
			}
		}
		return nil
	}
	mustWait(t, func() bool { return leader() != nil }, "nobody leads")
	// Heartbeats come, lazy as they are, and are answered.
	for _, r := range replicas {
		for range 5 {
			last := r.LastContact()
			mustWait(t, func() bool { return r.State() == raft.Leader || r.LastContact() != last }, "%s hears nothing", r.m.name)
		}
	}
	mustWait(t, func() bool {
		l := leader()
		return l != nil && l.VerifyLeader().Error() == nil
	}, "no leader is heard")
}

func TestPreVote(t *testing.T) {
	c := newCluster(t, false, 3, nil)
	c.startAll(nil)
	c.group(1)
	resp := new(raft.RequestPreVoteResponse)
	trans := c.members["n1"].Transport(1).(raft.WithPreVote)
	err := trans.RequestPreVote("n2", "n2", &raft.RequestPreVoteRequest{
		RPCHeader: raft.RPCHeader{ProtocolVersion: 3, ID: []byte("n1"), Addr: []byte("n1")}, Term: 100, LastLogIndex: 1, LastLogTerm: 1,
	}, resp)
	if err != nil || !resp.Granted || resp.Term != 100 || string(resp.ID) != "n2" {
		t.Fatalf("%+v, %v", resp, err)
	}
	err = trans.RequestPreVote("n2", "n2", &raft.RequestPreVoteRequest{
		RPCHeader: raft.RPCHeader{ProtocolVersion: 3}, Term: 100,
	}, resp)
	if err != nil || resp.Granted {
		t.Fatalf("a shorter log gets a vote: %+v, %v", resp, err)
	}
}

func TestReplicationResumesAfterBreak(t *testing.T) {
	c := newCluster(t, false, 3, nil)
	c.startAll(nil)
	g := c.group(3)
	g["n1"].mustLead(t)
	g["n1"].mustApply(t, 0, 50)
	for i := range 5 {
		c.net.cut("n1", c.addrs["n2"])
		g["n1"].mustApply(t, 50+i*10, 10)
	}
	for _, r := range g {
		r.mustHave(t, 100)
	}
}

// A follower that was away for so long that raft's own pauses would have grown
// gets what it missed at once, because requests wait for the link.
func TestReturningFollowerCatchesUpAtOnce(t *testing.T) {
	c := newCluster(t, false, 3, nil)
	c.startAll(nil)
	g := c.group(3)
	g["n1"].mustLead(t)
	g["n1"].mustApply(t, 0, 10)
	c.members["n3"].Close()
	g["n3"].stop()
	m := c.members["n1"]
	mustEvent(t, m, isDown("n3"), "down")
	g["n1"].mustApply(t, 10, 100)
	var back *replica
	c.restart("n3", func(m *member) { back = startReplica(t, m, 3, names(c)) })
	mustEvent(t, m, isUp("n3"), "up")
	start := time.Now()
	g["n1"].mustApply(t, 110, 1)
	back.mustHave(t, 111)
	if d := time.Since(start); d > 5*time.Second {
		t.Errorf("caught up after %v", d)
	}
}

func TestSnapshotInstall(t *testing.T) {
	onBoth(t, func(t *testing.T, tcp bool) {
		c := newCluster(t, tcp, 3, nil)
		c.startAll(nil)
		voters := []string{"n1", "n2"}
		leader := startReplica(t, c.members["n1"], 5, voters)
		startReplica(t, c.members["n2"], 5, voters)
		leader.mustLead(t)
		const count = 600 // of which every tenth is long: several messages
		leader.mustApply(t, 0, count)
		if err := leader.Snapshot().Error(); err != nil {
			t.Fatal(err)
		}
		late := startReplica(t, c.members["n3"], 5, nil)
		if err := leader.AddVoter("n3", "n3", 0, patience).Error(); err != nil {
			t.Fatal(err)
		}
		late.mustHave(t, count)
		leader.mustApply(t, count, 5)
		late.mustHave(t, count+5)
		late.tape.mu.Lock()
		defer late.tape.mu.Unlock()
		if late.tape.restored == 0 {
			t.Error("no snapshot was installed")
		}
		for i := range count + 5 {
			if !bytes.Equal(late.tape.data[i], testEntry(i).Data) {
				t.Fatalf("entry %d differs", i)
			}
		}
	})
}

func TestManyGroups(t *testing.T) {
	const groups, count = 50, 20
	c := newCluster(t, false, 3, nil)
	c.startAll(nil)
	all := make([]map[string]*replica, groups)
	for i := range all {
		all[i] = c.group(fsm.GroupID(i + 1))
	}
	leaders := make([]*replica, groups)
	for i, g := range all {
		leaders[i] = g[fmt.Sprintf("n%d", i%3+1)]
		leaders[i].m.Campaign(leaders[i].group)
	}
	var futures []raft.ApplyFuture
	for _, l := range leaders {
		mustWait(t, func() bool { return l.State() == raft.Leader }, "group %d has no leader", l.group)
		for i := range count {
			futures = append(futures, l.ApplyLog(testEntry(i), patience))
		}
	}
	for _, f := range futures {
		if err := f.Error(); err != nil {
			t.Fatal(err)
		}
	}
	for _, g := range all {
		for _, r := range g {
			r.mustHave(t, count)
		}
	}
}

func TestUnknownGroup(t *testing.T) {
	req := func() *raft.AppendEntriesRequest {
		return &raft.AppendEntriesRequest{RPCHeader: raft.RPCHeader{ProtocolVersion: 3}, Term: 1}
	}
	t.Run("refused", func(t *testing.T) {
		c := newCluster(t, false, 2, func(cfg *Config) { cfg.EarlyWait = -1 })
		c.startAll(nil)
		err := c.members["n1"].Transport(9).AppendEntries("n2", "n2", req(), new(raft.AppendEntriesResponse))
		if !errors.Is(err, ErrUnknownGroup) {
			t.Fatal(err)
		}
	})
	t.Run("held and refused", func(t *testing.T) {
		c := newCluster(t, false, 2, func(cfg *Config) { cfg.EarlyWait = 100 * time.Millisecond })
		c.startAll(nil)
		start := time.Now()
		err := c.members["n1"].Transport(9).AppendEntries("n2", "n2", req(), new(raft.AppendEntriesResponse))
		if d := time.Since(start); !errors.Is(err, ErrUnknownGroup) || d < 100*time.Millisecond {
			t.Fatalf("%v after %v", err, d)
		}
	})
	t.Run("held until it appears", func(t *testing.T) {
		c := newCluster(t, false, 2, func(cfg *Config) { cfg.EarlyWait = time.Minute })
		c.startAll(nil)
		r := req()
		r.PrevLogEntry, r.PrevLogTerm = 1, 1 // not a heartbeat
		result := make(chan error, 1)
		resp := new(raft.AppendEntriesResponse)
		go func() { result <- c.members["n1"].Transport(9).AppendEntries("n2", "n2", r, resp) }()
		m := c.members["n2"]
		mustWait(t, func() bool {
			m.groups.mu.RLock()
			defer m.groups.mu.RUnlock()
			return m.groups.early.count == 1
		}, "nothing is held")
		rpc := mustReceive(t, m.Transport(9).Consumer(), "request")
		rpc.Respond(&raft.AppendEntriesResponse{Term: 4, LastLog: 3, NoRetryBackoff: true}, nil)
		if err := mustReceive(t, result, "answer"); err != nil || resp.Term != 4 || resp.LastLog != 3 || resp.Success || !resp.NoRetryBackoff {
			t.Fatalf("%+v, %v", resp, err)
		}
	})
	t.Run("dropped", func(t *testing.T) {
		c := newCluster(t, false, 2, nil)
		c.startAll(nil)
		m := c.members["n2"]
		trans := m.Transport(9)
		result := make(chan error, 1)
		go func() {
			result <- c.members["n1"].Transport(9).AppendEntries("n2", "n2", req(), new(raft.AppendEntriesResponse))
		}()
		mustReceive(t, trans.Consumer(), "request")
		m.DropGroup(9)
		if err := mustReceive(t, result, "answer"); !errors.Is(err, ErrUnknownGroup) {
			t.Fatal(err)
		}
	})
}

// A group that does not take its requests is refused more, and disturbs no
// other.
func TestStuckGroupIsBounded(t *testing.T) {
	c := newCluster(t, false, 2, func(cfg *Config) { cfg.ReconnectWait = time.Millisecond })
	c.startAll(echo)
	m := c.members["n1"]
	stuck := c.members["n2"].Transport(1)
	const beyond = 5
	results := make(chan error, depth+maxQueued+beyond)
	for range cap(results) {
		go func() {
			results <- m.Transport(1).AppendEntries("n2", "n2", &raft.AppendEntriesRequest{
				RPCHeader: raft.RPCHeader{ProtocolVersion: 3}, Term: 1, PrevLogEntry: 1,
			}, new(raft.AppendEntriesResponse))
		}()
	}
	for range beyond {
		if err := mustReceive(t, results, "refusal"); !errors.Is(err, ErrBusy) {
			t.Fatal(err)
		}
	}
	if _, err := m.Call(t.Context(), "n2", testEcho, nil); err != nil {
		t.Fatal(err)
	}
	for range depth + maxQueued {
		rpc := mustReceive(t, stuck.Consumer(), "request")
		rpc.Respond(&raft.AppendEntriesResponse{Success: true}, nil)
	}
	for range depth + maxQueued {
		if err := mustReceive(t, results, "answer"); err != nil {
			t.Fatal(err)
		}
	}
}

func TestUnansweredRequestTimesOut(t *testing.T) {
	c := newCluster(t, false, 2, func(cfg *Config) {
		cfg.RequestTimeout, cfg.PingInterval = 200*time.Millisecond, 20*time.Millisecond
	})
	c.startAll(nil)
	c.members["n2"].Transport(1)
	err := c.members["n1"].Transport(1).TimeoutNow("n2", "n2", new(raft.TimeoutNowRequest), new(raft.TimeoutNowResponse))
	if !errors.Is(err, ErrTimeout) {
		t.Fatal(err)
	}
}

func TestRequestsWaitForTheLink(t *testing.T) {
	c := newCluster(t, false, 2, nil)
	m := c.create("n1")
	m.Start()
	result := make(chan error, 1)
	resp := new(raft.AppendEntriesResponse)
	go func() {
		result <- m.Transport(1).AppendEntries("n2", "n2", &raft.AppendEntriesRequest{Term: 2}, resp)
	}()
	if err := m.Transport(2).(raft.WithPreVote).RequestPreVote("n2", "n2", new(raft.RequestPreVoteRequest), new(raft.RequestPreVoteResponse)); !errors.Is(err, ErrDown) {
		t.Errorf("vote without a link: %v", err)
	}
	other := c.create("n2")
	requests := other.Transport(1).Consumer()
	other.Start()
	rpc := mustReceive(t, requests, "request")
	rpc.Respond(&raft.AppendEntriesResponse{Term: 2, Success: true}, nil)
	if err := mustReceive(t, result, "answer"); err != nil || !resp.Success {
		t.Fatal(err)
	}
	// A dropped group waits for nothing.
	other.Close()
	mustEvent(t, m, isDown("n2"), "down")
	trans := m.Transport(1)
	go func() { result <- trans.AppendEntries("n2", "n2", new(raft.AppendEntriesRequest), resp) }()
	m.DropGroup(1)
	if err := mustReceive(t, result, "end"); !errors.Is(err, ErrClosed) {
		t.Fatal(err)
	}
}

func TestHeartbeatFastPath(t *testing.T) {
	c := newCluster(t, false, 2, nil)
	c.startAll(nil)
	trans := c.members["n2"].Transport(1)
	var fast []uint64
	trans.SetHeartbeatHandler(func(rpc raft.RPC) {
		fast = append(fast, rpc.Command.(*raft.AppendEntriesRequest).Term)
		rpc.Respond(&raft.AppendEntriesResponse{Term: 5, Success: true}, nil)
	})
	beat := func(term uint64) error {
		return c.members["n1"].Transport(1).AppendEntries("n2", "n2",
			&raft.AppendEntriesRequest{RPCHeader: raft.RPCHeader{ProtocolVersion: 3}, Term: term}, new(raft.AppendEntriesResponse))
	}
	result := make(chan error, 1)
	go func() { result <- beat(5) }()
	rpc := mustReceive(t, trans.Consumer(), "a new term goes to raft")
	rpc.Respond(&raft.AppendEntriesResponse{Term: 5, Success: true}, nil)
	if err := mustReceive(t, result, "answer"); err != nil {
		t.Fatal(err)
	}
	if err := beat(5); err != nil {
		t.Fatal(err)
	}
	if len(fast) != 1 || fast[0] != 5 {
		t.Fatalf("fast path took %v", fast)
	}
}

// A prompt group's heartbeats are answered although nothing takes them along:
// the first ping has left, and the next one is an hour away.
func TestPromptHeartbeats(t *testing.T) {
	c := newCluster(t, false, 2, func(cfg *Config) {
		cfg.PingInterval, cfg.SuspectAfter, cfg.LazyDelay = time.Hour, 4*time.Hour, time.Hour
	})
	c.startAll(nil)
	c.group(1)
	m := c.members["n1"]
	m.Prompt(1)
	m.Prompt(2) // not there
	trans := m.Transport(1)
	beat := &raft.AppendEntriesRequest{RPCHeader: raft.RPCHeader{ProtocolVersion: 3, ID: []byte("n1"), Addr: []byte("n1")}, Term: 9}
	for range 3 {
		var resp raft.AppendEntriesResponse
		if err := trans.AppendEntries("n2", "n2", beat, &resp); err != nil || !resp.Success || resp.Term != 9 {
			t.Fatalf("%+v, %v", resp, err)
		}
	}
}

// A leader steps down when a heartbeat's answer shows a later term, although
// raft itself does not look at that.
func TestHeartbeatShowsLaterTerm(t *testing.T) {
	for name, prompt := range map[string]bool{"lazy": false, "prompt": true} {
		t.Run(name, func(t *testing.T) {
			for tries := 1; !heartbeatShowsLaterTerm(t, prompt); tries++ {
				if tries == 5 {
					t.Fatal("the leader always gives up by itself")
				}
			}
		})
	}
}

// heartbeatShowsLaterTerm returns false if the leader has given up before it has seen another term: the machine is slow, and
// its lease was over.
func heartbeatShowsLaterTerm(t *testing.T, prompt bool) bool {
	t.Helper()
	c := newCluster(t, false, 3, nil)
	c.startAll(nil)
	replicas := map[string]*replica{}
	for _, m := range c.members {
		replicas[m.name] = startReplica(t, m, 1, names(c), func(cfg *raft.Config) {
			if m.name == "n1" { // often enough for the others, which do not campaign
				cfg.HeartbeatTimeout, cfg.ElectionTimeout, cfg.LeaderLeaseTimeout = time.Second, time.Minute, time.Second
			}
			cfg.CommitTimeout = time.Minute
		})
	}
	if prompt {
		c.members["n1"].Prompt(1)
	}
	old := replicas["n1"]
	old.mustLead(t)
	old.mustApply(t, 0, 3)
	term := old.CurrentTerm()
	c.members["n2"].Resign(1, term+4, "n3")
	mustWait(t, func() bool { return replicas["n2"].CurrentTerm() == term+4 }, "n2 does not go on to a later term")
	mustWait(t, func() bool { return old.State() != raft.Leader }, "n1 leads on in term %d", term)
	if old.VerifyLeader().Error() == nil { // by now raft has done what it was doing, and shows the term
		t.Error("n1 leads again")
	}
	return old.CurrentTerm() >= term+4
}
