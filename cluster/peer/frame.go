package peer

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"

	"google.golang.org/grpc/mem"
)

// A gRPC message on a link is a sequence of frames:
//
//	body length  4 bytes, big endian, as all numbers here
//	kind         1
//	argument     4  raft requests: the group; calls: their kind; failures: a
//	                code; application messages: length of the head; pieces:
//	                the class
//	number       8  of the request, chosen by who asks, repeated by who answers;
//	                pieces: size of the whole message
//	body
const headerSize = 4 + 1 + 4 + 8

// Kinds of the mesh itself.
const (
	kindHello      Kind = iota + 1 // first frame in both directions: peerpb.Hello
	kindPing                       // answered by a pong with the same number
	kindPong                       // carries the answering node's wall clock, or nothing
	kindAppend                     // AppendEntries
	kindVote                       // RequestVote
	kindPreVote                    // RequestPreVote
	kindTimeoutNow                 // TimeoutNow
	kindSnapshot                   // InstallSnapshot, on a stream of its own
	kindCall                       // a call of the application
	kindReply                      // the answer to a request
	kindFailure                    // its refusal: a text
	kindPiece                      // a piece of a message too long to be sent at once
	kindOffer                      // what of a snapshot need not be sent
	kindSize                       // how much of it will be
)

type header struct {
	kind   Kind
	arg    uint32
	number uint64
}

// frame is a received one. body points into the received message.
type frame struct {
	header
	body []byte
}

func (h header) put(p []byte, bodySize int) {
	binary.BigEndian.PutUint32(p, uint32(bodySize))
	p[4] = byte(h.kind)
	binary.BigEndian.PutUint32(p[5:], h.arg)
	binary.BigEndian.PutUint64(p[9:], h.number)
}

// readHeader is the reverse of put, but for the size of the body.
func readHeader(p []byte) header {
	return header{kind: Kind(p[4]), arg: binary.BigEndian.Uint32(p[5:]), number: binary.BigEndian.Uint64(p[9:])}
}

// pieceOf reports whether a message of size bytes is one frame with a piece, and returns its header.
func pieceOf(parts [][]byte, size int) (h header, ok bool) {
	if len(parts) == 0 || len(parts[0]) < headerSize {
		return header{}, false
	}
	h = readHeader(parts[0])
	return h, h.kind == kindPiece && uint64(binary.BigEndian.Uint32(parts[0]))+headerSize == uint64(size)
}

var errShort = errors.New("peer: frame cut short")

// nextFrame splits the first frame off a message.
func nextFrame(msg []byte) (f frame, rest []byte, err error) {
	if len(msg) < headerSize {
		return frame{}, nil, errShort
	}
	n := uint64(binary.BigEndian.Uint32(msg))
	if uint64(len(msg)-headerSize) < n {
		return frame{}, nil, errShort
	}
	end := headerSize + int(n)
	f.header = readHeader(msg)
	f.body = msg[headerSize:end:end]
	return f, msg[end:], nil
}

// message splits the body of an application message.
func (f *frame) message() (head, payload []byte, err error) {
	if uint64(f.arg) > uint64(len(f.body)) {
		return nil, nil, fmt.Errorf("%w: head of %d bytes in a body of %d", errProtocol, f.arg, len(f.body))
	}
	return f.body[:f.arg:f.arg], f.body[f.arg:], nil
}

// body is something that can be written into a batch.
type body interface {
	size() int
	write(b *batch)
}

type rawBody []byte

func (r rawBody) size() int      { return len(r) }
func (r rawBody) write(b *batch) { b.add(r) }

type noBody struct{}

func (noBody) size() int      { return 0 }
func (noBody) write(b *batch) {}

// clockBody is a wall clock: milliseconds since the epoch. Nodes take any
// length from 8 up, so that more can follow it.
type clockBody int64

func (c clockBody) size() int      { return 8 }
func (c clockBody) write(b *batch) { putUint64s(b.reserve(8), uint64(c)) }

// decodeClock reads a clockBody. given is false for an empty one.
func decodeClock(p []byte) (wall int64, given bool, err error) {
	switch {
	case len(p) == 0:
		return 0, false, nil
	case len(p) < 8:
		return 0, false, fmt.Errorf("%w: a clock of %d bytes", errProtocol, len(p))
	}
	return int64(binary.BigEndian.Uint64(p)), true, nil
}

type textBody string

func (t textBody) size() int { return min(len(t), copyLimit) }

func (t textBody) write(b *batch) { copy(b.reserve(t.size()), t) }

// MaxMessage bounds a frame with everything in it. What is longer than
// longMessage goes in pieces, so gRPC's messages are shorter.
const MaxMessage = 64 << 20

// rawCodec passes bytes through gRPC: batches on the way out, one freshly
// allocated slice on the way in.
type rawCodec struct{}

// inMessage receives one gRPC message. data is new for each message. A message that is a piece of a longer
// one goes straight to where that is put together; data and err are then what came of it.
type inMessage struct {
	assembler *assembler // nil: a piece is as any other message
	data      []byte
	isPiece   bool
	err       error
	parts     [][]byte // of the message being received
}

// receive copies what gRPC has read, the buffers of which are used again. bytes.Join takes memory
// without filling it with zeros first.
func (in *inMessage) receive(data mem.BufferSlice) {
	for _, b := range data {
		in.parts = append(in.parts, b.ReadOnlyData())
	}
	h, isPiece := pieceOf(in.parts, data.Len())
	if in.isPiece = isPiece && in.assembler != nil; in.isPiece {
		in.parts[0] = in.parts[0][headerSize:]
		in.data, in.err = in.assembler.piece(h, in.parts...)
	} else {
		in.data = bytes.Join(in.parts, nil)
	}
	clear(in.parts)
	in.parts = in.parts[:0]
}

func (rawCodec) Name() string { return "quorate-raw" }

// Marshal hands the buffers of a batch over to gRPC.
func (rawCodec) Marshal(v any) (mem.BufferSlice, error) {
	b, ok := v.(*batch)
	if !ok {
		return nil, fmt.Errorf("peer: cannot send a %T", v)
	}
	return b.seal(), nil
}

func (rawCodec) Unmarshal(data mem.BufferSlice, v any) error {
	in, ok := v.(*inMessage)
	if !ok {
		return fmt.Errorf("peer: cannot receive a %T", v)
	}
	in.receive(data)
	return nil
}

const (
	// chunkSize is the size of the arenas that small parts are gathered in.
	chunkSize = 32 << 10
	// frameSize is the size of the longest frames of HTTP/2 that gRPC sends.
	frameSize = 16 << 10
	// copyLimit: longer parts travel by reference.
	copyLimit = 8 << 10
)

// chunks recycles arenas; gRPC returns one when it has written it. frames recycles what gRPC reads
// into.
var (
	chunks = newChunkPool(chunkSize)
	frames = newChunkPool(frameSize)
)

// chunkPool implements mem.BufferPool for buffers of up to one size. gRPC's own fills each with
// zeros before it is used again.
type chunkPool struct {
	size int
	pool sync.Pool
}

func newChunkPool(size int) *chunkPool {
	return &chunkPool{size: size, pool: sync.Pool{New: func() any {
		b := make([]byte, size)
		return &b
	}}}
}

// Get implements mem.BufferPool. What lies in the buffer is to be written over.
func (p *chunkPool) Get(n int) *[]byte {
	if n > p.size {
		b := make([]byte, n)
		return &b
	}
	b := p.pool.Get().(*[]byte)
	*b = (*b)[:n]
	return b
}

// Put implements mem.BufferPool.
func (p *chunkPool) Put(b *[]byte) {
	if cap(*b) == p.size {
		p.pool.Put(b)
	}
}

// batch is one gRPC message in the making: frames, one after the other. Small
// parts are copied into arenas, large ones kept by reference.
type batch struct {
	parts mem.BufferSlice
	size  int // bytes so far
	// charged splits size by the class whose limit the frames count against.
	charged [classes]int
	frames  int
	long    *long // nil: no piece has been cut off

	root       mem.Buffer // current arena
	buf        []byte     // its memory
	from, used int        // buf[from:used] is not in parts yet
}

// reserve returns n bytes of the arena, to be filled at once. n ≤ copyLimit.
func (b *batch) reserve(n int) []byte {
	if len(b.buf)-b.used < n {
		b.closeArena()
		c := chunks.Get(chunkSize)
		b.root, b.buf = mem.NewBuffer(c, chunks), *c
	}
	p := b.buf[b.used : b.used+n : b.used+n]
	b.used += n
	b.size += n
	return p
}

// add appends p, by reference if it is long.
func (b *batch) add(p []byte) {
	if len(p) <= copyLimit {
		copy(b.reserve(len(p)), p)
		return
	}
	b.flush()
	b.parts = append(b.parts, mem.SliceBuffer(p))
	b.size += len(p)
}

func (b *batch) flush() {
	if b.used > b.from {
		b.parts = append(b.parts, b.root.Slice(b.from, b.used))
		b.from = b.used
	}
}

func (b *batch) closeArena() {
	if b.root != nil {
		b.flush()
		b.root.Free()
		b.root, b.buf, b.from, b.used = nil, nil, 0, 0
	}
}

// join appends all of other, which is used up by it.
func (b *batch) join(other *batch) {
	b.flush()
	b.parts = append(b.parts, other.seal()...)
	b.size += other.size
	b.frames += other.frames
	for c, n := range other.charged {
		b.charged[c] += n
	}
}

// seal ends the batch and returns its buffers; whoever gets them frees them.
func (b *batch) seal() mem.BufferSlice {
	b.closeArena()
	parts := b.parts
	b.parts = nil
	return parts
}

const (
	// longMessage is the size from which a batch is sent in pieces, so that the
	// other classes get their turns meanwhile; pieceSize is theirs.
	longMessage = 512 << 10
	pieceSize   = 256 << 10
)

// long is a batch that is sent in pieces.
type long struct {
	parts [][]byte // not sent yet; nobody recycles their memory
	total int
}

// cut takes the next piece off a batch of class c, which is closed for more by
// that. last: nothing is left of it.
func (b *batch) cut(c class) (piece *batch, last bool) {
	if b.long == nil {
		b.long = &long{parts: b.unpooled(), total: b.size}
	}
	n := min(pieceSize, b.size)
	b.size -= n
	b.charged[c] -= n
	piece = new(batch)
	piece.charged[c] = n
	header{kind: kindPiece, arg: uint32(c), number: uint64(b.long.total)}.put(piece.reserve(headerSize), n)
	for n > 0 {
		p := b.long.parts[0]
		k := min(n, len(p))
		piece.add(p[:k:k])
		n -= k
		if b.long.parts[0] = p[k:]; k == len(p) {
			b.long.parts = b.long.parts[1:]
		}
	}
	return piece, b.size == 0
}

// unpooled seals the batch and returns its bytes, copied out of arenas.
func (b *batch) unpooled() [][]byte {
	var all [][]byte
	for _, p := range b.seal() {
		if s, ok := p.(mem.SliceBuffer); ok {
			all = append(all, s)
			continue
		}
		all = append(all, append([]byte(nil), p.ReadOnlyData()...))
		p.Free()
	}
	return all
}

// assembler puts the pieces of a stream's messages together, and splits
// messages into frames.
type assembler struct {
	limits *inboundLimits   // that what is begun counts in; nil: none
	begun  [classOwn][]byte // of a message per class that has long ones; nil: none
	total  [classOwn]uint64 // size of the message
}

// message calls handle for each frame of a message that has arrived, and of the
// one that it completes. Frames point into the message.
func (a *assembler) message(in *inMessage, handle func(frame) error) error {
	if in.isPiece {
		return a.completed(in.data, in.err, handle)
	}
	return a.frames(in.data, handle)
}

// frames is message for one that is all in one place.
func (a *assembler) frames(msg []byte, handle func(frame) error) error {
	return eachFrame(msg, func(f frame) error {
		if f.kind != kindPiece {
			return handle(f)
		}
		whole, err := a.piece(f.header, f.body)
		return a.completed(whole, err, handle)
	})
}

// completed handles what a piece has completed, or the error that it was.
func (a *assembler) completed(whole []byte, err error, handle func(frame) error) error {
	if err != nil {
		return err
	}
	return eachFrame(whole, func(f frame) error {
		if f.kind == kindPiece {
			return fmt.Errorf("%w: a piece within a piece", errProtocol)
		}
		return handle(f)
	})
}

// eachFrame calls handle for each frame of a message.
func eachFrame(msg []byte, handle func(frame) error) error {
	for len(msg) > 0 {
		f, rest, err := nextFrame(msg)
		if err == nil {
			err = handle(f)
		}
		if err != nil {
			return err
		}
		msg = rest
	}
	return nil
}

// piece adds a piece, which may be in several places, and returns the message if it is complete. Memory
// is taken for what has come, not for what is announced.
func (a *assembler) piece(h header, parts ...[]byte) (whole []byte, err error) {
	if h.arg >= uint32(classOwn) || h.number > MaxMessage {
		return nil, fmt.Errorf("%w: a piece of class %d, message of %d bytes", errProtocol, h.arg, h.number)
	}
	n := 0
	for _, p := range parts {
		n += len(p)
	}
	b := a.begun[h.arg]
	if len(b) == 0 {
		a.total[h.arg] = h.number
	}
	size := uint64(len(b) + n)
	if n == 0 || n > longMessage || a.total[h.arg] != h.number || size > h.number {
		return nil, fmt.Errorf("%w: a piece of %d bytes behind %d of %d", errProtocol, n, len(b), h.number)
	}
	if err := a.limits.take(n); err != nil {
		return nil, err
	}
	if size > uint64(cap(b)) {
		b = append(make([]byte, 0, memoryFor(size, h.number)), b...)
	}
	for _, p := range parts {
		b = append(b, p...)
	}
	if a.begun[h.arg] = b; size < h.number {
		return nil, nil
	}
	a.begun[h.arg] = nil
	a.limits.put(len(b))
	return b, nil
}

// memoryFor is how much memory to take for a message of total bytes when size of them have come: less
// than twice as much, or than two long messages, and from the half on the whole. So never more
// than a half is copied at once; no ping is answered meanwhile.
func memoryFor(size, total uint64) uint64 {
	for half := (total + 1) / 2; half >= max(size, 2*pieceSize); half = (total + 1) / 2 {
		total = half
	}
	return total
}

// end gives back what has been begun.
func (a *assembler) end() {
	for c, b := range a.begun {
		a.limits.put(len(b))
		a.begun[c] = nil
	}
}
