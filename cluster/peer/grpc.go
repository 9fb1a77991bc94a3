package peer

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/experimental"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"

	"github.com/quorate/quorate/proto/peerpb"
)

const (
	streamWindow = 8 << 20
	connWindow   = 32 << 20
	socketBuffer = 128 << 10
	// maxReceive is what one message of a stream comes to, and what gRPC counts
	// beside the frames; a snapshot's receiver may have more to say.
	maxReceive = longMessage + headerSize + 1<<10
	maxOffer   = 32<<20 + 1<<10
	// maxHeaders bounds the metadata of a stream.
	maxHeaders = 8 << 10
	// idleConnection is for how long a connection may have no stream.
	idleConnection = time.Minute
	// pingsEvery is how often the other side may send HTTP/2 pings: no node does.
	pingsEvery = 10 * time.Second
)

// newServer returns a server whose handlers run within a boundary: gRPC has none.
func newServer(m *Mesh) *grpc.Server {
	contain := m.contain
	return grpc.NewServer(
		grpc.Creds(newServerCredentials(m.cfg.Security, m.Complain)),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: pingsEvery}),
		grpc.InTapHandle((&service{m: m}).tap),
		grpc.ForceServerCodecV2(rawCodec{}),
		grpc.StaticStreamWindowSize(streamWindow),
		grpc.StaticConnWindowSize(connWindow),
		grpc.ReadBufferSize(0), // connections read ahead themselves
		grpc.WriteBufferSize(socketBuffer),
		experimental.BufferPool(frames),
		grpc.MaxRecvMsgSize(maxReceive),
		grpc.MaxSendMsgSize(maxOffer),
		grpc.MaxConcurrentStreams(maxStreams),
		grpc.MaxHeaderListSize(maxHeaders),
		grpc.ConnectionTimeout(helloWait),
		grpc.KeepaliveParams(keepalive.ServerParameters{MaxConnectionIdle: idleConnection}),
		grpc.WaitForHandlers(true),
		grpc.StreamInterceptor(func(srv any, s grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) (err error) {
			err = status.Error(codes.Internal, errPanic.Error())
			defer contain(info.FullMethod, "")
			return next(srv, s)
		}),
		grpc.UnaryInterceptor(func(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (reply any, err error) {
			err = status.Error(codes.Internal, errPanic.Error())
			defer contain(info.FullMethod, "")
			return next(ctx, req)
		}),
	)
}

var errConnUsed = errors.New("peer: the link's connection is gone")

// newClientConn speaks gRPC over conn and only over conn: when it breaks, so
// does the client. Redialling is the business of the peer, which draws
// conclusions from it. What the other side has to prove it has proved on conn.
func newClientConn(conn net.Conn) (*grpc.ClientConn, error) {
	var used atomic.Bool
	return grpc.NewClient("passthrough:///peer",
		grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) {
			if used.Swap(true) {
				return nil, errConnUsed
			}
			return conn, nil
		}),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithNoProxy(),
		grpc.WithDisableRetry(),
		grpc.WithDisableServiceConfig(),
		grpc.WithDisableHealthCheck(),
		grpc.WithIdleTimeout(0),
		grpc.WithStaticStreamWindowSize(streamWindow),
		grpc.WithStaticConnWindowSize(connWindow),
		grpc.WithReadBufferSize(0),
		grpc.WithWriteBufferSize(socketBuffer),
		experimental.WithBufferPool(frames),
		grpc.WithDefaultCallOptions(
			grpc.ForceCodecV2(rawCodec{}),
			grpc.MaxCallRecvMsgSize(maxReceive),
			grpc.MaxCallSendMsgSize(maxReceive),
		),
	)
}

// tap refuses streams before anything is kept for them: only questions without
// a link may come from who is no member.
func (s *service) tap(ctx context.Context, info *tap.Info) (context.Context, error) {
	p := proofOf(ctx)
	if p.plain || info.FullMethodName == peerpb.Peer_Introduce_FullMethodName {
		return ctx, nil
	}
	for _, name := range p.names {
		if s.m.peer(name) != nil {
			return ctx, nil
		}
	}
	if s.m.cfg.Admit != nil {
		for _, name := range p.names {
			_ = s.m.cfg.Admit(name, nil) // whoever answers it may find out that this node is behind
		}
	}
	err := fmt.Errorf("%w: %q", ErrUnknownNode, p.names)
	s.m.Complain(host(ctx), "refused a link", err)
	return nil, status.Error(codes.PermissionDenied, err.Error())
}
