package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// readBuffer is the size of a Reader's buffer. It grows, up to the largest
// allowed frame, for a frame that does not fit, and shrinks afterwards.
const readBuffer = 16 << 10

// maxEmptyReads is how often a source may return neither bytes nor an error.
const maxEmptyReads = 100

// Reader splits a stream into frames. A protocol error is final: every later
// call returns it again and nothing more is read. Any other error comes from
// the source; a call that failed with it (a deadline, say) can be repeated with
// the same arguments and continues where it stopped.
//
// At a frame boundary the end of the stream is io.EOF, inside a frame
// io.ErrUnexpectedEOF.
type Reader struct {
	src      io.Reader
	maxFrame uint32
	buf      []byte // buf[at:end] is read from src and not yet consumed
	at, end  int

	inFrame bool // head is read, its payload not entirely
	head    FrameHead
	done    int      // octets of the payload read or skipped so far
	first   [17]byte // the start of a payload that is being skipped
	failed  *Error
}

// NewReader returns a Reader of src. Frames whose payload exceeds maxFrame are
// refused. (The negotiated frame size includes FrameOverhead; that many more
// octets are accepted because common clients are off by that amount.)
func NewReader(src io.Reader, maxFrame uint32) *Reader {
	return &Reader{src: src, maxFrame: maxFrame}
}

// SetMaxFrame changes the limit for frames whose head has not been read yet.
func (r *Reader) SetMaxFrame(n uint32) { r.maxFrame = n }

// Buffered returns how many octets were read from the source and not yet
// consumed.
func (r *Reader) Buffered() int { return r.end - r.at }

// ReadFrame reads a whole frame. For bodies ReadFrameHeader and
// ReadPayloadInto are cheaper: they need no buffer of the frame's size.
func (r *Reader) ReadFrame() (Frame, error) {
	head, err := r.ReadFrameHeader()
	if err != nil {
		return Frame{}, err
	}
	payload, err := r.ReadPayload()
	if err != nil {
		return Frame{}, err
	}
	return Frame{Type: head.Type, Channel: head.Channel, Payload: payload}, nil
}

// ReadFrameHeader reads the start of a frame. One of ReadPayload,
// ReadPayloadInto and SkipPayload must follow; until then it returns the same
// head again. The type is one of the four frame types, and a heartbeat is empty
// and on channel 0; anything else returns the appropriate error.
func (r *Reader) ReadFrameHeader() (FrameHead, error) {
	if r.failed != nil {
		return FrameHead{}, r.failed
	}
	if !r.inFrame {
		if err := r.fill(frameHeadSize); err != nil {
			return FrameHead{}, err
		}
		b := r.buf[r.at:]
		r.head = FrameHead{Type: b[0], Channel: binary.BigEndian.Uint16(b[1:]), Size: binary.BigEndian.Uint32(b[3:])}
		if r.head.Size > r.maxFrame {
			what := fmt.Sprintf("{frame_too_large,%d,%d}", r.head.Size, int64(r.maxFrame)-FrameOverhead)
			return FrameHead{}, r.fail(frameError(r.head.Type, nil, what))
		}
		r.at += frameHeadSize
		r.inFrame, r.done = true, 0
	}
	return r.head, r.checkHead()
}

// checkHead refuses frames that are invalid in every state of a connection.
// Their payload is part of the error, so it is read first.
func (r *Reader) checkHead() error {
	switch r.head.Type {
	case FrameMethod, FrameHeader, FrameBody:
		return nil
	case FrameHeartbeat:
		if r.head.Size == 0 && r.head.Channel == 0 {
			return nil
		}
	}
	payload, err := r.ReadPayload()
	if err != nil {
		return err
	}
	if r.head.Type == FrameHeartbeat && r.head.Size == 0 {
		return r.fail(UnexpectedFrame(Frame{Type: FrameHeartbeat}))
	}
	return r.fail(frameError(r.head.Type, payload, "unknown_frame"))
}

// ReadPayload reads the payload of the frame whose head was read. The result
// is valid until the next call of r.
func (r *Reader) ReadPayload() ([]byte, error) {
	r.mustBeInFrame()
	if r.failed != nil {
		return nil, r.failed
	}
	size := int(r.head.Size)
	if err := r.fill(size + 1); err != nil {
		return nil, err
	}
	payload := r.buf[r.at : r.at+size : r.at+size]
	r.at += size
	return payload, r.endFrame(payload)
}

// ReadPayloadInto reads the payload of the frame whose head was read into dst,
// which must have its size. What is not buffered yet is read from the source
// directly into dst.
func (r *Reader) ReadPayloadInto(dst []byte) error {
	r.mustBeInFrame()
	if len(dst) != int(r.head.Size) {
		panic("wire: payload read into a slice of another size")
	}
	if r.failed != nil {
		return r.failed
	}
	for r.done < len(dst) {
		n, err := r.read(dst[r.done:])
		r.done += n
		if err != nil {
			return err
		}
	}
	return r.endFrame(dst)
}

// SkipPayload reads the payload of the frame whose head was read and drops it.
func (r *Reader) SkipPayload() error {
	r.mustBeInFrame()
	if r.failed != nil {
		return r.failed
	}
	size := int(r.head.Size)
	for r.done < size {
		if err := r.fill(1); err != nil {
			return err
		}
		b := r.buf[r.at:min(r.end, r.at+size-r.done)]
		if r.done < len(r.first) {
			copy(r.first[r.done:], b)
		}
		r.done += len(b)
		r.at += len(b)
	}
	return r.endFrame(r.first[:min(size, len(r.first))])
}

// endFrame reads the end octet. payload is for the error's text.
func (r *Reader) endFrame(payload []byte) error {
	if r.Buffered() == 0 {
		if err := r.fill(1); err != nil {
			return err
		}
	}
	if end := r.buf[r.at]; end != FrameEnd {
		return r.fail(frameError(r.head.Type, payload, fmt.Sprintf("{invalid_frame_end_marker,%d}", end)))
	}
	r.at++
	r.inFrame = false
	return nil
}

// read returns some octets, from the buffer if it has any. A large dst is
// filled from the source directly.
func (r *Reader) read(dst []byte) (int, error) {
	if r.Buffered() == 0 && len(dst) >= readBuffer {
		return r.readSource(dst)
	}
	if err := r.fill(1); err != nil {
		return 0, err
	}
	n := copy(dst, r.buf[r.at:r.end])
	r.at += n
	return n, nil
}

// fill reads until at least n octets are buffered.
func (r *Reader) fill(n int) error {
	if r.Buffered() >= n {
		return nil
	}
	r.reserve(n)
	for r.Buffered() < n {
		m, err := r.readSource(r.buf[r.end:])
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
func (r *Reader) readSource(dst []byte) (int, error) {
	for range maxEmptyReads {
		n, err := r.src.Read(dst)
		if n > 0 {
			return n, nil // an error that came with them will be returned again
		}
		if errors.Is(err, io.EOF) && (r.inFrame || r.Buffered() > 0) {
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

func (r *Reader) mustBeInFrame() {
	if !r.inFrame && r.failed == nil {
		panic("wire: payload read without a frame header")
	}
}
