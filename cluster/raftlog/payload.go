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
