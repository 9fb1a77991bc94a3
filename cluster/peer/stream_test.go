package peer

import (
	"bytes"
	"context"
	"io"
	"runtime"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	"google.golang.org/grpc"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/peerpb"
)

func testSnapshotRequest(size int64) *raft.InstallSnapshotRequest {
	return &raft.InstallSnapshotRequest{
		RPCHeader: raft.RPCHeader{ProtocolVersion: 3}, SnapshotVersion: 1, Term: 1, LastLogIndex: 9, LastLogTerm: 1,
		Configuration: []byte("configuration"), Size: size,
	}
}

func TestSnapshotStreamsAreBounded(t *testing.T) {
	c := newCluster(t, false, 2, nil)
	c.startAll(nil)
	data := bytes.Repeat([]byte("snapshot"), snapshotChunk/4) // two messages
	trans := c.members["n1"].Transport(1)
	consumer := c.members["n2"].Transport(1).Consumer()
	results := make(chan error, snapshotsPerPeer+1)
	for range cap(results) {
		go func() {
			resp := new(raft.InstallSnapshotResponse)
			err := trans.InstallSnapshot("n2", "n2", testSnapshotRequest(int64(len(data))), resp, bytes.NewReader(data))
			if err == nil && (!resp.Success || resp.Term != 1) {
				t.Errorf("answer %+v", resp)
			}
			results <- err
		}()
	}
	take := func() raft.RPC { return mustReceive(t, consumer, "snapshot") }
	finish := func(rpc raft.RPC) {
		t.Helper()
		got, err := io.ReadAll(rpc.Reader)
		if err != nil || !bytes.Equal(got, data) {
			t.Errorf("%d bytes, %v", len(got), err)
		}
		rpc.Respond(&raft.InstallSnapshotResponse{Term: 1, Success: true}, nil)
		if err := mustReceive(t, results, "end of a snapshot"); err != nil {
			t.Error(err)
		}
	}
	first, second := take(), take()
	if len(consumer) > 0 || len(c.members["n1"].sortedPeers()[0].snapshots) != snapshotsPerPeer {
		t.Error("more than two at a time")
	}
	finish(first)
	third := take()
	finish(second)
	finish(third)
}

// gatedReader gives one chunk, and the rest when the gate opens.
type gatedReader struct {
	gate  chan struct{}
	given bool
}

func (r *gatedReader) Read(p []byte) (int, error) {
	if r.given {
		<-r.gate
	}
	r.given = true
	return len(p), nil
}

func TestBrokenLinkEndsSnapshot(t *testing.T) {
	c := newCluster(t, false, 2, nil)
	c.startAll(nil)
	data := &gatedReader{gate: make(chan struct{})}
	result := make(chan error, 1)
	go func() {
		result <- c.members["n1"].Transport(1).InstallSnapshot("n2", "n2",
			testSnapshotRequest(10*snapshotChunk), new(raft.InstallSnapshotResponse), data)
	}()
	rpc := mustReceive(t, c.members["n2"].Transport(1).Consumer(), "snapshot")
	c.net.cut("n1", c.addrs["n2"])
	if _, err := io.ReadAll(rpc.Reader); err == nil {
		t.Error("the reader got a whole snapshot")
	}
	rpc.Respond(nil, io.ErrUnexpectedEOF)
	close(data.gate)
	if err := mustReceive(t, result, "end"); err == nil {
		t.Error("the sender installed a whole snapshot")
	}
}

func TestSnapshotForUnknownGroup(t *testing.T) {
	c := newCluster(t, false, 2, nil)
	c.startAll(nil)
	err := c.members["n1"].Transport(1).InstallSnapshot("n2", "n2",
		testSnapshotRequest(100<<20), new(raft.InstallSnapshotResponse), &gatedReader{gate: closedGate()})
	if err == nil {
		t.Fatal("installed into nothing")
	}
}

func closedGate() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}

func TestIdleGroupsHaveNoGoroutines(t *testing.T) {
	const groups = 200
	c := newCluster(t, false, 2, nil)
	c.startAll(nil)
	m := c.members["n2"]
	before := runtime.NumGoroutine()
	for g := range fsm.GroupID(groups) {
		m.Transport(g)
	}
	for g := range fsm.GroupID(groups) {
		done := make(chan error, 1)
		go func() {
			done <- c.members["n1"].Transport(g).RequestVote("n2", "n2", new(raft.RequestVoteRequest), new(raft.RequestVoteResponse))
		}()
		rpc := mustReceive(t, m.Transport(g).Consumer(), "request")
		rpc.Respond(new(raft.RequestVoteResponse), nil)
		if err := mustReceive(t, done, "answer"); err != nil {
			t.Fatal(err)
		}
	}
	mustWait(t, func() bool { return runtime.NumGoroutine() < before+groups/4 }, "goroutines stay behind")
}

// rawLink speaks to a node without a mesh.
func rawLink(t *testing.T, c *cluster, to string) grpc.ClientStream {
	t.Helper()
	conn, err := c.net.dialer("raw")(t.Context(), c.addrs[to])
	if err != nil {
		t.Fatal(err)
	}
	cc, err := newClientConn(conn, to, nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(func() { cancel(); cc.Close() })
	stream, err := peerpb.NewPeerClient(cc).Link(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return stream
}

func rawBatch(frames ...[]byte) *batch {
	b := new(batch)
	for _, f := range frames {
		b.add(f)
	}
	return b
}

func rawFrame(k Kind, arg uint32, bodySize int, content []byte) []byte {
	p := make([]byte, headerSize)
	header{kind: k, arg: arg}.put(p, bodySize)
	return append(p, content...)
}

func TestNonsenseEndsTheStream(t *testing.T) {
	for _, tc := range []struct {
		name  string
		hello bool
		frame []byte
	}{
		{"no hello", false, rawFrame(kindPing, 0, 0, nil)},
		{"empty message", false, nil},
		{"hello that is none", false, rawFrame(kindHello, 0, 3, []byte{0xff, 0xff, 0xff})},
		{"cut frame", true, rawFrame(kindCall, 0, 100, nil)},
		{"unknown kind", true, rawFrame(FirstKind-1, 0, 0, nil)},
		{"answer as a request", true, rawFrame(kindReply, 0, 0, nil)},
		{"short vote", true, rawFrame(kindVote, 0, 1, []byte{3})},
		{"head longer than body", true, rawFrame(testMessage, 5, 1, []byte{3})},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := newCluster(t, false, 2, nil)
			m := c.create("n1")
			m.Start()
			stream := rawLink(t, c, "n1")
			var in inMessage
			if tc.hello {
				other := &Mesh{cfg: Config{Cluster: "test", Node: "n2", Incarnation: nextIncarnation()}}
				hello, err := other.hello()
				if err != nil {
					t.Fatal(err)
				}
				if err := stream.SendMsg(hello); err != nil {
					t.Fatal(err)
				}
				if err := stream.RecvMsg(&in); err != nil {
					t.Fatal(err)
				}
			}
			if err := stream.SendMsg(rawBatch(tc.frame)); err != nil {
				t.Fatal(err)
			}
			for { // pongs may come first
				if err := stream.RecvMsg(&in); err != nil {
					break
				}
			}
			if d, ok := stream.Context().Deadline(); ok && time.Until(d) <= 0 {
				t.Fatal("the stream does not end")
			}
		})
	}
}
