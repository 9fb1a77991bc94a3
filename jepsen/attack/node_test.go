package attack

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/quorate/quorate/jepsen/cluster"
)

// What nodes say to each other, as somebody writes it who has only read about
// it: messages of frames, and a few fields of protobuf.

// answerWait is how long an answer may take, on top of what the machine owes.
const answerWait = 15 * time.Second

// Kinds of frames.
const (
	kindHello = iota + 1
	kindPing
	kindPong
	kindAppend
	kindVote
	kindPreVote
	kindTimeoutNow
	kindSnapshot
	kindCall
	kindReply
	kindFailure
	kindPiece
	kindOffer
	kindSize
)

// Kinds of messages and calls.
const (
	kindPosition = iota + 16
	kindCatalog
	kindSubmit
	kindOutcomes
	kindDeliveries
	kindNotice
	kindResync
	kindStats
	kindQueueStats
	kindReplicas
	kindTransfer
	kindNodes
	kindAdmit
	kindPeek
	kindDirectReply
	kindRequester
	kindConsumers
	kindConnections
	kindCloseConnection
	kindScheduled
	kindCounts
	kindAlarm
	kindHears
	kindApplied
	kindLesson
)

const frameHead = 17

// frame encodes one frame.
func frame(kind byte, arg uint32, number uint64, body []byte) []byte {
	p := make([]byte, frameHead, frameHead+len(body))
	binary.BigEndian.PutUint32(p, uint32(len(body)))
	p[4] = kind
	binary.BigEndian.PutUint32(p[5:], arg)
	binary.BigEndian.PutUint64(p[9:], number)
	return append(p, body...)
}

// rawBytes is a codec that leaves bytes alone.
type rawBytes struct{}

func (rawBytes) Name() string { return "raw" }

func (rawBytes) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(*v.(*[]byte))}, nil
}

func (rawBytes) Unmarshal(data mem.BufferSlice, v any) error {
	*v.(*[]byte) = data.Materialize()
	return nil
}

// thief has the disk of a node that does not run, with its certificate: it can be
// that node.
type thief struct {
	name     string
	identity []byte
	tls      *tls.Config // nil: the cluster's links are plain
}

// mustRob takes over a node that has been stopped.
func mustRob(t *testing.T, n *cluster.Node) *thief {
	t.Helper()
	x := &thief{name: "n" + strconv.Itoa(n.Number)}
	home := n.DataDir()
	record, err := os.ReadFile(filepath.Join(home, "node.json"))
	if err != nil {
		t.Fatal(err)
	}
	var kept struct{ Identity []byte }
	if err := json.Unmarshal(record, &kept); err != nil || len(kept.Identity) == 0 {
		t.Fatalf("%s: identity %x, %v", record, kept.Identity, err)
	}
	x.identity = kept.Identity
	certs := filepath.Join(filepath.Dir(home), "certs")
	authority, err := os.ReadFile(filepath.Join(certs, "ca.pem"))
	if errors.Is(err, os.ErrNotExist) {
		return x
	}
	if err != nil {
		t.Fatal(err)
	}
	own, err := tls.LoadX509KeyPair(filepath.Join(certs, x.name+".pem"), filepath.Join(certs, x.name+".key"))
	if err != nil {
		t.Fatal(err)
	}
	x.tls = &tls.Config{Certificates: []tls.Certificate{own}, RootCAs: x509.NewCertPool(), NextProtos: []string{"h2"}, MinVersion: tls.VersionTLS13}
	x.tls.RootCAs.AppendCertsFromPEM(authority)
	return x
}

// connect opens a connection to the listener of a node for other nodes.
func (x *thief) connect(t *testing.T, n *cluster.Node) *grpc.ClientConn {
	t.Helper()
	host, port, err := net.SplitHostPort(n.HTTP)
	if err != nil {
		t.Fatal(err)
	}
	number, err := strconv.Atoi(port)
	if err != nil {
		t.Fatal(err)
	}
	to := net.JoinHostPort(host, strconv.Itoa(number+10000))
	dial := func(ctx context.Context, _ string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", to)
		if err != nil || x.tls == nil {
			return conn, err
		}
		config := x.tls.Clone()
		config.ServerName = "n" + strconv.Itoa(n.Number)
		secured := tls.Client(conn, config)
		return secured, secured.HandshakeContext(ctx)
	}
	cc, err := grpc.NewClient("passthrough:///node", grpc.WithContextDialer(dial),
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithNoProxy(),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(rawBytes{}), grpc.MaxCallSendMsgSize(1<<30), grpc.MaxCallRecvMsgSize(1<<30)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cc.Close() })
	return cc
}

// said is what came of what was sent.
type said struct {
	frame []byte // the first that is no pong; nil: none has come
	err   error  // the stream has ended
	pong  bool   // the ping behind it was answered
}

func (s said) kind() byte {
	if s.frame == nil {
		return 0
	}
	return s.frame[4]
}

func (s said) text() string { return string(s.frame[min(len(s.frame), frameHead):]) }

func (s said) String() string {
	if s.frame == nil {
		return fmt.Sprintf("nothing, pong %v, end %v", s.pong, s.err)
	}
	return fmt.Sprintf("kind %d %.100q, pong %v, end %v", s.kind(), s.text(), s.pong, s.err)
}

var bothWays = grpc.StreamDesc{ServerStreams: true, ClientStreams: true}

// talk is a stream to a node.
type talk struct {
	stream grpc.ClientStream
	cancel context.CancelFunc
}

// open opens a stream of the service's: Link, Snapshot or Introduce.
func (x *thief) open(t *testing.T, n *cluster.Node, what string, md ...string) *talk {
	t.Helper()
	ctx, cancel := context.WithTimeout(metadata.AppendToOutgoingContext(t.Context(), md...), answerWait+3*machine.Longest(time.Now().Add(-time.Minute)))
	t.Cleanup(cancel)
	stream, err := x.connect(t, n).NewStream(ctx, &bothWays, "/quorate.peer.v1.Peer/"+what)
	if err != nil {
		t.Fatal(err)
	}
	return &talk{stream, cancel}
}

// incarnation is that of a process that there never was.
const incarnation = "stolen-from-n3-x"

// hello is what a node says first, with changes.
func (x *thief) hello(change ...func(map[protowire.Number]any)) []byte {
	fields := map[protowire.Number]any{1: "quorate", 2: x.name, 3: incarnation, 4: uint64(1), 16: string(x.identity)}
	for _, c := range change {
		c(fields)
	}
	return frame(kindHello, 0, 0, message(fields))
}

// message encodes fields: numbers, strings, and encoded messages as strings.
func message(fields map[protowire.Number]any) (b []byte) {
	for number := protowire.Number(1); number <= 64; number++ {
		switch v := fields[number].(type) {
		case uint64:
			b = protowire.AppendVarint(protowire.AppendTag(b, number, protowire.VarintType), v)
		case string:
			b = protowire.AppendString(protowire.AppendTag(b, number, protowire.BytesType), v)
		}
	}
	return b
}

// link opens a link as the robbed node.
func (x *thief) link(t *testing.T, n *cluster.Node) *talk {
	t.Helper()
	k := x.open(t, n, "Link")
	k.send(x.hello())
	var answer []byte
	if err := k.stream.RecvMsg(&answer); err != nil {
		t.Fatalf("node %d takes no link: %v", n.Number, err)
	}
	return k
}

// send sends messages, until the other side has enough.
func (k *talk) send(messages ...[]byte) {
	for _, m := range messages {
		if k.stream.SendMsg(&m) != nil {
			return
		}
	}
}

// hear waits for the end of the stream, or for the answer to a ping that is sent
// now. wait: and for another answer before.
func (k *talk) hear(wait bool) (s said) {
	k.send(frame(kindPing, 0, 0, nil))
	for !s.pong || wait && s.frame == nil {
		var m []byte
		if s.err = k.stream.RecvMsg(&m); s.err != nil {
			return s
		}
		for len(m) >= frameHead {
			end := min(len(m), frameHead+int(binary.BigEndian.Uint32(m)))
			if m[4] == kindPong {
				s.pong = true
			} else if s.frame == nil {
				s.frame = m[:end]
			}
			m = m[end:]
		}
	}
	return s
}

// expected says what is to come of what was sent.
type expected struct {
	ended   bool
	refused string // in the text of a refusal or an answer
	empty   bool   // an answer that grants nothing
	ignored bool   // there is no answer
}

func (e expected) check(t *testing.T, k *talk) {
	t.Helper()
	switch s := k.hear(e.refused != "" || e.empty); {
	case e.ended && (s.err == nil || errors.Is(s.err, context.DeadlineExceeded) || strings.Contains(s.err.Error(), "DeadlineExceeded")):
		t.Errorf("the stream goes on: %v", s)
	case e.refused != "" && (s.kind() != kindFailure && s.kind() != kindReply || !strings.Contains(s.text(), e.refused)):
		t.Errorf("not refused with %q: %v", e.refused, s)
	case e.empty && (s.kind() != kindReply || s.text() != ""):
		t.Errorf("not answered with nothing: %v", s)
	case e.ignored && (s.err != nil || s.kind() == kindReply):
		t.Errorf("not ignored: %v", s)
	}
	k.cancel()
}

var (
	ended   = expected{ended: true}
	ignored = expected{ignored: true}
	empty   = expected{empty: true}
)

func refused(text string) expected { return expected{refused: text} }
