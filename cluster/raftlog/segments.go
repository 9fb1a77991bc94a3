package raftlog

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/quorate/quorate/fsm"
)

// Payload sections of segmentFrom bytes and more lie in segments: files that sections of all groups are
// appended to, each followed by a seal. A record of kindExtent says where. A segment is:
//
//	magic      8 bytes
//	number     4 bytes, its name as well
//	sealed     4 bytes: 1 once everything in it is durable, and nothing will be added
//	checksum   4 bytes, CRC-32C of the 16 bytes before
//	sections
//
// A segment in which nothing is referred to any more is written over, or removed; what is left in one
// that holds little is written to another (rewrite.go). See DESIGN.md for the order of syncs.
const (
	segmentsFolder = "segments"
	segmentSuffix  = ".seg"
	segmentMagic   = "qrsegm1\n"
	segmentHead    = len(segmentMagic) + 4 + 4 + 4
	// segmentFrom is the size from which a payload section goes to a segment. Smaller ones cost less as
	// a record in Pebble than as a write of their own.
	segmentFrom = 32 << 10
	// segmentBytes is how long a segment gets, unless a single section is longer.
	segmentBytes = 64 << 20
	// spareSegments is how many dead segments wait to be written over, which costs less than new blocks.
	spareSegments = 4
)

// errGone says that a segment is not there any more, or never was.
var errGone = errors.New("no such segment")

// extent is where in a segment a payload section lies.
type extent struct {
	segment uint32 // 0: in none, but in Pebble
	offset  uint32
}

// seal ends a payload section with this checksum, see sum, in a segment: a CRC-32C of it and of the place. So what
// is left of a section in a file that is written over is not taken for the one that should be there.
func (e extent) seal(check uint32) [sealSize]byte {
	var b [3 * 4]byte
	binary.BigEndian.PutUint32(b[:], check)
	binary.BigEndian.PutUint32(b[4:], e.segment)
	binary.BigEndian.PutUint32(b[8:], e.offset)
	var seal [sealSize]byte
	binary.BigEndian.PutUint32(seal[:], crc32.Checksum(b[:], castagnoli))
	return seal
}

// span is an extent, and the size of the payload section in it.
type span struct {
	extent
	size uint32
}

func (s span) bytes() int64 { return int64(s.size) + sealSize }

// segment is a file.
//
//	live is the sum over the records that refer to it
type segment struct {
	number  uint32
	file    vfs.File // nil: it is closed, nothing is added
	length  int64
	live    int64
	readers int
	waiting map[uint32][]byte // payload sections by offset: they are to be written
	sealed  bool              // nobody needs to look whether what it should hold is there
	old     bool              // groups may refer to it that were not loaded since Open
	emptied uint64            // writes that had begun when live became 0
}

// waitingSection is a payload section that is to be written.
type waitingSection struct {
	seg     *segment
	at      extent
	section []byte
	check   uint32
}

// writes numbers the writes to Pebble that are synced, as they begin. ended is the last one that is
// durable, and with it whatever was committed before it began.
type writes struct{ begun, ended atomic.Uint64 }

func (w *writes) begin() (number uint64) { return w.begun.Add(1) }

func (w *writes) end(number uint64) {
	for ended := w.ended.Load(); ended < number && !w.ended.CompareAndSwap(ended, number); ended = w.ended.Load() {
	}
}

// segments are those of a store.
type segments struct {
	fs   vfs.FS
	dir  string
	log  *slog.Logger
	fail func(why string, attrs ...any) // does not return

	on    atomic.Bool
	from  int
	bytes int64

	// Bytes that were appended, and how many of these are durable.
	appended, synced atomic.Int64
	writes           writes

	syncing sync.Mutex // who syncs; it comes before mu

	mu     sync.Mutex
	all    map[uint32]*segment
	files  supply
	active *segment   // sections are added to it; nil: none was begun
	full   []*segment // to be sealed
	queue  []waitingSection
	unread map[fsm.GroupID]struct{} // groups that have something in segments, and have not said what
	// counted are groups that were not read, and what is theirs is counted all the same: in which segments it is.
	counted map[fsm.GroupID][]uint32
}

func newSegments(o Options, log *slog.Logger, fail func(string, ...any)) *segments {
	s := &segments{log: log, fail: fail, from: segmentFrom, bytes: segmentBytes, all: map[uint32]*segment{}}
	s.files.made.L = &s.mu
	if o.segmentFrom > 0 {
		s.from, s.bytes = o.segmentFrom, o.segmentBytes
		s.on.Store(true)
	}
	return s
}

// takes reports whether a payload section goes to a segment.
func (s *segments) takes(size int) bool { return size >= s.from && s.on.Load() }

func (s *segments) name(number uint32) string {
	return s.fs.PathJoin(s.dir, fmt.Sprintf("%010d%s", number, segmentSuffix))
}

func (s *segments) must(doing string, err error) {
	if err != nil {
		s.fail("durable write failed", "doing", doing, "error", err)
	}
}

// open finds the segments that there are in the folder of a store. groups lists the groups that may refer
// to them.
func (s *segments) open(fs vfs.FS, dir string, groups func() []fsm.GroupID) error {
	s.fs, s.dir = fs, fs.PathJoin(dir, segmentsFolder)
	names, err := fs.List(s.dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, name := range names {
		digits, ok := strings.CutSuffix(name, segmentSuffix)
		number, err := strconv.ParseUint(digits, 10, 32)
		if !ok || err != nil || number == 0 {
			continue
		}
		if err := s.find(uint32(number)); err != nil {
			return fmt.Errorf("segment %s: %w", name, err)
		}
	}
	if len(s.all) > 0 {
		s.unread, s.counted = map[fsm.GroupID]struct{}{}, map[fsm.GroupID][]uint32{}
		for _, id := range groups() {
			s.unread[id] = struct{}{}
		}
		s.accounted()
	}
	return nil
}

// find takes up a segment that is there. What the operating system has of it may not be on disk yet: who
// finds it there relies on it.
func (s *segments) find(number uint32) error {
	f, err := s.fs.OpenReadWrite(s.name(number), vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	defer f.Close()
	seg := &segment{number: number, old: true}
	head := make([]byte, segmentHead)
	if _, err := f.ReadAt(head, 0); err == nil {
		seg.sealed = isSealed(head, number)
	} else if !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return err
	}
	if !seg.sealed {
		if err := f.Sync(); err != nil {
			return err
		}
	}
	info, err := f.Stat()
	if err != nil {
		return err
	}
	seg.length = info.Size()
	s.all[number] = seg
	s.files.last = max(s.files.last, number)
	return nil
}

func appendSegmentHead(b []byte, number uint32, sealed bool) []byte {
	at := len(b)
	b = binary.BigEndian.AppendUint32(append(b, segmentMagic...), number)
	b = binary.BigEndian.AppendUint32(b, uint32(bit(sealed)))
	return binary.BigEndian.AppendUint32(b, crc32.Checksum(b[at:], castagnoli))
}

func isSealed(head []byte, number uint32) bool {
	return string(head) == string(appendSegmentHead(nil, number, true))
}

// append adds a payload section, whose record would lie at key, to a segment, and returns the checksum that this record
// would end with. The section is written, and durable, after
// sync: who appends waits for no disk, unless segments fill faster than new ones are made.
func (s *segments) append(key, section []byte) (e extent, check uint32) {
	check = sum(key, section)
	n := span{size: uint32(len(section))}.bytes()
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.active == nil || s.active.length > int64(segmentHead) && s.active.length+n > s.bytes {
		if next := s.takeNext(); next != nil {
			s.begin(next)
		}
	}
	a := s.active
	e = extent{a.number, uint32(a.length)}
	a.waiting[e.offset] = section
	s.queue = append(s.queue, waitingSection{a, e, section, check})
	a.length += n
	a.live += n
	s.appended.Add(n)
	if a.length >= s.bytes/2 {
		s.makeNext()
	}
	return e, check
}

// begin has sections added to a segment from now on. The caller holds mu.
func (s *segments) begin(next *segment) {
	if s.active != nil {
		s.full = append(s.full, s.active)
	}
	s.active = next
	s.all[next.number] = next
}

// sync returns when all sections are durable that were appended before.
func (s *segments) sync() { s.syncTo(s.appended.Load()) }

// syncTo returns when the first bytes that were appended are durable, so many of them.
func (s *segments) syncTo(bytes int64) {
	if s.synced.Load() >= bytes {
		return
	}
	s.syncing.Lock()
	defer s.syncing.Unlock()
	if s.synced.Load() >= bytes {
		return
	}
	s.flush()
}

// flush writes what waits, seals what is full, and syncs the rest. The caller holds syncing.
func (s *segments) flush() {
	s.mu.Lock()
	to, active, full, queue := s.appended.Load(), s.active, s.full, s.queue
	s.full, s.queue = nil, nil
	s.mu.Unlock()
	s.write(queue)
	for _, seg := range full {
		s.seal(seg)
	}
	if active != nil {
		s.must("sync a segment", active.file.SyncData())
	}
	s.synced.Store(to)
}

// write writes payload sections. The caller holds syncing.
func (s *segments) write(queue []waitingSection) {
	for _, w := range queue {
		_, err := w.seg.file.WriteAt(w.section, int64(w.at.offset))
		s.must("write to a segment", err)
		seal := w.at.seal(w.check)
		_, err = w.seg.file.WriteAt(seal[:], int64(w.at.offset)+int64(len(w.section)))
		s.must("write to a segment", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, w := range queue {
		delete(w.seg.waiting, w.at.offset)
	}
}

// seal closes a segment to which nothing is added any more. That it is sealed need not be durable. The
// caller holds syncing.
func (s *segments) seal(seg *segment) {
	s.must("sync a segment", seg.file.SyncData())
	_, err := seg.file.WriteAt(appendSegmentHead(nil, seg.number, true), 0)
	s.must("seal a segment", err)
	s.must("seal a segment", seg.file.Close())
	s.mu.Lock()
	defer s.mu.Unlock()
	seg.file, seg.sealed = nil, true
}

// close seals what is open.
func (s *segments) close() {
	s.syncing.Lock()
	defer s.syncing.Unlock()
	s.mu.Lock()
	if s.active != nil {
		s.full = append(s.full, s.active)
	}
	s.active = nil
	s.mu.Unlock()
	s.flush()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dropNext()
}

// retire seals the segment that sections are added to, if at least half of it is dead.
func (s *segments) retire() {
	s.mu.Lock()
	sparse := s.active != nil && 2*s.active.live <= s.active.length
	s.mu.Unlock()
	if sparse {
		s.close()
	}
}

// retain keeps the segments of spans from being written over until done is called. Those that are gone
// already are not there.
func (s *segments) retain(spans []span) (done func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	retained := map[*segment]bool{}
	for _, sp := range spans {
		if seg := s.all[sp.segment]; seg != nil && !retained[seg] {
			retained[seg] = true
			seg.readers++
		}
	}
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		for seg := range retained {
			seg.readers--
		}
	}
}

// read returns the payload section in a span, which is not to be changed, and which is what was written for a record at key. The error
// is errGone if the segment is not there: the section was released, or is elsewhere by now.
func (s *segments) read(sp span, key []byte) ([]byte, error) {
	s.mu.Lock()
	seg := s.all[sp.segment]
	if seg == nil {
		s.mu.Unlock()
		return nil, errGone
	}
	if section, ok := seg.waiting[sp.offset]; ok {
		s.mu.Unlock()
		return section, nil
	}
	seg.readers++
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		seg.readers--
	}()
	f, err := s.fs.Open(s.name(sp.segment))
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("%w: %w", errShort, err)
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b := make([]byte, sp.bytes())
	if n, err := f.ReadAt(b, int64(sp.offset)); n < len(b) {
		if err == nil || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			err = fmt.Errorf("%w: segment %d ends", errShort, sp.segment)
		}
		return nil, err
	}
	section := b[:sp.size:sp.size]
	if sp.seal(sum(key, section)) != [sealSize]byte(b[sp.size:]) {
		return nil, errChecksum
	}
	return section, nil
}

// isSealed reports whether everything that was written to a segment is in it.
func (s *segments) isSealed(number uint32) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	seg := s.all[number]
	return seg != nil && seg.sealed
}

// loaded counts what a group refers to that was read from the store.
func (s *segments) loaded(id fsm.GroupID, spans []span) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, sp := range spans {
		if s.all[sp.segment] == nil {
			return fmt.Errorf("segment %d: %w", sp.segment, errShort)
		}
	}
	if _, is := s.counted[id]; is {
		delete(s.counted, id)
		return nil
	}
	for _, sp := range spans {
		s.all[sp.segment].live += sp.bytes()
	}
	s.account(id)
	return nil
}

// count is loaded for a group that is not read. It reports whether all of it is there.
func (s *segments) count(id fsm.GroupID, spans []span) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if slices.ContainsFunc(spans, func(sp span) bool { return s.all[sp.segment] == nil }) {
		return false
	}
	for _, sp := range spans {
		s.all[sp.segment].live += sp.bytes()
		if !slices.Contains(s.counted[id], sp.segment) {
			s.counted[id] = append(s.counted[id], sp.segment)
		}
	}
	s.account(id)
	return true
}

// countedIn lists groups that were not read and have something in one of these segments; nil: in any.
func (s *segments) countedIn(segments map[uint32]bool) (ids []fsm.GroupID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, in := range s.counted {
		if slices.ContainsFunc(in, func(number uint32) bool { return segments[number] }) {
			ids = append(ids, id)
		}
	}
	return ids
}

// isCounted reports whether a group that was not read has something in segments.
func (s *segments) isCounted(id fsm.GroupID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, is := s.counted[id]
	return is
}

// forgotten notes that the store has nothing of a group any more.
func (s *segments) forgotten(id fsm.GroupID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.account(id)
}

func (s *segments) account(id fsm.GroupID) {
	if len(s.unread) > 0 {
		delete(s.unread, id)
		s.accounted()
	}
}

// accounted lets go of the segments from before Open once all groups have said what they refer to.
func (s *segments) accounted() {
	if len(s.unread) > 0 {
		return
	}
	for _, seg := range s.all {
		if seg.old {
			seg.old, seg.emptied = false, s.writes.begun.Load()
		}
	}
}

// release notes that nothing refers to spans any more, by records that are committed.
func (s *segments) release(spans []span) {
	if len(spans) == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, sp := range spans {
		seg := s.all[sp.segment]
		if seg == nil {
			continue
		}
		if seg.live -= sp.bytes(); seg.live == 0 {
			seg.emptied = s.writes.begun.Load()
		}
	}
}

// collect makes spare files of the segments that nothing refers to, as a power failure would leave it. The
// caller holds mu.
func (s *segments) collect() {
	for number, seg := range s.all {
		if seg.live == 0 && seg.readers == 0 && seg.file == nil && !seg.old && seg.emptied < s.writes.ended.Load() {
			delete(s.all, number)
			s.files.spare = append(s.files.spare, s.name(number))
		}
	}
}

// giveBack removes what nothing refers to, but for so many spare files.
func (s *segments) giveBack(keep int) {
	s.mu.Lock()
	s.collect()
	var gone []string
	if spare := &s.files.spare; len(*spare) > keep {
		gone = slices.Clone((*spare)[keep:])
		*spare = (*spare)[:keep]
	}
	s.mu.Unlock()
	for _, name := range gone {
		if err := s.fs.Remove(name); err != nil { // it is looked at again at the next start
			s.log.Warn("segment not removed", slog.String("error", err.Error()))
		}
	}
}

// dying reports whether there are segments that nothing refers to.
func (s *segments) dying() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, seg := range s.all {
		if seg.live == 0 && seg.file == nil && !seg.old {
			return true
		}
	}
	return false
}

// usage is how much disk space segments take.
func (s *segments) usage() (bytes int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, seg := range s.all {
		bytes += seg.length
	}
	return bytes + s.files.bytes(s.bytes)
}

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

// supply has files for segments: those that are to be written over, and the next segment, which a goroutine
// makes before it is needed, since that takes two syncs. segments.mu guards it.
//
//	next ≠ nil ⇒ ¬making
type supply struct {
	last   uint32    // the highest number
	next   *segment  // it will be the active one; nil: there is none yet
	spare  []string  // files that are to be written over
	making bool      // a goroutine makes the next one
	made   sync.Cond // signalled when it has
}

// bytes is how much disk space there is in it.
func (s *supply) bytes(each int64) int64 {
	n := int64(len(s.spare))
	if s.next != nil {
		n++
	}
	return n * each
}

// makeNext makes the next segment, unless there is one, or is about to be. The caller holds mu.
func (s *segments) makeNext() {
	if s.files.next != nil || s.files.making {
		return
	}
	s.files.making = true
	number, over := s.plan()
	go func() { // close waits for it
		next := s.create(number, over)
		s.mu.Lock()
		defer s.mu.Unlock()
		s.files.next, s.files.making = next, false
		s.files.made.Broadcast()
	}()
}

// takeNext returns the next segment, or nil when one has been made, by then perhaps taken by another caller. While
// that lasts mu, which the caller holds, is free.
func (s *segments) takeNext() *segment {
	next := s.files.next
	if next == nil {
		s.makeNext()
		s.files.made.Wait()
		return nil
	}
	s.files.next = nil
	return next
}

// dropNext makes a spare file of the next segment. The caller holds mu, which is free while it is being made.
func (s *segments) dropNext() {
	for s.files.making {
		s.files.made.Wait()
	}
	if next := s.files.next; next != nil {
		s.files.next = nil
		s.must("close a segment", next.file.Close())
		s.files.spare = append(s.files.spare, s.name(next.number))
	}
}

// plan chooses the number of another segment, and a file to write over; "": there is none. The caller holds
// mu.
func (s *segments) plan() (number uint32, over string) {
	s.collect()
	f := &s.files
	if n := len(f.spare); n > 0 {
		over = f.spare[n-1]
		f.spare = f.spare[:n-1]
	}
	f.last++
	return f.last, over
}

// create makes a segment, whose name is durable before anything refers to it.
func (s *segments) create(number uint32, over string) *segment {
	name := s.name(number)
	if over != "" {
		s.must("begin a segment", s.fs.Rename(over, name))
	} else if _, err := s.fs.Stat(s.dir); err != nil {
		s.must("make the folder of segments", s.fs.MkdirAll(s.dir, 0o700))
		s.must("make the folder of segments", s.syncDir(s.fs.PathDir(s.dir)))
	}
	// Written at offsets: vfs.File allows no other write to leave what it is given as it was.
	file, err := s.fs.OpenReadWrite(name, vfs.WriteCategoryUnspecified)
	s.must("begin a segment", err)
	_, err = file.WriteAt(appendSegmentHead(nil, number, false), 0)
	s.must("begin a segment", err)
	s.must("begin a segment", s.syncDir(s.dir))
	return &segment{number: number, file: file, length: int64(segmentHead), waiting: map[uint32][]byte{}}
}

func (s *segments) syncDir(dir string) error {
	d, err := s.fs.OpenDir(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
