package attack

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/quorate/quorate/jepsen/cluster"
)

// linkWait bounds what a node may take to refuse somebody: it waits 5 s for who
// says nothing.
func linkWait() time.Duration { return 10*time.Second + 3*machine.Longest(began) }

// began is when the first attack did.
var began = time.Now()

// mustAuthority is that of the shared cluster.
func mustAuthority(t *testing.T) *cluster.Authority {
	t.Helper()
	a, err := shared.mustGet(t).Authority()
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// secured is a TLS configuration that shows a certificate, whatever the other
// side would like to see, and takes any; nil: none.
func secured(cert *tls.Certificate) *tls.Config {
	c := &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}}
	if cert != nil {
		c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return cert, nil }
	}
	return c
}

// dialLink connects to where other nodes reach a node, and shakes hands; nil
// config: without TLS. What a node refuses in a handshake it may say only when
// something is read.
func dialLink(t *testing.T, number int, config *tls.Config) (net.Conn, error) {
	t.Helper()
	return dialLinkOf(t, shared.mustGet(t), number, config)
}

func dialLinkOf(t *testing.T, c *cluster.Cluster, number int, config *tls.Config) (net.Conn, error) {
	t.Helper()
	conn, err := net.DialTimeout("tcp", c.LinkAddress(number), linkWait())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(linkWait())); err != nil {
		t.Fatal(err)
	}
	if config == nil {
		return conn, nil
	}
	secure := tls.Client(conn, config)
	return secure, secure.Handshake()
}

// refusedBefore is what a connection gets to read that ends before anything was
// said: nothing at all, and the error that ended it.
func refusedBefore(t *testing.T, number int, config *tls.Config) error {
	t.Helper()
	conn, err := dialLink(t, number, config)
	if err != nil {
		return err
	}
	n, err := io.Copy(io.Discard, conn)
	switch {
	case n > 0:
		t.Errorf("the node says %d bytes", n)
	case err == nil:
		return io.EOF
	case errors.Is(err, context.DeadlineExceeded) || isTimeout(err):
		t.Error("the connection stays open")
	}
	return err
}

func isTimeout(err error) bool {
	var n net.Error
	return errors.As(err, &n) && n.Timeout()
}

// asIs is a gRPC codec for what is encoded already.
type asIs struct{}

func (asIs) Name() string { return "as-is" }
func (asIs) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(*v.(*[]byte))}, nil
}
func (asIs) Unmarshal(data mem.BufferSlice, v any) error {
	*v.(*[]byte) = data.Materialize()
	return nil
}

// mustSpeak opens a stream of the link protocol.
func mustSpeak(t *testing.T, number int, config *tls.Config, method string, pairs ...string) (grpc.ClientStream, error) {
	t.Helper()
	return mustSpeakTo(t, shared.mustGet(t), number, config, method, pairs...)
}

func mustSpeakTo(t *testing.T, c *cluster.Cluster, number int, config *tls.Config, method string, pairs ...string) (grpc.ClientStream, error) {
	t.Helper()
	conn, err := dialLinkOf(t, c, number, config)
	if err != nil {
		return nil, err
	}
	if err := conn.SetDeadline(time.Time{}); err != nil {
		t.Fatal(err)
	}
	cc, err := grpc.NewClient("passthrough:///node", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) { return conn, nil }),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(asIs{}), grpc.MaxCallRecvMsgSize(1<<20), grpc.MaxCallSendMsgSize(1<<30)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cc.Close() })
	ctx, cancel := context.WithTimeout(t.Context(), linkWait())
	t.Cleanup(cancel)
	return cc.NewStream(metadata.AppendToOutgoingContext(ctx, pairs...),
		&grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, method)
}

// Methods of the link protocol.
const (
	methodLink      = "/quorate.peer.v1.Peer/Link"
	methodSnapshot  = "/quorate.peer.v1.Peer/Snapshot"
	methodIntroduce = "/quorate.peer.v1.Peer/Introduce"
)

// say opens a stream, says something, and returns how the node answers: the
// code and text of its refusal, or OK.
func say(t *testing.T, number int, config *tls.Config, method string, message []byte, pairs ...string) string {
	t.Helper()
	stream, err := mustSpeak(t, number, config, method, pairs...)
	if err == nil {
		if message != nil {
			_ = stream.SendMsg(&message) // receiving says why it fails
		}
		var answer []byte
		err = stream.RecvMsg(&answer)
	}
	if status.Code(err) == codes.DeadlineExceeded {
		t.Error("the node neither answers nor refuses")
	}
	s, ok := status.FromError(err)
	if !ok {
		return err.Error()
	}
	return s.Code().String() + " " + s.Message()
}

// linkFrame is a frame of the link protocol.
func linkFrame(kind byte, arg uint32, number uint64, body []byte) []byte {
	b := binary.BigEndian.AppendUint32(nil, uint32(len(body)))
	b = append(b, kind)
	b = binary.BigEndian.AppendUint32(b, arg)
	return append(binary.BigEndian.AppendUint64(b, number), body...)
}

// protoField is a field of a protobuf message that holds bytes.
func protoField(number int, value []byte) []byte {
	b := binary.AppendUvarint(nil, uint64(number)<<3|2)
	return append(binary.AppendUvarint(b, uint64(len(value))), value...)
}

func protoNumber(number int, value uint64) []byte {
	return binary.AppendUvarint(binary.AppendUvarint(nil, uint64(number)<<3), value)
}

// linkHello is the first frame of a link.
type linkHello struct {
	cluster, node string
	version       uint64
	identity      []byte
}

func helloOf(node string) linkHello { return linkHello{cluster: "quorate", node: node, version: 1} }

func (h linkHello) frame() []byte {
	id := make([]byte, 16)
	_, _ = rand.Read(id) // never fails
	b := append(protoField(1, []byte(h.cluster)), protoField(2, []byte(h.node))...)
	b = append(b, protoField(3, id)...)
	b = append(b, protoNumber(4, h.version)...)
	if h.identity != nil {
		b = append(b, protoField(16, h.identity)...)
	}
	return linkFrame(1, 0, 0, b)
}

// askToJoin is the question of a node that wants to be a member.
func askToJoin(node string) []byte {
	id := make([]byte, 16)
	_, _ = rand.Read(id)
	b := append(protoField(1, []byte("quorate")), protoField(2, []byte(node))...)
	b = append(b, protoField(3, id)...)
	b = append(b, protoField(4, []byte("127.0.0.1:1"))...)
	b = append(b, protoNumber(5, 1)...)
	b = append(b, protoNumber(6, 1)...)
	return linkFrame(1, 0, 0, append(b, protoNumber(21, newestVersion)...))
}

// newestVersion is the fsm_version of a cluster that has just begun, which who wants to join must support.
const newestVersion = 3

// mustHold fails the test unless one of the texts is in what came.
func mustHold(t *testing.T, came string, texts ...string) {
	t.Helper()
	for _, text := range texts {
		if strings.Contains(came, text) {
			return
		}
	}
	t.Errorf("the node answers %q, expected is one of %q", came, texts)
}

// mustStandAsBefore checks that nobody has become a member, that all nodes see
// each other, and that nothing has panicked.
func mustStandAsBefore(t *testing.T) {
	t.Helper()
	ctx := context.WithoutCancel(t.Context()) // also when the test has ended
	for _, n := range shared.mustGet(t).Nodes {
		var nodes []struct {
			Name    string `json:"name"`
			Running bool   `json:"running"`
		}
		if err := n.Call(ctx, "GET", "/api/nodes", nil, &nodes); err != nil {
			t.Fatal(err)
		}
		seen := fmt.Sprint(nodes)
		if seen != "[{n1 true} {n2 true} {n3 true}]" {
			t.Errorf("node %d sees the nodes %s", n.Number, seen)
		}
		if panics, err := n.Metric(ctx, "quorate_panics_total"); err != nil || panics > 0 {
			t.Errorf("node %d: %v panics, %v", n.Number, panics, err)
		}
	}
}
