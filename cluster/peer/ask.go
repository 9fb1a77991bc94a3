package peer

import "context"

// encodes is a protobuf message to be sent.
type encodes interface{ MarshalVT() ([]byte, error) }

// decodes is a protobuf message to be read.
type decodes[T any] interface {
	*T
	UnmarshalVT(b []byte) error
}

// Ask calls another node with a message and reads the message it answers.
func Ask[R any, P decodes[R]](ctx context.Context, m *Mesh, node string, k Kind, req encodes) (P, error) {
	encoded, err := req.MarshalVT()
	if err != nil {
		return nil, err
	}
	answer, err := m.Call(ctx, node, k, encoded)
	if err != nil {
		return nil, err
	}
	r := P(new(R))
	return r, r.UnmarshalVT(answer)
}

// HandleAsk sets the function that answers a kind of Ask.
func HandleAsk[Q any, P decodes[Q], R encodes](m *Mesh, k Kind, answer func(req P) R) {
	m.HandleCall(k, func(_ context.Context, _ string, req []byte) ([]byte, error) {
		q := P(new(Q))
		if err := q.UnmarshalVT(req); err != nil {
			return nil, err
		}
		return answer(q).MarshalVT()
	})
}
