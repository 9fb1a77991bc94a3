package raftlog

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/cockroachdb/pebble/v2"
)

// A member that is to install a snapshot says first which payload sections it
// has, so that they need not be sent again. One is taken for the same if index,
// size and check are the same; the check covers group, index, term and bytes.
//
// A list has, by ascending index, for each section:
//
//	index   varint, what it is above the one before
//	size    varint
//	check   4 bytes

// maxOffer bounds a list. What does not fit into it is sent again.
const maxOffer = 32 << 20

// Offer lists the payload sections that this member has of entries up to upto.
// They stay until done is called, which must be: what is released meanwhile
// is released then.
func (g *Group) Offer(upto uint64) (list []byte, done func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	last := uint64(0)
	for _, p := range g.sections(upto) {
		if p.size == 0 || len(list) > maxOffer {
			continue
		}
		list = binary.AppendUvarint(list, p.index-last)
		list = binary.AppendUvarint(list, uint64(p.size))
		list = binary.BigEndian.AppendUint32(list, p.check)
		last = p.index
	}
	g.offers++
	return list, g.offered
}

// offered ends an offer.
func (g *Group) offered() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.offers--; g.offers == 0 && !g.dropped {
		late := g.postponed
		g.postponed = nil
		g.release(late)
	}
}

// sections lists the payload sections of entries up to upto, by index; those
// that are released or dead have no size. The caller holds mu.
func (g *Group) sections(upto uint64) []pin {
	list := slices.Clone(g.pins.items)
	for len(list) > 0 && list[len(list)-1].index > upto {
		list = list[:len(list)-1]
	}
	for index := g.tail.begin(); index > 0 && index <= min(upto, g.tail.last()); index++ {
		i := g.tail.at(index)
		if i.payload > 0 && !i.dead {
			list = append(list, pin{index: index, size: i.payload, check: i.check})
		}
	}
	return list
}

// Without leaves out the payload sections on a list that the receiver has
// written, and returns the length of the stream then. Nothing may have been
// read yet.
func (r *streamReader) Without(list []byte) (size int64, err error) {
	kept := make([]bool, len(r.payloads))
	at := 0
	for p := (pin{}); len(list) > 0; {
		if p, list, err = nextOffered(p, list); err != nil {
			return 0, err
		}
		for at < len(r.payloads) && r.payloads[at].index < p.index {
			at++
		}
		if at < len(r.payloads) {
			has := r.payloads[at]
			kept[at] = has.index == p.index && has.size == p.size && has.check == p.check
		}
	}
	r.kept = kept
	return r.size(), nil
}

// nextOffered takes the section behind p off a list.
func nextOffered(p pin, list []byte) (pin, []byte, error) {
	above, n := binary.Uvarint(list)
	if n > 0 {
		size, m := binary.Uvarint(list[n:])
		if n += m; m > 0 && above > 0 && size>>32 == 0 && len(list) >= n+4 {
			p = pin{index: p.index + above, size: uint32(size), check: binary.BigEndian.Uint32(list[n:])}
			return p, list[n+4:], nil
		}
	}
	return pin{}, nil, fmt.Errorf("%w: the list of what the receiver has", ErrStream)
}

// has reports whether the receiver has the payload section at a position.
func (r *streamReader) has(at int) bool { return r.kept != nil && r.kept[at] }

// replace has a batch delete the payload sections of entries up to upto, those
// excepted that an installed snapshot leaves out because they are here. It
// returns these as pins. The caller holds mu.
func (g *Group) replace(b *pebble.Batch, upto uint64, leftOut []pin) (kept []pin, err error) {
	var run []pin // neighbours of one origin that go
	flush := func() {
		if len(run) > 0 {
			g.deletePins(b, run)
		}
		run = run[:0]
	}
	for _, p := range g.everySection(upto) {
		if len(leftOut) > 0 && leftOut[0].index == p.index {
			if leftOut[0].size != p.size || leftOut[0].check != p.check {
				break
			}
			flush()
			g.setPin(b, p)
			kept, leftOut = append(kept, p), leftOut[1:]
			continue
		}
		if len(run) > 0 && run[0].number != p.number {
			flush()
		}
		run = append(run, p)
	}
	flush()
	if len(leftOut) > 0 {
		return nil, fmt.Errorf("%w: the payload section of entry %d is not here", ErrStream, leftOut[0].index)
	}
	return kept, nil
}

// everySection is like sections, with the dead ones that are still on disk and
// without those that are not. The caller holds mu.
func (g *Group) everySection(upto uint64) []pin {
	list := slices.DeleteFunc(g.pins.live(), func(p pin) bool { return p.index > upto })
	for index := g.tail.begin(); index > 0 && index <= min(upto, g.tail.last()); index++ {
		if i := g.tail.at(index); i.payload > 0 {
			list = append(list, pin{index: index, size: i.payload, check: i.check})
		}
	}
	return list
}
