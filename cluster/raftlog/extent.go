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

// readSection reads a payload section, from r if it is in Pebble. The error is errNoKey or errGone
// if it is not there.
func readSection(r pebble.Reader, s *segments, at section) ([]byte, error) {
	if at.segment == 0 {
		return getSealed(r, at.key)
	}
	return s.read(at.span, at.key)
}

// absent reports whether nothing is where a record or a payload section was looked for.
func absent(err error) bool { return errors.Is(err, errNoKey) || errors.Is(err, errGone) }

// lost says that a payload section is not where it must be.
func lost(err error) error {
	if absent(err) {
		return fmt.Errorf("%w: %w", errShort, err)
	}
	return err
}

// loose is what a group's records refer to no more once the next batch is committed.
type loose []span

func (l *loose) add(sp span) {
	if sp.segment != 0 {
		*l = append(*l, sp)
	}
}

// commit commits a batch, and gives back what nothing refers to any more.
func (l *loose) commit(s *Store, b *pebble.Batch, how *pebble.WriteOptions) {
	s.commit(b, how)
	s.segments.release(*l)
	*l = (*l)[:0]
}

// spansOf lists where payload sections lie that are in segments.
func spansOf(sections []pin) []span {
	var list loose
	for _, p := range sections {
		list.add(p.span())
	}
	return list
}
