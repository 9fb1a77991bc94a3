package peer

import (
	"fmt"

	"google.golang.org/grpc/mem"
)

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
	holdings *holdings        // that what is begun counts in; nil: none
	begun    [classOwn][]byte // of a message per class that has long ones; nil: none
	total    [classOwn]uint64 // size of the message
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
	if err := a.holdings.keep(n); err != nil {
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
	a.holdings.drop(len(b))
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
		a.holdings.drop(len(b))
		a.begun[c] = nil
	}
}
