package peer

import (
	"bytes"
	"fmt"
	"sync"

	"google.golang.org/grpc/mem"
)

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
