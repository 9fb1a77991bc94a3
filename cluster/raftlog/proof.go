package raftlog

import (
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"os"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// Why a group is in doubt, as operators read it.
const (
	doubtLostStore   = "the log store was missing or empty"
	doubtUnusable    = "the log store could not be opened and was put aside: %s"
	doubtOtherStore  = "the log store is not the one that its ledger belongs to"
	doubtLostLedger  = "the ledger beside the log store was missing"
	doubtBadLedger   = "the ledger beside the log store cannot be read"
	doubtOldLedger   = "the ledger is older than the log store"
	doubtBadStamp    = "the log store does not say which ledger it belongs to"
	doubtNoSlot      = "the ledger has no readable record of it"
	doubtShort       = "the log ends at entry %d, but entry %d was acknowledged"
	doubtOtherTerm   = "entry %d is of term %d, but was acknowledged in term %d"
	doubtDamaged     = "damaged on disk: %s"
	ledgerNamePrefix = "ledger-"
)

// stamp is what a store says about itself: the same as its ledger's head.
type stamp struct {
	identity identity
	boot     uint64
}

var stampKey = []byte{byte(kindStamp)}

func (s *Store) readStamp() (st stamp, err error) {
	v, err := getSealed(s.db, stampKey)
	if err != nil {
		return st, err
	}
	if len(v) != len(st.identity)+8 {
		return st, errShort
	}
	copy(st.identity[:], v)
	st.boot = binary.BigEndian.Uint64(v[len(st.identity):])
	return st, nil
}

func (s *Store) writeStamp(st stamp) {
	b := s.db.NewBatch()
	s.setSealed(b, stampKey, binary.BigEndian.AppendUint64(st.identity[:], st.boot))
	s.commit(b, pebble.Sync)
}

// LedgerPath is where the ledger of the store in dir lies.
func LedgerPath(dir string) string { return ledgerPath(vfs.Default, dir) }

// ledgerPath is where the ledger of the store in dir lies: beside it, so that
// who loses the one still has the other.
func ledgerPath(fs vfs.FS, dir string) string {
	return fs.PathJoin(fs.PathDir(dir), ledgerNamePrefix+fs.PathBase(dir))
}

// healAttempts bounds how often in a row damage is found while a store is opened.
const healAttempts = 4

// openLedger opens the ledger, and reports whether there was one.
func (s *Store) openLedger(fs vfs.FS, path string) (found bool, err error) {
	s.ledger, err = openLedger(fs, path, s.log, s.fatal)
	found = err == nil
	if errors.Is(err, os.ErrNotExist) {
		s.ledger, err = createLedger(fs, path, s.log, s.fatal)
	}
	if err == nil {
		s.ledger.start()
	}
	return found, err
}

// prove finds out whether ledger and store belong together. If not, all groups
// of both are in doubt from now on. found says whether there was a ledger, lost
// why a store was put aside, unread why there is no stamp.
func (s *Store) prove(found bool, lost string, st stamp, unread error) error {
	blank := errors.Is(unread, errNoKey)
	if unread != nil && !blank && !isDamage(unread) {
		return fmt.Errorf("stamp: %w", unread)
	}
	head := s.ledger.getHead()
	// A ledger without a head and without slots was made by an opening that got no further.
	begun := head.founding || head.identity == (identity{}) && len(s.ledger.groups()) == 0
	fresh := blank && lost == "" && (!found || begun)
	why := ""
	if lost != "" {
		why = fmt.Sprintf(doubtUnusable, lost)
	} else if !fresh && !(head.founding && st.identity == head.identity) {
		why = s.mismatch(found, head, st, unread)
	}
	if fresh {
		s.trust()
	} else if why != "" {
		s.doubtAll(why)
	}
	s.ledger.changeHead(func(h *ledgerHead) {
		if h.identity == (identity{}) {
			h.identity = newIdentity()
		}
		h.boot, h.founding = max(h.boot, st.boot)+1, fresh
	})
	head = s.ledger.getHead()
	s.writeStamp(stamp{head.identity, head.boot})
	if fresh {
		s.ledger.changeHead(func(h *ledgerHead) { h.founding = false })
	}
	return nil
}

// mismatch compares the head of a ledger with the stamp of a store, and says
// why groups of either are in doubt, if they are. A store that was opened less
// often than its ledger says is an older copy of itself, or lost its last
// records: the groups that miss something have other records in the ledger
// than in the store, and the others are whole.
func (s *Store) mismatch(found bool, head ledgerHead, st stamp, unread error) string {
	switch {
	case !found:
		return doubtLostLedger
	case head.identity == identity{}:
		return doubtBadLedger
	case errors.Is(unread, errNoKey) && len(s.storedGroups()) == 0:
		return doubtLostStore
	case unread != nil:
		return doubtBadStamp
	case st.identity != head.identity:
		return doubtOtherStore
	case st.boot > head.boot:
		return doubtOldLedger
	}
	return ""
}

// trust takes the groups of a store that has no ledger yet at their word.
func (s *Store) trust() {
	s.ledger.changeHead(func(h *ledgerHead) {
		if h.identity == (identity{}) {
			h.identity = newIdentity()
		}
		h.founding = true
	})
	for _, id := range s.storedGroups() {
		s.ledger.place(id).change(func(*record) {})
	}
	s.ledger.sync()
}

// doubtAll puts all groups of the ledger, and those that are in the store, in
// doubt.
func (s *Store) doubtAll(why string) {
	for _, id := range s.storedGroups() {
		s.ledger.place(id)
	}
	all := s.ledger.all()
	for _, p := range all {
		p.change(func(r *record) { r.doubt = why })
	}
	s.ledger.sync()
	if len(all) > 0 {
		s.log.Error("replicas cannot prove what they acknowledged: leaders must bring them up to date",
			slog.Int("groups", len(all)), slog.String("reason", why))
	}
}

// checkAcknowledged compares a group, as it was read from the store, with its record in
// the ledger. What the store lacks of term and vote it gets back. What it has
// in addition is noted.
func (g *Group) checkAcknowledged(termAt func(index uint64) (uint64, error)) error {
	last, lastTerm := g.end()
	r := g.place.get()
	why := ""
	switch {
	case !g.place.known():
		switch {
		case last == 0 && len(g.stable.values) == 0: // a new group
			g.place.readNothing()
			return nil
		case last > 1 || g.snapshot.index() > 0:
			why = doubtNoSlot
		default: // it was being founded
			g.place.claim()
		}
	case r.doubt != "":
	case r.index > last:
		why = fmt.Sprintf(doubtShort, last, r.index)
	case r.index > g.snapshot.index() && r.indexTerm != 0:
		term, err := termAt(r.index)
		if err != nil {
			return err
		}
		if term != r.indexTerm {
			why = fmt.Sprintf(doubtOtherTerm, r.index, term, r.indexTerm)
		}
	}
	if why != "" {
		g.s.log.Error("a replica cannot prove what it acknowledged: a leader must bring it up to date",
			slog.Any("group", g.id), slog.String("reason", why))
		g.place.change(func(r *record) { r.doubt = why })
		g.s.ledger.sync()
	}
	g.stable.reconcile(r)
	g.place.acknowledge(last, lastTerm)
	return nil
}

// Doubt says why the group may hold less than it has acknowledged, in words
// for an operator; empty: it can prove that it has everything. A replica in
// doubt must neither vote nor lead. The doubt stays, also over restarts, until
// Prove.
func (g *Group) Doubt() string { return g.place.get().doubt }

// Prove ends the doubt, durably. A leader has brought the log up to date: what
// it holds now counts as everything that was acknowledged.
func (g *Group) Prove() error {
	g.mu.Lock()
	dropped := g.dropped
	g.mu.Unlock()
	if dropped {
		return ErrDropped
	}
	g.awaitDurable()
	p := g.place
	p.change(func(r *record) { r.index, r.indexTerm, r.doubt = p.end.index, p.end.term, "" })
	g.s.ledger.sync()
	return nil
}

// end is the index and term of what the group ends with: its last entry, or
// the snapshot behind which there is none. The caller holds mu.
func (g *Group) end() (index, term uint64) {
	if last := g.entries.last(); last > g.snapshot.index() {
		return last, g.entries.lastTerm
	}
	if g.snapshot.meta == nil {
		return 0, 0
	}
	return g.snapshot.meta.index, g.snapshot.meta.term
}
