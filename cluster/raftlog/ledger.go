package raftlog

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/quorate/quorate/cluster/worker"
	"github.com/quorate/quorate/fsm"
)

// ledgerLag is for how long at most what a ledger says about entries may miss
// on disk, while it is in the operating system's hands already.
const ledgerLag = 50 * time.Millisecond

// ledger remembers what the groups of a store have acknowledged, in a file
// outside the store: a slot per group, of fixed size, written in place. What
// the store holds is compared with it when a group is loaded. DESIGN.md says
// when a slot is written, and when synced.
type ledger struct {
	file vfs.File
	log  *slog.Logger
	end  func(why string, attrs ...any) // of the process; see Store.end

	heading sync.Mutex // guards head
	head    ledgerHead

	mu     sync.Mutex // guards what follows
	places map[fsm.GroupID]*place
	free   []freeSlot
	count  uint64 // slots in the file

	partial bool // a slot cannot be read, so the store may have groups that are not in places

	syncing syncing
	dirty   atomic.Bool    // something was written since the last sync began
	syncer  *worker.Worker // woken when dirty is set
	ending  chan struct{}
	done    sync.WaitGroup
}

// syncing makes those that wait for a sync share it.
type syncing struct {
	mu          sync.Mutex
	changed     sync.Cond
	begun, done uint64 // syncs; done ≤ begun ≤ done+1
}

// place is a group's slot. It may be without a number: it gets one when
// something is written to it.
type place struct {
	l  *ledger
	id fsm.GroupID

	risen    atomic.Bool // the record has a term that the slot may lack, see beginSync
	asleep   atomic.Bool // there is a record of kindAsleep
	mu       sync.Mutex
	number   uint64
	numbered bool
	gone     bool // the group was dropped: nothing is written any more
	seq      uint64
	record   record
	end      logEnd // whether or not the record says so
	read     bool   // end is what the store has, and so are term and vote of the record
	blank    bool   // nothing is in its log
	plain    bool   // when the group was unloaded it had no snapshot, nor ever begun one: it has term, vote and headers
}

// slotBuffers are what slots are encoded in, one for each that is being written.
var slotBuffers = sync.Pool{New: func() any { return new([slotCopy]byte) }}

// freeSlot is a slot that nobody has, and the number of its last record.
type freeSlot struct{ number, seq uint64 }

// openLedger reads the ledger at path, nil if there is none. A ledger whose
// head cannot be read has no identity.
func openLedger(fs vfs.FS, path string, log *slog.Logger, end func(string, ...any)) (*ledger, error) {
	if _, err := fs.Stat(path); err != nil {
		return nil, err
	}
	f, err := fs.OpenReadWrite(path, vfs.WriteCategoryUnspecified)
	if err != nil {
		return nil, err
	}
	l := newLedger(f, log, end)
	if err := l.read(); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return l, nil
}

// createLedger makes an empty ledger at path.
func createLedger(fs vfs.FS, path string, log *slog.Logger, end func(string, ...any)) (*ledger, error) {
	f, err := fs.OpenReadWrite(path, vfs.WriteCategoryUnspecified)
	if err != nil {
		return nil, err
	}
	dir, err := fs.OpenDir(fs.PathDir(path))
	if err == nil {
		err = errors.Join(dir.Sync(), dir.Close())
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return newLedger(f, log, end), nil
}

func newLedger(f vfs.File, log *slog.Logger, end func(string, ...any)) *ledger {
	l := &ledger{
		file: f, log: log, end: end,
		places: make(map[fsm.GroupID]*place),
		syncer: worker.New(worker.Options{Delay: ledgerLag}), ending: make(chan struct{}),
	}
	l.syncing.changed.L = &l.syncing.mu
	return l
}

// start begins to sync what is written, in the background.
func (l *ledger) start() { l.done.Go(l.follow) }

// read takes in head and slots.
func (l *ledger) read() error {
	st, err := l.file.Stat()
	if err != nil {
		return err
	}
	all := make([]byte, st.Size())
	if n, err := l.file.ReadAt(all, 0); err != nil && !(errors.Is(err, io.EOF) && n == len(all)) {
		return err
	}
	l.head = newerHead(part(all, 0, headCopy), part(all, headSpan, headCopy))
	unreadable := 0
	for at := uint64(slotsAt); at < uint64(len(all)); at += slotSpan {
		number := (at - slotsAt) / slotSpan
		l.count = number + 1
		c := readSlot(number, part(all, at, slotCopy), part(all, at+slotCopy, slotCopy))
		switch p := c.newest; {
		case p == nil || p.state != slotUsed || l.places[p.group] != nil:
			f := freeSlot{number: number}
			if p != nil {
				f.seq = p.seq
			}
			l.partial = l.partial || p == nil && c.unreadable > 0
			l.free = append(l.free, f)
		default:
			l.places[p.group] = &place{l: l, id: p.group, number: number, numbered: true, seq: p.seq, record: p.record}
		}
		unreadable += c.unreadable
	}
	if unreadable > 0 {
		l.log.Warn("parts of the ledger cannot be read", slog.Int("parts", unreadable))
	}
	return nil
}

// part returns n bytes of all, as far as there are any.
func part(all []byte, at, n uint64) []byte {
	at = min(at, uint64(len(all)))
	return all[at:min(at+n, uint64(len(all)))]
}

// place returns a group's slot, a new one without a number if it has none.
func (l *ledger) place(id fsm.GroupID) *place {
	l.mu.Lock()
	defer l.mu.Unlock()
	p := l.places[id]
	if p == nil {
		p = &place{l: l, id: id}
		l.places[id] = p
	}
	return p
}

// has returns a group's slot if it has a numbered one, or nil.
func (l *ledger) has(id fsm.GroupID) *place {
	l.mu.Lock()
	p := l.places[id]
	l.mu.Unlock()
	if p == nil || !p.known() {
		return nil
	}
	return p
}

// groups lists the groups that have a numbered slot, ascending.
func (l *ledger) groups() []fsm.GroupID {
	var ids []fsm.GroupID
	for _, p := range l.all() {
		if p.known() {
			ids = append(ids, p.id)
		}
	}
	slices.Sort(ids)
	return ids
}

func (l *ledger) all() []*place {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := make([]*place, 0, len(l.places))
	for _, p := range l.places {
		all = append(all, p)
	}
	return all
}

// forget frees a group's slot. What is written to it later goes nowhere.
func (l *ledger) forget(id fsm.GroupID) {
	l.mu.Lock()
	p := l.places[id]
	delete(l.places, id)
	l.mu.Unlock()
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.gone = true
	if !p.numbered {
		return
	}
	p.record = record{}
	p.write(slotFree)
	l.mu.Lock()
	l.free = append(l.free, freeSlot{p.number, p.seq})
	l.mu.Unlock()
}

// allocate takes a slot that nobody has, and returns its number and that of its last
// record.
func (l *ledger) allocate() (number, seq uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n := len(l.free); n > 0 {
		f := l.free[n-1]
		l.free = l.free[:n-1]
		return f.number, f.seq
	}
	l.count++
	return l.count - 1, 0
}

// getHead returns the head as it is on disk.
func (l *ledger) getHead() ledgerHead {
	l.heading.Lock()
	defer l.heading.Unlock()
	return l.head
}

// changeHead writes the head, durably, after f has changed it.
func (l *ledger) changeHead(f func(h *ledgerHead)) {
	l.heading.Lock()
	defer l.heading.Unlock()
	f(&l.head)
	l.writeHead()
	l.sync()
}

// recordManifest writes how much of a manifest is on disk.
func (l *ledger) recordManifest(number, size uint64) {
	l.heading.Lock()
	defer l.heading.Unlock()
	l.head.manifest, l.head.manifestSize = number, size
	l.writeHead()
	l.wrote()
}

// writeHead writes the head. The caller holds heading.
func (l *ledger) writeHead() {
	l.head.seq++
	b := l.head.append(nil)
	for _, at := range []int64{0, headSpan} {
		l.writeAt(b, at)
	}
}

// writeAt writes to the file, or the process ends.
func (l *ledger) writeAt(b []byte, at int64) {
	for {
		_, err := l.file.WriteAt(b, at)
		if err == nil {
			return
		}
		l.end("ledger cannot be written", "error", err)
	}
}

// sync returns when all that was written before is durable.
func (l *ledger) sync() {
	s := &l.syncing
	s.mu.Lock()
	defer s.mu.Unlock()
	for want := s.begun + 1; s.done < want; {
		if s.begun > s.done {
			s.changed.Wait()
			continue
		}
		s.begun++
		s.mu.Unlock()
		err := l.file.SyncData()
		for ; err != nil; err = l.file.SyncData() {
			l.end("ledger cannot be synced", "error", err)
		}
		s.mu.Lock()
		s.done++
		s.changed.Broadcast()
	}
}

// wrote is called when something was written that nobody waits for.
func (l *ledger) wrote() {
	if !l.dirty.Load() && !l.dirty.Swap(true) {
		l.syncer.Wake()
	}
}

// follow syncs what was written, ledgerLag later at most.
func (l *ledger) follow() {
	l.syncer.Run(l.ending, func(time.Time) time.Duration {
		if l.dirty.Swap(false) {
			l.sync()
		}
		return 0
	})
}

// close syncs and closes the file.
func (l *ledger) close() error {
	close(l.ending)
	l.done.Wait()
	l.sync()
	if err := l.file.Close(); err != nil {
		return fmt.Errorf("close ledger: %w", err)
	}
	return nil
}

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

// getWithEnd is get, what the log ends with, and whether there is none.
func (p *place) getWithEnd() (r record, end logEnd, blank bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.record, p.end, p.blank
}

// readNothing notes that nothing of the group is stored.
func (p *place) readNothing() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.end, p.read, p.blank = logEnd{}, true, true
}

// isRead reports whether the group was loaded since the store was opened.
func (p *place) isRead() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.read
}

// isPlain reports whether an unloaded group has nothing but term, vote and headers.
func (p *place) isPlain() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.plain
}

// setPlain notes it. Nobody writes more of a group before it is loaded again.
func (p *place) setPlain(yes bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.plain = yes
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
	p.end, p.read, p.blank = logEnd{index, term}, true, index == 0
	r := &p.record
	if r.doubt != "" || r.index == index && r.indexTerm == term {
		return
	}
	r.index, r.indexTerm = index, term
	p.write(slotUsed)
}

// raise notes the end of a log that was not read. The record may have missed it.
func (p *place) raise(index, term uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if r := &p.record; r.index < index {
		r.index, r.indexTerm = index, term
		p.write(slotUsed)
	}
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
	b := slotBuffers.Get().(*[slotCopy]byte)
	defer slotBuffers.Put(b)
	p.record.put(b, p.number, p.seq, p.id, state)
	at := int64(slotsAt + p.number*slotSpan + p.seq%2*slotCopy)
	p.l.writeAt(b[:], at)
	p.l.wrote()
}

// cutText shortens a doubt to what a slot has room for, at a whole character.
func cutText(s string) string {
	if len(s) <= maxDoubt {
		return s
	}
	return strings.ToValidUTF8(s[:maxDoubt], "")
}
