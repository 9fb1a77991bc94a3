package peer

import (
	"fmt"

	"google.golang.org/protobuf/proto"

	"github.com/quorate/quorate/proto/peerpb"
)

// hello returns this node's hello as a batch.
func (c *Config) hello() (*batch, error) {
	h := &peerpb.Hello{
		Cluster: c.Cluster, Node: c.Node,
		Incarnation: c.Incarnation[:], Version: Version, Identity: c.Identity, ReadsStored: true,
	}
	data, err := proto.Marshal(h)
	if err != nil {
		return nil, fmt.Errorf("encoding hello: %w", err)
	}
	b := new(batch)
	header{kind: kindHello}.put(b.reserve(headerSize), len(data))
	b.add(data)
	return b, nil
}

// checkHello parses the first message of the other side and refuses one that
// does not fit.
func (c *Config) checkHello(msg []byte) (*peerpb.Hello, error) {
	f, rest, err := nextFrame(msg)
	if err != nil {
		return nil, err
	}
	if f.kind != kindHello || len(rest) > 0 {
		return nil, fmt.Errorf("%w: no hello", errProtocol)
	}
	h := new(peerpb.Hello)
	if err := proto.Unmarshal(f.body, h); err != nil {
		return nil, fmt.Errorf("%w: hello: %w", errProtocol, err)
	}
	switch {
	case h.Version != Version:
		return nil, fmt.Errorf("%w: node %q speaks version %d, this one %d", errStranger, h.Node, h.Version, Version)
	case h.Cluster != c.Cluster:
		return nil, fmt.Errorf("%w: node %q belongs to cluster %q, this one to %q", errStranger, h.Node, h.Cluster, c.Cluster)
	case len(h.Incarnation) != 16:
		return nil, fmt.Errorf("%w: incarnation of %d bytes", errProtocol, len(h.Incarnation))
	}
	return h, nil
}

// admits says why the node that says hello may have no link.
func (c *Config) admits(h *peerpb.Hello) error {
	if c.Admit == nil {
		return nil
	}
	return c.Admit(h.Node, h.Identity)
}
