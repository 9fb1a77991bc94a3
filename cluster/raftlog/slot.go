package raftlog

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"hash/crc32"
	"slices"
	"strings"
	"sync"

	"github.com/quorate/quorate/fsm"
)

// A ledger's file is a head and slots. Of both there are two copies, so that a
// write that is cut short leaves one. A slot's copies take turns; the head's
// are both written, each in a sector of its own. Sizes and places in bytes:
const (
	headCopy = 256
	headSpan = 2048 // from one copy of the head to the other
	slotsAt  = 2 * headSpan
	slotCopy = 512
	slotSpan = 2 * slotCopy
)

// A copy of the head is:
//
//	magic      8 bytes
//	sequence   8 bytes, grows with every write
//	identity   16 bytes
//	boot       8 bytes
//	flags      1 byte: founding, hopeless
//	suspects   maxSuspects times: number 8 bytes, times 1 byte, pending 1 byte
//	manifest   8 bytes, and its size: 8 bytes
//	zeroes
//	checksum   4 bytes, CRC-32C of what is before
const ledgerMagic = "qrledge1"

// identity is what a store and its ledger have in common, and no others.
type identity [16]byte

func newIdentity() (id identity) {
	_, _ = rand.Read(id[:]) // never fails
	return id
}

// ledgerHead says to which store a ledger belongs.
type ledgerHead struct {
	seq      uint64
	identity identity // zero: the head could not be read
	boot     uint64   // how often the store was opened
	founding bool     // the store's groups were taken at their word; it does not bear the identity yet
	hopeless bool     // the store must be put aside at the next start
	suspects [maxSuspects]suspect
	// The newest manifest of the store that was synced, and how much of it.
	manifest, manifestSize uint64
}

// maxSuspects is how many damaged tables are remembered. A store with more of
// them is hopeless.
const maxSuspects = 16

// suspect is a table file in which damage was found.
type suspect struct {
	number  uint64 // 0: none
	times   uint8  // how often damage was found in it, after what was known had been cut out
	pending bool   // it has not been checked since
}

// suspect notes that a table is damaged. False: the store is not worth it.
func (h *ledgerHead) suspect(number uint64) bool {
	at := slices.IndexFunc(h.suspects[:], func(x suspect) bool { return x.number == number })
	if at < 0 {
		at = slices.IndexFunc(h.suspects[:], func(x suspect) bool { return x.number == 0 })
	}
	if at < 0 {
		return false
	}
	x := &h.suspects[at]
	if !x.pending {
		*x = suspect{number, x.times + 1, true}
	}
	return x.times <= 2
}

func (h *ledgerHead) append(b []byte) []byte {
	b = append(b, ledgerMagic...)
	b = binary.BigEndian.AppendUint64(b, h.seq)
	b = append(b, h.identity[:]...)
	b = binary.BigEndian.AppendUint64(b, h.boot)
	b = append(b, bit(h.founding)|bit(h.hopeless)<<1)
	for _, x := range h.suspects {
		b = binary.BigEndian.AppendUint64(b, x.number)
		b = append(b, x.times, bit(x.pending))
	}
	b = binary.BigEndian.AppendUint64(b, h.manifest)
	b = binary.BigEndian.AppendUint64(b, h.manifestSize)
	b = append(b, make([]byte, headCopy-4-len(b))...)
	return binary.BigEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

func parseHead(b []byte) (h ledgerHead, ok bool) {
	if len(b) != headCopy || string(b[:8]) != ledgerMagic || !intact(b) {
		return h, false
	}
	h.seq = binary.BigEndian.Uint64(b[8:])
	copy(h.identity[:], b[16:])
	h.boot = binary.BigEndian.Uint64(b[32:])
	h.founding, h.hopeless = b[40]&1 != 0, b[40]&2 != 0
	for i := range h.suspects {
		x := b[41+10*i:]
		h.suspects[i] = suspect{binary.BigEndian.Uint64(x), x[8], x[9] != 0}
	}
	m := b[41+10*maxSuspects:]
	h.manifest, h.manifestSize = binary.BigEndian.Uint64(m), binary.BigEndian.Uint64(m[8:])
	return h, true
}

func bit(set bool) byte {
	if set {
		return 1
	}
	return 0
}

// newerHead chooses among two copies, zero if neither is a head.
func newerHead(a, b []byte) ledgerHead {
	x, _ := parseHead(a)
	if y, ok := parseHead(b); ok && y.seq > x.seq {
		return y
	}
	return x
}

// intact reports whether b ends with its own checksum.
func intact(b []byte) bool {
	n := len(b) - 4
	return crc32.Checksum(b[:n], castagnoli) == binary.BigEndian.Uint32(b[n:])
}

// record is what a group has acknowledged.
type record struct {
	term      uint64 // raft's current term
	voteTerm  uint64 // of the last vote
	candidate string // who got it; empty: nobody
	index     uint64 // of the last entry, or of the snapshot in its place
	indexTerm uint64 // its term; 0: not known
	wipe      bool   // what the store has of the group must be deleted before it is read
	doubt     string // why the log may have less than was acknowledged; empty: it has not
}

// What a slot has room for, in bytes. A longer doubt is cut.
const (
	slotFixed    = 8 + 8 + 4 + 4 + 4*8
	maxCandidate = 255
	maxDoubt     = slotCopy - 4 - slotFixed - maxCandidate
)

// A copy of a slot is:
//
//	slot       8 bytes, its number
//	sequence   8 bytes, grows with every write
//	group      4 bytes
//	state      1 byte
//	flags      1 byte: wipe
//	candidate  1 byte, its length
//	doubt      1 byte, its length
//	term, term of the vote, index, its term: 8 bytes each
//	candidate, doubt, zeroes
//	checksum   4 bytes, CRC-32C of what is before
//
// A copy of zeroes was never written.
type slotState byte

const (
	slotUsed slotState = 1
	slotFree slotState = 2
)

// slotContent is a copy of a slot that was read.
type slotContent struct {
	seq   uint64
	group fsm.GroupID
	state slotState
	record
}

// put encodes a slot into dst.
func (r *record) put(dst *[slotCopy]byte, number, seq uint64, id fsm.GroupID, state slotState) {
	b := binary.BigEndian.AppendUint64(dst[:0], number)
	b = binary.BigEndian.AppendUint64(b, seq)
	b = binary.BigEndian.AppendUint32(b, uint32(id))
	doubt := cutText(r.doubt)
	b = append(b, byte(state), bit(r.wipe), byte(len(r.candidate)), byte(len(doubt)))
	for _, n := range [...]uint64{r.term, r.voteTerm, r.index, r.indexTerm} {
		b = binary.BigEndian.AppendUint64(b, n)
	}
	b = append(append(b, r.candidate...), doubt...)
	clear(dst[len(b):])
	binary.BigEndian.PutUint32(dst[slotCopy-4:], crc32.Checksum(dst[:slotCopy-4], castagnoli))
}

func parseSlot(number uint64, b []byte) *slotContent {
	if len(b) != slotCopy || !intact(b) || binary.BigEndian.Uint64(b) != number {
		return nil
	}
	n := func(at int) uint64 { return binary.BigEndian.Uint64(b[at:]) }
	c := &slotContent{seq: n(8), group: fsm.GroupID(binary.BigEndian.Uint32(b[16:])), state: slotState(b[20])}
	candidate, doubt := int(b[22]), int(b[23])
	if candidate > maxCandidate || doubt > maxDoubt {
		return nil
	}
	c.wipe = b[21]&1 != 0
	c.term, c.voteTerm, c.index, c.indexTerm = n(24), n(32), n(40), n(48)
	text := b[slotFixed:]
	c.candidate, c.doubt = string(text[:candidate]), string(text[candidate:candidate+doubt])
	return c
}

// slotRead is what two copies of a slot have said.
type slotRead struct {
	newest     *slotContent // nil: neither can be read
	unreadable int          // copies that were written, and cannot be read
}

func readSlot(number uint64, a, b []byte) (r slotRead) {
	for _, raw := range [][]byte{a, b} {
		c := parseSlot(number, raw)
		switch {
		case c == nil:
			if len(bytes.Trim(raw, "\x00")) > 0 {
				r.unreadable++
			}
		case r.newest == nil || c.seq > r.newest.seq:
			r.newest = c
		}
	}
	return r
}

// known reports whether the ledger has something on the group.
func (p *place) known() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.numbered && !p.gone
}

// get returns what the ledger has on the group.
func (p *place) get() record {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.record
}

// change rewrites the slot after f has changed the record. It is not synced.
func (p *place) change(f func(r *record)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f(&p.record)
	p.write(slotUsed)
}

// rise takes up a term that nothing depends on yet. It gets into the slot with what does: a vote, or beginSync.
func (p *place) rise(term uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.record.term = term
	p.risen.Store(true)
}

// vote writes a vote, and the term with it, and begins to sync them. Who waits for the result waits for that.
func (p *place) vote(term uint64, candidate string) (synced *sync.WaitGroup) {
	p.risen.Store(true)
	p.mu.Lock()
	p.record.voteTerm, p.record.candidate = term, candidate
	p.mu.Unlock()
	return p.beginSync()
}

// beginSync begins to make durable what the slot lacks of a term, or of a vote, and is called before something that
// depends on it is written. nil: it lacks nothing, or that will be durable before anything that is written now.
func (p *place) beginSync() (synced *sync.WaitGroup) {
	if !p.risen.Load() || !p.risen.Swap(false) {
		return nil
	}
	p.change(func(*record) {})
	synced = &sync.WaitGroup{}
	synced.Go(p.l.sync)
	return synced
}

// claim gives a new group its slot, durably: before anything of it is in the
// store. Without it, a group that lost its slot would look like a new one.
func (p *place) claim() {
	if p.known() {
		return
	}
	p.change(func(*record) {})
	p.l.sync()
}

// acknowledge notes the log's new end. While the group is in doubt, its record
// keeps what was acknowledged before.
func (p *place) acknowledge(index, term uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.end, p.endTerm = index, term
	r := &p.record
	if r.doubt != "" || r.index == index && r.indexTerm == term {
		return
	}
	r.index, r.indexTerm = index, term
	p.write(slotUsed)
}

// lower notes that the log is about to end earlier, durably.
func (p *place) lower(index, term uint64) {
	p.acknowledge(index, term)
	p.l.sync()
}

// write writes the record. It returns once the operating system has it. The
// caller holds mu.
func (p *place) write(state slotState) {
	if p.gone && state != slotFree {
		return
	}
	if !p.numbered {
		p.number, p.seq = p.l.allocate()
		p.numbered = true
	}
	p.seq++
	p.record.put(&p.buf, p.number, p.seq, p.id, state)
	at := int64(slotsAt + p.number*slotSpan + p.seq%2*slotCopy)
	p.l.writeAt(p.buf[:], at)
	p.l.wrote()
}

// cutText shortens a doubt to what a slot has room for, at a whole character.
func cutText(s string) string {
	if len(s) <= maxDoubt {
		return s
	}
	return strings.ToValidUTF8(s[:maxDoubt], "")
}
