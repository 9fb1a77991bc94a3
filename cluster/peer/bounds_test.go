package peer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/proto/peerpb"
)

// heap is what lives, in bytes.
func heap() int64 {
	var s runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&s)
	return int64(s.HeapAlloc)
}

// rawHello makes a raw link one of node n2.
func rawHello(t *testing.T, stream grpc.ClientStream, incarnation [16]byte) {
	t.Helper()
	hello, err := (&Config{Cluster: "test", Node: "n2", Incarnation: incarnation}).hello()
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.SendMsg(hello); err != nil {
		t.Fatal(err)
	}
	var in inMessage
	if err := stream.RecvMsg(&in); err != nil {
		t.Fatal(err)
	}
}

// mustEnd waits for the end of a stream and returns its code.
func mustEnd(t *testing.T, stream grpc.ClientStream) codes.Code {
	t.Helper()
	for {
		var in inMessage
		if err := stream.RecvMsg(&in); err != nil {
			if d, ok := stream.Context().Deadline(); ok && time.Until(d) <= 0 {
				t.Fatal("the stream does not end")
			}
			return status.Code(err)
		}
	}
}

// pieceFrame is a piece of a message of a class.
func pieceFrame(c class, total, size int) []byte {
	p := make([]byte, headerSize+size)
	header{kind: kindPiece, arg: uint32(c), number: uint64(total)}.put(p, size)
	return p
}

// What is announced takes no memory, what has come takes no more than twice its
// size, and all that is begun has a bound.
func TestPiecesTakeWhatHasCome(t *testing.T) {
	var h inboundLimits
	h.init()
	before := heap()
	streams := make([]assembler, 20)
	for i := range streams {
		streams[i].limits = &h
		for c := range classOwn {
			if err := streams[i].frames(pieceFrame(c, MaxMessage, 1), nil); err != nil {
				t.Fatal(err)
			}
		}
	}
	if grown := heap() - before; grown > int64(2*len(streams))*2*pieceSize+1<<20 {
		t.Errorf("%d MiB for %d bytes", grown>>20, h.assembling.Load())
	}
	h.limit = 8 << 20
	refused := 0
	for i := range streams {
		if err := streams[i].frames(pieceFrame(0, MaxMessage, longMessage), nil); errors.Is(err, errCrowded) {
			refused++
		} else if err != nil {
			t.Fatal(err)
		}
	}
	if held := h.assembling.Load(); refused == 0 || refused == len(streams) || held > h.limit {
		t.Errorf("%d refused, %d bytes held", refused, held)
	}
	for i := range streams {
		streams[i].end()
	}
	if held := h.assembling.Load(); held != 0 {
		t.Errorf("%d bytes are still counted", held)
	}
	runtime.KeepAlive(streams)
}

// A message that has come in pieces counts no more, and is what was sent.
func TestPiecesAreGivenBack(t *testing.T) {
	var h inboundLimits
	h.init()
	a := assembler{limits: &h}
	inner := numberedFrame(kindPing, 7, bytes.Repeat([]byte("x"), 3*pieceSize))
	var got []byte
	for rest := inner; len(rest) > 0; {
		n := min(len(rest), pieceSize)
		p := pieceFrame(classApp, len(inner), n)
		copy(p[headerSize:], rest[:n])
		rest = rest[n:]
		if err := a.frames(p, func(f frame) error { got = f.body; return nil }); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(got, inner[headerSize:]) || h.assembling.Load() != 0 {
		t.Errorf("%d bytes came, %d are counted", len(got), h.assembling.Load())
	}
}

// A node that sends as much as it may, of what nobody waits for, makes the other
// one hold no more than the bounds say.
func TestAPeerMakesANodeHoldLittle(t *testing.T) {
	c := newCluster(t, true, 2, nil)
	m := c.create("n1")
	m.Transport(1) // of a group that takes nothing
	m.Start()
	a := &raft.AppendEntriesRequest{RPCHeader: raft.RPCHeader{ProtocolVersion: 3}, Term: 1}
	for j := range uint64(maxEntries) {
		a.Entries = append(a.Entries, &raft.Log{Index: j + 1, Term: 1})
	}
	body := encode(t, appendBody{a, false})
	attack := map[string]func(i int) []byte{
		"pieces":           func(int) []byte { return pieceFrame(classRaft, MaxMessage, pieceSize) },
		"pieces announced": func(i int) []byte { return pieceFrame(class(i%2), MaxMessage, 1) },
		"nested pieces": func(int) []byte {
			inner := pieceFrame(classRaft, MaxMessage, pieceSize)
			return numberedFrame(kindPiece, uint64(len(inner)), inner)
		},
		"empty entries": func(i int) []byte {
			p := make([]byte, headerSize)
			header{kind: kindAppend, arg: uint32(i), number: uint64(i)}.put(p, len(body))
			return append(p, body...)
		},
		"votes": func(i int) []byte {
			p := make([]byte, headerSize)
			header{kind: kindVote, arg: uint32(i), number: uint64(i)}.put(p, 26)
			return append(append(p, 3, 0), make([]byte, 24)...)
		},
		"pings": func(int) []byte { return bytes.Repeat(rawFrame(kindPing, 0, 0, nil), 1000) },
		"calls": func(int) []byte { return bytes.Repeat(rawFrame(kindCall, 99, 0, nil), 100) },
	}
	for name, next := range attack {
		t.Run(name, func(t *testing.T) {
			stream := rawLinkFor(t, c, "n1", 10*time.Second) // which may not take all
			rawHello(t, stream, nextIncarnation())
			before := heap()
			sent := 0
			for i := 0; sent < 20<<20; i++ {
				f := next(i)
				if stream.SendMsg(rawBatch(f)) != nil {
					break // it has been ended
				}
				if sent += len(f); i > 2000 && len(f) < pieceSize {
					break
				}
			}
			// Answers wait for a reader that there is not: up to two backlogs.
			if grown := heap() - before; grown > 2*maxBacklog+64<<20 {
				t.Errorf("%d MiB more for %d MiB", grown>>20, sent>>20)
			}
		})
	}
}

// Whoever says nothing, or too much, before it says who it is, is not waited for.
func TestBeforeTheHello(t *testing.T) {
	c := newCluster(t, false, 2, nil)
	m := c.create("n1")
	m.Start()
	big := rawLink(t, c, "n1")
	if err := big.SendMsg(rawBatch(rawFrame(kindHello, 0, maxHello, make([]byte, maxHello)))); err != nil {
		t.Fatal(err)
	}
	if code := mustEnd(t, big); code != codes.FailedPrecondition {
		t.Errorf("a long hello ends with %v", code)
	}
	long, err := peerpb.NewPeerClient(rawConn(t, c, "n1")).Link(t.Context(), grpc.MaxCallSendMsgSize(2*maxReceive))
	if err != nil {
		t.Fatal(err)
	}
	if err := long.SendMsg(rawBatch(make([]byte, maxReceive+1))); err != nil && !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	if code := mustEnd(t, long); code != codes.ResourceExhausted {
		t.Errorf("a long message ends with %v", code)
	}
	quick := c.create("n2")
	quick.limits.patience = 10 * time.Millisecond
	quick.Start()
	mute := rawLink(t, c, "n2")
	if code := mustEnd(t, mute); code != codes.FailedPrecondition {
		t.Errorf("a link on which nothing is said ends with %v", code)
	}
}

// A node has so many streams that have not said who they are, and so many links
// from one peer.
func TestStreamsAreBounded(t *testing.T) {
	c := newCluster(t, false, 2, nil)
	m := c.create("n1")
	m.limits.patience = time.Hour // nobody's time is over meanwhile
	m.Start()
	for range maxStrangers {
		rawLink(t, c, "n1")
	}
	mustWait(t, func() bool { return len(m.limits.strangers) == maxStrangers }, "not all strangers are there")
	if code := mustEnd(t, rawLink(t, c, "n1")); code != codes.FailedPrecondition {
		t.Errorf("one stranger more ends with %v", code)
	}
	var p tokens
	for i := range int32(5) {
		if got := p.take(4); got != (i < 4) {
			t.Errorf("token %d of 4: %v", i, got)
		}
	}
	p.put()
	if !p.take(4) || p.taken.Load() != 4 {
		t.Error("what is given back is not there")
	}
}

// A connection has so many streams, and one more once one of them has ended.
func TestStreamsOfAConnection(t *testing.T) {
	c := newCluster(t, false, 2, nil)
	m := c.create("n1")
	m.limits.patience = time.Hour
	m.Start()
	cc := rawConn(t, c, "n1")
	open := func(ctx context.Context) error {
		_, err := cc.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, peerpb.Peer_Introduce_FullMethodName)
		return err
	}
	first, cancel := context.WithCancel(t.Context())
	defer cancel()
	if err := open(first); err != nil {
		t.Fatal(err)
	}
	for range maxStreams - 1 {
		if err := open(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	mustWait(t, func() bool { return len(m.limits.strangers) == maxStreams }, "not all streams are there")
	short, end := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer end()
	if err := open(short); status.Code(err) != codes.DeadlineExceeded {
		t.Errorf("more than %d streams: %v", maxStreams, err)
	}
	cancel()
	if err := open(t.Context()); err != nil {
		t.Error(err)
	}
}

// Calls that run hold so many bytes of one node, and those of another one pass.
func TestCallsAreBounded(t *testing.T) {
	var r callLimit
	for range callBytes >> 20 {
		if !r.take(1 << 20) {
			t.Fatal("refused")
		}
	}
	if r.take(0) {
		t.Error("room beyond the bytes")
	}
	r.put(1 << 20)
	if !r.take(MaxMessage) || r.take(0) {
		t.Error("one request more than there are bytes for is allowed")
	}
	r = callLimit{}
	for range callsPerPeer {
		r.take(0)
	}
	if r.take(0) {
		t.Error("room beyond the calls")
	}
	c := newCluster(t, false, 2, nil)
	c.startAll(func(m *member) {
		echo(m)
		m.Bound(testEcho, Bounds{Head: 100})
		m.Bound(testMessage, Bounds{Head: 10, Payload: 20})
		m.Handle(testMessage, func(string, []byte, []byte) {})
	})
	n1 := c.members["n1"]
	if _, err := n1.Call(t.Context(), "n2", testEcho, make([]byte, 100)); err != nil {
		t.Error(err)
	}
	var refusal *RemoteError
	if _, err := n1.Call(t.Context(), "n2", testEcho, make([]byte, 101)); !errors.As(err, &refusal) {
		t.Errorf("a long request: %v", err)
	}
	epoch := n1.Peers()[0].Epoch
	if err := n1.Send("n2", testMessage, make([]byte, 11)); err != nil {
		t.Fatal(err)
	}
	mustEvent(t, n1, func(ev Event) bool { return ev.Up && ev.Epoch > epoch }, "a new link after a long head")
}

// A snapshot whose sender stalls is given up, and another one may come.
func TestStalledSnapshot(t *testing.T) {
	c := newCluster(t, false, 2, func(cfg *Config) { cfg.SnapshotStall = 50 * time.Millisecond })
	c.startAll(nil)
	gate := make(chan struct{})
	defer close(gate)
	var began atomic.Bool
	go func() {
		for !began.Load() { // on a busy machine one may be late with its first byte, too
			_ = c.members["n1"].Transport(1).InstallSnapshot("n2", "n2",
				testSnapshotRequest(100<<20), new(raft.InstallSnapshotResponse), &gatedReader{gate: gate})
		}
	}()
	rpc := mustReceive(t, c.members["n2"].Transport(1).Consumer(), "snapshot")
	began.Store(true)
	if _, err := io.ReadAll(rpc.Reader); !errors.Is(err, errLate) {
		t.Errorf("the reader ends with %v", err)
	}
	rpc.Respond(nil, errLate)
	mustWait(t, func() bool { return len(c.members["n2"].snapshots.receiving.large) == 0 }, "the slot is not given back")
}

// Who opens a stream for a snapshot is a node that has a link, with the
// incarnation of that.
func TestSnapshotWithoutALink(t *testing.T) {
	c := newCluster(t, false, 2, nil)
	c.startAll(nil)
	for name, md := range map[string]metadata.MD{
		"nobody":              {},
		"a stranger":          metadata.Pairs(nodeKey, "n3", incarnationKey, strings.Repeat("x", 16)),
		"another incarnation": metadata.Pairs(nodeKey, "n2", incarnationKey, strings.Repeat("x", 16)),
		"two":                 metadata.Pairs(nodeKey, "n2", nodeKey, "n2"),
	} {
		stream, err := peerpb.NewPeerClient(rawConn(t, c, "n1")).Snapshot(metadata.NewOutgoingContext(t.Context(), md))
		if err != nil {
			t.Fatal(err)
		}
		var in inMessage
		if err := stream.RecvMsg(&in); status.Code(err) != codes.FailedPrecondition {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A node that does the same again is written about once a minute, and names that
// it makes up fill nothing.
func TestComplaintsAreFew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		m := &Mesh{log: slog.New(slog.NewTextHandler(&out, nil))}
		lines := func() int { defer out.Reset(); return strings.Count(out.String(), "\n") }
		for range 100 {
			m.Complain("n2", "refused a link", fmt.Errorf("%w: %d", errProtocol, time.Now().UnixNano()))
			time.Sleep(complainEvery / 200)
		}
		if n := lines(); n != 1 {
			t.Errorf("%d lines in half a minute", n)
		}
		m.Complain("n2", "refused a link", ErrUnknownNode)
		m.Complain("n3", "refused a link", errProtocol)
		if n := lines(); n != 2 {
			t.Errorf("%d lines about another cause and another node", n)
		}
		time.Sleep(complainEvery)
		m.Complain("n2", "refused a link", errProtocol)
		if n := lines(); n != 1 {
			t.Errorf("%d lines a minute later", n)
		}
		for i := range 10 * maxComplaints {
			m.Complain(fmt.Sprint("n", i), "refused a link", errProtocol)
		}
		if n := lines(); n > maxComplaints || len(m.complaints.said) > maxComplaints {
			t.Errorf("%d lines, %d remembered", n, len(m.complaints.said))
		}
	})
}
