package peer

import (
	"context"
	"fmt"
	"net"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/quorate/quorate/proto/peerpb"
)

// Introduce serves a node that has no link.
func (s *service) Introduce(stream grpc.BidiStreamingServer[peerpb.Frame, peerpb.Frame]) error {
	first, err := s.m.first(stream)
	if err != nil {
		s.m.Complain(host(stream.Context()), "refused an introduction", err)
		return status.Error(codes.ResourceExhausted, err.Error())
	}
	f, rest, err := nextFrame(first)
	switch {
	case err != nil || f.kind != kindHello || len(rest) > 0:
		return status.Error(codes.InvalidArgument, "peer: no introduction")
	case s.m.cfg.Introduce == nil:
		return status.Error(codes.Unimplemented, "peer: nodes are not introduced here")
	}
	answer, err := s.m.cfg.Introduce(stream.Context(), proofOf(stream.Context()).is, f.body)
	if err != nil {
		s.m.Complain(host(stream.Context()), "refused an introduction", err)
		return status.Error(codes.Unavailable, err.Error())
	}
	return stream.SendMsg(single(kindHello, answer))
}

// single makes a message of one frame.
func single(k Kind, body []byte) *batch {
	b := new(batch)
	header{kind: k}.put(b.reserve(headerSize), len(body))
	b.add(body)
	return b
}

// Introduce asks the node at an address, without a link: one question, one
// answer, which that node's Config.Introduce gives. is says why the answering
// node has not proved to have a name; nil: it has.
func Introduce(ctx context.Context, dial func(context.Context, string) (net.Conn, error), s *Security, address string, ask []byte) (answer []byte, is func(node string) error, err error) {
	conn, p, err := s.connect(ctx, func() (net.Conn, error) { return dial(ctx, address) }, "")
	if err != nil {
		return nil, nil, err
	}
	defer conn.Close()
	cc, err := newClientConn(conn)
	if err != nil {
		return nil, nil, err
	}
	defer cc.Close()
	answer, err = askAt(ctx, cc, ask)
	return answer, p.is, err
}

func askAt(ctx context.Context, cc *grpc.ClientConn, ask []byte) ([]byte, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := peerpb.NewPeerClient(cc).Introduce(ctx)
	if err != nil {
		return nil, err
	}
	if err := stream.SendMsg(single(kindHello, ask)); err != nil {
		return nil, err
	}
	var in inMessage
	if err := stream.RecvMsg(&in); err != nil {
		return nil, err
	}
	f, _, err := nextFrame(in.data)
	if err != nil || f.kind != kindHello {
		return nil, fmt.Errorf("%w: no answer to an introduction", errProtocol)
	}
	return f.body, nil
}
