package attack

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/quorate/quorate/jepsen/client"
	"github.com/quorate/quorate/jepsen/internal/long"
)

// consumer is one of the suspect's, at each node.
type consumer struct {
	conn       *amqp.Connection
	ch         *amqp.Channel
	deliveries <-chan amqp.Delivery
	cancelled  chan string
	closed     chan *amqp.Error // the channel
	gone       chan *amqp.Error // the connection
}

// consume has the suspect consume from a queue at every node, and shows that each
// gets messages.
func (p *party) consume(queue string, noAck bool) (all []consumer) {
	p.Helper()
	for node := range p.c.Nodes {
		c := consumer{conn: p.connect(node), cancelled: make(chan string, 1), closed: make(chan *amqp.Error, 1), gone: make(chan *amqp.Error, 1)}
		c.conn.NotifyClose(c.gone)
		c.ch = p.channel(c.conn)
		c.ch.NotifyCancel(c.cancelled)
		c.ch.NotifyClose(c.closed)
		if err := c.ch.Qos(1, 0, false); err != nil {
			p.Fatal(err)
		}
		var err error
		if c.deliveries, err = c.ch.Consume(queue, fmt.Sprint("tag", node), noAck, false, false, false, nil); err != nil {
			p.Fatal(err)
		}
		all = append(all, c)
	}
	return all
}

// silent checks that what is published from now on stays in the queue.
func (p *party) mustHaveNothing(queue string, all []consumer) {
	p.Helper()
	before := p.ready(queue)
	p.publish("", queue, amqp.Publishing{Body: []byte("secret")})
	if n := p.ready(queue); n != before+1 {
		p.Errorf("%d messages in the queue, want %d", n, before+1)
	}
	for node, c := range all {
		select {
		case d, ok := <-c.deliveries:
			if ok && string(d.Body) == "secret" {
				p.Errorf("node %d delivers to who has no right", node+1)
			}
		default:
		}
	}
}

// TestRevokedConsumers: consumers end within a second, at every node, whatever
// takes their right away.
func TestRevokedConsumers(t *testing.T) {
	t.Parallel()
	for _, noAck := range []bool{false, true} {
		attack(t, "revoke", fmt.Sprint("read, from consumers with no-ack ", noAck), func(t *testing.T) {
			p := newParty(t)
			p.queue("q")
			all := p.consume("q", noAck)
			since := time.Now()
			p.grant(".*", ".*", "^other$")
			for node, c := range all {
				if tag := soon(p, since, "basic.cancel", c.cancelled); tag != fmt.Sprint("tag", node) {
					t.Errorf("node %d cancels %s", node+1, tag)
				}
			}
			p.mustHaveNothing("q", all)
			_, err := all[0].ch.Consume("q", "again", true, false, false, false, nil)
			p.refused(err, 403, "read access to queue 'q'")
		})
	}
	attack(t, "revoke", "read, from a consumer that cannot be told", func(t *testing.T) {
		p := newParty(t)
		p.queue("q")
		r := p.raw()
		if err := r.Consume("q"); err != nil {
			t.Fatal(err)
		}
		since := time.Now()
		p.grant(".*", ".*", "")
		p.closedRaw(r, since, false, 403, "ACCESS_REFUSED - read access to queue 'q' in vhost '"+p.vhost+"' refused for user '"+p.user+"'")
		p.mustHaveNothing("q", nil)
	})
	attack(t, "revoke", "read of one of two queues", func(t *testing.T) {
		p := newParty(t)
		p.queue("q")
		p.queue("mine")
		lost, kept := p.consume("q", true), p.consume("mine", true)
		since := time.Now()
		p.grant(".*", ".*", "^mine$")
		for _, c := range lost {
			soon(p, since, "basic.cancel", c.cancelled)
		}
		for range kept {
			p.publish("", "mine", amqp.Publishing{Body: []byte("hers")})
		}
		for _, c := range kept {
			if d := soon(p, time.Now(), "a delivery", c.deliveries); string(d.Body) != "hers" {
				t.Errorf("%s", d.Body)
			}
		}
		p.mustHaveNothing("q", lost)
	})
	attack(t, "revoke", "read, with a delivery that is not settled", func(t *testing.T) {
		p := newParty(t)
		p.queue("q")
		p.publish("", "q", amqp.Publishing{Body: []byte("held")})
		ch := p.channel(p.connect(0))
		cancelled := ch.NotifyCancel(make(chan string, 1))
		from, err := ch.Consume("q", "c", false, false, false, false, nil)
		if err != nil {
			t.Fatal(err)
		}
		d := soon(p, time.Now(), "the delivery", from)
		since := time.Now()
		p.grant(".*", ".*", "")
		soon(p, since, "basic.cancel", cancelled)
		if err := d.Ack(false); err != nil {
			t.Fatal(err)
		}
		if err := ch.Qos(1, 0, false); err != nil {
			t.Errorf("the channel is gone: %v", err)
		}
	})
}

// raw connects the suspect as a client that announces nothing.
func (p *party) raw() *client.Raw {
	p.Helper()
	r := p.begin()
	if err := r.Method(0, 10<<16|40, client.Join(client.ShortString(p.vhost), client.ShortString(""), []byte{0})); err != nil {
		p.Fatal(err)
	}
	if _, err := r.Expect(10<<16 | 41); err != nil {
		p.Fatal(err)
	}
	if err := r.OpenChannel(1); err != nil {
		p.Fatal(err)
	}
	return r
}

// begin logs the suspect in, and opens no vhost.
func (p *party) begin() *client.Raw {
	p.Helper()
	r, err := client.Dial(p.Context(), p.c.Nodes[1].AMQP)
	if err != nil {
		p.Fatal(err)
	}
	p.Cleanup(func() { r.Close() })
	if _, err := r.Start("PLAIN", "\x00"+p.user+"\x00"+p.user); err != nil {
		p.Fatal(err)
	}
	if _, err := r.Expect(10<<16 | 30); err != nil {
		p.Fatal(err)
	}
	if err := r.TuneOK(client.DefaultTune); err != nil {
		p.Fatal(err)
	}
	return r
}

// closedRaw waits for the close of a raw connection, or of its channel.
func (p *party) closedRaw(r *client.Raw, since time.Time, connection bool, code int, text string) {
	p.Helper()
	news := make(chan error, 1)
	go func() {
		_, err := r.Expect(0)
		news <- err
	}()
	err := soon(p, since, "the close", news)
	if c, ok := err.(*client.Closed); !ok || c.Connection != connection || c.Code != code || c.Text != text {
		p.Errorf("%v, want %d %s", err, code, text)
	}
}

// TestRevokedConnections: whoever may not be there any more is sent away from
// every node within a second.
func TestRevokedConnections(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		take func(p *party)
		code int
		text string
	}{
		"the permission": {
			func(p *party) { p.admin("DELETE", p.path("permissions", p.vhost, p.user), nil) },
			530, "access to vhost 'VHOST' refused for user 'USER'",
		},
		"the user": {func(p *party) { p.admin("DELETE", p.path("users", p.user), nil) }, 320, "user 'USER' was deleted"},
		"the user, who is made again": {
			func(p *party) {
				p.admin("DELETE", p.path("users", p.user), nil)
				p.putUser()
				p.grant(".*", ".*", ".*")
			}, 320, "user 'USER' was deleted",
		},
		"the vhost": {func(p *party) { p.admin("DELETE", p.path("vhosts", p.vhost), nil) }, 320, "vhost 'VHOST' is down"},
		"the vhost, which is made again": {
			func(p *party) {
				p.admin("DELETE", p.path("vhosts", p.vhost), nil)
				p.admin("PUT", p.path("vhosts", p.vhost), map[string]any{})
				p.grant(".*", ".*", ".*")
			}, 320, "vhost 'VHOST' is down",
		},
	} {
		attack(t, "revoke", name, func(t *testing.T) {
			p := newParty(t)
			p.queue("q")
			all := p.consume("q", false)
			idle := p.raw()
			since := time.Now()
			c.take(p)
			text := p.fill(c.text)
			for _, x := range all {
				if err := soon(p, since, "connection.close", x.gone); err == nil || err.Code != c.code || err.Reason != codeNames[c.code]+" - "+text {
					t.Errorf("%v, want %d %s", err, c.code, text)
				}
			}
			p.closedRaw(idle, since, true, c.code, codeNames[c.code]+" - "+text)
		})
	}
	attack(t, "revoke", "the user, between login and open", func(t *testing.T) {
		p := newParty(t)
		r := p.begin()
		p.admin("DELETE", p.path("users", p.user), nil)
		if err := r.Method(0, 10<<16|40, client.Join(client.ShortString(p.vhost), client.ShortString(""), []byte{0})); err != nil {
			t.Fatal(err)
		}
		p.closedRaw(r, time.Now(), true, 530, p.fill("NOT_ALLOWED - access to vhost 'VHOST' refused for user 'USER'"))
	})
	attack(t, "revoke", "the user of replies", func(t *testing.T) {
		p := newParty(t)
		conn := p.connect(0)
		gone := conn.NotifyClose(make(chan *amqp.Error, 1))
		if _, err := p.channel(conn).Consume("amq.rabbitmq.reply-to", "", true, false, false, false, nil); err != nil {
			t.Fatal(err)
		}
		since := time.Now()
		p.admin("DELETE", p.path("users", p.user), nil)
		p.refused(soon(p, since, "connection.close", gone), 320, "was deleted")
	})
	attack(t, "revoke", "the user of an exclusive queue, which goes with the connection", func(t *testing.T) {
		p := newParty(t)
		conn := p.connect(2)
		gone := conn.NotifyClose(make(chan *amqp.Error, 1))
		if _, err := p.channel(conn).QueueDeclare("exclusive", false, false, true, false, nil); err != nil {
			t.Fatal(err)
		}
		since := time.Now()
		p.admin("DELETE", p.path("users", p.user), nil)
		soon(p, since, "connection.close", gone)
		ctx, cancel := context.WithTimeout(t.Context(), partyWait)
		defer cancel()
		for status := 0; status != http.StatusNotFound; {
			if status, _ = p.askAs("guest", "guest", 0, "GET", p.path("queues", p.vhost, "exclusive"), ""); ctx.Err() != nil {
				t.Fatal("the queue stays")
			}
		}
	})
}

var codeNames = map[int]string{320: "CONNECTION_FORCED", 530: "NOT_ALLOWED"}

// TestRevokedActions: what is done is asked for each time.
func TestRevokedActions(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		before func(p *party, ch *amqp.Channel) error
		take   func(p *party)
		do     func(ch *amqp.Channel) error
		code   int
		text   string
	}{
		"write, between publishes": {
			func(_ *party, ch *amqp.Channel) error { return publishTo("amq.direct", "k", nil)(ch) },
			func(p *party) { p.grant(".*", "", ".*") }, publishTo("amq.direct", "k", nil), 403, "write access to exchange 'amq.direct'",
		},
		"write, in an open transaction": {
			func(_ *party, ch *amqp.Channel) error {
				if err := ch.Tx(); err != nil {
					return err
				}
				return ch.Publish("", "q", false, false, amqp.Publishing{Body: []byte("x")})
			},
			func(p *party) { p.grant(".*", "", ".*") }, (*amqp.Channel).TxCommit, 403, "write access to exchange 'amq.default'",
		},
		"read, between gets": {
			func(_ *party, ch *amqp.Channel) error { _, _, err := ch.Get("q", true); return err },
			func(p *party) { p.grant(".*", ".*", "") },
			func(ch *amqp.Channel) error { _, _, err := ch.Get("q", true); return err }, 403, "read access to queue 'q'",
		},
		"configure, between declares": {
			func(_ *party, ch *amqp.Channel) error {
				return ch.ExchangeDeclare("a", "direct", true, false, false, false, nil)
			},
			func(p *party) { p.grant("", ".*", ".*") },
			func(ch *amqp.Channel) error { return ch.ExchangeDeclare("b", "direct", true, false, false, false, nil) }, 403, "configure access to exchange 'b'",
		},
		"routing keys, between publishes": {
			func(_ *party, ch *amqp.Channel) error { return publishTo("amq.topic", "k", nil)(ch) },
			func(p *party) { p.grantTopic("amq.topic", "^mine", ".*") }, publishTo("amq.topic", "k", nil), 403, "write access to topic 'k'",
		},
		"binding keys, between binds": {
			func(_ *party, ch *amqp.Channel) error { return ch.QueueBind("q", "a", "amq.topic", false, nil) },
			func(p *party) { p.grantTopic("amq.topic", ".*", "^mine") },
			func(ch *amqp.Channel) error { return ch.QueueBind("q", "b", "amq.topic", false, nil) }, 403, "read access to topic 'b'",
		},
		"the tag impersonator": {
			func(p *party, ch *amqp.Channel) error {
				p.putUser("impersonator")
				return publishAs("other")(ch)
			},
			func(p *party) { p.putUser() }, publishAs("other"), 406, "user_id property set to 'other'",
		},
	} {
		attack(t, "revoke", name, func(t *testing.T) {
			p := newParty(t)
			p.queue("q")
			ch := p.channel(p.connect(1))
			if err := c.before(p, ch); err != nil {
				t.Fatal(err)
			}
			c.take(p)
			p.refused(c.do(ch), c.code, c.text)
			if n := p.ready("q"); n != 0 {
				t.Errorf("%d messages came through", n)
			}
		})
	}
}

// publishAs publishes in the name of another user.
func publishAs(user string) func(ch *amqp.Channel) error {
	return func(ch *amqp.Channel) error {
		closed := ch.NotifyClose(make(chan *amqp.Error, 1))
		if err := ch.Publish("amq.direct", "none", false, false, amqp.Publishing{UserId: user}); err != nil {
			return err
		}
		if err := ch.Flow(true); err == nil {
			return nil
		}
		return <-closed
	}
}

// TestRevokedRequests: a connection that is kept alive keeps no right.
func TestRevokedRequests(t *testing.T) {
	long.Test(t)
	t.Parallel()
	for name, c := range map[string]struct {
		take   func(p *party)
		reason string
	}{
		"the tag, from who asks again":  {func(p *party) { p.putUser("management") }, "Not administrator user"},
		"all tags, from who asks again": {func(p *party) { p.putUser() }, "Not management user"},
		"the user, who asks again":      {func(p *party) { p.admin("DELETE", p.path("users", p.user), nil) }, "Not_Authorized"},
		"the password, of who asks again": {func(p *party) {
			p.admin("PUT", p.path("users", p.user), map[string]any{"password": "another", "tags": "administrator"})
		}, "Not_Authorized"},
	} {
		attack(t, "revoke", name, func(t *testing.T) {
			p := newParty(t, "administrator")
			for node := range p.c.Nodes {
				if status, text := p.ask(node, "GET", "/api/users", ""); status != 200 {
					t.Fatalf("%d %s", status, text)
				}
			}
			c.take(p)
			for node := range p.c.Nodes {
				p.denied(node, "GET", "/api/users", "", 401, c.reason)
			}
		})
	}
	attack(t, "revoke", "the password, of who connects again", func(t *testing.T) {
		p := newParty(t)
		p.connect(1).Close()
		p.admin("PUT", p.path("users", p.user), map[string]any{"password": "another", "tags": ""})
		var all sync.WaitGroup
		for _, n := range p.c.Nodes {
			all.Go(func() { // is answered late
				if _, err := client.ConnectAs(t.Context(), n.URI(), p.user, p.user, p.vhost); err == nil {
					t.Errorf("node %d lets in with the old password", n.Number)
				}
			})
		}
		all.Wait()
	})
}
