package raftlog

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/cockroachdb/pebble/v2"

	"github.com/quorate/quorate/fsm"
)

// ErrNoPayload is returned for a payload that was released, or that a leader
// had released before it sent its snapshot. The message is settled, or will be
// once the log is applied to its end.
var ErrNoPayload = errors.New("raftlog: the payload was released")

// Payload returns the payload of one message. The bytes never change, and stay
// valid for as long as somebody refers to them.
func (g *Group) Payload(ref fsm.Ref) ([]byte, error) {
	for {
		epoch := g.epoch.Load()
		cached := cacheKey{epoch, g.id, ref.Index}
		if e := g.s.cache.get(cached); e != nil && len(e.ext) > 0 {
			return g.cut(e.ext, ref)
		}
		at := g.locate(ref.Index)
		if at.size == 0 {
			return nil, ErrNoPayload
		}
		if uint64(ref.Offset)+uint64(ref.Size) > uint64(at.size) {
			return nil, g.badRef(ref, int(at.size))
		}
		p, whole, err := g.readPayload(at, cached, ref)
		if g.epoch.Load() != epoch {
			continue
		}
		if absent(err) {
			switch now := g.locate(ref.Index); {
			case now.size == 0:
				return nil, ErrNoPayload
			case now.extent != at.extent:
				continue // moved meanwhile
			}
		}
		if err != nil {
			g.s.readFailed(g.id, fmt.Sprintf("payload of entry %d", ref.Index), lost(err))
			continue
		}
		if whole != nil {
			g.s.cache.put(cached, &entry{ext: whole, payload: at.size})
		}
		return p, nil
	}
}

// Recent returns the payload section of an entry and the entry's term, if both are in memory, and nil
// if not. The bytes are like those of Payload.
func (g *Group) Recent(index uint64) (payloads []byte, term uint64) {
	e := g.s.cache.get(cacheKey{g.epoch.Load(), g.id, index})
	if e == nil || !e.whole() || len(e.ext) == 0 {
		return nil, 0
	}
	return e.ext, e.term
}

// readPayload reads a payload section and cuts ref's part out of it. whole is
// the section if it should enter the cache. If not, the part is a copy unless it
// is most of the section, so that it keeps no more in memory.
func (g *Group) readPayload(at section, cached cacheKey, ref fsm.Ref) (part, whole []byte, err error) {
	v, err := readSection(g.s.db, g.s.segments, at)
	if err != nil {
		return nil, nil, err
	}
	if uint64(ref.Offset)+uint64(ref.Size) > uint64(len(v)) {
		return nil, nil, errShort
	}
	part, err = g.cut(v, ref)
	switch {
	case g.s.cache.admits(cached, len(v)):
		whole = v
	case 2*len(part) < len(v):
		part = slices.Clone(part)
	}
	return part, whole, err
}

// cut returns ref's part of a payload section.
func (g *Group) cut(ext []byte, ref fsm.Ref) ([]byte, error) {
	end := uint64(ref.Offset) + uint64(ref.Size)
	if end > uint64(len(ext)) {
		return nil, g.badRef(ref, len(ext))
	}
	return ext[ref.Offset:end:end], nil
}

func (g *Group) badRef(ref fsm.Ref, size int) error {
	return fmt.Errorf("raftlog: group %d: %d bytes from %d on are not within the %d bytes of entry %d's payload section",
		g.id, ref.Size, ref.Offset, size, ref.Index)
}

// locate returns where the payload section of an entry lies; its size is 0 if
// there is none.
func (g *Group) locate(index uint64) section {
	g.mu.Lock()
	defer g.mu.Unlock()
	if i := g.entries.at(index); i != nil {
		return section{indexKey(kindPayload, g.id, index), i.span()}
	}
	at := g.pins.find(index)
	if at < 0 {
		return section{}
	}
	p := g.pins.items[at]
	return section{g.sectionKey(p), p.span()}
}

// sectionKey is where the payload section of a pin lies, or would if it were not in a segment.
func (g *Group) sectionKey(p pin) []byte {
	if p.number != 0 {
		return numberKey(kindForeign, g.id, p.number, p.index)
	}
	return indexKey(kindPayload, g.id, p.index)
}

// pinKey is where the pin itself lies.
func (g *Group) pinKey(p pin) []byte {
	if p.number != 0 {
		return numberKey(kindForeignPin, g.id, p.number, p.index)
	}
	return indexKey(kindPin, g.id, p.index)
}

// setPin writes a pin: size and check of a payload section.
func (g *Group) setPin(b *pebble.Batch, p pin) {
	g.s.setSealed(b, g.pinKey(p), binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(nil, p.size), p.check))
}

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

// offers are lists of payload sections that were handed out. While one is open,
// what is on it stays.
//
//	postponed is empty, if open = 0
type offers struct {
	open      int
	postponed []uint64 // entries that were released meanwhile
}

// postpone reports whether entries are not to be released now, and keeps them.
func (o *offers) postpone(indexes []uint64) bool {
	if o.open == 0 {
		return false
	}
	o.postponed = append(o.postponed, indexes...)
	return true
}

// end ends one of them, and returns what is to be released.
func (o *offers) end() (late []uint64) {
	if o.open--; o.open == 0 {
		late, o.postponed = o.postponed, nil
	}
	return late
}

// Offer lists the payload sections that this member has of entries up to last.
// They stay until done is called, which must be: what is released meanwhile
// is released then.
func (g *Group) Offer(last uint64) (list []byte, done func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	before := uint64(0)
	for _, p := range g.sections(last) {
		if p.size == 0 || len(list) > maxOffer {
			continue
		}
		list = binary.AppendUvarint(list, p.index-before)
		list = binary.AppendUvarint(list, uint64(p.size))
		list = binary.BigEndian.AppendUint32(list, p.check)
		before = p.index
	}
	g.offers.open++
	return list, g.offered
}

// offered ends an offer.
func (g *Group) offered() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if late := g.offers.end(); !g.dropped {
		g.release(late)
	}
}

// sections lists the payload sections of entries up to last, by index; those
// that are released have no size. The caller holds mu.
func (g *Group) sections(last uint64) []pin {
	list := slices.Clone(g.pins.items)
	for len(list) > 0 && list[len(list)-1].index > last {
		list = list[:len(list)-1]
	}
	return append(list, g.entries.sections(last, false)...)
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

// replace has a batch delete the payload sections of entries up to last, those
// excepted that an installed snapshot leaves out because they are here. It
// returns these as pins. The caller holds mu.
func (g *Group) replace(b *pebble.Batch, last uint64, leftOut []pin) (kept []pin, err error) {
	var run []pin // neighbours of one origin that go
	flush := func() {
		if len(run) > 0 {
			g.deletePins(b, run)
		}
		run = run[:0]
	}
	for _, p := range g.everySection(last) {
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
func (g *Group) everySection(last uint64) []pin {
	list := slices.DeleteFunc(g.pins.live(), func(p pin) bool { return p.index > last })
	return append(list, g.entries.sections(last, true)...)
}
