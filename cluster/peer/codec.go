package peer

import (
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

// inMessage receives one gRPC message. data is new for each message.
type inMessage struct{ data []byte }

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
	in.data = data.Materialize()
	return nil
}

const (
	// chunkSize is the size of the arenas that small parts are gathered in.
	chunkSize = 32 << 10
	// copyLimit: longer parts travel by reference.
	copyLimit = 8 << 10
)

// chunks recycles arenas. gRPC returns one when it has written it.
var chunks = &chunkPool{pool: sync.Pool{New: func() any {
	b := make([]byte, chunkSize)
	return &b
}}}

// chunkPool implements mem.BufferPool for buffers of chunkSize.
type chunkPool struct{ pool sync.Pool }

// Get returns a buffer of chunkSize; larger ones are never asked for.
func (p *chunkPool) Get(int) *[]byte { return p.pool.Get().(*[]byte) }
func (p *chunkPool) Put(buf *[]byte) { p.pool.Put(buf) }

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
