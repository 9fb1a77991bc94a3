package v091_test

import (
	"bytes"
	"context"
	"fmt"
	"net/netip"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/quorate/quorate/amqp"
	"github.com/quorate/quorate/amqp/amqptest"
	"github.com/quorate/quorate/amqp/v091/wire"
)

const mib = 1 << 20

// anybody is a broker that lets every user log in.
type anybody struct{ *amqptest.Broker }

func (anybody) Login(context.Context, string, string, netip.Addr) error { return nil }

// mustOpenChannels opens channels 1 to n of a new connection of a user.
func (s *server) mustOpenChannels(user string, n uint16) *amqptest.Client {
	s.t.Helper()
	c := s.mustDial()
	c.LoginAs(user, amqptest.Tune(), "connection.blocked")
	for i := range n {
		c.Send(i+1, &wire.ChannelOpen{})
		amqptest.Expect[*wire.ChannelOpenOK](c)
	}
	return c
}

// partialFrames is a publish of a body of so many octets, but for the last one.
func partialFrames(channel uint16, size int) []byte {
	b := wire.AppendMethod(nil, channel, &wire.BasicPublish{RoutingKey: "q"})
	b = wire.AppendHeader(b, channel, wire.ClassBasic, uint64(size), []byte{0, 0})
	return wire.AppendBody(b, channel, make([]byte, size-1), 131072)
}

// expectChannelClose receives a close of a channel, and returns its channel.
func expectChannelClose(t *testing.T, c *amqptest.Client, code uint16, text string) uint16 {
	t.Helper()
	f, err := c.Receive()
	must(t, err)
	got := amqptest.FormatFrame(f)
	if !strings.Contains(got, "channel.close ") || !strings.Contains(got, fmt.Sprintf("reply-code=%d", code)) || !strings.Contains(got, text) {
		t.Fatalf("got %s, want channel.close with %d and %q", got, code, text)
	}
	return f.Channel
}

// await waits for a state that is sure to come.
func await(t *testing.T, what string, ready func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !ready(); runtime.Gosched() {
		if time.Now().After(end) {
			t.Fatalf("%s: it does not come", what)
		}
	}
}

// A connection that leaves its messages incomplete loses the channel that goes beyond the bound, and no other one.
// What the others hold stays, and is taken when it is complete.
func TestHeldIncomplete(t *testing.T) {
	s := mustServe(t, func(c *amqp.Config) { c.HeldByConnection = 8 * mib })
	c := s.mustOpenChannels("guest", 20)
	c.Send(20, &wire.QueueDeclare{Queue: "q"})
	amqptest.Expect[*wire.QueueDeclareOK](c)
	for i := range uint16(7) {
		c.Write(partialFrames(i+1, mib))
	}
	c.Write(partialFrames(8, 2*mib))
	if ch := expectChannelClose(t, c, 506, "RESOURCE_ERROR - memory held for clients has reached its limit, held_memory.connection = 8388608"); ch != 8 {
		t.Errorf("channel %d is closed", ch)
	}
	c.Write(wire.AppendBody(nil, 1, []byte("x"), 4096))
	s.broker.AwaitPublished(1)
	if n := s.Held(); n < 5*mib || n > 9*mib {
		t.Errorf("%d octets are held", n)
	}
}

// The same holds for a transaction: its channel is closed and rolled back, a channel beside it goes on.
func TestHeldTransaction(t *testing.T) {
	s := mustServe(t, func(c *amqp.Config) { c.HeldByConnection = 8 * mib })
	c := s.mustOpenChannels("guest", 2)
	c.Send(1, &wire.QueueDeclare{Queue: "q"})
	amqptest.Expect[*wire.QueueDeclareOK](c)
	c.Send(1, &wire.TxSelect{})
	amqptest.Expect[*wire.TxSelectOK](c)
	for range 9 {
		c.Publish(1, &wire.BasicPublish{RoutingKey: "q"}, []byte{0, 0}, make([]byte, mib), 131072)
	}
	expectChannelClose(t, c, 506, "held_memory.connection")
	c.Publish(2, &wire.BasicPublish{RoutingKey: "q"}, []byte{0, 0}, make([]byte, mib), 131072)
	s.broker.AwaitPublished(1)
	await(t, "the rest is given back", func() bool { return s.Held() < mib })
	if n := s.broker.Published(); n != 1 {
		t.Errorf("%d published", n)
	}
}

// Of the users of a node the one who holds most pays for it, not the one who comes last.
func TestHeldByNeighbour(t *testing.T) {
	s := mustServe(t, func(c *amqp.Config) {
		c.HeldByConnection, c.HeldByUser, c.HeldByNode = 20*mib, 20*mib, 20*mib
		c.Broker = anybody{c.Broker.(*amqptest.Broker)}
	})
	greedy, honest := s.mustOpenChannels("greedy", 20), s.mustOpenChannels("honest", 1)
	honest.Send(1, &wire.QueueDeclare{Queue: "q"})
	amqptest.Expect[*wire.QueueDeclareOK](honest)
	honest.Send(1, &wire.ConfirmSelect{})
	amqptest.Expect[*wire.ConfirmSelectOK](honest)
	for i := range uint16(19) {
		greedy.Write(partialFrames(i+1, mib))
	}
	await(t, "the node's memory is taken", func() bool { return s.Held() >= 18*mib })
	honest.Publish(1, &wire.BasicPublish{RoutingKey: "q"}, []byte{0, 0}, make([]byte, 4*mib), 131072)
	amqptest.Expect[*wire.BasicAck](honest)
	expectChannelClose(t, greedy, 506, "held_memory.node = 20971520")
	await(t, "it is given back", func() bool { return s.Held() < 19*mib })
}

// Who does not read, on many connections, pays as well; a user's bound counts them all.
func TestHeldByUser(t *testing.T) {
	s := mustServe(t, func(c *amqp.Config) {
		c.HeldByUser, c.HeldByNode = 8*mib, 100*mib
		c.Broker = anybody{c.Broker.(*amqptest.Broker)}
	})
	var all []*amqptest.Client
	for range 7 {
		c := s.mustOpenChannels("u", 1)
		c.Write(partialFrames(1, mib))
		all = append(all, c)
	}
	await(t, "the user holds that much", func() bool { return s.Held() >= 6*mib })
	other, last := s.mustOpenChannels("v", 1), s.mustOpenChannels("u", 1)
	other.Write(partialFrames(1, 4*mib))
	await(t, "the other user too", func() bool { return s.Held() >= 10*mib })
	last.Write(partialFrames(1, 3*mib))
	expectChannelClose(t, last, 506, "held_memory.user = 8388608")
	for _, c := range all {
		c.Write(wire.AppendBody(nil, 1, []byte("x"), 4096))
	}
	s.broker.AwaitPublished(7)
}

// A user who may not publish is told at the header, before the body is sent.
func TestRefusedAtHeader(t *testing.T) {
	s := mustServe(t, nil)
	c := s.mustOpenChannels("guest", 1)
	b := wire.AppendMethod(nil, 1, &wire.BasicPublish{Exchange: "none", RoutingKey: "q"})
	c.Write(wire.AppendHeader(b, 1, wire.ClassBasic, mib, []byte{0, 0}))
	expectChannelClose(t, c, 404, "no exchange 'none' in vhost '/'")
	c.Write(wire.AppendBody(nil, 1, make([]byte, 1000), 4096)) // it was on its way
	c.Send(1, &wire.ChannelCloseOK{})
	c.Send(1, &wire.ChannelOpen{})
	amqptest.Expect[*wire.ChannelOpenOK](c)

	// An exchange that is being declared may be there in time.
	s.broker.Block("DeclareExchange")
	c.Send(1, &wire.ExchangeDeclare{Exchange: "soon", Type: "fanout"})
	s.broker.AwaitBlocked("DeclareExchange")
	b = wire.AppendMethod(nil, 1, &wire.BasicPublish{Exchange: "soon", RoutingKey: "q"})
	b = wire.AppendHeader(b, 1, wire.ClassBasic, mib, []byte{0, 0})
	c.Write(wire.AppendBody(b, 1, make([]byte, 1000), 4096))
	s.broker.Unblock("DeclareExchange")
	amqptest.Expect[*wire.ExchangeDeclareOK](c)
	c.Write(wire.AppendBody(nil, 1, make([]byte, mib-1000), 131072))
	s.broker.AwaitPublished(1)
}

// Tables count as what they take when they are decoded: the reader waits long before a thousand large methods are
// queued, and a table of more values is none.
func TestHeldTables(t *testing.T) {
	const values = 4000
	declare := func(n int) []byte {
		list := make([]wire.Value, n)
		for i := range list {
			list[i].Tag = wire.TagVoid
		}
		return wire.AppendMethod(nil, 1, &wire.QueueDeclare{Queue: "q", Arguments: wire.Table{{Name: "a", Value: wire.Array(list...)}}})
	}
	synctest.Test(t, func(t *testing.T) {
		a := newAlarmed(t, 0, nil)
		defer a.end()
		a.broker.Block("DeclareQueue")
		sent := a.later(bytes.Repeat(declare(values), 50))
		synctest.Wait()
		if n := a.server.Held(); n < mib/2 || n > 2*mib {
			t.Errorf("%d octets are held", n)
		}
		select {
		case err := <-sent:
			t.Errorf("all are read: %v", err)
		default:
		}
		a.broker.Unblock("DeclareQueue")
		for range 50 {
			a.next()
		}
		must(t, <-sent)
		a.Write(declare(5000))
		a.expect(`0 connection.close reply-code=502 reply-text="SYNTAX_ERROR - malformed field table"`)
	})
}

// During an alarm no more of a large message is read, whichever channel it is on, and no more than one small one.
func TestAlarmBetweenFrames(t *testing.T) {
	inAlarm(t, 0, []string{"connection.blocked"}, func(a *alarmed) {
		for ch := uint16(2); ch <= 4; ch++ {
			a.Send(ch, &wire.ChannelOpen{})
			amqptest.Expect[*wire.ChannelOpenOK](a.Client)
		}
		large := partialFrames(2, mib)
		a.Write(large[:len(large)/2])
		synctest.Wait()
		a.server.SetAlarm(lowMemory)
		sent := a.later(large[len(large)/2:])
		a.expect(blockedFrame)
		time.Sleep(time.Hour)
		held := a.server.Held()
		if held > mib {
			t.Errorf("%d octets are held", held)
		}
		a.server.SetAlarm("")
		a.expect(unblockedFrame)
		must(t, <-sent)

		// Messages of which little is missing, one after the other on two channels.
		for ch := uint16(3); ch <= 4; ch++ {
			b := wire.AppendMethod(nil, ch, &wire.BasicPublish{RoutingKey: "q"})
			b = wire.AppendHeader(b, ch, wire.ClassBasic, 9000, []byte{0, 0})
			a.Write(wire.AppendBody(b, ch, make([]byte, 8000), 4096))
		}
		synctest.Wait()
		a.server.SetAlarm(lowMemory)
		one := []byte("x")
		sent = a.later(append(append(wire.AppendBody(nil, 4, one, 4096), wire.AppendBody(nil, 3, one, 4096)...), declareLater()...))
		a.expect(blockedFrame)
		synctest.Wait()
		if n := a.server.Blocked(); n != 1 {
			t.Errorf("%d blocked", n)
		}
		a.server.SetAlarm("")
		a.expect(unblockedFrame)
		a.expect(declareOKFrame)
		must(t, <-sent)
	})
}

// During an alarm a client that does not publish has its methods queued up to a few only.
func TestAlarmQueue(t *testing.T) {
	inAlarm(t, 0, nil, func(a *alarmed) {
		a.server.SetAlarm(lowMemory)
		a.broker.Block("DeclareQueue")
		sent := a.later(bytes.Repeat(declareLater(), 1000))
		synctest.Wait()
		if n := a.server.Held(); n > 2*64<<10 {
			t.Errorf("%d octets are held", n)
		}
		a.broker.Unblock("DeclareQueue")
		for range 1000 {
			a.expect(declareOKFrame)
		}
		must(t, <-sent)
	})
}

// A client that is blocked, and whose transaction and incomplete messages are what the memory is short of, is
// relieved of them. The alarm can end, and the connection goes on.
func TestAlarmRelieves(t *testing.T) {
	inAlarm(t, 0, []string{"connection.blocked"}, func(a *alarmed) {
		for ch := uint16(2); ch <= 3; ch++ {
			a.Send(ch, &wire.ChannelOpen{})
			amqptest.Expect[*wire.ChannelOpenOK](a.Client)
		}
		a.Send(2, &wire.TxSelect{})
		amqptest.Expect[*wire.TxSelectOK](a.Client)
		for range 4 {
			a.Write(publishFrames(2, make([]byte, mib), 131072))
		}
		large := partialFrames(3, 3*mib)
		a.Write(large[:3*mib-131072]) // in the middle of a frame
		synctest.Wait()
		if n := a.server.Held(); n < 6*mib {
			t.Fatalf("%d octets are held", n)
		}
		a.server.SetAlarm(lowMemory)
		a.expect(blockedFrame)
		a.server.Relieve(100 * mib) // it is something else
		synctest.Wait()
		if n := a.server.Held(); n < 6*mib {
			t.Fatalf("%d octets are held", n)
		}
		a.server.Relieve(3 * mib)
		a.expect(`2 channel.close reply-code=506 reply-text="RESOURCE_ERROR - memory alarm: the channel's incomplete message, waiting methods and transaction were discarded"`)
		a.server.Relieve(2 * mib)
		a.expect(`3 channel.close reply-code=506 reply-text="RESOURCE_ERROR - memory alarm: the channel's incomplete message, waiting methods and transaction were discarded"`)
		synctest.Wait()
		if n := a.server.Held(); n != 0 {
			t.Errorf("%d octets are held", n)
		}
		a.server.SetAlarm("")
		a.expect(unblockedFrame)
		a.Write(large[3*mib-131072:])
		for ch := uint16(2); ch <= 3; ch++ {
			a.Send(ch, &wire.ChannelCloseOK{})
			a.Send(ch, &wire.ChannelOpen{})
			amqptest.Expect[*wire.ChannelOpenOK](a.Client)
		}
		if n := a.broker.Published(); n != 0 {
			t.Errorf("%d published", n)
		}
		a.Write(publishFrames(1, make([]byte, 2*mib), 131072))
		synctest.Wait()
		if n := a.broker.Published(); n != 1 {
			t.Errorf("%d published", n)
		}
	})
}

// A commit in progress is not rolled back: its outcome is the broker's.
func TestAlarmSparesCommit(t *testing.T) {
	inAlarm(t, 0, nil, func(a *alarmed) {
		a.Send(1, &wire.TxSelect{})
		amqptest.Expect[*wire.TxSelectOK](a.Client)
		a.broker.HoldConfirms()
		a.Write(publishFrames(1, make([]byte, mib), 131072))
		a.Write(wire.AppendMethod(nil, 1, &wire.TxCommit{}))
		synctest.Wait()
		a.server.SetAlarm(lowMemory)
		a.server.Relieve(mib)
		synctest.Wait()
		a.broker.ReleaseConfirms(false)
		a.expect("1 tx.commit-ok")
		synctest.Wait()
		if n := a.server.Held(); n != 0 {
			t.Errorf("%d octets are held", n)
		}
	})
}

// While a user is at the bound, connections with more than their share read no more until what they have published
// is confirmed, and others go on.
func TestCrowdedPublisher(t *testing.T) {
	s := mustServe(t, func(c *amqp.Config) {
		c.HeldByUser, c.HeldByNode = 4*mib, 4*mib
		c.Broker = anybody{c.Broker.(*amqptest.Broker)}
	})
	s.broker.HoldConfirms()
	small := s.mustOpenChannels("a", 1)
	small.Send(1, &wire.QueueDeclare{Queue: "q"})
	amqptest.Expect[*wire.QueueDeclareOK](small)
	large := s.mustOpenChannels("a", 1)
	done := make(chan bool)
	go func() {
		defer close(done)
		for range 70 {
			large.Publish(1, &wire.BasicPublish{RoutingKey: "q"}, []byte{0, 0}, make([]byte, 100<<10), 131072)
		}
	}()
	s.broker.AwaitPublished(41)
	for range 50 {
		small.Publish(1, &wire.BasicPublish{RoutingKey: "q"}, []byte{0, 0}, []byte("x"), 131072)
	}
	s.broker.AwaitPublished(91)
	if n := s.Held(); n > 5*mib {
		t.Errorf("%d octets are held", n)
	}
	s.broker.ReleaseConfirms(false)
	<-done
	s.broker.AwaitPublished(120)
}

// What is held is told by what holds it, of each connection and of all, down to the last octet, and is nothing at the end.
func TestHeldMemory(t *testing.T) {
	s := mustServe(t, nil)
	s.broker.HoldConfirms()
	c, other := s.mustOpenChannels("guest", 2), s.mustOpenChannels("guest", 1)
	c.Send(1, &wire.QueueDeclare{Queue: "q"})
	amqptest.Expect[*wire.QueueDeclareOK](c)
	other.Publish(1, &wire.BasicPublish{RoutingKey: "q"}, []byte{0, 0}, make([]byte, 3000), 131072)
	s.broker.AwaitPublished(1)
	c.Send(2, &wire.TxSelect{})
	amqptest.Expect[*wire.TxSelectOK](c)
	c.Publish(2, &wire.BasicPublish{RoutingKey: "q"}, []byte{0, 0}, make([]byte, 5000), 131072)
	c.Send(1, &wire.QueueDeclare{Queue: "q"}) // behind it
	amqptest.Expect[*wire.QueueDeclareOK](c)
	hold := s.Hold("guest")
	must(t, hold(700))
	h := s.HeldMemory()
	if h.Channels < 5000 || h.Channels > 6000 || h.Publishes < 3000 || h.Publishes > 4000 || h.Others != 700 {
		t.Errorf("held %+v", h)
	}
	sum := amqp.HeldMemory{Others: 700}
	for _, i := range s.Connections() {
		if (i.Held.Channels != 0) == (i.Held.Publishes != 0) {
			t.Errorf("%s holds %+v, want one of both", i.Name, i.Held)
		}
		sum.Channels, sum.Publishes, sum.Answers = sum.Channels+i.Held.Channels, sum.Publishes+i.Held.Publishes, sum.Answers+i.Held.Answers
	}
	if sum != h {
		t.Errorf("the connections hold %+v, all together %+v", sum, h)
	}
	must(t, hold(0))
	c.Send(2, &wire.TxRollback{})
	amqptest.Expect[*wire.TxRollbackOK](c)
	s.broker.ReleaseConfirms(false)
	await(t, "nothing to be held", func() bool { return s.HeldMemory() == amqp.HeldMemory{} })
}

// Hold counts what others hold for a user, and is refused by name.
func TestHold(t *testing.T) {
	s := mustServe(t, func(c *amqp.Config) { c.HeldByUser, c.HeldByNode = 4*mib, 6*mib })
	one, two, other := s.Hold("u"), s.Hold("u"), s.Hold("v")
	must(t, one(3*mib))
	must(t, two(mib))
	if err := two(2 * mib); err == nil || !strings.Contains(err.Error(), "held_memory.user = 4194304") {
		t.Errorf("%v", err)
	}
	must(t, two(mib/2))
	must(t, other(mib))
	if n := s.Held(); n != 4*mib+mib/2 {
		t.Errorf("%d octets are held", n)
	}
	s.SetAlarm("memory")
	if err := other(2*mib + 1); err == nil || !strings.Contains(err.Error(), "2097152 bytes") {
		t.Errorf("during an alarm: %v", err)
	}
	must(t, other(2*mib))
	must(t, one(2*mib+1)) // less than before
	for _, hold := range []func(int64) error{one, two, other, other} {
		must(t, hold(0))
	}
	if n := s.Held(); n != 0 {
		t.Errorf("%d octets are held at the end", n)
	}
}

// Properties leave room in a frame for what is added to them. Those that exceed the frames of a client with smaller
// ones are not sent: the message goes back as failed, and the channel is closed, until a delivery limit ends it.
func TestLargeProperties(t *testing.T) {
	s := mustServe(t, nil)
	c := s.mustOpenChannels("guest", 2)
	c.Send(1, &wire.QueueDeclare{Queue: "q"})
	amqptest.Expect[*wire.QueueDeclareOK](c)
	headers := func(n int) []byte {
		p := wire.Properties{Present: wire.FlagHeaders, Headers: wire.AppendFields(nil, wire.Table{{Name: "h", Value: wire.String(strings.Repeat("x", n))}})}
		return wire.AppendProperties(nil, &p)
	}
	c.Publish(2, &wire.BasicPublish{RoutingKey: "q"}, headers(123_000), []byte("x"), 131072)
	expectChannelClose(t, c, 406, "properties of 123013 bytes exceed the limit of 122880")
	c.Publish(1, &wire.BasicPublish{RoutingKey: "q"}, headers(60_000), []byte("x"), 131072)
	s.broker.AwaitPublished(1)

	small := s.mustDial()
	small.Login(wire.ConnectionTuneOK{ChannelMax: 10, FrameMax: 4096})
	for _, noAck := range []bool{false, true} {
		small.Send(1, &wire.ChannelOpen{})
		amqptest.Expect[*wire.ChannelOpenOK](small)
		small.Send(1, &wire.BasicConsume{Queue: "q", ConsumerTag: "c", NoAck: noAck})
		amqptest.Expect[*wire.BasicConsumeOK](small)
		expectChannelClose(t, small, 311, "CONTENT_TOO_LARGE - message properties of 60")
		small.Send(1, &wire.ChannelCloseOK{})
	}
	small.Send(1, &wire.ChannelOpen{})
	amqptest.Expect[*wire.ChannelOpenOK](small)
	small.Send(1, &wire.BasicGet{Queue: "q"})
	expectChannelClose(t, small, 311, "do not fit into frames of 4096")

	c.Send(1, &wire.BasicGet{Queue: "q"})
	if m := amqptest.Expect[*wire.BasicGetOK](c); !m.Redelivered {
		t.Error("no delivery counts")
	}
}

// However a client goes in the middle of what it holds, all of it is given back: the server's sum is 0 at the end of
// every test, and each part's with the tag invariants.
func TestHeldGivenBack(t *testing.T) {
	ways := map[string]func(s *server, c *amqptest.Client){
		"channel.close": func(_ *server, c *amqptest.Client) {
			c.Send(2, &wire.ChannelClose{})
			amqptest.Expect[*wire.ChannelCloseOK](c)
		},
		"connection.close": func(_ *server, c *amqptest.Client) {
			c.Send(0, &wire.ConnectionClose{ReplyCode: 200})
			amqptest.Expect[*wire.ConnectionCloseOK](c)
		},
		"an error of a channel": func(_ *server, c *amqptest.Client) {
			c.Send(2, &wire.QueueDeclare{Queue: "none", Passive: true})
			expectChannelClose(t, c, 404, "none")
		},
		"an error of the connection": func(_ *server, c *amqptest.Client) {
			c.Send(0, &wire.QueueDeclare{})
			amqptest.Expect[*wire.ConnectionClose](c)
		},
		"a broken socket":       func(_ *server, c *amqptest.Client) { c.Break() },
		"a forced end":          func(s *server, _ *amqptest.Client) { s.CloseConnections("enough") },
		"the end of the server": func(*server, *amqptest.Client) {},
	}
	for name, end := range ways {
		t.Run(name, func(t *testing.T) {
			s := mustServe(t, nil)
			c := s.mustOpenChannels("guest", 4)
			c.Send(1, &wire.QueueDeclare{Queue: "q"})
			amqptest.Expect[*wire.QueueDeclareOK](c)
			c.Send(2, &wire.TxSelect{})
			amqptest.Expect[*wire.TxSelectOK](c)
			c.Publish(2, &wire.BasicPublish{RoutingKey: "q"}, []byte{0, 0}, make([]byte, mib), 131072)
			s.broker.HoldConfirms()
			c.Publish(1, &wire.BasicPublish{RoutingKey: "q"}, []byte{0, 0}, make([]byte, mib), 131072)
			c.Write(partialFrames(3, 2*mib))
			await(t, "all is held", func() bool { return s.Held() >= 3*mib })
			end(s, c)
		})
	}
}
