package client

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
	"time"
)

// Raw is an AMQP connection that writes the frames it is given, so that it can send
// what a well-behaved client cannot. It has one open channel, number 1.
type Raw struct {
	conn net.Conn
	in   *bufio.Reader
}

// Frame types, and the frame-end octet.
const (
	FrameMethod = 1
	FrameHeader = 2
	FrameBody   = 3
	frameEnd    = 0xCE
)

// rawTimeout bounds each step of a raw connection.
const rawTimeout = 30 * time.Second

// Closed is the channel.close or connection.close that a broker has sent.
type Closed struct {
	Connection    bool
	Code          int
	Text          string
	Class, Method uint16
}

func (c *Closed) Error() string {
	return fmt.Sprintf("closed with %d %s (%d,%d)", c.Code, c.Text, c.Class, c.Method)
}

// Dial connects to addr and sends nothing.
func Dial(ctx context.Context, addr string) (*Raw, error) { return DialFrom(ctx, "", addr) }

// DialFrom is like Dial, from one of this host's addresses; "": from any.
func DialFrom(ctx context.Context, local, addr string) (*Raw, error) {
	d := net.Dialer{Timeout: dialTimeout}
	if local != "" {
		d.LocalAddr = &net.TCPAddr{IP: net.ParseIP(local)}
	}
	conn, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	return NewRaw(conn), nil
}

// NewRaw returns a raw connection over an open one.
func NewRaw(conn net.Conn) *Raw { return &Raw{conn: conn, in: bufio.NewReader(conn)} }

// DialRaw connects to addr, logs in as guest and opens channel 1.
func DialRaw(ctx context.Context, addr string) (*Raw, error) {
	r, err := Dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	if err := r.open(); err != nil {
		r.conn.Close()
		return nil, err
	}
	return r, nil
}

func (r *Raw) open() error {
	if err := r.Login("/", DefaultTune); err != nil {
		return err
	}
	return r.OpenChannel(1)
}

// Tune holds the values of a client's tune-ok.
type Tune struct {
	Channels  uint16
	Frame     uint32
	Heartbeat uint16 // seconds
}

// DefaultTune accepts what brokers offer, without heartbeats.
var DefaultTune = Tune{Channels: 2047, Frame: 131072}

// ProtocolHeader is the first thing that a client sends.
const ProtocolHeader = "AMQP\x00\x00\x09\x01"

// Login opens the connection, from the protocol header to open-ok, as guest.
func (r *Raw) Login(vhost string, t Tune) error {
	if _, err := r.Start("PLAIN", "\x00guest\x00guest"); err != nil {
		return err
	}
	if _, err := r.Expect(10<<16 | 30); err != nil {
		return err
	}
	if err := r.TuneOK(t); err != nil {
		return err
	}
	if err := r.Method(0, 10<<16|40, Join(ShortString(vhost), ShortString(""), []byte{0})); err != nil {
		return err
	}
	_, err := r.Expect(10<<16 | 41)
	return err
}

// Start sends the protocol header and start-ok with these capabilities. It
// returns the arguments of start.
func (r *Raw) Start(mechanism, response string, capabilities ...string) ([]byte, error) {
	if err := r.Write([]byte(ProtocolHeader)); err != nil {
		return nil, err
	}
	start, err := r.Expect(10<<16 | 10)
	if err != nil {
		return nil, err
	}
	var able []byte
	for _, name := range capabilities {
		able = append(able, Field(name, 't', 1)...)
	}
	properties := Field("capabilities", 'F', LongString(string(able))...)
	return start, r.Method(0, 10<<16|11,
		Join(LongString(string(properties)), ShortString(mechanism), LongString(response), ShortString("en_US")))
}

// TuneOK sends tune-ok.
func (r *Raw) TuneOK(t Tune) error {
	args := binary.BigEndian.AppendUint16(nil, t.Channels)
	args = binary.BigEndian.AppendUint32(args, t.Frame)
	return r.Method(0, 10<<16|31, binary.BigEndian.AppendUint16(args, t.Heartbeat))
}

// OpenChannel opens a channel.
func (r *Raw) OpenChannel(number uint16) error {
	if err := r.Method(number, 20<<16|10, ShortString("")); err != nil {
		return err
	}
	_, err := r.Expect(20<<16 | 11)
	return err
}

// Bytes reads until the broker closes the connection. It is an error if that takes
// longer than limit.
func (r *Raw) Bytes(limit time.Duration) ([]byte, error) {
	_ = r.conn.SetDeadline(time.Now().Add(limit)) // as in Write
	all, err := io.ReadAll(r.in)
	if errors.Is(err, syscall.ECONNRESET) {
		err = nil
	}
	return all, err
}

// Close closes the socket without an AMQP close.
func (r *Raw) Close() error { return r.conn.Close() }

// Write sends bytes as they are.
func (r *Raw) Write(p []byte) error {
	_ = r.conn.SetDeadline(time.Now().Add(rawTimeout)) // using a closed connection fails anyway
	_, err := r.conn.Write(p)
	return err
}

// Frame sends a frame.
func (r *Raw) Frame(kind byte, channel uint16, payload []byte) error {
	b := binary.BigEndian.AppendUint16([]byte{kind}, channel)
	b = binary.BigEndian.AppendUint32(b, uint32(len(payload)))
	return r.Write(append(append(b, payload...), frameEnd))
}

// Method sends a method, which is class<<16 | method.
func (r *Raw) Method(channel uint16, method uint32, args []byte) error {
	return r.Frame(FrameMethod, channel, append(binary.BigEndian.AppendUint32(nil, method), args...))
}

// Read returns the next frame.
func (r *Raw) Read() (kind byte, channel uint16, payload []byte, err error) {
	_ = r.conn.SetDeadline(time.Now().Add(rawTimeout)) // as in Write
	var head [7]byte
	if _, err = io.ReadFull(r.in, head[:]); err != nil {
		return 0, 0, nil, err
	}
	payload = make([]byte, binary.BigEndian.Uint32(head[3:])+1)
	if _, err = io.ReadFull(r.in, payload); err != nil {
		return 0, 0, nil, err
	}
	end := len(payload) - 1
	if payload[end] != frameEnd {
		return 0, 0, nil, errors.New("a frame without its end")
	}
	return head[0], binary.BigEndian.Uint16(head[1:]), payload[:end], nil
}

// Expect reads frames until the method arrives, and returns its arguments. If a
// close arrives instead, the error is a *Closed.
func (r *Raw) Expect(method uint32) ([]byte, error) {
	for {
		kind, _, payload, err := r.Read()
		if err != nil {
			return nil, fmt.Errorf("waiting for method %d,%d: %w", method>>16, method&0xffff, err)
		}
		if kind != FrameMethod || len(payload) < 4 {
			continue
		}
		switch got := binary.BigEndian.Uint32(payload); got {
		case method:
			return payload[4:], nil
		case 10<<16 | 50, 20<<16 | 40:
			return nil, parseClose(got == 10<<16|50, payload[4:])
		}
	}
}

func parseClose(connection bool, p []byte) error {
	if len(p) < 3 || len(p) < 7+int(p[2]) {
		return errors.New("a close cut short")
	}
	n := int(p[2])
	return &Closed{
		Connection: connection, Code: int(binary.BigEndian.Uint16(p)), Text: string(p[3 : 3+n]),
		Class: binary.BigEndian.Uint16(p[3+n:]), Method: binary.BigEndian.Uint16(p[5+n:]),
	}
}

// Declare sends queue.declare of a durable queue on channel 1. table holds the
// encoded arguments, without their length.
func (r *Raw) Declare(queue string, table []byte) error {
	return r.Method(1, 50<<16|10, Join([]byte{0, 0}, ShortString(queue), []byte{2}, LongString(string(table))))
}

// Publish sends a message on channel 1; properties are the flags and the properties
// that they announce.
func (r *Raw) Publish(exchange, key string, properties, body []byte) error {
	if err := r.Method(1, 60<<16|40, Join([]byte{0, 0}, ShortString(exchange), ShortString(key), []byte{0})); err != nil {
		return err
	}
	head := binary.BigEndian.AppendUint64([]byte{0, 60, 0, 0}, uint64(len(body)))
	if err := r.Frame(FrameHeader, 1, append(head, properties...)); err != nil || len(body) == 0 {
		return err
	}
	return r.Frame(FrameBody, 1, body)
}

// ShortString, LongString and Field encode values.
func ShortString(s string) []byte { return append([]byte{byte(len(s))}, s...) }

// LongString returns s, preceded by its length in four octets.
func LongString(s string) []byte {
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(s))), s...)
}

// Field returns an entry of a table: its name, the type's letter and the value's
// octets.
func Field(name string, kind byte, value ...byte) []byte {
	return append(append(ShortString(name), kind), value...)
}

// Join concatenates parts.
func Join(parts ...[]byte) []byte {
	var all []byte
	for _, p := range parts {
		all = append(all, p...)
	}
	return all
}

// Consume starts a consumer on channel 1 that must ack its deliveries.
func (r *Raw) Consume(queue string) error {
	err := r.Method(1, 60<<16|20, Join([]byte{0, 0}, ShortString(queue), ShortString(""), []byte{0, 0, 0, 0, 0}))
	if err != nil {
		return err
	}
	_, err = r.Expect(60<<16 | 21)
	return err
}
