package self

import (
	"context"
	"errors"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/quorate/quorate/cluster/peer"
)

var errUnreachable = errors.New("the node is not reachable")

// Ask asks a node, which may be this one: here answers then. An error comes with an
// empty answer.
func Ask[R any, P interface {
	*R
	proto.Message
}](ctx context.Context, n *Node, to string, within time.Duration, kind peer.Kind, req proto.Message, here func() P) (P, error) {
	if to == n.Name() {
		return here(), nil
	}
	if !n.Mesh.Alive(to) {
		return new(R), errUnreachable
	}
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	answer, err := peer.Ask[R, P](ctx, n.Mesh, to, kind, req)
	if err != nil {
		return new(R), err
	}
	return answer, nil
}
