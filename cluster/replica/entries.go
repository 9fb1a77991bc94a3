package replica

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/hashicorp/raft"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/quorate/quorate/cluster/raftlog"
)

// entryCheck says what a replica takes from other nodes, see peer.Validator.
type entryCheck struct {
	stored uint64                    // term before raft has been opened
	raft   atomic.Pointer[raft.Raft] // nil: it is being opened
	newest uint32                    // version that this program supports
	admits func(l *raft.Log, newest uint32) error
	fail   func(code int, why string)
	tooOld sync.Once // the process ends
}

// newEntryCheck takes up the term that the store holds.
func newEntryCheck(store raft.StableStore, o *Opening) *entryCheck {
	term, err := store.GetUint64([]byte(raftlog.TermKey))
	if err != nil {
		term = 0 // there is none yet
	}
	return &entryCheck{stored: term, newest: o.Newest, admits: o.Admits, fail: o.Fail}
}

// Term implements peer.Validator.
func (c *entryCheck) Term() uint64 {
	if r := c.raft.Load(); r != nil {
		return r.CurrentTerm()
	}
	return c.stored
}

// Stands implements peer.Validator.
func (c *entryCheck) Stands() bool {
	r := c.raft.Load()
	return r != nil && r.State() == raft.Candidate
}

// Entry implements peer.Validator. A committed entry of a version that this program does not support
// ends the process: no later leader takes the entry back, and without it the replica neither gets
// further nor learns what is committed before it.
func (c *entryCheck) Entry(l *raft.Log, committed bool) error {
	err := c.admits(l, c.newest)
	if later := new(LaterVersion); committed && errors.As(err, &later) {
		c.tooOld.Do(func() { go c.fail(CodeTooOld, NeedsNewer(later.Version, later.Newest)) })
	}
	return err
}

// LaterVersion refuses an entry that this program is too old for.
type LaterVersion struct{ Version, Newest uint32 }

func (e *LaterVersion) Error() string {
	return fmt.Sprintf("an entry has version %d, but this program supports only up to %d", e.Version, e.Newest)
}

// NeedsNewer says why a program ends that the cluster's version is too new for.
func NeedsNewer(version, newest uint32) string {
	return fmt.Sprintf("the cluster's fsm_version is %d, but this program supports only up to %d", version, newest)
}

// ErrMany refuses a message that would be many times as long when decoded.
var ErrMany = errors.New("more commands than an entry may have")

// Few reports whether a message has at most so many fields: an empty command of
// a list takes two bytes, and a hundred when it is decoded.
func Few(message []byte, limit int) bool {
	for n := 0; len(message) > 0; n++ {
		if n >= limit {
			return false
		}
		tag, head := protowire.ConsumeVarint(message)
		if head < 0 {
			return true // the decoder says why not
		}
		value, size := protowire.ConsumeVarint(message[head:])
		if size < 0 || tag&7 != 0 && tag&7 != 2 {
			return true
		}
		message = message[head+size:]
		if tag&7 == 2 {
			if value > uint64(len(message)) {
				return true
			}
			message = message[value:]
		}
	}
	return true
}

// Exit codes of a node that must not continue.
const (
	CodeDamaged = 75 // what is on disk cannot be understood
	CodeTooOld  = 76 // an entry needs a newer version
)
