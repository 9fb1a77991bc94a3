package wire

import (
	"encoding/binary"
	"errors"
	"io"
)

// readBuffer is the size of a Reader's buffer. It grows, up to the largest
// allowed frame, for a frame that does not fit, and shrinks afterwards.
const readBuffer = 16 << 10

// maxEmptyReads is how often a source may return neither bytes nor an error.
const maxEmptyReads = 100

// Reader splits a stream into frames. A protocol error is final: every later
// call returns it again and nothing more is read. Any other error comes from
// the source; a call that failed with it (a deadline, say) can be repeated
// and continues where it stopped.
//
// At a frame boundary the end of the stream is io.EOF, inside a frame
// io.ErrUnexpectedEOF.
type Reader struct {
	src      io.Reader
	typ      byte
	maxFrame uint32
	buf      []byte // buf[at:end] is read from src and not yet consumed
	at, end  int
	failed   *Error
}

// NewReader returns a Reader of src, which expects SASL frames of at most maxFrame octets.
func NewReader(src io.Reader, maxFrame uint32) *Reader {
	return &Reader{src: src, typ: FrameSASL, maxFrame: maxFrame}
}

// Expect says of which type and how long the frames may be that follow.
func (r *Reader) Expect(typ byte, maxFrame uint32) { r.typ, r.maxFrame = typ, maxFrame }

// Buffered returns how many octets were read from the source and not yet
// consumed.
func (r *Reader) Buffered() int { return r.end - r.at }

// ReadProtocolHeader reads eight octets without checking them.
func (r *Reader) ReadProtocolHeader() (header [8]byte, err error) {
	if r.failed != nil {
		return header, r.failed
	}
	if err = r.fill(len(header)); err == nil {
		r.at += copy(header[:], r.buf[r.at:r.end])
	}
	return header, err
}

// ReadFrame reads a frame. Its extended header is left out.
func (r *Reader) ReadFrame() (Frame, error) {
	if r.failed != nil {
		return Frame{}, r.failed
	}
	if err := r.fill(frameHead); err != nil {
		return Frame{}, err
	}
	head := r.buf[r.at:]
	size, offset := binary.BigEndian.Uint32(head), uint32(head[4])*4
	if err := r.checkHead(size, offset, head[5]); err != nil {
		return Frame{}, r.fail(err)
	}
	if err := r.fill(int(size)); err != nil {
		return Frame{}, err
	}
	f := r.buf[r.at : r.at+int(size) : r.at+int(size)]
	r.at += int(size)
	return Frame{Channel: binary.BigEndian.Uint16(f[6:]), Body: f[offset:]}, nil
}

// checkHead refuses a frame by its first eight octets.
func (r *Reader) checkHead(size, offset uint32, typ byte) *Error {
	switch {
	case size < frameHead:
		return framingError("frame size %d is less than %d", size, frameHead)
	case size > r.maxFrame:
		return framingError("frame size %d exceeds maximum frame size %d", size, r.maxFrame)
	case offset < frameHead || offset > size:
		return framingError("data offset %d does not fit a frame of %d octets", offset, size)
	case typ != r.typ:
		return framingError("frame type %d, expected %d", typ, r.typ)
	}
	return nil
}

// fill reads until at least n octets are buffered.
func (r *Reader) fill(n int) error {
	if r.Buffered() >= n {
		return nil
	}
	r.reserve(n)
	for r.Buffered() < n {
		m, err := r.readSource(r.buf[r.end:], n > frameHead)
		r.end += m
		if err != nil {
			return err
		}
	}
	return nil
}

// reserve moves the buffered octets to the front of a buffer of at least n
// octets. n is bounded by the largest frame.
func (r *Reader) reserve(n int) {
	old := r.buf[r.at:r.end]
	switch {
	case n > len(r.buf):
		r.buf = make([]byte, max(n, readBuffer))
	case len(r.buf) > readBuffer && n <= readBuffer:
		r.buf = make([]byte, readBuffer)
	}
	r.at, r.end = 0, copy(r.buf, old)
}

// readSource reads at least one octet or returns an error.
func (r *Reader) readSource(dst []byte, inFrame bool) (int, error) {
	for range maxEmptyReads {
		n, err := r.src.Read(dst)
		if n > 0 {
			return n, nil // an error that came with them will be returned again
		}
		if errors.Is(err, io.EOF) && (inFrame || r.Buffered() > 0) {
			return 0, io.ErrUnexpectedEOF
		}
		if err != nil {
			return 0, err
		}
	}
	return 0, io.ErrNoProgress
}

func (r *Reader) fail(e *Error) error {
	r.failed = e
	r.buf, r.at, r.end = nil, 0, 0
	return e
}
