package peer

import (
	"bytes"
	"math"
	"reflect"
	"testing"

	"google.golang.org/grpc/mem"

	"github.com/hashicorp/raft"
)

var testName = []byte("n1")

func testHeader() raft.RPCHeader {
	return raft.RPCHeader{ProtocolVersion: 3, ID: testName, Addr: testName}
}

// encode returns what b puts on the wire.
func encode(t testing.TB, b body) []byte {
	t.Helper()
	bt := new(batch)
	b.write(bt)
	if bt.size != b.size() {
		t.Fatalf("%T writes %d bytes and promised %d", b, bt.size, b.size())
	}
	parts := bt.seal()
	defer parts.Free()
	return parts.Materialize()
}

func TestCommandsRoundTrip(t *testing.T) {
	long := bytes.Repeat([]byte("long"), copyLimit)
	entries := []*raft.Log{
		{Index: 8, Term: 2, Type: raft.LogNoop},
		{Index: 9, Term: 3, Type: raft.LogCommand, Data: []byte("data"), Extensions: []byte("ext")},
		{Index: 10, Term: 3, Type: raft.LogConfiguration, Data: long},
		{Index: math.MaxUint64, Term: 3, Extensions: long},
	}
	vote := &raft.RequestVoteRequest{RPCHeader: testHeader(), Term: 1, LastLogIndex: 2, LastLogTerm: 3, LeadershipTransfer: true}
	preVote := &raft.RequestPreVoteRequest{RPCHeader: testHeader(), Term: 1, LastLogIndex: 2, LastLogTerm: 3}
	full := &raft.AppendEntriesRequest{RPCHeader: testHeader(), Term: 3, PrevLogEntry: 7, PrevLogTerm: 2, LeaderCommitIndex: 6, Entries: entries}
	empty := &raft.AppendEntriesRequest{RPCHeader: testHeader(), Term: 3}
	now := &raft.TimeoutNowRequest{RPCHeader: testHeader()}
	for _, tc := range []struct {
		kind Kind
		body body
		want any
		idle bool
	}{
		{kindAppend, appendBody{full, false}, full, false},
		{kindAppend, appendBody{empty, true}, empty, true},
		{kindVote, voteBody(vote), vote, false},
		{kindPreVote, preVoteBody(preVote), preVote, false},
		{kindTimeoutNow, timeoutNowBody(now), now, false},
	} {
		p := encode(t, tc.body)
		got, idle, err := decodeCommand(tc.kind, p, testName)
		if err != nil || idle != tc.idle || !reflect.DeepEqual(got, tc.want) {
			t.Errorf("%T: got %+v, idle %v, %v", tc.want, got, idle, err)
		}
		for n := range min(len(p), 200) {
			if _, _, err := decodeCommand(tc.kind, p[:n], testName); err == nil {
				t.Errorf("%T: accepted cut to %d bytes", tc.want, n)
			}
		}
		if _, _, err := decodeCommand(tc.kind, append(p, 0), testName); err == nil {
			t.Errorf("%T: accepted with a byte too many", tc.want)
		}
	}
}

func TestAnswersRoundTrip(t *testing.T) {
	for _, want := range []any{
		&raft.AppendEntriesResponse{RPCHeader: testHeader(), Term: 4, LastLog: 5, Success: true},
		&raft.AppendEntriesResponse{RPCHeader: testHeader(), Term: 4, LastLog: 5, NoRetryBackoff: true},
		&raft.RequestVoteResponse{RPCHeader: testHeader(), Term: 4, Granted: true},
		&raft.RequestPreVoteResponse{RPCHeader: testHeader(), Term: 4, Granted: true},
		&raft.InstallSnapshotResponse{RPCHeader: testHeader(), Term: 4, Success: true},
		&raft.TimeoutNowResponse{RPCHeader: testHeader()},
	} {
		n, _ := answerBody(want)
		p := encode(t, n)
		got := reflect.New(reflect.TypeOf(want).Elem()).Interface()
		if err := decodeAnswer(p, testName, got); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%T: got %+v, %v", want, got, err)
		}
		if err := decodeAnswer(p[:len(p)-1], testName, got); err == nil {
			t.Errorf("%T: accepted cut short", want)
		}
	}
	if n, _ := answerBody("nonsense"); n != nil {
		t.Error("a string is an answer")
	}
}

func TestSnapshotRequestRoundTrip(t *testing.T) {
	want := &raft.InstallSnapshotRequest{
		RPCHeader: testHeader(), SnapshotVersion: 1, Term: 2, LastLogIndex: 3, LastLogTerm: 4,
		Configuration: []byte("configuration"), ConfigurationIndex: 5, Size: 6,
	}
	p := encode(t, snapshotBody{want})
	got, err := decodeSnapshot(p, testName)
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v", got, err)
	}
	for n := range snapshotHead {
		if _, err := decodeSnapshot(p[:n], testName); err == nil {
			t.Errorf("accepted cut to %d bytes", n)
		}
	}
}

func TestBatchKeepsLongPartsByReference(t *testing.T) {
	long := bytes.Repeat([]byte{1}, copyLimit+1)
	short := bytes.Repeat([]byte{2}, copyLimit)
	b := new(batch)
	for range 6 { // more than one arena
		b.add(short)
		b.add(long)
	}
	parts := b.seal()
	refs := 0
	for _, p := range parts {
		switch d := p.ReadOnlyData(); {
		case &d[0] == &long[0]:
			refs++
		case &d[0] == &short[0]:
			t.Error("a short part is kept by reference")
		}
	}
	want := bytes.Repeat(append(bytes.Clone(short), long...), 6)
	if refs != 6 || !bytes.Equal(parts.Materialize(), want) || b.size != len(want) {
		t.Errorf("%d references, %d bytes", refs, b.size)
	}
	parts.Free()
	if b.root != nil || len(b.seal()) != 0 {
		t.Error("the batch still holds something")
	}
}

func TestReceivedMessageIsOneAllocation(t *testing.T) {
	data := mem.BufferSlice{mem.SliceBuffer("one "), mem.SliceBuffer("message")}
	var in inMessage
	if n := testing.AllocsPerRun(100, func() {
		if err := (rawCodec{}).Unmarshal(data, &in); err != nil {
			t.Fatal(err)
		}
	}); n != 1 || string(in.data) != "one message" {
		t.Errorf("%v allocations for %q", n, in.data)
	}
	if err := (rawCodec{}).Unmarshal(data, new(int)); err == nil {
		t.Error("received into an int")
	}
	if _, err := (rawCodec{}).Marshal(1); err == nil {
		t.Error("sent an int")
	}
}

func FuzzFrames(f *testing.F) {
	b := new(batch)
	header{kind: testMessage, arg: 2}.put(b.reserve(headerSize), 4)
	b.add([]byte("head"))
	header{kind: kindPing, number: 1}.put(b.reserve(headerSize), 0)
	f.Add(b.seal().Materialize())
	f.Add([]byte{0xff, 0xff, 0xff, 0xff})
	f.Fuzz(func(t *testing.T, msg []byte) {
		total := 0
		for rest := msg; len(rest) > 0; {
			fr, next, err := nextFrame(rest)
			if err != nil {
				return
			}
			total += headerSize + len(fr.body)
			if len(next) != len(msg)-total {
				t.Fatalf("%d bytes of %d taken, %d left", total, len(msg), len(next))
			}
			if head, payload, err := fr.message(); err == nil && len(head)+len(payload) != len(fr.body) {
				t.Fatal("parts do not make the body")
			}
			again := make([]byte, headerSize)
			fr.put(again, len(fr.body))
			if !bytes.Equal(again, rest[:headerSize]) {
				t.Fatal("header does not round trip")
			}
			rest = next
		}
	})
}

func FuzzCommands(f *testing.F) {
	full := &raft.AppendEntriesRequest{RPCHeader: testHeader(), Entries: []*raft.Log{{Index: 1, Data: []byte("d"), Extensions: []byte("e")}}}
	bt := new(batch)
	appendBody{full, true}.write(bt)
	f.Add(byte(kindAppend), bt.seal().Materialize())
	for _, k := range []Kind{kindVote, kindPreVote, kindTimeoutNow, kindSnapshot} {
		f.Add(byte(k), make([]byte, 26))
	}
	f.Fuzz(func(t *testing.T, kind byte, p []byte) {
		if Kind(kind) == kindSnapshot {
			if req, err := decodeSnapshot(p, testName); err == nil && !bytes.Equal(encode(t, snapshotBody{req}), p) {
				t.Fatal("snapshot request does not round trip")
			}
			return
		}
		cmd, idle, err := decodeCommand(Kind(kind), p, testName)
		if err != nil {
			return
		}
		if r, ok := cmd.(*raft.AppendEntriesRequest); ok {
			p[1] &= flagIdle // other flags are ignored
			if !bytes.Equal(encode(t, appendBody{r, idle}), p) {
				t.Fatal("append request does not round trip")
			}
		}
	})
}

func FuzzAnswers(f *testing.F) {
	f.Add([]byte{3, 1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 2})
	f.Fuzz(func(t *testing.T, p []byte) {
		for _, into := range []any{
			new(raft.AppendEntriesResponse), new(raft.RequestVoteResponse), new(raft.RequestPreVoteResponse),
			new(raft.InstallSnapshotResponse), new(raft.TimeoutNowResponse),
		} {
			if err := decodeAnswer(p, testName, into); err == nil {
				if n, _ := answerBody(into); len(encode(t, n)) != len(p) {
					t.Fatalf("%T does not round trip", into)
				}
			}
		}
	})
}

func FuzzHello(f *testing.F) {
	m := &Mesh{cfg: Config{Cluster: "c", Node: "n1", Incarnation: nextIncarnation()}}
	b, err := m.cfg.hello()
	if err != nil {
		f.Fatal(err)
	}
	good := b.seal().Materialize()
	if _, err := m.cfg.checkHello(good); err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Fuzz(func(t *testing.T, p []byte) {
		if h, err := m.cfg.checkHello(p); err == nil && (h.Cluster != "c" || len(h.Incarnation) != 16 || h.Version != Version) {
			t.Fatalf("accepted %+v", h)
		}
	})
}
