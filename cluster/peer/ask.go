package peer

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// maxFields bounds the fields of a message: an empty one of a list takes two
// bytes, and hundreds when it is decoded.
const maxFields = 1 << 18

// Tame says why a message from another node is not to be decoded; nil: it may.
func Tame(p []byte) error {
	for n := 0; len(p) > 0; n++ {
		_, _, size := protowire.ConsumeField(p)
		if size < 0 {
			return fmt.Errorf("%w: %w", errProtocol, protowire.ParseError(size))
		}
		if n >= maxFields {
			return fmt.Errorf("%w: more than %d fields", errTooMuch, maxFields)
		}
		p = p[size:]
	}
	return nil
}

// message is a pointer to a protobuf message T.
type message[T any] interface {
	*T
	proto.Message
}

// Ask calls another node with a message and reads the message it answers.
func Ask[R any, P message[R]](ctx context.Context, m *Mesh, node string, k Kind, req proto.Message) (P, error) {
	encoded, err := proto.Marshal(req)
	if err != nil {
		return nil, err
	}
	answer, err := m.Call(ctx, node, k, encoded)
	if err != nil {
		return nil, err
	}
	r := P(new(R))
	err = Tame(answer)
	if errors.Is(err, errTooMuch) {
		return nil, err // there may be as much
	}
	if err == nil {
		err = proto.Unmarshal(answer, r)
	}
	if err != nil {
		m.distrust(node, err)
	}
	return r, err
}

// HandleAsk sets the function that answers a kind of Ask.
func HandleAsk[Q any, P message[Q], R proto.Message](m *Mesh, k Kind, answer func(req P) R) {
	m.HandleCall(k, func(_ context.Context, _ string, req []byte) ([]byte, error) {
		q := P(new(Q))
		err := Tame(req)
		if err == nil {
			err = proto.Unmarshal(req, q)
		}
		if err != nil {
			return nil, fmt.Errorf("%w: %w", errProtocol, err)
		}
		return proto.Marshal(answer(q))
	})
}
