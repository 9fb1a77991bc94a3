package raftlog

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/cockroachdb/pebble/v2"

	"github.com/quorate/quorate/fsm"
)

// DamagedError says that what lies on disk for a group is not what was
// written. The group must not vote, lead or serve until it was dropped and
// built anew.
type DamagedError struct {
	Group fsm.GroupID
	What  string // which record, and what is wrong with it
}

// Error names the group and the record.
func (e *DamagedError) Error() string {
	return fmt.Sprintf("group %d is damaged: %s", e.Group, e.What)
}

// isDamage tells wrong data from data that could not be read this time.
func isDamage(err error) bool {
	return errors.Is(err, errChecksum) || errors.Is(err, errShort) || pebble.IsCorruptionError(err)
}

// markDamaged makes every later Group(id) fail until the group is dropped,
// and returns the error that says so.
func (s *Store) markDamaged(id fsm.GroupID, what string) *DamagedError {
	e := &DamagedError{Group: id, What: what}
	b := s.db.NewBatch()
	s.setSealed(b, prefixOf(kindDamaged, id), []byte(what))
	s.commit(b, pebble.Sync)
	return e
}

// readFailed ends the process because a record that must be there could not
// be read or is wrong. A group whose data is wrong stays out of service after
// the restart.
func (s *Store) readFailed(id fsm.GroupID, what string, err error) {
	if !isDamage(err) {
		s.fatal("durable state cannot be read", "group", id, "record", what, "error", err)
	}
	e := s.markDamaged(id, what+": "+err.Error())
	s.fatal("durable state is damaged; the group stays out of service until its replica is replaced", "group", id, "error", e)
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
