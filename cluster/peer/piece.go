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
	begun [classes][]byte // of a message per class; nil: none
}

// frames calls handle for each frame of a message that has arrived, and of the
// one that it completes. Frames point into the message.
func (a *assembler) frames(msg []byte, handle func(frame) error) error {
	for len(msg) > 0 {
		f, rest, err := nextFrame(msg)
		if err != nil {
			return err
		}
		msg = rest
		if f.kind != kindPiece {
			err = handle(f)
		} else if whole, e := a.piece(f); e != nil {
			err = e
		} else if whole != nil {
			err = (&assembler{}).frames(whole, handle)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// piece adds a piece, and returns the message if it is complete.
func (a *assembler) piece(f frame) (whole []byte, err error) {
	if f.arg >= uint32(classes) || f.number > MaxMessage {
		return nil, fmt.Errorf("%w: a piece of class %d, message of %d bytes", errProtocol, f.arg, f.number)
	}
	b := a.begun[f.arg]
	if b == nil {
		b = make([]byte, 0, f.number)
	}
	if len(f.body) == 0 || cap(b) != int(f.number) || len(b)+len(f.body) > cap(b) {
		return nil, fmt.Errorf("%w: a piece of %d bytes behind %d of %d", errProtocol, len(f.body), len(b), f.number)
	}
	b = append(b, f.body...)
	if len(b) < cap(b) {
		a.begun[f.arg] = b
		return nil, nil
	}
	a.begun[f.arg] = nil
	return b, nil
}
