package peer

import (
	"bytes"
	"context"
	"errors"
	"io"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
	"google.golang.org/grpc"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/peerpb"
)

func testSnapshotRequest(size int64) *raft.InstallSnapshotRequest {
	return &raft.InstallSnapshotRequest{
		RPCHeader: raft.RPCHeader{ProtocolVersion: 3}, SnapshotVersion: 1, Term: 1, LastLogIndex: 9, LastLogTerm: 1,
		Configuration: testConfiguration("n1"), Size: size,
	}
}

// testConfiguration is that of a group with these voters.
func testConfiguration(voters ...raft.ServerID) []byte {
	var c raft.Configuration
	for _, v := range voters {
		c.Servers = append(c.Servers, raft.Server{ID: v, Address: raft.ServerAddress(v)})
	}
	return raft.EncodeConfiguration(c)
}

// One large snapshot goes at a time, from a node and to it; small ones go beside
// it. Nobody is refused, those who come later wait.
func TestSnapshotStreamsAreBounded(t *testing.T) {
	c := newCluster(t, false, 3, nil)
	c.startAll(nil)
	data := bytes.Repeat([]byte("snapshot"), (smallSnapshot+snapshotChunk)/8)
	results := make(chan error, 4)
	send := func(from string, group fsm.GroupID, data []byte) {
		go func() {
			resp := new(raft.InstallSnapshotResponse)
			err := c.members[from].Transport(group).InstallSnapshot("n2", "n2", testSnapshotRequest(int64(len(data))), resp, bytes.NewReader(data))
			if err == nil && (!resp.Success || resp.Term != 1) {
				t.Errorf("answer %+v", resp)
			}
			results <- err
		}()
	}
	n2 := c.members["n2"]
	large, small := n2.Transport(1).Consumer(), n2.Transport(2).Consumer()
	finish := func(rpc raft.RPC, data []byte) {
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
	send("n1", 1, data)
	first := mustReceive(t, large, "snapshot")
	send("n1", 1, data)
	send("n3", 1, data)
	mustWait(t, func() bool { return len(c.members["n3"].snapshots.sending.large) == 1 }, "the other node sends nothing")
	send("n1", 2, data[:100])
	finish(mustReceive(t, small, "small snapshot"), data[:100])
	if len(large) > 0 {
		t.Error("more than one at a time")
	}
	finish(first, data)
	second := mustReceive(t, large, "snapshot")
	if len(large) > 0 {
		t.Error("more than one at a time")
	}
	finish(second, data)
	finish(mustReceive(t, large, "snapshot"), data)
}

// holder is a group that has something, or something newer.
type holder struct {
	list    []byte
	newer   uint64
	over    chan struct{}
	refused chan uint64
}

func (h *holder) Offer(uint64) ([]byte, func(), uint64) {
	if h.newer > 0 {
		return nil, nil, h.newer
	}
	return h.list, func() { close(h.over) }, 0
}

func (h *holder) Refused(index uint64) { h.refused <- index }

// halved is a snapshot of which the receiver has the second half.
type halved struct {
	bytes.Reader
	list []byte
}

func (h *halved) Without(list []byte) (int64, error) {
	h.list = list
	half := make([]byte, h.Len()/2)
	if _, err := h.Read(half); err != nil {
		return 0, err
	}
	h.Reset(half)
	return int64(len(half)), nil
}

// What the receiver has is not sent: it says so before anything is sent, and
// raft gets the rest, with its length. It keeps what it has until that is over.
func TestSnapshotWithoutWhatIsThere(t *testing.T) {
	c := newCluster(t, false, 2, nil)
	c.startAll(nil)
	h := &holder{list: []byte("the second half"), over: make(chan struct{})}
	receiver := c.members["n2"].Transport(1).(*transport)
	receiver.Exchange(h)
	whole := bytes.Repeat([]byte("snapshot"), 1000)
	data, result := &halved{}, make(chan error, 1)
	data.Reset(whole)
	resp := new(raft.InstallSnapshotResponse)
	go func() {
		result <- c.members["n1"].Transport(1).InstallSnapshot("n2", "n2", testSnapshotRequest(int64(len(whole))), resp, data)
	}()
	rpc := mustReceive(t, receiver.Consumer(), "snapshot")
	got, err := io.ReadAll(rpc.Reader)
	if size := rpc.Command.(*raft.InstallSnapshotRequest).Size; err != nil || !bytes.Equal(got, whole[:4000]) || size != 4000 {
		t.Errorf("%d bytes of %d, %v", len(got), size, err)
	}
	select {
	case <-h.over:
		t.Error("the receiver lets go of what it has before it has the rest")
	default:
	}
	rpc.Respond(&raft.InstallSnapshotResponse{Term: 1, Success: true}, nil)
	if err := mustReceive(t, result, "answer"); err != nil || !resp.Success || string(data.list) != string(h.list) {
		t.Errorf("%+v, %q, %v", resp, data.list, err)
	}
	mustReceive(t, h.over, "end of the offer")
	if n := c.members["n1"].SnapshotCounts(); n != (SnapshotCounts{Sent: 1, SentBytes: 4000, LeftOut: 4000}) {
		t.Errorf("counted %+v", n)
	}
	if r := c.members["n1"].Transport(1).(*transport).Reached("n2", 1); r != (Reached{Index: 9}) {
		t.Errorf("the leader knows of it: %+v", r)
	}
}

// A snapshot older than what the receiver has is refused before anything of it
// is sent, and its sender learns how new it would have to be.
func TestSupersededSnapshot(t *testing.T) {
	c := newCluster(t, false, 2, nil)
	c.startAll(nil)
	c.members["n2"].Transport(1).(*transport).Exchange(&holder{newer: 12})
	sender, h := c.members["n1"].Transport(1).(*transport), &holder{refused: make(chan uint64, 1)}
	sender.Exchange(h)
	err := sender.InstallSnapshot("n2", "n2", testSnapshotRequest(100<<20), new(raft.InstallSnapshotResponse), &gatedReader{gate: closedGate()})
	if !errors.Is(err, ErrSuperseded) {
		t.Error(err)
	}
	if at := mustReceive(t, h.refused, "refusal"); at != 12 {
		t.Errorf("the refusal names entry %d", at)
	}
	if n := c.members["n1"].SnapshotCounts(); n != (SnapshotCounts{}) {
		t.Errorf("counted %+v", n)
	}
}

// An install pauses as its duty cycle demands, however long its pieces take.
func TestInstallKeepsToItsDutyCycle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var p throttle
		began, worked := time.Now(), time.Duration(0)
		for i := range 1000 {
			piece := time.Duration(1+i%50) * 100 * time.Microsecond
			time.Sleep(piece)
			if err := p.worked(t.Context(), piece); err != nil {
				t.Fatal(err)
			}
			worked += piece
		}
		if part := worked.Seconds() / time.Since(began).Seconds(); part < snapshotDutyCycle-0.01 || part > snapshotDutyCycle+0.01 {
			t.Errorf("it works %.2f of the time", part)
		}
	})
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
	requests := c.members["n2"].Transport(1).Consumer() // refused while its receiver has no such group
	go func() {
		result <- c.members["n1"].Transport(1).InstallSnapshot("n2", "n2",
			testSnapshotRequest(10*snapshotChunk), new(raft.InstallSnapshotResponse), data)
	}()
	rpc := mustReceive(t, requests, "snapshot")
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

// rawConn is a connection to a node without a mesh.
func rawConn(t *testing.T, c *cluster, to string) *grpc.ClientConn {
	t.Helper()
	conn, err := c.net.dialer("raw")(t.Context(), c.addrs[to])
	if err != nil {
		t.Fatal(err)
	}
	cc, err := newClientConn(conn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cc.Close() })
	return cc
}

// rawLink speaks to a node without a mesh.
func rawLink(t *testing.T, c *cluster, to string) grpc.ClientStream {
	t.Helper()
	return rawLinkFor(t, c, to, patience)
}

// rawLinkFor is rawLink, and the link ends by itself after a while.
func rawLinkFor(t *testing.T, c *cluster, to string, limit time.Duration) grpc.ClientStream {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	t.Cleanup(cancel)
	stream, err := peerpb.NewPeerClient(rawConn(t, c, to)).Link(ctx)
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
				hello, err := other.cfg.hello()
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
