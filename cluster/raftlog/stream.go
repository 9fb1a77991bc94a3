package raftlog

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math"

	"github.com/cockroachdb/pebble/v2"
)

// A snapshot travels as one stream:
//
//	magic         8 bytes
//	state size    8 bytes
//	state sum     4 bytes, CRC-32C
//	state
//	parts by ascending index, each
//	    kind      1 byte
//	    index     8 bytes
//	    size      4 bytes
//	    check     4 bytes, see checkOf
//	    sum       4 bytes, CRC-32C of the 17 bytes before and the section
//	    section   not if the receiver has it
//	the last part has the highest index, and the number of parts in place of
//	    the size
//
// The first byte cannot begin a protocol buffer, so no machine's state looks
// like a stream.
const (
	streamMagic = "\xffqrsnap1"
	streamHead  = len(streamMagic) + 8 + 4
	partSealed  = 1 + 8 + 4 + 4
	partHead    = partSealed + 4
	endIndex    = math.MaxUint64
)

// Kinds of parts.
const (
	partSection byte = iota + 1 // a payload section
	partKept                    // a section that the receiver has
	partEnd
)

// ErrStream says that a snapshot stream is not what a Store has written.
var ErrStream = errors.New("raftlog: malformed snapshot stream")

func appendStreamHead(b []byte, stateSize uint64, stateSum uint32) []byte {
	b = binary.BigEndian.AppendUint64(append(b, streamMagic...), stateSize)
	return binary.BigEndian.AppendUint32(b, stateSum)
}

func parseStreamHead(b []byte) (stateSize uint64, stateSum uint32, err error) {
	if string(b[:len(streamMagic)]) != streamMagic {
		return 0, 0, fmt.Errorf("%w: it begins with %x", ErrStream, b[:len(streamMagic)])
	}
	b = b[len(streamMagic):]
	return binary.BigEndian.Uint64(b), binary.BigEndian.Uint32(b[8:]), nil
}

// appendPart appends a part of a stream: its head, and the section.
func appendPart(b []byte, kind byte, p pin, section []byte) []byte {
	at := len(b)
	b = binary.BigEndian.AppendUint64(append(b, kind), p.index)
	b = binary.BigEndian.AppendUint32(b, p.size)
	b = binary.BigEndian.AppendUint32(b, p.check)
	b = binary.BigEndian.AppendUint32(b, sum(b[at:at+partSealed], section))
	return append(b, section...)
}

// appendEnd appends the last part, behind so many others.
func appendEnd(b []byte, parts int) []byte {
	return appendPart(b, partEnd, pin{index: endIndex, size: uint32(parts)}, nil)
}

// ReadState returns the machine's state out of a stream. The reader ends with
// io.EOF behind the state, or with ErrStream if the state is not the one that
// was saved. What follows in r is left unread.
func ReadState(r io.Reader) (io.Reader, error) {
	head := make([]byte, streamHead)
	if _, err := io.ReadFull(r, head); err != nil {
		return nil, fmt.Errorf("read snapshot: %w", err)
	}
	size, want, err := parseStreamHead(head)
	if err != nil {
		return nil, err
	}
	return &stateReader{r: r, left: size, want: want}, nil
}

type stateReader struct {
	r    io.Reader
	left uint64
	sum  uint32
	want uint32
}

func (s *stateReader) Read(p []byte) (int, error) {
	if s.left == 0 {
		if s.sum != s.want {
			return 0, fmt.Errorf("%w: the state's checksum does not match", ErrStream)
		}
		return 0, io.EOF
	}
	if uint64(len(p)) > s.left {
		p = p[:s.left]
	}
	n, err := s.r.Read(p)
	s.sum = crc32.Update(s.sum, castagnoli, p[:n])
	s.left -= uint64(n)
	if errors.Is(err, io.EOF) {
		err = nil
		if s.left > 0 {
			err = io.ErrUnexpectedEOF
		}
	}
	return n, err
}

// streamReader produces the stream of a snapshot from a view of the store.
type streamReader struct {
	g        *Group
	view     *pebble.Snapshot // nil: closed
	meta     *snapshotMeta
	payloads []pin
	kept     []bool // which of them the receiver has; nil: none
	release  func() // lets go of the segments that payloads are in

	begun   bool
	ended   bool
	chunk   uint64 // the next one
	payload int    // the next one
	buf     []byte // not yet read
	own     []byte // buf's memory, for reuse
}

// size is the length of the whole stream.
func (r *streamReader) size() int64 {
	n := int64(streamHead) + int64(r.meta.stateSize) + int64(len(r.payloads)+1)*int64(partHead)
	for i, p := range r.payloads {
		if !r.has(i) {
			n += int64(p.size)
		}
	}
	return n
}

// Read implements io.Reader.
func (r *streamReader) Read(p []byte) (int, error) {
	for len(r.buf) == 0 {
		if r.ended {
			return 0, io.EOF
		}
		if r.view == nil {
			return 0, fmt.Errorf("read snapshot: %w", io.ErrClosedPipe)
		}
		r.refill()
	}
	n := copy(p, r.buf)
	r.buf = r.buf[n:]
	return n, nil
}

// refill puts the next part of the stream into buf.
func (r *streamReader) refill() {
	b := r.own[:0]
	switch {
	case !r.begun:
		r.begun = true
		b = appendStreamHead(b, r.meta.stateSize, r.meta.stateSum)
	case r.chunk < r.meta.chunks():
		c := r.get(section{key: numberKey(kindChunk, r.g.id, r.meta.number, r.chunk)}, "snapshot")
		r.chunk++
		b = append(b, c...)
	case r.payload < len(r.payloads):
		p := r.payloads[r.payload]
		if r.has(r.payload) {
			r.payload++
			b = appendPart(b, partKept, p, nil)
			break
		}
		section := r.get(section{r.g.sectionKey(p), p.span()}, "payload of a snapshot")
		if len(section) != int(p.size) {
			r.g.s.readFailed(r.g.id, fmt.Sprintf("payload of entry %d", p.index), errShort)
			return // to be read again
		}
		r.payload++
		b = appendPart(b, partSection, p, section)
	default:
		r.ended = true
		b = appendEnd(b, len(r.payloads))
	}
	r.own, r.buf = b, b
}

// get reads what must be there.
func (r *streamReader) get(at section, what string) []byte {
	for {
		v, err := readSection(r.view, r.g.s.segments, at)
		if err == nil {
			return v
		}
		r.g.s.readFailed(r.g.id, fmt.Sprintf("%s, record %x", what, at.key), lost(err))
	}
}

// Close gives the view of the store back.
func (r *streamReader) Close() error {
	if r.view == nil {
		return nil
	}
	v := r.view
	r.view = nil
	r.release()
	return v.Close()
}

// chunks is how many records hold the state.
func (m *snapshotMeta) chunks() uint64 { return (m.stateSize + chunkSize - 1) / chunkSize }
