package group

import (
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"math"
	"slices"
	"sync"

	"github.com/hashicorp/raft"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/quorate/quorate/cluster/replica"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// admissionLimit is roughly how many bytes may have been submitted to all groups of this node that are
// not in an entry yet.
const admissionLimit = 256 << 20

// ErrFull is returned for a submission of a node that has too much waiting here.
var ErrFull = errors.New("too many bytes of commands are waiting to be proposed")

// admission counts what the nodes have submitted, this one included. A node may have as much waiting as is free for
// all, plus one batch, unless twice the limit is reached.
//
//	sum of waiting = all ≤ 2 × limit
type admission struct {
	limit int
	floor floor

	mu      sync.Mutex
	waiting map[string]int
	all     int
}

func newAdmission() *admission {
	return &admission{limit: admissionLimit, waiting: map[string]int{}}
}

// take reports whether a batch may wait. What a leader itself submits, without a session, always may: it
// is bounded there.
func (a *admission) take(b *Batch, runs []run) bool {
	if b.From == "" && !slices.ContainsFunc(runs, func(r run) bool { return r.session != (fsm.SessionID{}) }) {
		return true
	}
	n := len(b.Commands) + b.Bytes
	a.mu.Lock()
	defer a.mu.Unlock()
	has, free := a.waiting[b.From], a.limit-a.all
	if has+n > free && (has > 0 || n > free+a.limit) {
		return false
	}
	a.waiting[b.From] = has + n
	a.all += n
	b.waits = n
	return true
}

// crowded reports whether so much waits that nothing should wait longer than it must.
func (a *admission) crowded() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.all > a.limit/4
}

// release records that batches no longer wait.
func (a *admission) release(batches []Batch) {
	for j := range batches {
		b := &batches[j]
		if b.waits == 0 {
			continue
		}
		a.mu.Lock()
		a.all -= b.waits
		if a.waiting[b.From] -= b.waits; a.waiting[b.From] <= 0 {
			delete(a.waiting, b.From)
		}
		a.mu.Unlock()
	}
}

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
	if !replica.Few(commands, maxCommands) {
		return 0, replica.ErrMany
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
		if c.Kind == logpb.Command_UNIT {
			if err := eachOf(c.Unit, f); err != nil {
				return 0, err
			}
		}
	}
	return count, nil
}

// eachOf calls f with the publishes of a unit.
func eachOf(u *logpb.Unit, f func(enqueue bool, size uint64) bool) error {
	size := uint64(0)
	for _, c := range u.GetCommands() {
		switch c.GetKind() {
		case logpb.Command_ENQUEUE:
			size += uint64(c.Enqueue.GetSize())
			if !f(true, uint64(c.Enqueue.GetSize())) {
				return nil
			}
		case logpb.Command_SETTLE:
		default:
			return fmt.Errorf("a unit holds a command of kind %v", c.GetKind())
		}
	}
	if size != uint64(u.GetSize()) {
		return fmt.Errorf("the payload of a unit has %d bytes, of %d", size, u.GetSize())
	}
	return nil
}

const (
	// maxCommands is above what an entry holds: the commands of two batches.
	maxCommands = 64 * maxEntryCommands
	// MaxCommandBytes bounds the commands of an entry: what a consumer that holds
	// millions of messages settles at once.
	MaxCommandBytes = 16 << 20
)

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
			return &replica.LaterVersion{Version: uint32(min(value, math.MaxUint32)), Newest: newest}
		}
		data = data[end:]
	}
	_, _, err := measureAll(data, l.Extensions, false) // who reads a payload that is no message makes one of it
	return err
}

// shape is what the fields of a message look like when they are encoded, by
// their numbers. It is made from the message's descriptor.
type shape struct{ fields []fieldShape }

type fieldShape struct {
	known  bool
	wire   protowire.Type
	packed bool   // may also come as a run of varints
	of     *shape // of a message; nil: no message
}

// The shapes of what nodes submit, and the fields of it that are read.
var (
	commandShape, enqueueShape = shapesOfCommands()

	commandsField = number((*logpb.Entry)(nil), "commands")
	kindField     = number((*logpb.Command)(nil), "kind")
	sessionField  = number((*logpb.Command)(nil), "session")
	seqField      = number((*logpb.Command)(nil), "seq")
	enqueueField  = number((*logpb.Command)(nil), "enqueue")
	sizeField     = number((*logpb.Enqueue)(nil), "size")
	unitField     = number((*logpb.Command)(nil), "unit")
	unitSizeField = number((*logpb.Unit)(nil), "size")
	nodeField     = number((*logpb.Session)(nil), "node")
	bootField     = number((*logpb.Session)(nil), "boot")
	numField      = number((*logpb.Session)(nil), "num")
	commandsTag   = uint64(commandsField)<<3 | uint64(protowire.BytesType)
)

func number(m protoreflect.ProtoMessage, field protoreflect.Name) protowire.Number {
	return m.ProtoReflect().Descriptor().Fields().ByName(field).Number()
}

// shapesOfCommands returns the shape of a command, but for what is in a publish,
// and that of a publish: it is read once.
func shapesOfCommands() (command, enqueue *shape) {
	made := map[protoreflect.FullName]*shape{}
	command = shapeOf((*logpb.Command)(nil).ProtoReflect().Descriptor(), made)
	to := &command.fields[number((*logpb.Command)(nil), "enqueue")]
	enqueue, to.of = to.of, nil
	return command, enqueue
}

func shapeOf(m protoreflect.MessageDescriptor, shapes map[protoreflect.FullName]*shape) *shape {
	if s := shapes[m.FullName()]; s != nil {
		return s
	}
	s := &shape{}
	shapes[m.FullName()] = s
	for i := range m.Fields().Len() {
		f := m.Fields().Get(i)
		for len(s.fields) <= int(f.Number()) {
			s.fields = append(s.fields, fieldShape{})
		}
		to := &s.fields[f.Number()]
		switch f.Kind() {
		case protoreflect.MessageKind:
			*to = fieldShape{known: !f.IsMap(), wire: protowire.BytesType, of: shapeOf(f.Message(), shapes)}
		case protoreflect.StringKind, protoreflect.BytesKind:
			*to = fieldShape{known: true, wire: protowire.BytesType}
		case protoreflect.Fixed64Kind, protoreflect.Sfixed64Kind, protoreflect.DoubleKind:
			*to = fieldShape{known: !f.IsList(), wire: protowire.Fixed64Type}
		case protoreflect.Fixed32Kind, protoreflect.Sfixed32Kind, protoreflect.FloatKind:
			*to = fieldShape{known: !f.IsList(), wire: protowire.Fixed32Type}
		case protoreflect.GroupKind:
		default:
			*to = fieldShape{known: true, wire: protowire.VarintType, packed: f.IsList()}
		}
	}
	return s
}

// varint reads a number of b at a position, and returns what follows it; -1: it
// is not whole.
func varint(b []byte, at int) (v uint64, end int) {
	if at < len(b) && b[at] < 0x80 {
		return uint64(b[at]), at + 1
	}
	v, n := binary.Uvarint(b[at:])
	if n <= 0 {
		return 0, -1
	}
	return v, at + n
}

// next reads the field of b at a position, and returns its number, what follows
// it, and its value if it is a varint or else how many bytes before end it has.
// end is -1 unless the field is whole, and the decoder takes it for what it is:
// all of a message in it as well. Where it is not, the decoder may know better.
func (s *shape) next(b []byte, at int) (number int, value uint64, end int) {
	tag, at := varint(b, at)
	if at < 0 || tag>>3 >= uint64(len(s.fields)) {
		return 0, 0, -1
	}
	number = int(tag >> 3)
	is, wire := &s.fields[number], protowire.Type(tag&7)
	if !is.known || wire != is.wire && !(is.packed && wire == protowire.BytesType) {
		return 0, 0, -1
	}
	switch wire {
	case protowire.VarintType:
		value, end = varint(b, at)
		return number, value, end
	case protowire.Fixed64Type:
		value = 8
	case protowire.Fixed32Type:
		value = 4
	default:
		if value, at = varint(b, at); at < 0 {
			return 0, 0, -1
		}
	}
	if value > uint64(len(b)-at) {
		return 0, 0, -1
	}
	end = at + int(value)
	if is.of != nil && !is.of.holds(b[at:end]) || is.packed && !areVarints(b[at:end]) {
		end = -1
	}
	return number, value, end
}

// holds reports whether the decoder takes b for a message of this shape. It may
// say no of what the decoder takes all the same.
func (s *shape) holds(b []byte) bool {
	at := 0
	for at >= 0 && at < len(b) {
		_, _, at = s.next(b, at)
	}
	return at >= 0
}

func areVarints(b []byte) bool {
	at := 0
	for at >= 0 && at < len(b) {
		_, at = varint(b, at)
	}
	return at >= 0
}

// scanCommand reads what has to be known of one encoded command without decoding
// it: whether it is a publish, and of which size. ok is false where only the
// decoder can tell.
func scanCommand(b []byte) (enqueue bool, size uint64, ok bool) {
	var publish []byte
	for at := 0; at < len(b); {
		number, value, end := commandShape.next(b, at)
		if end < 0 {
			return false, 0, false
		}
		switch at = end; protowire.Number(number) {
		case kindField:
			enqueue = logpb.Command_Kind(value) == logpb.Command_ENQUEUE
		case enqueueField:
			if publish != nil {
				return false, 0, false // the decoder joins them
			}
			publish = b[end-int(value) : end]
		case unitField:
			return false, 0, false // its publishes are in it
		}
	}
	for at := 0; at < len(publish); {
		number, value, end := enqueueShape.next(publish, at)
		if end < 0 {
			return false, 0, false
		}
		if at = end; protowire.Number(number) == sizeField {
			size = value & (1<<32 - 1)
		}
	}
	return enqueue, size, true
}

// scan calls f with what each of the encoded commands is, and returns how many
// there are; -1: only the decoder can tell. f says whether to go on.
func scan(commands []byte, f func(enqueue bool, size uint64) bool) (count int) {
	for at := 0; at < len(commands); count++ {
		tag, from := varint(commands, at)
		if from < 0 || tag != commandsTag {
			return -1
		}
		length, from := varint(commands, from)
		if from < 0 || length > uint64(len(commands)-from) {
			return -1
		}
		at = from + int(length)
		enqueue, size, ok := scanCommand(commands[from:at])
		if !ok {
			return -1
		}
		if !f(enqueue, size) {
			return count
		}
	}
	return count
}

// commandHead is what says which command it is, and which payload it brings.
type commandHead struct {
	session fsm.SessionID
	seq     uint64
	payload bool // it is a publish, or a unit, which may have none
	size    int
}

// heads iterates over encoded commands, which are known to be sound: over their bytes, and what they are.
func heads(commands []byte) iter.Seq2[[]byte, commandHead] {
	return func(yield func([]byte, commandHead) bool) {
		for at := 0; at < len(commands); {
			f := fieldAt(commands, at)
			if f.number == commandsField && !yield(commands[at:f.end], headOf(f.bytes)) {
				return
			}
			at = f.end
		}
	}
}

// headOf reads the head of a command as the decoder does: the last field of a kind counts, and what is in
// messages adds up.
func headOf(b []byte) (c commandHead) {
	for at := 0; at < len(b); {
		f := fieldAt(b, at)
		switch at = f.end; f.number {
		case kindField:
			c.payload = logpb.Command_Kind(f.value) == logpb.Command_ENQUEUE || logpb.Command_Kind(f.value) == logpb.Command_UNIT
		case seqField:
			c.seq = f.value
		case sessionField:
			c.readSession(f.bytes)
		case enqueueField:
			c.readSize(f.bytes, sizeField)
		case unitField:
			c.readSize(f.bytes, unitSizeField)
		}
	}
	return c
}

func (c *commandHead) readSession(b []byte) {
	for at := 0; at < len(b); {
		f := fieldAt(b, at)
		switch at = f.end; f.number {
		case nodeField:
			c.session.Node = fsm.NodeID(f.value)
		case bootField:
			c.session.Boot = f.value
		case numField:
			c.session.Num = f.value
		}
	}
}

func (c *commandHead) readSize(b []byte, field protowire.Number) {
	for at := 0; at < len(b); {
		f := fieldAt(b, at)
		if at = f.end; f.number == field {
			c.size = int(uint32(f.value))
		}
	}
}

// field is a field of an encoded message.
type field struct {
	number protowire.Number
	value  uint64 // of a varint
	bytes  []byte // of what has a length
	end    int    // where the next one begins
}

// fieldAt reads the field at a position. If it is not whole, it is the last one, without a value.
func fieldAt(b []byte, at int) field {
	tag, at := varint(b, at)
	if at < 0 {
		return field{end: len(b)}
	}
	f := field{number: protowire.Number(tag >> 3)}
	switch protowire.Type(tag & 7) {
	case protowire.VarintType:
		f.value, f.end = varint(b, at)
	case protowire.BytesType:
		var n uint64
		if n, at = varint(b, at); at >= 0 && n <= uint64(len(b)-at) {
			f.end = at + int(n)
			f.bytes = b[at:f.end]
		}
	case protowire.Fixed64Type:
		f.end = at + 8
	case protowire.Fixed32Type:
		f.end = at + 4
	}
	if f.end <= 0 || f.end > len(b) {
		return field{end: len(b)}
	}
	return f
}
