package frames

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"time"
)

// Types of frames.
const (
	TypeAMQP = 0
	TypeSASL = 1
)

// patience bounds a dial and each read.
const patience = 30 * time.Second

// maxFrame is the largest frame that is read.
const maxFrame = 1 << 24

// Frame is a frame that has come. Its Composite has no name if the frame is empty.
type Frame struct {
	Composite
	Channel uint16
	Type    byte
	Size    int    // of all
	Payload []byte // what comes after the performative
}

// Conn is a connection.
type Conn struct {
	net.Conn
	in *bufio.Reader
	// Patience bounds each read.
	Patience time.Duration
}

// Dial connects, and sends nothing.
func Dial(ctx context.Context, addr string) (*Conn, error) {
	d := net.Dialer{Timeout: patience}
	conn, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	return New(conn), nil
}

// New uses a connection that is open.
func New(conn net.Conn) *Conn {
	return &Conn{Conn: conn, in: bufio.NewReader(conn), Patience: patience}
}

// Header is a protocol header: 0 AMQP, 2 TLS, 3 SASL.
func Header(id byte) []byte { return []byte{'A', 'M', 'Q', 'P', id, 1, 0, 0} }

// ReadHeader reads a protocol header.
func (c *Conn) ReadHeader() ([]byte, error) {
	b := make([]byte, 8)
	if err := c.SetReadDeadline(time.Now().Add(c.Patience)); err != nil {
		return nil, err
	}
	_, err := io.ReadFull(c.in, b)
	return b, err
}

// AppendFrame encodes a frame.
func AppendFrame(b []byte, kind byte, channel uint16, body []byte) []byte {
	b = binary.BigEndian.AppendUint32(b, uint32(len(body)+8))
	b = append(b, 2, kind)
	b = binary.BigEndian.AppendUint16(b, channel)
	return append(b, body...)
}

// Encode is the frame of a composite with a payload.
func Encode(channel uint16, name string, f Fields, payload ...byte) []byte {
	kind := byte(TypeAMQP)
	if len(name) > 4 && name[:5] == "sasl-" {
		kind = TypeSASL
	}
	return AppendFrame(nil, kind, channel, append(Append(nil, Composite{name, f}), payload...))
}

// Send sends a composite with a payload.
func (c *Conn) Send(channel uint16, name string, f Fields, payload ...byte) error {
	_, err := c.Write(Encode(channel, name, f, payload...))
	return err
}

// Rest returns what comes until the other side hangs up.
func (c *Conn) Rest() ([]byte, error) {
	if err := c.SetReadDeadline(time.Now().Add(c.Patience)); err != nil {
		return nil, err
	}
	return io.ReadAll(c.in)
}

// ReadFrame reads a frame.
func (c *Conn) ReadFrame() (Frame, error) {
	if err := c.SetReadDeadline(time.Now().Add(c.Patience)); err != nil {
		return Frame{}, err
	}
	// A deadline that passes between two frames leaves the stream as it is.
	head, err := c.in.Peek(8)
	if err != nil {
		if len(head) == 0 {
			return Frame{}, err
		}
		return Frame{}, fmt.Errorf("%w after %d octets of a frame", err, len(head))
	}
	f := Frame{Size: int(binary.BigEndian.Uint32(head)), Type: head[5], Channel: binary.BigEndian.Uint16(head[6:])}
	offset := int(head[4]) * 4
	if f.Size > maxFrame || offset < 8 || offset > f.Size {
		return Frame{}, fmt.Errorf("frame % x", head)
	}
	b := make([]byte, f.Size)
	if _, err := io.ReadFull(c.in, b); err != nil {
		return Frame{}, err
	}
	if b = b[offset:]; len(b) == 0 {
		return f, nil
	}
	v, rest, err := Parse(b)
	if err != nil {
		return f, fmt.Errorf("frame % .64x: %w", b, err)
	}
	composite, ok := v.(Composite)
	if !ok {
		return f, fmt.Errorf("no performative: %v", v)
	}
	f.Composite, f.Payload = composite, rest
	return f, nil
}
