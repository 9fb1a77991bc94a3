package raftlog

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2"
)

// An extent record says where a payload section lies that is in a segment. It is, before its checksum:
//
//	segment    4 bytes
//	offset     4 bytes
//	size       4 bytes
//	behind     4 bytes, how many entries were stored before this one by the same StoreLogs
const extentSize = 4 + 4 + 4 + 4

func putExtent(sp span, behind uint32) []byte {
	b := make([]byte, 0, extentSize+sealSize)
	for _, n := range [...]uint32{sp.segment, sp.offset, sp.size, behind} {
		b = binary.BigEndian.AppendUint32(b, n)
	}
	return b
}

func parseExtent(b []byte) (sp span, behind uint32, err error) {
	if len(b) != extentSize {
		return sp, 0, errShort
	}
	n := func(at int) uint32 { return binary.BigEndian.Uint32(b[4*at:]) }
	return span{extent{n(0), n(1)}, n(2)}, n(3), nil
}

// section is where the payload section of an entry lies.
type section struct {
	key []byte // of its record, or that it would have
	span
}

// readSection reads a payload section of the group, from r if it is in Pebble. The error is errNoKey or errGone
// if it is not there.
func (g *Group) readSection(r pebble.Reader, s section) ([]byte, error) {
	if s.segment == 0 {
		return getSealed(r, s.key)
	}
	return g.s.segments.read(s.span, s.key)
}

// lost says that a payload section is not where it must be.
func lost(err error) error {
	if errors.Is(err, errNoKey) || errors.Is(err, errGone) {
		return fmt.Errorf("%w: %w", errShort, err)
	}
	return err
}

// loosen notes that what is committed next refers to a span no more. The caller holds mu.
func (g *Group) loosen(sp span) {
	if sp.segment != 0 {
		g.loose = append(g.loose, sp)
	}
}

// commitLoose commits a batch, and gives back what it has loosened. The caller holds mu.
func (g *Group) commitLoose(b *pebble.Batch, how *pebble.WriteOptions) {
	g.s.commit(b, how)
	g.s.segments.release(g.loose)
	g.loose = g.loose[:0]
}

// spans lists what the group refers to. The caller holds mu.
func (g *Group) spans() []span {
	var list []span
	for _, p := range g.everySection(^uint64(0)) {
		if p.segment != 0 {
			list = append(list, p.span())
		}
	}
	return list
}
