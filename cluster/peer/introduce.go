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
	first, err := s.m.limits.first(stream, s.m.done.Go)
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
	answer, err := s.m.cfg.Introduce(stream.Context(), Caller{proofOf(stream.Context()), host(stream.Context())}, f.body)
	if err != nil {
		s.m.Complain(host(stream.Context()), "refused an introduction", err)
		return status.Error(codes.Unavailable, err.Error())
	}
	return stream.SendMsg(single(kindHello, answer))
}

// Caller is who asks without a link.
type Caller struct {
	proof *proof
	// Host is the address that it asks from.
	Host string
}

// Is says why the caller has not proved to have a name; nil: it has.
func (c Caller) Is(node string) error { return c.proof.is(node) }

// Uncertified reports whether the caller has no certificate, and may only ask to join.
func (c Caller) Uncertified() bool { return c.proof.uncertified }

// single makes a message of one frame.
func single(k Kind, body []byte) *batch {
	b := new(batch)
	header{kind: k}.put(b.reserve(headerSize), len(body))
	b.add(body)
	return b
}

// Invitation is what a node knows of the cluster that it joins by a token.
type Invitation struct {
	// Authority is the fingerprint of the one that has signed the cluster's nodes;
	// empty: their links are plain.
	Authority []byte
	// Plain has the token go over plain links to other hosts, where others may
	// read it.
	Plain bool
}

// check says why the token must not go over a connection.
func (i *Invitation) check(p *proof, conn net.Conn) error {
	switch {
	case i == nil:
	case p.plain && len(i.Authority) > 0:
		return fmt.Errorf("%w: the token is for a cluster whose links are secured, and the link is plain", errInvitation)
	case !p.plain && len(i.Authority) == 0:
		return fmt.Errorf("%w: the token is for a cluster whose links are plain", errInvitation)
	case p.plain && !i.Plain && !hostOf(conn).Unmap().IsLoopback():
		return fmt.Errorf("%w: over plain links a token goes to this host only, unless cluster.allow_plain_links = true", errInvitation)
	}
	return nil
}

// Introduce asks the node at an address, without a link: one question, one
// answer, which that node's Config.Introduce gives. is says why the answering
// node has not proved to have a name; nil: it has. With an invitation, nil: there
// is none, nothing is said to a node that is not of the cluster it is for.
func Introduce(ctx context.Context, dial func(context.Context, string) (net.Conn, error), s *Security, by *Invitation, address string, ask []byte) (answer []byte, is func(node string) error, err error) {
	var to destination
	if by != nil && s != nil {
		if to.pin = by.Authority; len(to.pin) == 0 && !s.Mixed {
			return nil, nil, by.check(&proof{}, nil)
		}
	}
	conn, p, err := s.connect(ctx, func() (net.Conn, error) { return dial(ctx, address) }, to)
	if err != nil {
		return nil, nil, err
	}
	defer conn.Close()
	if err := by.check(p, conn); err != nil {
		return nil, nil, err
	}
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
