package group

import (
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/cluster/raftlog"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// Measure says how many commands there are in what another node has sent, and
// why they must not enter a log with these payloads.
func Measure(commands, payload []byte) (count int, err error) {
	count, rest, err := measureAll(commands, payload, true)
	if err == nil && len(rest) > 0 {
		err = fmt.Errorf("%d bytes of payload do not belong to any message", len(rest))
	}
	return count, err
}

// measureAll counts commands and gives them their payloads. They are decoded only where
// their bytes alone do not tell. strict: each payload is a message.
func measureAll(commands, payload []byte, strict bool) (count int, rest []byte, err error) {
	x := measure{payload: payload, strict: strict}
	if count = scan(commands, x.command); count < 0 {
		x = measure{payload: payload, strict: strict}
		if count, err = decodeAll(commands, x.command); err != nil {
			return 0, nil, err
		}
	}
	if x.err == nil && (count > maxCommands || len(commands) > MaxCommandBytes) {
		x.err = fmt.Errorf("%d commands of %d bytes are too many", count, len(commands))
	}
	return count, x.payload, x.err
}

// measure gives commands their payloads.
type measure struct {
	payload []byte // what is left
	strict  bool
	err     error
}

// command takes the payload of a command, and reports whether there was one, or
// need be none.
func (x *measure) command(enqueue bool, size uint64) bool {
	if !enqueue {
		return true
	}
	if size > uint64(len(x.payload)) || x.strict && !fsm.Payload(x.payload[:size]).Valid() {
		x.err = fmt.Errorf("a payload of %d bytes is not a message", size)
		return false
	}
	x.payload = x.payload[size:]
	return true
}

// decodeAll is scan for commands that have to be decoded.
func decodeAll(commands []byte, f func(enqueue bool, size uint64) bool) (count int, err error) {
	if !few(commands, maxCommands) {
		return 0, errMany
	}
	e := logpb.EntryFromVTPool()
	defer e.ReturnToVTPool()
	if err := e.UnmarshalVT(commands); err != nil {
		return 0, err
	}
	if e.Version != 0 || e.Now != 0 {
		return 0, fmt.Errorf("commands are stamped already, with version %d", e.Version)
	}
	for _, c := range e.Commands {
		if count++; !f(c.Kind == logpb.Command_ENQUEUE, uint64(c.Enqueue.GetSize())) {
			break
		}
	}
	return count, nil
}

// errMany refuses a message that would be many times as long when decoded.
var errMany = errors.New("more commands than an entry may have")

const (
	// maxCommands is above what an entry holds: the commands of two batches.
	maxCommands = 64 * maxEntryCommands
	// MaxCommandBytes bounds the commands of an entry: what a consumer that holds
	// millions of messages settles at once.
	MaxCommandBytes = 16 << 20
	// MaxCatalogEntry and maxCatalogCommands bound an entry of the catalog.
	MaxCatalogEntry    = 2 << 20
	maxCatalogCommands = 1 << 14
)

// few reports whether a message has at most so many fields: an empty command of
// a list takes two bytes, and a hundred when it is decoded.
func few(message []byte, limit int) bool {
	for n, at := 0, 0; at < len(message); n++ {
		tag, from := varint(message, at)
		value, end := uint64(0), -1
		if from >= 0 {
			value, end = varint(message, from)
		}
		switch {
		case n >= limit:
			return false
		case end < 0 || tag&7 != 0 && tag&7 != 2:
			return true // the decoder says why not
		case tag&7 == 2:
			if value > uint64(len(message)-end) {
				return true
			}
			end += int(value)
		}
		at = end
	}
	return true
}

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
func newEntryCheck(store raft.StableStore, o *opening) *entryCheck {
	term, err := store.GetUint64([]byte(raftlog.TermKey))
	if err != nil {
		term = 0 // there is none yet
	}
	return &entryCheck{stored: term, newest: o.newest, admits: o.admits, fail: o.fail}
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
	if later := new(laterVersion); committed && errors.As(err, &later) {
		c.tooOld.Do(func() { go c.fail(codeTooOld, needsNewer(later.version, later.newest)) })
	}
	return err
}

// laterVersion refuses an entry that this program is too old for.
type laterVersion struct{ version, newest uint32 }

func (e *laterVersion) Error() string {
	return fmt.Sprintf("an entry has version %d, but this program supports only up to %d", e.version, e.newest)
}

// needsNewer says why a program ends that the cluster's version is too new for.
func needsNewer(version, newest uint32) string {
	return fmt.Sprintf("the cluster's fsm_version is %d, but this program supports only up to %d", version, newest)
}

// admitEntry says why an entry that a leader has sent could not be applied: that
// is where it would end this replica, after each restart again.
func admitEntry(l *raft.Log, newest uint32) error {
	data := l.Data
	for len(data) > 0 {
		tag, from := varint(data, 0)
		if from < 0 || tag != fieldVersion<<3 && tag != fieldNow<<3 {
			break
		}
		value, end := varint(data, from)
		if end < 0 {
			return errors.New("the stamp of an entry is truncated")
		}
		if tag == fieldVersion<<3 && value > uint64(newest) {
			return &laterVersion{uint32(min(value, math.MaxUint32)), newest}
		}
		data = data[end:]
	}
	_, _, err := measureAll(data, l.Extensions, false) // who reads a payload that is no message makes one of it
	return err
}

// decodeCatalog reads an entry of the catalog that another node has sent.
func decodeCatalog(entry []byte, newest uint32) (*logpb.CatalogEntry, error) {
	if len(entry) > MaxCatalogEntry || !few(entry, maxCatalogCommands) {
		return nil, fmt.Errorf("catalog entry of %d bytes: %w", len(entry), errMany)
	}
	e := new(logpb.CatalogEntry)
	if err := logpb.Unmarshal(entry, e); err != nil {
		return nil, fmt.Errorf("catalog entry cannot be decoded: %w", err)
	}
	if e.Version > newest {
		return nil, fmt.Errorf("catalog: %w", &laterVersion{e.Version, newest})
	}
	return e, nil
}

// admitCatalogEntry is admitEntry for the catalog. A command that raises the version is taken: anybody
// may ask for it, and the machine refuses what not all nodes support.
func admitCatalogEntry(l *raft.Log, newest uint32) error {
	if len(l.Extensions) > 0 {
		return fmt.Errorf("%d bytes of payload do not belong to any message", len(l.Extensions))
	}
	e, err := decodeCatalog(l.Data, newest)
	if err != nil {
		return err
	}
	for _, c := range e.Commands {
		if c.GetBody() == nil {
			return errors.New("unknown catalog command")
		}
	}
	return nil
}
