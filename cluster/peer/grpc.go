package peer

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"
)

const (
	streamWindow = 8 << 20
	connWindow   = 32 << 20
	socketBuffer = 128 << 10
	// maxReceive is what one message of a stream comes to, with room for what gRPC
	// counts beside the frames; a snapshot's receiver may have more to say.
	maxReceive = longMessage + headerSize + 1<<10
	maxOffer   = 32<<20 + 1<<10
	// maxHeaders bounds the metadata of a stream.
	maxHeaders = 8 << 10
	// idleConnection is for how long a connection may have no stream.
	idleConnection = time.Minute
)

// newServer returns a server whose handlers run within a boundary: gRPC has none.
func newServer(cfg *Config, contain func(doing, node string)) *grpc.Server {
	creds := cfg.ServerCredentials
	if creds == nil {
		creds = insecure.NewCredentials()
	}
	return grpc.NewServer(
		grpc.Creds(creds),
		grpc.ForceServerCodecV2(rawCodec{}),
		grpc.StaticStreamWindowSize(streamWindow),
		grpc.StaticConnWindowSize(connWindow),
		grpc.ReadBufferSize(socketBuffer),
		grpc.WriteBufferSize(socketBuffer),
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
// does the client. Redialling is the business of the peer, which judges from
// it. With credentials, node is the name that the other side must prove.
func newClientConn(conn net.Conn, node string, creds credentials.TransportCredentials) (*grpc.ClientConn, error) {
	if creds == nil {
		creds, node = insecure.NewCredentials(), "peer"
	}
	var used atomic.Bool
	return grpc.NewClient("passthrough:///peer",
		grpc.WithAuthority(node),
		grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) {
			if used.Swap(true) {
				return nil, errConnUsed
			}
			return conn, nil
		}),
		grpc.WithTransportCredentials(creds),
		grpc.WithNoProxy(),
		grpc.WithDisableRetry(),
		grpc.WithDisableServiceConfig(),
		grpc.WithDisableHealthCheck(),
		grpc.WithIdleTimeout(0),
		grpc.WithStaticStreamWindowSize(streamWindow),
		grpc.WithStaticConnWindowSize(connWindow),
		grpc.WithReadBufferSize(socketBuffer),
		grpc.WithWriteBufferSize(socketBuffer),
		grpc.WithDefaultCallOptions(
			grpc.ForceCodecV2(rawCodec{}),
			grpc.MaxCallRecvMsgSize(maxReceive),
			grpc.MaxCallSendMsgSize(maxReceive),
		),
	)
}
