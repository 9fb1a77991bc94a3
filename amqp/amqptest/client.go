package amqptest

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/quorate/quorate/amqp/v091/wire"
)

// patience is how long a Client waits for a frame before the test fails.
const patience = time.Minute

// Client speaks frames. It knows just enough of their meaning to find out when
// the server has done what was requested.
type Client struct {
	t    testing.TB
	conn net.Conn
	in   *wire.Reader

	open    map[uint16]bool // channels
	closing map[uint16]bool // channels that the client has sent channel.close on
	ended   bool            // the server has closed the connection
}

// NewClient returns a client on a connected socket, which is closed when the
// test ends.
func NewClient(t testing.TB, conn net.Conn) *Client {
	t.Cleanup(func() { conn.Close() })
	return &Client{t: t, conn: conn, in: wire.NewReader(conn, 0xFFFFFF), open: map[uint16]bool{}, closing: map[uint16]bool{}}
}

// Write sends bytes. A socket that the server has closed takes them all.
func (c *Client) Write(b []byte) {
	c.t.Helper()
	if err := c.conn.SetWriteDeadline(time.Now().Add(patience)); err != nil {
		return
	}
	if _, err := c.conn.Write(b); errors.Is(err, os.ErrDeadlineExceeded) {
		c.t.Fatalf("write: %v", err)
	}
}

// Send sends a method.
func (c *Client) Send(channel uint16, m wire.Method) {
	c.t.Helper()
	if _, ok := m.(*wire.ChannelOpen); ok {
		c.open[channel] = true
	}
	if wire.ID(m) == wire.IDChannelClose {
		delete(c.open, channel)
		c.closing[channel] = true
	}
	c.Write(wire.AppendMethod(nil, channel, m))
}

// Publish sends basic.publish with its content, in frames of at most frameMax.
func (c *Client) Publish(channel uint16, m *wire.BasicPublish, properties, body []byte, frameMax uint32) {
	c.t.Helper()
	b := wire.AppendMethod(nil, channel, m)
	b = wire.AppendHeader(b, channel, wire.ClassBasic, uint64(len(body)), properties)
	c.Write(wire.AppendBody(b, channel, body, frameMax))
}

// Receive returns the next frame, or why there is none: EOF, or a reset.
func (c *Client) Receive() (wire.Frame, error) {
	c.t.Helper()
	return c.ReceiveWithin(patience)
}

// ReceiveWithin is Receive with a limit of its own.
func (c *Client) ReceiveWithin(limit time.Duration) (wire.Frame, error) {
	c.t.Helper()
	if err := c.conn.SetReadDeadline(time.Now().Add(limit)); err != nil {
		return wire.Frame{}, err
	}
	f, err := c.in.ReadFrame()
	if errors.Is(err, os.ErrDeadlineExceeded) {
		c.t.Fatalf("no frame in %v", limit)
	}
	if err != nil {
		c.ended = true
		return wire.Frame{}, err
	}
	switch wire.PeekID(f.Payload) {
	case wire.IDChannelClose:
		if f.Type == wire.FrameMethod {
			delete(c.open, f.Channel)
		}
	case wire.IDChannelCloseOK:
		delete(c.closing, f.Channel)
	case wire.IDConnectionClose, wire.IDConnectionCloseOK:
		c.ended = c.ended || f.Type == wire.FrameMethod
	}
	return f, nil
}

// Expect receives a method of one type and returns it.
func Expect[M wire.Method](c *Client) M {
	c.t.Helper()
	f, err := c.Receive()
	if err != nil {
		c.t.Fatalf("expected a method: %v", err)
	}
	if f.Type != wire.FrameMethod {
		c.t.Fatalf("expected a method, got %s", FormatFrame(f))
	}
	m, err := wire.DecodeMethod(f.Payload)
	if err != nil {
		c.t.Fatal(err)
	}
	want, ok := m.(M)
	if !ok {
		c.t.Fatalf("got %s", FormatFrame(f))
	}
	return want
}

// Break closes the socket.
func (c *Client) Break() {
	c.t.Helper()
	if err := c.conn.Close(); err != nil {
		c.t.Fatal(err)
	}
	c.ended = true
}

// Rest receives until the server closes the socket and returns the frames. It
// answers connection.close.
func (c *Client) Rest() []string {
	c.t.Helper()
	var out []string
	for {
		f, err := c.Receive()
		if err != nil {
			return append(out, ending(err))
		}
		if f.Type == wire.FrameMethod && wire.PeekID(f.Payload) == wire.IDConnectionClose {
			c.Send(0, &wire.ConnectionCloseOK{})
		}
		if f.Type != wire.FrameHeartbeat {
			out = append(out, FormatFrame(f))
		}
	}
}

// Channels is how many channels are open, as far as the client knows.
func (c *Client) Channels() int {
	if c.ended {
		return 0
	}
	return len(c.open)
}

// ending names what a server did that sends no more.
func ending(err error) string {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrClosedPipe) {
		return "eof"
	}
	return "broken: " + err.Error()
}

// Login performs the handshake as guest. capabilities are those the client announces.
func (c *Client) Login(tune wire.ConnectionTuneOK, capabilities ...string) {
	c.t.Helper()
	c.LoginAs("guest", tune, capabilities...)
}

// LoginAs is Login as any user, with the password guest.
func (c *Client) LoginAs(user string, tune wire.ConnectionTuneOK, capabilities ...string) {
	c.t.Helper()
	c.Write([]byte("AMQP\x00\x00\x09\x01"))
	Expect[*wire.ConnectionStart](c)
	c.Send(0, StartOK("PLAIN", "\x00"+user+"\x00guest", capabilities...))
	Expect[*wire.ConnectionTune](c)
	c.Send(0, &tune)
	c.Send(0, &wire.ConnectionOpen{VirtualHost: "/"})
	Expect[*wire.ConnectionOpenOK](c)
}

// StartOK is connection.start-ok with these capabilities.
func StartOK(mechanism, response string, capabilities ...string) *wire.ConnectionStartOK {
	var can wire.Table
	for _, name := range capabilities {
		can = append(can, wire.Field{Name: name, Value: wire.Bool(true)})
	}
	return &wire.ConnectionStartOK{
		ClientProperties: wire.Table{{Name: "capabilities", Value: wire.Nested(can)}},
		Mechanism:        mechanism, Response: response, Locale: "en_US",
	}
}

// Tune is what a usual client answers to connection.tune.
func Tune() wire.ConnectionTuneOK {
	return wire.ConnectionTuneOK{ChannelMax: 2047, FrameMax: 131072, Heartbeat: 0}
}

// Sync receives until the server has done all that was requested on every open
// channel, and all that followed from it in the broker has reached the client,
// or until the server ends the connection. quiesce waits until the channels have
// taken up what the broker has told them. Sync returns the frames.
func (c *Client) Sync(quiesce func()) []string {
	c.t.Helper()
	out := c.round()
	for range 2 { // what comes back may have consequences of its own
		quiesce()
		out = append(out, c.round()...)
	}
	return out
}

// round asks for channel.flow on every open channel and receives up to the
// answers.
func (c *Client) round() []string {
	c.t.Helper()
	var out []string
	if c.ended {
		return out
	}
	waiting := map[uint16]bool{}
	for channel := range c.open {
		waiting[channel] = true
		c.Write(wire.AppendMethod(nil, channel, &wire.ChannelFlow{Active: true}))
	}
	for len(waiting) > 0 || len(c.closing) > 0 {
		f, err := c.Receive()
		if err != nil {
			return append(out, ending(err))
		}
		if f.Type == wire.FrameMethod && wire.PeekID(f.Payload) == wire.IDChannelFlowOK {
			delete(waiting, f.Channel)
			continue
		}
		out = append(out, FormatFrame(f))
		if c.ended {
			return out
		}
		for channel := range waiting {
			if !c.open[channel] {
				delete(waiting, channel)
			}
		}
	}
	return out
}

// SendText sends a line of text: a channel, a method and its arguments; or a
// channel, "content", properties and a body. A body *N is N octets long.
func (c *Client) SendText(line string) {
	c.t.Helper()
	words := strings.Fields(line)
	if len(words) < 2 {
		c.t.Fatalf("%s: want CHANNEL METHOD …", line)
	}
	channel := parseChannel(c.t, words[0])
	if words[1] == "content" {
		properties, rest, err := ParseProperties(words[2:])
		if err != nil {
			c.t.Fatalf("%s: %v", line, err)
		}
		body := []byte(strings.Join(rest, " "))
		if times, ok := strings.CutPrefix(string(body), "*"); ok {
			n, err := strconv.Atoi(times)
			if err != nil {
				c.t.Fatalf("%s: %v", line, err)
			}
			body = bytes.Repeat([]byte("x"), n)
		}
		b := wire.AppendHeader(nil, channel, wire.ClassBasic, uint64(len(body)), properties)
		c.Write(wire.AppendBody(b, channel, body, 131072))
		return
	}
	m, err := ParseMethod(words[1:])
	if err != nil {
		c.t.Fatalf("%s: %v", line, err)
	}
	c.Send(channel, m)
}

func parseChannel(t testing.TB, text string) uint16 {
	t.Helper()
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		t.Fatalf("channel %s: %v", text, err)
	}
	return uint16(n)
}
