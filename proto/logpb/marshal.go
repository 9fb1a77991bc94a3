package logpb

import "google.golang.org/protobuf/proto"

// maxDepth bounds messages within messages. Three of them are one level of a
// table, and JSON, out of which tables are made, is 10,000 levels deep at most.
const maxDepth = 1 << 16

// Marshal returns the one encoding of m: equal messages have equal bytes, in every
// process. It fails for no message of this package.
func Marshal(m proto.Message) ([]byte, error) {
	return proto.MarshalOptions{Deterministic: true}.Marshal(m)
}

// Unmarshal replaces m by what b encodes, and keeps nothing of b.
func Unmarshal(b []byte, m proto.Message) error {
	return proto.UnmarshalOptions{RecursionLimit: maxDepth}.Unmarshal(b, m)
}
