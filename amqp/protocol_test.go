package amqp_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/quorate/quorate/amqp"
	"github.com/quorate/quorate/amqp/amqptest"
	"github.com/quorate/quorate/fsm"
)

// held is what a connection of lines holds, in bytes.
const held = 1 << 20

// lines is a protocol whose frames are lines of text.
type lines struct {
	header  amqp.Header
	spoken  atomic.Bool
	invalid error
}

func (p *lines) Name() string { return string(p.header[:]) }

func (p *lines) Speaks(h amqp.Header) bool { return h == p.header && p.spoken.Load() }
func (p *lines) Header() amqp.Header       { return p.header }
func (p *lines) Validate() error           { return p.invalid }

func (p *lines) Open(c *amqp.Conn, h amqp.Header) amqp.Endpoint {
	return &talk{Conn: c, in: bufio.NewReader(c.Source), name: string(h[:])}
}

// talk is a connection of lines. It has one channel.
type talk struct {
	*amqp.Conn
	in      *bufio.Reader
	name    string
	part    *amqp.Account
	session amqp.Session
	writer  *amqp.Writer
}

func (t *talk) Handshake(ctx context.Context) error {
	line, err := t.in.ReadString('\n')
	if err != nil {
		return err
	}
	user, password, ok := amqp.PlainLogin(strings.TrimSuffix(line, "\n"))
	if !ok {
		return errors.New("malformed login")
	}
	if t.Login(ctx, user, password) != nil {
		return amqp.ErrDropLater
	}
	if err := t.Connect(ctx, "/"); err != nil {
		return err
	}
	t.Mechanism, t.Conn.Heartbeat, t.Beat = amqp.Plain, time.Minute, 7*time.Second
	t.part = t.NewPart(func(*amqp.Account) bool { return false })
	t.session, err = t.Broker.OpenSession(nil)
	return err
}

func (t *talk) Refuse(err error) bool {
	_, err = fmt.Fprintf(t.Socket, "refused: %v\n", err)
	return err == nil
}

func (t *talk) Describe(i *amqp.ConnectionInfo) { i.Protocol = "lines" }

func (t *talk) Encoder(w *amqp.Writer) amqp.Encoder {
	t.writer = w
	return t
}

// Encode writes small payloads by way of the buffer, others directly.
func (t *talk) Encode(items []amqp.Item) error {
	for i := range items {
		it := &items[i]
		if !t.writer.Skip(it) {
			t.writer.Grow(fmt.Appendf(t.writer.Buf, "%s %d ", it.Owner.(*talk).name, it.Tag))
			t.writer.Direct(it.Message.Payload)
		}
		if err := t.writer.Done(it); err != nil {
			return err
		}
	}
	return nil
}

func (t *talk) Heartbeat(dst []byte) []byte { return append(dst, "beat\n"...) }
func (t *talk) Flushed()                    {}

func (t *talk) Run() error {
	t.part.Add(held)
	for {
		line, err := t.in.ReadString('\n')
		if err != nil {
			return err
		}
		t.Source.FrameDone()
		switch line {
		case "items\n":
			t.Out.Lock()
			t.Out.PushLast(last{})
			t.Out.PushItem(&amqp.Item{Kind: amqp.Frames + 1, Owner: t, Tag: 5, Message: fsm.Message{Payload: fsm.Payload("payload\n")}})
			t.Out.PushFrames(append(t.Out.Encoded(), "frames\n"...))
			t.Out.Unlock()
		case "close\n":
			return amqp.ErrClientClosed
		case "refused\n":
			t.Refused("refused", "for want of a right")
		case "ending\n":
			return amqp.ErrEnding
		case "panic\n":
			panic("a line")
		}
	}
}

// last makes frames as late as possible.
type last struct{}

func (last) AppendFrames(dst []byte) []byte { return append(dst, "last\n"...) }

func (t *talk) Admit() bool   { return true }
func (t *talk) DropRelieved() {}

func (t *talk) Fail(reason error) {
	if t.Conn.Fail(reason) {
		t.end("close: " + reason.Error())
	}
}

func (t *talk) end(line string) {
	t.Out.Lock()
	t.Out.PushFrames(append(t.Out.Encoded(), line+"\n"...))
	t.Out.Close()
	t.Out.PushItem(&amqp.Item{Kind: amqp.Frames + 1}) // is not taken any more
	t.Out.Unlock()
}

func (t *talk) AwaitClose() {
	if line, _ := t.in.ReadString('\n'); line == "panic\n" {
		panic("a last line")
	}
}

func (t *talk) Renew()                 {}
func (t *talk) FinishClose()           { t.end("closed") }
func (t *talk) Shut()                  {}
func (t *talk) Leave() []amqp.Session  { return []amqp.Session{t.session} }
func (t *talk) Parts() []*amqp.Account { return []*amqp.Account{t.part} }

func (t *talk) Vacate(clean bool) {
	t.part.Add(-held)
	t.part.Close(clean)
}

// stage is a server of two such protocols, in virtual time.
type stage struct {
	t           *testing.T
	server      *amqp.Server
	first, last *lines
}

func withServer(t *testing.T, f func(r *stage)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := &stage{t: t, first: &lines{header: amqp.Header([]byte("LINES  1"))}, last: &lines{header: amqp.Header([]byte("LINES  2"))}}
		r.first.spoken.Store(true)
		r.last.spoken.Store(true)
		var err error
		r.server, err = amqp.New(amqp.Config{Broker: amqptest.NewBroker(), Protocols: []amqp.Protocol{r.first, r.last}})
		if err != nil {
			t.Fatal(err)
		}
		f(r)
		if err := r.server.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
	})
}

// say connects a client that writes a text, and returns all that it reads.
func (r *stage) say(text string) string {
	r.t.Helper()
	conn := r.connect(text)
	got, _ := io.ReadAll(conn)
	return string(got)
}

func (r *stage) connect(text string) net.Conn {
	near, far := net.Pipe()
	go r.server.ServeConn(far)
	go func() { _, _ = io.WriteString(near, text) }()
	r.t.Cleanup(func() { near.Close() })
	return near
}

const loginLine = "\x00guest\x00guest\n"

// The header decides which protocol serves a connection. An unknown one is
// answered with that of the first protocol that is spoken.
func TestProtocolByHeader(t *testing.T) {
	withServer(t, func(r *stage) {
		for _, name := range []string{"LINES  1", "LINES  2"} {
			conn := r.connect(name + loginLine + "items\n")
			want := name + " 5 payload\nframes\nlast\n"
			got := make([]byte, len(want))
			if _, err := io.ReadFull(conn, got); err != nil || string(got) != want {
				t.Errorf("%s: %q, %v", name, got, err)
			}
			_, _ = io.WriteString(conn, "close\n")
			if rest, err := io.ReadAll(conn); string(rest) != "closed\n" || err != nil {
				t.Errorf("%s ends with %q, %v", name, rest, err)
			}
		}
		if got := r.say("LINES  3"); got != "LINES  1" {
			t.Errorf("an unknown protocol: %q", got)
		}
		r.first.spoken.Store(false)
		if got := r.say("LINES  1"); got != "LINES  2" {
			t.Errorf("a protocol that is not spoken yet: %q", got)
		}
		if got := r.say("GET / HT"); !strings.HasPrefix(got, "HTTP/1.1 400 ") {
			t.Errorf("HTTP: %q", got)
		}
	})
}

// telling is a broker that tells for which protocol it is called.
type telling struct {
	*amqptest.Broker
	of chan string
}

func (a telling) Login(ctx context.Context, user, password string, remote netip.Addr) error {
	a.of <- "login by " + amqp.ProtocolOf(ctx)
	return a.Broker.Login(ctx, user, password, remote)
}

func (a telling) Connect(ctx context.Context, user, vhost string) (amqp.Connection, error) {
	a.of <- "connect by " + amqp.ProtocolOf(ctx)
	return a.Broker.Connect(ctx, user, vhost)
}

// The broker learns of which protocol a client is, and so do reports of refusals.
func TestProtocolIsKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &lines{header: amqp.Header([]byte("LINES  1"))}
		p.spoken.Store(true)
		broker := telling{amqptest.NewBroker(), make(chan string, 9)}
		r := &stage{t: t}
		var err error
		if r.server, err = amqp.New(amqp.Config{
			Broker: broker, Protocols: []amqp.Protocol{p}, Refused: func(r amqp.Refusal) { broker.of <- r.Protocol + " " + r.Method },
		}); err != nil {
			t.Fatal(err)
		}
		conn := r.connect("LINES  1" + loginLine + "refused\nclose\n")
		if rest, err := io.ReadAll(conn); string(rest) != "closed\n" || err != nil {
			t.Errorf("%q, %v", rest, err)
		}
		for _, want := range []string{"login by LINES  1", "connect by LINES  1", "LINES  1 refused"} {
			if got := <-broker.of; got != want {
				t.Errorf("%q, want %q", got, want)
			}
		}
		if err := r.server.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
	})
}

// What ends a connection is told by its protocol, and the listing has its name.
func TestProtocolEnds(t *testing.T) {
	withServer(t, func(r *stage) {
		if got := r.say("LINES  1\x00guest\n"); got != "refused: malformed login\n" {
			t.Errorf("handshake: %q", got)
		}
		start := time.Now()
		if got := r.say("LINES  1\x00guest\x00wrong\n"); got != "" || time.Since(start) != 3*time.Second {
			t.Errorf("login: %q after %v", got, time.Since(start))
		}
		if got := r.say("LINES  1" + loginLine + "panic\n"); got != "" || r.server.Panics() != 1 {
			t.Errorf("panic: %q, %d", got, r.server.Panics())
		}

		conn := r.connect("LINES  2" + loginLine)
		in := bufio.NewReader(conn)
		if beat, err := in.ReadString('\n'); beat != "beat\n" {
			t.Errorf("heartbeat: %q, %v", beat, err)
		}
		protocols := []string{}
		for _, c := range r.server.Connections() {
			protocols = append(protocols, fmt.Sprint(c.Protocol, c.Channels))
		}
		if !slices.Equal(protocols, []string{"lines1"}) {
			t.Errorf("listed are %q", protocols)
		}
		if n := r.server.Held(); n != held {
			t.Errorf("%d bytes are held", n)
		}
		name := r.server.Connections()[0].Name
		for why, end := range map[string]func(why string){
			"enough":  r.server.CloseConnections,
			"go":      func(why string) { r.server.CloseConnection(name, why) },
			"for now": func(why string) { r.server.Suspend(context.Background(), why) },
		} {
			go end(why)
			if line, err := in.ReadString('\n'); line != "close: "+why+"\n" {
				t.Errorf("forced: %q, %v", line, err)
			}
			_, _ = io.WriteString(conn, "yes\n")
			if rest, err := io.ReadAll(in); len(rest) > 0 || err != nil {
				t.Errorf("then %q, %v", rest, err)
			}
			synctest.Wait()
			r.server.Resume()
			conn = r.connect("LINES  2" + loginLine)
			in.Reset(conn)
			if beat, err := in.ReadString('\n'); beat != "beat\n" {
				t.Errorf("heartbeat: %q, %v", beat, err)
			}
		}
		go r.server.CloseConnections("once more")
		_, _ = in.ReadString('\n')
		_, _ = io.WriteString(conn, "ending\n")
		_, _ = io.WriteString(conn, "panic\n")
		if rest, err := io.ReadAll(in); len(rest) > 0 || err != nil || r.server.Panics() != 2 {
			t.Errorf("then %q, %v after %d panics", rest, err, r.server.Panics())
		}
		conn.Close()
		synctest.Wait()
		if n := r.server.Held(); n != 0 {
			t.Errorf("%d bytes are held for nobody", n)
		}
	})
}

// A protocol's settings are checked with the server's.
func TestProtocolsValid(t *testing.T) {
	for want, protocols := range map[string][]amqp.Protocol{
		"protocols are missing": nil,
		"line_max is 0":         {&lines{}, &lines{invalid: errors.New("line_max is 0")}},
	} {
		if _, err := amqp.New(amqp.Config{Broker: amqptest.NewBroker(), Protocols: protocols}); err == nil || err.Error() != want {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

// A listener may speak other protocols than its server.
func TestProtocolsOfListeners(t *testing.T) {
	server, other := &lines{header: amqp.Header([]byte("LINES  1"))}, &lines{header: amqp.Header([]byte("LINES  9"))}
	server.spoken.Store(true)
	other.spoken.Store(true)
	s, err := amqp.New(amqp.Config{Broker: amqptest.NewBroker(), Protocols: []amqp.Protocol{server}})
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 2)
	for want, only := range map[string][]amqp.Protocol{"LINES  1": nil, "LINES  9": {other}} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		go func() { served <- s.Serve(l, only...) }()
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(c, "LINES  7"); err != nil {
			t.Fatal(err)
		}
		if got, err := io.ReadAll(c); string(got) != want || err != nil {
			t.Errorf("%q answers %q, %v", want, got, err)
		}
		c.Close()
	}
	if err := s.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
	for range 2 {
		if err := <-served; !errors.Is(err, amqp.ErrServerClosed) {
			t.Error(err)
		}
	}
}
