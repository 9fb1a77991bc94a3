// Package archive is the format of backups: a stream of frames, each with a
// checksum, that ends with a digest of everything before. A stream that lacks its
// end, or a byte on the way, is no backup: a Reader says so.
//
// The package knows nothing of what the frames hold, beyond the order in which they
// come, and nothing of files and connections.
package archive

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"hash/crc32"
	"io"
)

// A stream begins with the magic and the version of the format. A frame is
//
//	kind    1 byte
//	size    4 bytes, of the body
//	sum     4 bytes, CRC-32C of the 5 bytes before and the body
//	body
//
// Numbers are big endian. The body of the last frame, of kind End, is the number of
// frames before it (8 bytes) and the SHA-256 of all bytes before it.
const (
	magic   = "quorate backup\n"
	version = 1
	head    = 1 + 4 + 4
	// maxFrame bounds a body: a message with its properties and its record.
	maxFrame = 1 << 30
	// readStep is how much memory is taken at a time for a body that is announced.
	readStep = 1 << 20
)

// Kind says what a frame holds.
type Kind byte

// The order of frames: Header, Definitions, and for each queue Queue, its Messages,
// and QueueEnd or Discard; then End. Failed may come instead of any of them. Index
// comes behind Definitions, and only on the way to a restore.
const (
	Header      Kind = 1 + iota // JSON, see Info
	Definitions                 // encoded logpb.CatalogSnapshot
	Queue                       // JSON, see Section
	Message                     // length of the record (varint), encoded logpb.MessageState, payload
	QueueEnd                    // JSON, see Total
	Discard                     // what came since Queue is void: the queue comes again
	Failed                      // text: why the stream breaks off
	End
	Index // JSON, a list of Sections: those whose queues follow
)

// Errors of a Reader.
var (
	// ErrFormat says that a stream is no backup, or one of a later version.
	ErrFormat = errors.New("not a backup that this version can read")
	// ErrDamaged says that a stream is a backup with other bytes than were written.
	ErrDamaged = errors.New("the backup is damaged")
	// ErrTruncated says that a stream breaks off before its end.
	ErrTruncated = errors.New("the backup is incomplete: it ends too early")
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Writer writes a stream.
type Writer struct {
	to     io.Writer
	sum    hash.Hash
	frames uint64
	buf    []byte
	err    error
}

// NewWriter begins a stream.
func NewWriter(to io.Writer) *Writer {
	w := &Writer{to: to, sum: sha256.New()}
	w.write(append([]byte(magic), version))
	return w
}

// write writes bytes that belong to the digest. It remembers the first error.
func (w *Writer) write(b []byte) {
	if w.err == nil {
		w.sum.Write(b)
		_, w.err = w.to.Write(b)
	}
}

// Frame writes one frame, whose body is given in parts.
func (w *Writer) Frame(kind Kind, parts ...[]byte) error {
	size := 0
	for _, p := range parts {
		size += len(p)
	}
	if size > maxFrame {
		return fmt.Errorf("a frame of %d bytes is longer than %d", size, maxFrame)
	}
	b := binary.BigEndian.AppendUint32(append(w.buf[:0], byte(kind)), uint32(size))
	sum := crc32.Checksum(b, castagnoli)
	for _, p := range parts {
		sum = crc32.Update(sum, castagnoli, p)
	}
	b = binary.BigEndian.AppendUint32(b, sum)
	for _, p := range parts {
		b = append(b, p...)
	}
	w.buf = b
	w.write(b)
	w.frames++
	return w.err
}

// Close writes the last frame: without it the stream is not whole.
func (w *Writer) Close() error {
	return w.Frame(End, binary.BigEndian.AppendUint64(nil, w.frames), w.sum.Sum(nil))
}

// Reader reads a stream.
type Reader struct {
	from   io.Reader
	sum    hash.Hash
	frames uint64
	begun  bool
	ended  bool
	buf    []byte
}

// NewReader returns a reader of a stream.
func NewReader(from io.Reader) *Reader { return &Reader{from: from, sum: sha256.New()} }

// Next returns the next frame. The body is good until the next call. io.EOF means
// that the stream was whole and unharmed to its end, and that nothing follows it.
func (r *Reader) Next() (Kind, []byte, error) {
	if r.ended {
		return 0, nil, io.EOF
	}
	if err := r.begin(); err != nil {
		return 0, nil, err
	}
	digest := r.sum.Sum(nil)
	b, err := r.frame()
	if err != nil {
		return 0, nil, err
	}
	kind, body := Kind(b[0]), b[head:]
	switch kind {
	case End:
		want := append(binary.BigEndian.AppendUint64(nil, r.frames), digest...)
		if !bytes.Equal(body, want) {
			return 0, nil, fmt.Errorf("%w: its digest does not match", ErrDamaged)
		}
		if n, err := io.ReadFull(r.from, make([]byte, 1)); n > 0 {
			return 0, nil, fmt.Errorf("%w: data after its end", ErrDamaged)
		} else if err != io.EOF {
			return 0, nil, err
		}
		r.ended = true
		return 0, nil, io.EOF
	case Failed:
		return 0, nil, fmt.Errorf("%w: %s", ErrTruncated, body)
	}
	r.frames++
	return kind, body, nil
}

// begin reads the magic and the version.
func (r *Reader) begin() error {
	if r.begun {
		return nil
	}
	b := make([]byte, len(magic)+1)
	if _, err := io.ReadFull(r.from, b); errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) {
		return ErrFormat
	} else if err != nil {
		return err
	}
	if string(b[:len(magic)]) != magic || b[len(magic)] != version {
		return ErrFormat
	}
	r.sum.Write(b)
	r.begun = true
	return nil
}

// frame reads one frame and checks its sum. What is announced is not trusted: memory
// is taken as the bytes come.
func (r *Reader) frame() ([]byte, error) {
	r.buf = r.buf[:0]
	if err := r.read(head); err != nil {
		return nil, err
	}
	size := int(binary.BigEndian.Uint32(r.buf[1:]))
	want := binary.BigEndian.Uint32(r.buf[5:])
	if size > maxFrame {
		return nil, fmt.Errorf("%w: a frame of %d bytes", ErrDamaged, size)
	}
	for left := size; left > 0; {
		n := min(left, readStep)
		if err := r.read(n); err != nil {
			return nil, err
		}
		left -= n
	}
	sum := crc32.Update(crc32.Checksum(r.buf[:5], castagnoli), castagnoli, r.buf[head:])
	if sum != want {
		return nil, fmt.Errorf("%w: the checksum of frame %d does not match", ErrDamaged, r.frames+1)
	}
	r.sum.Write(r.buf)
	return r.buf, nil
}

// read appends n bytes to the buffer.
func (r *Reader) read(n int) error {
	at := len(r.buf)
	r.buf = append(r.buf, make([]byte, n)...)
	_, err := io.ReadFull(r.from, r.buf[at:])
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return ErrTruncated
	}
	return err
}
