package v091_test

import (
	"bytes"
	"context"
	"net"
	"testing"
	"testing/synctest"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/quorate/quorate/amqp"
	"github.com/quorate/quorate/amqp/amqptest"
	"github.com/quorate/quorate/amqp/v091/wire"
	"github.com/quorate/quorate/fsm"
)

const lowMemory = "low on memory"

// alarmed is a client on a pipe, in virtual time, whose server may have an
// alarm.
type alarmed struct {
	*amqptest.Client
	t      *testing.T
	server *amqp.Server
	broker *amqptest.Broker
	conn   net.Conn
	served chan bool
}

func inAlarm(t *testing.T, heartbeat uint16, can []string, f func(a *alarmed)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		a := newAlarmed(t, heartbeat, can)
		defer a.end() // also if the test has failed
		f(a)
	})
}

// newAlarmed is for the inside of a synctest bubble. end must be called.
func newAlarmed(t *testing.T, heartbeat uint16, can []string) *alarmed {
	t.Helper()
	b := amqptest.NewBroker()
	s, err := amqp.New(amqp.Config{Protocols: protocols, Broker: b})
	must(t, err)
	near, far := net.Pipe()
	served := make(chan bool)
	go func() {
		s.ServeConn(far)
		close(served)
	}()
	a := &alarmed{amqptest.NewClient(t, near), t, s, b, near, served}
	a.Login(wire.ConnectionTuneOK{ChannelMax: 10, FrameMax: 131072, Heartbeat: heartbeat}, can...)
	a.Send(1, &wire.ChannelOpen{})
	amqptest.Expect[*wire.ChannelOpenOK](a.Client)
	a.Send(1, &wire.QueueDeclare{Queue: "q"})
	amqptest.Expect[*wire.QueueDeclareOK](a.Client)
	return a
}

// end ends the client and its server, for which nothing may be left.
func (a *alarmed) end() {
	a.server.SetAlarm("")
	a.conn.Close()
	<-a.served
	must(a.t, a.server.Shutdown(context.Background()))
	if n := a.server.Held(); n != 0 {
		a.t.Errorf("%d octets are held for nobody", n)
	}
}

// later writes what the server may not read for a long time.
func (a *alarmed) later(b []byte) (written <-chan error) {
	must(a.t, a.conn.SetWriteDeadline(time.Time{}))
	done := make(chan error, 1)
	go func() {
		_, err := a.conn.Write(b)
		done <- err
	}()
	return done
}

func publishFrames(channel uint16, body []byte, frameMax uint32) []byte {
	b := wire.AppendMethod(nil, channel, &wire.BasicPublish{RoutingKey: "q"})
	b = wire.AppendHeader(b, channel, wire.ClassBasic, uint64(len(body)), []byte{0, 0})
	return wire.AppendBody(b, channel, body, frameMax)
}

// next is the next frame that is no heartbeat.
func (a *alarmed) next() string {
	a.t.Helper()
	for {
		f, err := a.ReceiveWithin(time.Hour)
		must(a.t, err)
		if f.Type != wire.FrameHeartbeat {
			return amqptest.FormatFrame(f)
		}
	}
}

func (a *alarmed) expect(want string) {
	a.t.Helper()
	if got := a.next(); got != want {
		a.t.Fatalf("got %s, want %s", got, want)
	}
}

// expectBoth takes two frames, in any order: they come from different goroutines.
func (a *alarmed) expectBoth(one, other string) {
	a.t.Helper()
	if first, second := a.next(), a.next(); first != one && first != other || first == second || second != one && second != other {
		a.t.Fatalf("got %s and %s, want %s and %s", first, second, one, other)
	}
}

const (
	blockedFrame   = `0 connection.blocked reason="low on memory"`
	unblockedFrame = `0 connection.unblocked`
	declareOKFrame = `1 queue.declare-ok queue=q2`
)

// declareLater is queue.declare of q2.
func declareLater() []byte { return wire.AppendMethod(nil, 1, &wire.QueueDeclare{Queue: "q2"}) }

// TestBlockedByFirstPublish publishes and declares in one go while there is an
// alarm: the message is taken, all else waits.
func TestBlockedByFirstPublish(t *testing.T) {
	inAlarm(t, 0, []string{"connection.blocked"}, func(a *alarmed) {
		a.server.SetAlarm(lowMemory)
		a.Send(1, &wire.ConfirmSelect{}) // has not published: is read
		a.expect("1 confirm.select-ok")
		must(t, <-a.later(append(publishFrames(1, []byte("x"), 4096), declareLater()...)))
		a.expectBoth(blockedFrame, "1 basic.ack delivery-tag=1")
		later := a.later(publishFrames(1, []byte("y"), 4096))
		time.Sleep(time.Hour)
		if n := a.broker.Published(); n != 1 || a.server.Blocked() != 1 {
			t.Errorf("%d published, %d blocked", n, a.server.Blocked())
		}
		a.server.SetAlarm("low on memory & disk") // another one: nothing is over
		synctest.Wait()
		if a.server.Blocked() != 1 {
			t.Error("a change of the reason unblocks")
		}
		a.server.SetAlarm("")
		a.expect(unblockedFrame)
		a.expect(declareOKFrame)
		must(t, <-later)
		a.expect("1 basic.ack delivery-tag=2")
		if n := a.broker.Published(); n != 2 || a.server.Blocked() != 0 {
			t.Errorf("%d published, %d blocked", n, a.server.Blocked())
		}
	})
}

// TestBlockedWhileIdle has the alarm come while the server waits for the
// client, which has published before.
func TestBlockedWhileIdle(t *testing.T) {
	inAlarm(t, 0, []string{"connection.blocked"}, func(a *alarmed) {
		a.Write(publishFrames(1, []byte("x"), 4096))
		synctest.Wait()
		a.server.SetAlarm(lowMemory)
		a.expect(blockedFrame)
		later := a.later(declareLater())
		time.Sleep(time.Minute)
		a.server.SetAlarm("")
		a.expect(unblockedFrame)
		must(t, <-later)
		a.expect(declareOKFrame)

		a.server.SetAlarm(lowMemory) // it has not published since
		a.Write(declareLater())
		a.expect(declareOKFrame)
	})
}

// TestBlockedSilently is for a client that does not know connection.blocked.
// What goes out to it is not held up.
func TestBlockedSilently(t *testing.T) {
	inAlarm(t, 0, nil, func(a *alarmed) {
		a.Send(1, &wire.BasicConsume{Queue: "q", ConsumerTag: "c", NoAck: true})
		a.expect("1 basic.consume-ok consumer-tag=c")
		a.server.SetAlarm(lowMemory)
		go a.Write(publishFrames(1, nil, 4096))
		a.expect(`1 basic.deliver consumer-tag=c delivery-tag=1 routing-key=q`)
		a.next() // its header
		later := a.later(declareLater())
		time.Sleep(time.Minute)
		a.broker.Inject("q", fsm.Message{Payload: fsm.AppendPayloadHead(nil, "", "q", []byte{0, 0})})
		a.expect(`1 basic.deliver consumer-tag=c delivery-tag=2 routing-key=q`)
		a.next()
		a.server.SetAlarm("")
		must(t, <-later)
		a.expect(declareOKFrame)
	})
}

// TestBlockedBetweenMessages has the alarm come in the middle of a message: it
// is let in, and what another channel publishes meanwhile is the end.
func TestBlockedBetweenMessages(t *testing.T) {
	inAlarm(t, 0, []string{"connection.blocked"}, func(a *alarmed) {
		body := bytes.Repeat([]byte("x"), 10_000)
		frames := publishFrames(1, body, 4096)
		a.Write(frames[:6000])
		synctest.Wait()
		a.server.SetAlarm(lowMemory)
		synctest.Wait()
		if a.server.Blocked() != 0 {
			t.Fatal("blocked in the middle of a message")
		}
		a.Write(frames[6000:])
		a.expect(blockedFrame)
		later := a.later(declareLater())
		synctest.Wait()
		if n := a.broker.Published(); n != 1 {
			t.Errorf("%d published", n)
		}
		a.server.SetAlarm("")
		a.expect(unblockedFrame)
		must(t, <-later)
		a.expect(declareOKFrame)
	})
}

// TestBlockedHeartbeats blocks for much longer than the heartbeat. The client
// is neither blamed meanwhile nor at once afterwards, but then as ever.
func TestBlockedHeartbeats(t *testing.T) {
	inAlarm(t, 2, []string{"connection.blocked"}, func(a *alarmed) {
		a.server.SetAlarm(lowMemory)
		a.Write(publishFrames(1, []byte("x"), 4096))
		a.expect(blockedFrame)
		half := declareLater()
		later := a.later(half[:5])
		go func() {
			time.Sleep(time.Hour)
			a.server.SetAlarm("")
		}()
		beats, began := 0, time.Now()
		for {
			f, err := a.ReceiveWithin(time.Minute)
			must(t, err)
			if f.Type != wire.FrameHeartbeat {
				break
			}
			beats++
		}
		if d := time.Since(began); d != time.Hour || beats < 3590 {
			t.Errorf("unblocked after %v and %d heartbeats", d, beats)
		}
		must(t, <-later)
		time.Sleep(time.Second)
		must(t, <-a.later(half[5:]))
		a.expect(declareOKFrame)
		expectEnd(t, a.Client, 4*time.Second, 6*time.Second)
	})
}

// TestBlockedEnds ends a blocked connection from the server's side.
func TestBlockedEnds(t *testing.T) {
	s := mustServe(t, nil)
	c := s.mustLogin("connection.blocked")
	c.Send(1, &wire.ChannelOpen{})
	amqptest.Expect[*wire.ChannelOpenOK](c)
	s.SetAlarm("low on disk")
	c.Publish(1, &wire.BasicPublish{RoutingKey: "none"}, []byte{0, 0}, nil, 4096)
	if m := amqptest.Expect[*wire.ConnectionBlocked](c); m.Reason != "low on disk" {
		t.Errorf("blocked: %q", m.Reason)
	}
	c.Send(1, &wire.QueueDeclare{Queue: "q"})
	done := make(chan error, 1)
	go func() { done <- s.Shutdown(context.Background()) }()
	if m := amqptest.Expect[*wire.ConnectionClose](c); m.ReplyCode != 320 {
		t.Errorf("closed with %d", m.ReplyCode)
	}
	c.Send(0, &wire.ConnectionCloseOK{})
	must(t, <-done)
	if s.Blocked() != 0 {
		t.Error("it still counts as blocked")
	}
}

// TestBlockedClient is what a stock client sees.
func TestBlockedClient(t *testing.T) {
	s := mustServe(t, nil)
	conn := s.mustOpen()
	blockings := conn.NotifyBlocked(make(chan amqp091.Blocking, 2))
	ch := mustChannel(t, conn)
	mustDeclare(t, ch, "q")
	must(t, ch.Confirm(false))
	publish := func() *amqp091.DeferredConfirmation {
		d, err := ch.PublishWithDeferredConfirm("", "q", false, false, amqp091.Publishing{Body: []byte("x")})
		must(t, err)
		return d
	}
	publish()
	for range 3 {
		s.SetAlarm(lowMemory)
		var confirms []*amqp091.DeferredConfirmation
		for range 10 {
			confirms = append(confirms, publish())
		}
		if b := receive(t, blockings); !b.Active || b.Reason != lowMemory {
			t.Errorf("notified %+v", b)
		}
		get, err := mustChannel(t, s.mustOpen()).QueueDeclarePassive("q", true, false, false, false, nil)
		if err != nil || get.Name != "q" {
			t.Errorf("another connection: %v, %v", get, err)
		}
		s.SetAlarm("")
		if b := receive(t, blockings); b.Active {
			t.Errorf("notified %+v", b)
		}
		for _, c := range confirms {
			if !c.Wait() {
				t.Error("a publish is refused")
			}
		}
	}
	if n := s.broker.Published(); n != 31 {
		t.Errorf("%d messages of 31", n)
	}
}
