package raftlog

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
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
	mu       sync.Mutex
	number   uint64
	numbered bool
	gone     bool // the group was dropped: nothing is written any more
	seq      uint64
	record   record
	end      uint64 // of the log, whether or not the record says so; and its term
	endTerm  uint64
	buf      [slotCopy]byte
}

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
