package peer

import (
	"log/slog"
	"testing"

	"google.golang.org/grpc"

	"github.com/quorate/quorate/proto/peerpb"
)

// rogue is a node that answers as a test says.
type rogue struct {
	peerpb.UnimplementedPeerServer
	m      *Mesh
	answer func(number uint64) *batch
	ended  chan struct{}
}

func newRogue(t *testing.T, c *cluster, name string, answer func(uint64) *batch) *rogue {
	t.Helper()
	r := &rogue{m: &Mesh{cfg: c.configs[name], log: slog.New(slog.DiscardHandler)}, answer: answer, ended: make(chan struct{}, 100)}
	server := newServer(r.m)
	peerpb.RegisterPeerServer(server, r)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(c.configs[name].Listener)
	}()
	t.Cleanup(func() {
		server.Stop()
		<-done
	})
	return r
}

// Link says hello, and answers the first request of each link.
func (r *rogue) Link(stream grpc.BidiStreamingServer[peerpb.Frame, peerpb.Frame]) error {
	defer func() { r.ended <- struct{}{} }()
	hello, err := r.m.cfg.hello()
	if err != nil {
		return err
	}
	if err := stream.SendMsg(hello); err != nil {
		return err
	}
	for answered := false; ; {
		var in inMessage
		if err := stream.RecvMsg(&in); err != nil {
			return err
		}
		if err := eachFrame(in.data, func(f frame) error {
			if answered || f.kind == kindHello || f.kind == kindPing {
				return nil
			}
			answered = true
			return stream.SendMsg(r.answer(f.number))
		}); err != nil {
			return err
		}
	}
}

// reply answers with one frame.
func reply(k Kind, body []byte) func(number uint64) *batch {
	return func(number uint64) *batch { return rawBatch(numberedFrame(k, number, body)) }
}

func numberedFrame(k Kind, number uint64, body []byte) []byte {
	p := make([]byte, headerSize)
	header{kind: k, number: number}.put(p, len(body))
	return append(p, body...)
}
