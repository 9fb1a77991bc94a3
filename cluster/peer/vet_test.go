package peer

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"math"
	"testing"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/proto/peerpb"
)

// strict is the validator of a group in a term, which takes entries that are "good".
type strict uint64

func (s strict) Term() uint64 { return uint64(s) }
func (s strict) Stands() bool { return false }

func (strict) Entry(l *raft.Log, _ bool) error {
	if string(l.Data) != "good" {
		return errors.New("not good")
	}
	return nil
}

// What no group can be asked is refused as such.
func TestCommandsThatMakeNoSense(t *testing.T) {
	configuration := func(servers ...raft.Server) *raft.AppendEntriesRequest {
		a := appendOf(2, 7)
		a.Entries[0].Type = raft.LogConfiguration
		a.Entries[0].Data = raft.EncodeConfiguration(raft.Configuration{Servers: servers})
		return a
	}
	entries := func(change func(*raft.AppendEntriesRequest)) *raft.AppendEntriesRequest {
		a := appendOf(2, 7)
		a.Entries = append(a.Entries, &raft.Log{Index: 9, Term: 2, Data: []byte("entry")})
		change(a)
		return a
	}
	snapshot := func(change func(*raft.InstallSnapshotRequest)) *raft.InstallSnapshotRequest {
		r := testSnapshotRequest(1)
		change(r)
		return r
	}
	voter := raft.Server{ID: "n1", Address: "n1"}
	for _, tc := range []struct {
		name string
		cmd  any
		err  error // nil: it makes sense
	}{
		{"entries", entries(func(*raft.AppendEntriesRequest) {}), nil},
		{"the first entry", &raft.AppendEntriesRequest{Term: 1, Entries: []*raft.Log{{Index: 1, Term: 1}}}, nil},
		{"a heartbeat", &raft.AppendEntriesRequest{Term: 1}, nil},
		{"a gap before the entries", entries(func(a *raft.AppendEntriesRequest) { a.PrevLogEntry = 6 }), errProtocol},
		{"a gap between entries", entries(func(a *raft.AppendEntriesRequest) { a.Entries[1].Index = 10 }), errProtocol},
		{"an entry twice", entries(func(a *raft.AppendEntriesRequest) { a.Entries[1].Index = 8 }), errProtocol},
		{"the last index there is", entries(func(a *raft.AppendEntriesRequest) {
			a.PrevLogEntry, a.Entries[0].Index, a.Entries[1].Index = math.MaxUint64-1, math.MaxUint64, 0
		}), errProtocol},
		{"an index that overflows", entries(func(a *raft.AppendEntriesRequest) { a.PrevLogEntry = math.MaxUint64 }), errProtocol},
		{"an earlier term behind a later one", entries(func(a *raft.AppendEntriesRequest) { a.Entries[1].Term = 1 }), errProtocol},
		{"an entry of a later term than the leader's", entries(func(a *raft.AppendEntriesRequest) { a.Entries[1].Term = 3 }), errProtocol},
		{"a previous entry of a later term", entries(func(a *raft.AppendEntriesRequest) { a.PrevLogTerm = 3 }), errProtocol},
		{"an endless commit", entries(func(a *raft.AppendEntriesRequest) { a.LeaderCommitIndex = math.MaxUint64 }), errProtocol},
		{"an unknown type of entry", entries(func(a *raft.AppendEntriesRequest) { a.Entries[1].Type = 77 }), errProtocol},
		{"a type of the past", entries(func(a *raft.AppendEntriesRequest) { a.Entries[1].Type = raft.LogAddPeerDeprecated }), errProtocol},
		{"many entries", entries(func(a *raft.AppendEntriesRequest) { a.Entries = make([]*raft.Log, maxEntries+1) }), errTooMuch},
		{"the last term there is", entries(func(a *raft.AppendEntriesRequest) { a.Term = math.MaxUint64 }), errProtocol},
		{"a configuration", configuration(voter), nil},
		{"nobody votes", configuration(raft.Server{Suffrage: raft.Nonvoter, ID: "n1", Address: "n1"}), errProtocol},
		{"nobody is there", configuration(), errProtocol},
		{"a member twice", configuration(voter, voter), errProtocol},
		{"a member without a name", configuration(voter, raft.Server{}), errProtocol},
		{"a member elsewhere", configuration(voter, raft.Server{ID: "n2", Address: "n1"}), errProtocol},
		{"no configuration", entries(func(a *raft.AppendEntriesRequest) { a.Entries[0].Type = raft.LogConfiguration }), errProtocol},
		{"a nested configuration", entries(func(a *raft.AppendEntriesRequest) {
			a.Entries[0].Type, a.Entries[0].Data = raft.LogConfiguration, bytes.Repeat([]byte{0x91}, maxConfiguration)
		}), errProtocol},
		{"a long configuration", entries(func(a *raft.AppendEntriesRequest) {
			a.Entries[0].Type, a.Entries[0].Data = raft.LogConfiguration, bytes.Repeat([]byte{0x91}, maxConfiguration+1)
		}), errTooMuch},
		{"a vote", &raft.RequestVoteRequest{Term: 3, LastLogIndex: 9, LastLogTerm: 2}, nil},
		{"a vote of the last term", &raft.RequestVoteRequest{Term: math.MaxUint64}, errProtocol},
		{"a vote by a later log", &raft.RequestVoteRequest{Term: 3, LastLogTerm: 4}, errProtocol},
		{"a vote by a log without an end", &raft.RequestVoteRequest{Term: 3, LastLogIndex: math.MaxUint64}, errProtocol},
		{"a question of the last term", &raft.RequestPreVoteRequest{Term: math.MaxUint64}, errProtocol},
		{"a snapshot", snapshot(func(*raft.InstallSnapshotRequest) {}), nil},
		{"a snapshot of the last term", snapshot(func(r *raft.InstallSnapshotRequest) { r.Term = math.MaxUint64 }), errProtocol},
		{"a snapshot of nothing", snapshot(func(r *raft.InstallSnapshotRequest) { r.LastLogIndex = 0 }), errProtocol},
		{"a snapshot without an end", snapshot(func(r *raft.InstallSnapshotRequest) { r.LastLogIndex = math.MaxUint64 }), errProtocol},
		{"members of a later entry", snapshot(func(r *raft.InstallSnapshotRequest) { r.ConfigurationIndex = 10 }), errProtocol},
		{"a snapshot of another version", snapshot(func(r *raft.InstallSnapshotRequest) { r.SnapshotVersion = 2 }), errProtocol},
		{"a snapshot without members", snapshot(func(r *raft.InstallSnapshotRequest) { r.Configuration = nil }), errProtocol},
		{"a snapshot with garbage for members", snapshot(func(r *raft.InstallSnapshotRequest) { r.Configuration = []byte("garbage") }), errProtocol},
	} {
		if err := vetCommand(tc.cmd); !errors.Is(err, tc.err) || (err == nil) != (tc.err == nil) {
			t.Errorf("%s: %v", tc.name, err)
		}
	}
}

// noting is a validator that notes which entries the leader has committed.
type noting map[uint64]bool

func (noting) Term() uint64 { return 2 }
func (noting) Stands() bool { return false }

func (n noting) Entry(l *raft.Log, committed bool) error {
	n[l.Index] = committed
	return nil
}

// A group learns which of the entries the leader has committed.
func TestCommittedEntries(t *testing.T) {
	a := &raft.AppendEntriesRequest{Term: 2, LeaderCommitIndex: 8, Entries: []*raft.Log{{Index: 7}, {Index: 8}, {Index: 9}}}
	got := noting{}
	if err := validate(got, a); err != nil || !maps.Equal(got, noting{7: true, 8: true, 9: false}) {
		t.Errorf("%v, %v", got, err)
	}
}

// What a group cannot take is refused and never gets to raft; the link goes on,
// and so does the group.
func TestTheGroupDecides(t *testing.T) {
	c := newCluster(t, false, 2, nil)
	c.startAll(nil)
	from, to := c.members["n1"], c.members["n2"]
	consumer := to.TransportFor(1, strict(5)).Consumer()
	epoch := from.Peers()[0].Epoch
	tr := from.Transport(1).(*transport)
	entry := func(term uint64, data string) func() error {
		a := appendOf(term, 7)
		a.Entries[0].Data = []byte(data)
		return func() error { return tr.AppendEntries("n2", "n2", a, new(raft.AppendEntriesResponse)) }
	}
	vote := func(term uint64) func() error {
		return func() error {
			return tr.RequestVote("n2", "n2", &raft.RequestVoteRequest{RPCHeader: testHeader(), Term: term}, new(raft.RequestVoteResponse))
		}
	}
	for _, tc := range []struct {
		name string
		ask  func() error
		ok   bool
	}{
		{"a far vote", vote(5 + maxTermJump + 1), false},
		{"a far question", func() error {
			return tr.RequestPreVote("n2", "n2", &raft.RequestPreVoteRequest{RPCHeader: testHeader(), Term: 6 + maxTermJump}, new(raft.RequestPreVoteResponse))
		}, false},
		{"far entries", entry(6+maxTermJump, "good"), false},
		{"a far snapshot", func() error {
			r := testSnapshotRequest(1)
			r.Term = 6 + maxTermJump
			return tr.InstallSnapshot("n2", "n2", r, new(raft.InstallSnapshotResponse), &gatedReader{gate: closedGate()})
		}, false},
		{"an entry that cannot be applied", entry(5, "bad"), false},
		{"a vote of the next term", vote(6), true},
		{"the last vote", vote(5 + maxTermJump), true},
		{"an entry", entry(5, "good"), true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			done := make(chan error, 1)
			go func() { done <- tc.ask() }()
			if !tc.ok {
				var refusal *RemoteError
				if err := mustReceive(t, done, "refusal"); !errors.As(err, &refusal) {
					t.Errorf("answered %v", err)
				}
				return
			}
			rpc := mustReceive(t, consumer, "request")
			switch rpc.Command.(type) {
			case *raft.RequestVoteRequest:
				rpc.Respond(&raft.RequestVoteResponse{Term: 6}, nil)
			default:
				rpc.Respond(&raft.AppendEntriesResponse{Term: 5, Success: true}, nil)
			}
			if err := mustReceive(t, done, "answer"); err != nil {
				t.Error(err)
			}
		})
	}
	to.Resign(1, math.MaxUint64, "n1")
	to.StepDown(1, 6+maxTermJump, "n1")
	select {
	case rpc := <-consumer:
		t.Errorf("raft is given %+v", rpc.Command)
	default:
	}
	if now := from.Peers()[0].Epoch; now != epoch {
		t.Errorf("the link has epoch %d after %d", now, epoch)
	}
}

// An answer that makes no sense ends the link and is no answer. The process, and
// what asks next, go on.
func TestAnswersThatMakeNoSense(t *testing.T) {
	vote := func(l *transport) error {
		return l.RequestVote("n2", "n2", &raft.RequestVoteRequest{RPCHeader: testHeader(), Term: 2}, new(raft.RequestVoteResponse))
	}
	call := func(l *transport) error {
		_, err := Ask[peerpb.CatalogReply](context.Background(), l.m, "n2", testEcho, &peerpb.CatalogRequest{})
		return err
	}
	numbered := func(term uint64) []byte { return encode(t, &numbers{3, 1, 1, [3]uint64{term}}) }
	for _, tc := range []struct {
		name   string
		ask    func(*transport) error
		answer func(number uint64) *batch
	}{
		{"a vote of the last term", vote, reply(kindReply, numbered(math.MaxUint64))},
		{"a vote of a far term", vote, reply(kindReply, numbered(3+maxTermJump))},
		{"a vote cut short", vote, reply(kindReply, numbered(2)[:5])},
		{"a vote of nothing", vote, reply(kindReply, nil)},
		{"a long refusal", vote, reply(kindFailure, make([]byte, maxText+1))},
		{"a request for an answer", vote, reply(kindVote, make([]byte, 26))},
		{"a pong from the future", vote, func(uint64) *batch { return rawBatch(numberedFrame(kindPong, 1<<40, nil)) }},
		{"a pong from the past", vote, func(uint64) *batch { return rawBatch(numberedFrame(kindPong, math.MaxUint64, nil)) }},
		{"a long pong", vote, func(uint64) *batch { return rawBatch(numberedFrame(kindPong, 0, make([]byte, maxPing+1))) }},
		{"a short clock", vote, func(uint64) *batch { return rawBatch(numberedFrame(kindPong, 0, make([]byte, 7))) }},
		{"a piece within a piece", vote, func(uint64) *batch {
			inner := rawFrame(kindPiece, 0, 1, []byte{1})
			outer := numberedFrame(kindPiece, uint64(len(inner)), inner)
			return rawBatch(outer)
		}},
		{"a message that is none", call, reply(kindReply, []byte{0xff, 0xff, 0xff})},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := newCluster(t, false, 2, nil)
			rogue := newRogue(t, c, "n2", tc.answer)
			m := c.create("n1")
			m.Start()
			up := mustEvent(t, m, isUp("n2"), "up")
			if err := tc.ask(m.Transport(1).(*transport)); err == nil {
				t.Error("taken for an answer")
			}
			mustReceive(t, rogue.ended, "end of the link")
			if again := mustEvent(t, m, isUp("n2"), "up again"); again.Epoch <= up.Epoch {
				t.Errorf("epoch %d after %d", again.Epoch, up.Epoch)
			}
		})
	}
}

// A message of very many things is not decoded: empty ones take two bytes each,
// and hundreds when they are.
func TestCheckFields(t *testing.T) {
	empty := []byte{4<<3 | 2, 0}
	for name, c := range map[string]struct {
		message []byte
		err     error
	}{
		"nothing":     {nil, nil},
		"as many":     {bytes.Repeat(empty, maxFields), nil},
		"one more":    {bytes.Repeat(empty, maxFields+1), errTooMuch},
		"cut short":   {[]byte{4<<3 | 2, 1}, errProtocol},
		"no field":    {[]byte{0xff}, errProtocol},
		"a long one":  {append([]byte{4<<3 | 2, 0x80, 0x80, 0x40}, make([]byte, 1<<20)...), nil},
		"field zero":  {[]byte{0, 0}, errProtocol},
		"a bad group": {[]byte{4<<3 | 3}, errProtocol},
	} {
		if err := CheckFields(c.message); !errors.Is(err, c.err) || (err == nil) != (c.err == nil) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
