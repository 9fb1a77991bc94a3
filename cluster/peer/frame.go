package peer

import (
	"encoding/binary"
	"errors"
	"fmt"
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
