package raftlog

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/sstable"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/quorate/quorate/fsm"
)

// asideSuffix is how the folder of a store that cannot be opened is renamed.
// There is one such folder: the next takes its place.
const asideSuffix = ".damaged-1"

var errHopeless = errors.New("damage was found outside of its tables, or repeatedly")

// openPebble opens Pebble's store in dir, under its lock. What cannot be opened,
// or was found not to be worth it, is put aside, and lost says why: an empty
// store takes its place.
func (s *Store) openPebble(fs vfs.FS, dir string, o Options) (lost string, err error) {
	if s.ledger.head.hopeless {
		lost = "damaged beyond its tables"
		if err := s.putAside(fs, dir, lost); err != nil {
			return "", err
		}
	}
	for {
		po := s.pebbleOptions(o)
		s.logs = newOldLogs(po.FS)
		po.FS = s.logs
		// A compaction must not come across what heal is about to cut out.
		s.healing.Store(s.suspects())
		po.DisableAutomaticCompactions = s.healing.Load()
		err = s.checkManifest(fs, dir)
		if err == nil {
			s.db, err = openGuarded(dir, po, s.lock)
		}
		switch {
		case err == nil:
			return lost, nil
		case lost != "" || !isStoreDamage(err):
			return "", err
		}
		lost = err.Error()
		if err := s.putAside(fs, dir, lost); err != nil {
			return "", err
		}
	}
}

// openGuarded is pebble.Open, with an error in place of a panic.
func openGuarded(dir string, po *pebble.Options, lock *pebble.Lock) (db *pebble.DB, err error) {
	defer func() {
		if p := recover(); p != nil {
			db, err = nil, fmt.Errorf("panic: %v", p)
		}
	}()
	po.Lock = lock
	return pebble.Open(dir, po)
}

// isStoreDamage tells a store that is not what was written from one that
// cannot be opened here and now, or by this program.
func isStoreDamage(err error) bool {
	for _, e := range []error{
		syscall.EACCES, syscall.EPERM, syscall.EROFS, syscall.ENOSPC, syscall.EDQUOT, syscall.EIO,
		syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM, syscall.EAGAIN, syscall.EBUSY, syscall.ESTALE,
	} {
		if errors.Is(err, e) {
			return false
		}
	}
	return !strings.Contains(err.Error(), "format major version")
}

// putAside renames the store's folder, and makes an empty one, under its lock.
func (s *Store) putAside(fs vfs.FS, dir, why string) error {
	aside := dir + asideSuffix
	s.log.Error("the log store is unusable: it was moved aside and replaced by an empty one",
		slog.String("aside", aside), slog.String("reason", why))
	err := errors.Join(s.lock.Close(), fs.RemoveAll(aside), fs.Rename(dir, aside))
	if err == nil {
		err = s.lockDir(fs, dir)
	}
	if err != nil {
		return fmt.Errorf("put the damaged store aside: %w", err)
	}
	s.ledger.changeHead(func(h *ledgerHead) { h.hopeless, h.suspects, h.manifest = false, [maxSuspects]suspect{}, 0 })
	return nil
}

// lockDir makes the folder if there is none, and locks it.
func (s *Store) lockDir(fs vfs.FS, dir string) (err error) {
	if err := fs.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	s.lock, err = pebble.LockDirectory(dir, fs)
	return err
}

// suspected notes that a file of the store is damaged. The next start checks it.
func (s *Store) suspected(path string) {
	name, isTable := strings.CutSuffix(filepath.Base(path), ".sst")
	number, err := strconv.ParseUint(name, 10, 64)
	s.ledger.changeHead(func(h *ledgerHead) {
		if !isTable || err != nil || !h.suspect(number) {
			h.hopeless = true
		}
	})
}

// suspects reports whether a file is known to be damaged that was not checked
// yet.
func (s *Store) suspects() bool {
	h := s.ledger.getHead()
	return h.hopeless || slices.ContainsFunc(h.suspects[:], func(x suspect) bool { return x.pending })
}

// heal takes damaged parts out of the store: groups whose records may lie
// there are condemned, and every key range that a damaged part may hold is cut
// out of all tables, so that no read and no compaction comes across it again.
// No group may be loaded.
func (s *Store) heal(fs vfs.FS, dir string) error {
	if s.ledger.getHead().hopeless {
		return errHopeless
	}
	levels, err := s.db.SSTables()
	if err != nil {
		return fmt.Errorf("list tables: %w", err)
	}
	live := map[uint64]bool{}
	var cuts []pebble.KeyRange
	var others []pebble.SSTableInfo
	h := s.ledger.getHead()
	for _, t := range slices.Concat(levels...) {
		number := uint64(t.BackingSSTNum)
		live[number] = true
		at := slices.IndexFunc(h.suspects[:], func(x suspect) bool { return x.number == number && x.pending })
		if at < 0 {
			others = append(others, t)
			continue
		}
		low, high := t.Smallest.UserKey, t.Largest.UserKey
		if h.suspects[at].times == 1 {
			low, high, _ = s.narrow(fs, dir, number, low, high)
		}
		cuts = append(cuts, cutOf(low, high))
	}
	cuts = s.withDamageBeside(fs, dir, cuts, others)
	s.condemnWithin(cuts)
	for _, c := range cuts {
		if err := s.db.Excise(context.Background(), c); err != nil {
			return fmt.Errorf("cut a damaged part out: %w", err)
		}
		if bytes.Compare(c.Start, stampKey) <= 0 {
			s.writeStamp(stamp{h.identity, h.boot})
		}
	}
	s.ledger.changeHead(func(now *ledgerHead) {
		for i := range now.suspects {
			if x := &now.suspects[i]; !live[x.number] {
				*x = suspect{}
			} else if h.suspects[i].pending { // not one that was found meanwhile
				x.pending = false
			}
		}
	})
	return nil
}

// withDamageBeside adds to the cuts what is damaged in tables that they reach into, and returns them in order, without
// overlaps. Excise looks there for the keys next to a cut, and takes a block that it cannot read for the end of the
// table: what else is in that would be gone, and no group condemned.
func (s *Store) withDamageBeside(fs vfs.FS, dir string, cuts []pebble.KeyRange, tables []pebble.SSTableInfo) []pebble.KeyRange {
	for i := 0; i < len(cuts); i++ {
		tables = slices.DeleteFunc(tables, func(t pebble.SSTableInfo) bool {
			low, high := t.Smallest.UserKey, t.Largest.UserKey
			if bytes.Compare(high, cuts[i].Start) < 0 || bytes.Compare(low, cuts[i].End) >= 0 {
				return false
			}
			if low, high, found := s.narrow(fs, dir, uint64(t.BackingSSTNum), low, high); found {
				cuts = append(cuts, cutOf(low, high))
			}
			return true
		})
	}
	slices.SortFunc(cuts, func(a, b pebble.KeyRange) int { return bytes.Compare(a.Start, b.Start) })
	var joined []pebble.KeyRange
	for _, c := range cuts {
		if n := len(joined); n > 0 && bytes.Compare(c.Start, joined[n-1].End) <= 0 {
			joined[n-1].End = slices.MaxFunc([][]byte{joined[n-1].End, c.End}, bytes.Compare)
			continue
		}
		joined = append(joined, c)
	}
	return joined
}

// cutOf is what is cut out where keys between these may be damaged.
func cutOf(low, high []byte) pebble.KeyRange {
	return pebble.KeyRange{Start: aligned(low), End: prefixEnd(aligned(high))}
}

// aligned shortens a key to its kind and group.
func aligned(key []byte) []byte { return key[:min(len(key), groupKeySize)] }

// condemnWithin condemns all groups that have keys within a range.
func (s *Store) condemnWithin(cuts []pebble.KeyRange) {
	n := 0
	for _, id := range s.ledger.groups() {
		if slices.ContainsFunc(cuts, func(c pebble.KeyRange) bool { return touches(c, id) }) {
			s.condemn(s.ledger.place(id), "a table of the log store")
			n++
		}
	}
	s.log.Error("damaged tables are removed from the log store", slog.Int("ranges", len(cuts)), slog.Int("groups", n))
}

func touches(c pebble.KeyRange, id fsm.GroupID) bool {
	return slices.ContainsFunc(kinds, func(k kind) bool {
		p := prefixOf(k, id)
		return bytes.Compare(p, c.Start) >= 0 && bytes.Compare(p, c.End) < 0
	})
}

// narrow returns the keys on both sides of what is damaged in a table, within its
// bounds: those that were read last, forwards and backwards. If nothing is found, or
// there is no reading it, they are the bounds. found: it is not whole.
func (s *Store) narrow(fs vfs.FS, dir string, number uint64, low, high []byte) (lower, upper []byte, found bool) {
	f, err := fs.Open(fs.PathJoin(dir, fmt.Sprintf("%06d.sst", number)))
	if err != nil {
		return low, high, true
	}
	file, err := sstable.NewSimpleReadable(f)
	if err != nil {
		f.Close()
		return low, high, true
	}
	po := s.pebbleOptions(Options{FS: fs, MemTableBytes: DefaultMemTableBytes})
	po.EnsureDefaults()
	r, err := sstable.NewReader(context.Background(), file, po.MakeReaderOptions())
	if err != nil {
		file.Close()
		return low, high, true
	}
	defer r.Close()
	it, err := r.NewIter(sstable.NoTransforms, nil, nil, sstable.AssertNoBlobHandles)
	if err != nil {
		return low, high, true
	}
	defer it.Close()
	lower, upper = low, high
	for kv := it.SeekGE(low, 0); kv != nil && bytes.Compare(kv.K.UserKey, high) <= 0; kv = it.Next() {
		if _, _, err := kv.Value(nil); err != nil {
			found = true
			break
		}
		lower = append(lower[:0:0], kv.K.UserKey...)
	}
	if it.Error() == nil && !found {
		return low, high, false
	}
	for kv := it.SeekLT(append(slices.Clone(high), 0), 0); kv != nil && bytes.Compare(kv.K.UserKey, low) >= 0; kv = it.Prev() {
		if _, _, err := kv.Value(nil); err != nil {
			break
		}
		upper = append(upper[:0:0], kv.K.UserKey...)
	}
	return lower, upper, true
}

// isDamage tells wrong data from data that could not be read this time.
func isDamage(err error) bool {
	return isRecordDamage(err) || pebble.IsCorruptionError(err)
}

// isRecordDamage tells a wrong record from a file that is damaged: of that,
// nobody knows how much.
func isRecordDamage(err error) bool {
	return (errors.Is(err, errChecksum) || errors.Is(err, errShort)) && !pebble.IsCorruptionError(err)
}

// condemn puts a group in doubt whose data on disk is not what was written. It
// is deleted before the group is loaded the next time.
func (s *Store) condemn(p *place, what string) {
	s.log.Error("a replica is damaged: a leader must rebuild it", slog.Any("group", p.id), slog.String("damage", what))
	p.change(func(r *record) { r.doubt, r.wipe = fmt.Sprintf(doubtDamaged, what), true })
	s.ledger.sync()
}

// wipe deletes what the store has of a condemned group.
func (s *Store) wipe(p *place) {
	s.deleteGroup(p.id)
	p.change(func(r *record) { r.wipe = false })
	s.ledger.sync()
}

// deleteGroup deletes all records of a group, durably.
func (s *Store) deleteGroup(id fsm.GroupID) {
	b := s.db.NewBatch()
	for _, k := range kinds {
		p := prefixOf(k, id)
		s.deleteRange(b, p, prefixEnd(p))
	}
	s.remove(b, prefixOf(kindAsleep, id))
	s.commit(b, pebble.Sync)
}

const (
	// descriptorPause is how long a read waits that has found no file descriptor, and descriptorWait
	// for how long reads may find none before the process ends.
	descriptorPause = 100 * time.Millisecond
	descriptorWait  = 30 * time.Second
)

// dearth is a time in which reads have found no file descriptors.
type dearth struct {
	mu          sync.Mutex
	since, last time.Time
}

// lasts notes that a read has found none, and returns for how long that has been so.
func (d *dearth) lasts(now time.Time) time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	if now.Sub(d.last) > 10*descriptorPause {
		d.since = now
	}
	d.last = now
	return now.Sub(d.since)
}

// awaitDescriptors pauses after an error that says that there was no file descriptor: others give
// theirs back. It returns false for other errors, and if there has been none for too long.
func (s *Store) awaitDescriptors(err error) bool {
	if !errors.Is(err, syscall.EMFILE) && !errors.Is(err, syscall.ENFILE) {
		return false
	}
	lasts := s.dearth.lasts(time.Now())
	if lasts > descriptorWait {
		return false
	}
	if lasts == 0 {
		s.log.Error("out of file descriptors: reads wait", slog.String("error", err.Error()))
	}
	time.Sleep(descriptorPause)
	return true
}

// readFailed ends the process because a record that must be there could not
// be read or is wrong. If it returns, that has to be tried again. If it is wrong, the next start makes the group empty; if
// a file is, the next start finds out which groups it concerns.
func (s *Store) readFailed(id fsm.GroupID, what string, err error) {
	switch {
	case isRecordDamage(err) || pebble.IsCorruptionError(err) && !s.suspects():
		s.condemn(s.ledger.place(id), what+": "+err.Error())
		s.end("durable state is damaged: the replica will be rebuilt", "group", id, "record", what, "error", err)
	case pebble.IsCorruptionError(err):
		s.end("a file of the log store is damaged and will be checked at the next start", "group", id, "record", what, "error", err)
	case s.awaitDescriptors(err):
	default:
		s.end("durable state cannot be read", "group", id, "record", what, "error", err)
	}
}

// getSealed returns a copy of the value at key without its checksum. The
// error is errNoKey if nothing is there.
func getSealed(r pebble.Reader, key []byte) ([]byte, error) {
	v, closer, err := r.Get(key)
	if errors.Is(err, pebble.ErrNotFound) {
		return nil, errNoKey
	}
	if err != nil {
		return nil, err
	}
	defer closer.Close()
	v, err = unseal(key, v)
	if err != nil {
		return nil, err
	}
	return slices.Clone(v), nil
}

func groupOf(key []byte) fsm.GroupID { return fsm.GroupID(binary.BigEndian.Uint32(key[1:])) }
