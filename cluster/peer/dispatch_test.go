package peer

import (
	"context"
	"errors"
	"net"
	"testing"

	"github.com/hashicorp/raft"
)

// dispatched are messages that nodes send, and some that none does: what the
// dispatcher is fuzzed from. More lie in testdata.
func dispatched(t testing.TB) map[string][]byte {
	call := func(k Kind, body []byte) []byte {
		p := make([]byte, headerSize)
		header{kind: kindCall, arg: uint32(k), number: 3}.put(p, len(body))
		return append(p, body...)
	}
	ask := func(k Kind, b body) []byte {
		body := encode(t, b)
		p := make([]byte, headerSize)
		header{kind: k, arg: 1, number: 5}.put(p, len(body))
		return append(p, body...)
	}
	good := appendOf(5, 7)
	good.Entries[0].Data = []byte("good")
	members := appendOf(5, 7)
	members.Entries[0].Type, members.Entries[0].Data = raft.LogConfiguration, testConfiguration("n1", "n2", "n3")
	beat := &raft.AppendEntriesRequest{RPCHeader: testHeader(), Term: 5}
	vote := &raft.RequestVoteRequest{RPCHeader: testHeader(), Term: 6, LastLogIndex: 8, LastLogTerm: 5}
	inner := ask(kindVote, voteBody(vote))
	unknown := ask(kindVote, voteBody(vote))
	unknown[8] = 99
	all := map[string][]byte{
		"ping":     numberedFrame(kindPing, 7, nil),
		"call":     call(testEcho, []byte("question")),
		"nobody":   call(200, nil),
		"message":  rawFrame(testMessage, 4, 11, []byte("headpayload")),
		"append":   ask(kindAppend, appendBody{good, false}),
		"members":  ask(kindAppend, appendBody{members, true}),
		"beat":     ask(kindAppend, appendBody{beat, true}),
		"vote":     inner,
		"unknown":  unknown,
		"question": ask(kindPreVote, preVoteBody(&raft.RequestPreVoteRequest{RPCHeader: testHeader(), Term: 6})),
		"stand":    ask(kindTimeoutNow, timeoutNowBody(&raft.TimeoutNowRequest{RPCHeader: testHeader()})),
		"nested":   pieceFrame(classRaft, headerSize+1, headerSize+1),
		"pieces":   append(numberedFrame(kindPiece, uint64(len(inner)), inner[:9]), numberedFrame(kindPiece, uint64(len(inner)), inner[9:])...),
		"snapshot": ask(kindSnapshot, snapshotBody{testSnapshotRequest(9)}),
		"hello":    rawFrame(kindHello, 0, 0, nil),
	}
	var every []byte
	for _, name := range []string{"ping", "append", "call", "message", "pieces", "beat", "stand"} {
		every = append(every, all[name]...)
	}
	all["every"] = every
	return all
}

// FuzzDispatch gives a node what another one sends on its link, whatever that is.
// It ends the stream or not; it takes no memory that is not counted, nor gives
// raft what it could not bear.
func FuzzDispatch(f *testing.F) {
	for _, msg := range dispatched(f) {
		f.Add(msg)
	}
	f.Fuzz(func(t *testing.T, msg []byte) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Skip(err)
		}
		m, err := New(Config{Node: "n1", Cluster: "test", Incarnation: nextIncarnation(), Listener: l, Peers: map[string]string{"n2": ""}})
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		m.Handle(testMessage, func(string, []byte, []byte) {})
		m.HandleCall(testEcho, func(_ context.Context, _ string, req []byte) ([]byte, error) { return req, nil })
		consumer := m.TransportFor(1, strict(5)).Consumer()
		in := &inbound{m: m, p: m.peer("n2"), out: newOutbox(m.cfg.LazyDelay), beat: make(chan raft.RPCResponse, 1)}
		in.ctx, in.cancel = context.WithCancelCause(t.Context())
		defer in.cancel(nil)
		a := assembler{limits: &m.limits}
		err = a.frames(msg, in.handle)
		if err != nil && !misbehaved(err) {
			t.Errorf("ended with %v", err)
		}
		a.end()
		if held := m.limits.assembling.Load(); held != 0 {
			t.Errorf("%d bytes are counted", held)
		}
		if n := m.groups.early.bytes; n > len(msg) {
			t.Errorf("%d bytes of %d are held for groups that there are not", n, len(msg))
		}
		for {
			select {
			case rpc := <-consumer:
				mustBear(t, rpc.Command)
			default:
				return
			}
		}
	})
}

// mustBear checks what raft is given.
func mustBear(t *testing.T, cmd any) {
	if err := vetCommand(cmd); err != nil {
		t.Error(err)
	}
	if term := termOf(cmd); term > 5+maxTermJump {
		t.Errorf("raft is given term %d", term)
	}
	a, ok := cmd.(*raft.AppendEntriesRequest)
	if !ok {
		return
	}
	for _, l := range a.Entries {
		switch l.Type {
		case raft.LogConfiguration:
			raft.DecodeConfiguration(l.Data) // panics
		case raft.LogCommand:
			if err := strict(5).Entry(l, false); err != nil {
				t.Error(err)
			}
		}
	}
}

// What nodes send is taken, and what none sends ends the stream.
func TestDispatch(t *testing.T) {
	bad := map[string]bool{"nested": true, "snapshot": true, "hello": true}
	for name, msg := range dispatched(t) {
		c := newCluster(t, false, 2, nil)
		m := c.create("n1")
		in := &inbound{m: m.Mesh, p: m.peer("n2"), out: newOutbox(m.cfg.LazyDelay), beat: make(chan raft.RPCResponse, 1)}
		in.ctx, in.cancel = context.WithCancelCause(t.Context())
		m.Handle(testMessage, func(string, []byte, []byte) {})
		a := assembler{limits: &m.limits}
		if err := a.frames(msg, in.handle); (err != nil) != bad[name] || err != nil && !errors.Is(err, errProtocol) && !errors.Is(err, errShort) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
