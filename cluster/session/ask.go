package session

import (
	"context"
	"errors"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/quorate/quorate/cluster/peer"
)

var errUnreachable = errors.New("the node is not reachable")

// ask asks a node, which may be this one: here answers then. An error comes with an
// empty answer.
func ask[R any, P interface {
	*R
	proto.Message
}](ctx context.Context, n *node, to string, within time.Duration, kind peer.Kind, req proto.Message, here func() P) (P, error) {
	if to == n.name {
		return here(), nil
	}
	if !n.mesh.Alive(to) {
		return new(R), errUnreachable
	}
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	answer, err := peer.Ask[R, P](ctx, n.mesh, to, kind, req)
	if err != nil {
		return new(R), err
	}
	return answer, nil
}
