package raftlog

import (
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"github.com/quorate/quorate/fsm"
)

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
