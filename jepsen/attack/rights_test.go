package attack

import (
	"fmt"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// lacking are the refusals for want of a right.
const lacking = "%s access to %s '%s' in vhost '%s' refused for user '%s'"

// methods is every method that needs a right, with the rights that it needs.
var methods = []struct {
	name  string
	needs []string // "verb kind name"
	do    func(ch *amqp.Channel) error
}{
	{"exchange.declare", []string{"configure exchange new"}, func(ch *amqp.Channel) error {
		return ch.ExchangeDeclare("new", "direct", true, false, false, false, nil)
	}},
	{"exchange.declare of one that is there", []string{"configure exchange x"}, func(ch *amqp.Channel) error {
		return ch.ExchangeDeclare("x", "direct", true, false, false, false, nil)
	}},
	{"exchange.declare with an alternate exchange", []string{"read exchange new", "write exchange x"}, func(ch *amqp.Channel) error {
		return ch.ExchangeDeclare("new", "direct", true, false, false, false, amqp.Table{"alternate-exchange": "x"})
	}},
	{"exchange.declare that dead-letters", []string{"read exchange new", "write exchange x"}, func(ch *amqp.Channel) error {
		return ch.ExchangeDeclare("new", "x-delayed-message", true, false, false, false, amqp.Table{"x-delayed-type": "direct", "x-dead-letter-exchange": "x"})
	}},
	{"exchange.delete", []string{"configure exchange x"}, func(ch *amqp.Channel) error { return ch.ExchangeDelete("x", false, false) }},
	{"exchange.bind", []string{"write exchange x", "read exchange y"}, func(ch *amqp.Channel) error { return ch.ExchangeBind("x", "k", "y", false, nil) }},
	{"exchange.unbind", []string{"write exchange x", "read exchange y"}, func(ch *amqp.Channel) error { return ch.ExchangeUnbind("x", "k", "y", false, nil) }},
	{"queue.declare", []string{"configure queue new"}, func(ch *amqp.Channel) error {
		_, err := ch.QueueDeclare("new", true, false, false, false, nil)
		return err
	}},
	{"queue.declare that dead-letters", []string{"read queue new", "write exchange x"}, func(ch *amqp.Channel) error {
		_, err := ch.QueueDeclare("new", true, false, false, false, amqp.Table{"x-dead-letter-exchange": "x"})
		return err
	}},
	{"queue.declare that dead-letters by the default exchange", []string{"write exchange amq.default"}, func(ch *amqp.Channel) error {
		_, err := ch.QueueDeclare("new", true, false, false, false, amqp.Table{"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "q"})
		return err
	}},
	{"queue.delete", []string{"configure queue q"}, func(ch *amqp.Channel) error {
		_, err := ch.QueueDelete("q", false, false, false)
		return err
	}},
	{"queue.bind", []string{"write queue q", "read exchange x"}, func(ch *amqp.Channel) error { return ch.QueueBind("q", "k", "x", false, nil) }},
	{"queue.unbind", []string{"write queue q", "read exchange x"}, func(ch *amqp.Channel) error { return ch.QueueUnbind("q", "k", "x", nil) }},
	{"queue.purge", []string{"read queue q"}, func(ch *amqp.Channel) error {
		_, err := ch.QueuePurge("q", false)
		return err
	}},
	{"basic.get", []string{"read queue q"}, func(ch *amqp.Channel) error {
		_, _, err := ch.Get("q", true)
		return err
	}},
	{"basic.consume", []string{"read queue q"}, func(ch *amqp.Channel) error {
		_, err := ch.Consume("q", "", true, false, false, false, nil)
		return err
	}},
	{"basic.publish", []string{"write exchange x"}, publishTo("x", "k", nil)},
	{"basic.publish to the default exchange", []string{"write exchange amq.default"}, publishTo("", "q", nil)},
}

// publishTo publishes, and learns what came of it.
func publishTo(exchange, key string, headers amqp.Table) func(ch *amqp.Channel) error {
	return func(ch *amqp.Channel) error {
		closed := ch.NotifyClose(make(chan *amqp.Error, 1))
		if err := ch.Publish(exchange, key, false, false, amqp.Publishing{Body: []byte("x"), Headers: headers}); err != nil {
			return err
		}
		if err := ch.Flow(true); err == nil {
			return nil
		}
		return <-closed
	}
}

// allBut is a pattern for every name but one.
func allBut(name string) string {
	var b strings.Builder
	b.WriteString("^(")
	for i, r := range name {
		fmt.Fprintf(&b, "%s([^%s].*)?|", strings.ReplaceAll(name[:i], ".", "\\."), string(r))
	}
	fmt.Fprintf(&b, "%s.+)$", strings.ReplaceAll(name, ".", "\\."))
	return b.String()
}

// TestRights: each method without each of the rights it needs, with all others.
func TestRights(t *testing.T) {
	t.Parallel()
	for _, m := range methods {
		for _, lack := range m.needs {
			words := strings.SplitN(lack, " ", 3)
			attack(t, "rights", m.name+" without "+lack, func(t *testing.T) {
				p := newParty(t)
				p.queue("q")
				p.exchange("x", "direct", nil)
				p.exchange("y", "direct", nil)
				rights := map[string]string{"configure": ".*", "write": ".*", "read": ".*"}
				rights[words[0]] = allBut(words[2])
				p.grant(rights["configure"], rights["write"], rights["read"])
				conn := p.connect(1)
				p.refused(m.do(p.channel(conn)), 403, fmt.Sprintf(lacking, words[0], words[1], words[2], p.vhost, p.user))
				if err := p.channel(conn).Qos(1, 0, false); err != nil {
					t.Errorf("the connection is gone: %v", err)
				}
				p.grant(".*", ".*", ".*")
				if err := m.do(p.channel(conn)); err != nil {
					t.Errorf("with all rights: %v", err)
				}
			})
		}
	}
}

// TestTopicRights: routing keys are checked wherever they come from.
func TestTopicRights(t *testing.T) {
	const refusal = "%s access to topic '%s' in exchange 'amq.topic' in vhost '%s' refused for user '%s'"
	bad := func(t *testing.T, verb, key string, do func(ch *amqp.Channel) error) {
		p := newParty(t)
		p.queue("q")
		p.grantTopic("amq.topic", "^{username}\\.", "^{username}\\.")
		p.refused(do(p.channel(p.connect(0))), 403, fmt.Sprintf(refusal, verb, key, p.vhost, p.user))
		if err := publishTo("amq.topic", p.user+".x", nil)(p.channel(p.connect(0))); err != nil {
			t.Errorf("the own key: %v", err)
		}
	}
	attack(t, "rights", "a routing key of somebody else", func(t *testing.T) { bad(t, "write", "k", publishTo("amq.topic", "k", nil)) })
	for _, header := range []string{"CC", "BCC"} {
		attack(t, "rights", "a routing key of somebody else in "+header, func(t *testing.T) {
			bad(t, "write", "other", func(ch *amqp.Channel) error {
				return publishTo("amq.topic", fmt.Sprint("user", parties.Load(), ".k"), amqp.Table{header: []any{"other"}})(ch)
			})
		})
	}
	for name, c := range map[string]struct {
		read string
		code uint16
		text string
	}{
		"any right":  {"", 403, "read access to queue 'q' in vhost"},
		"all but it": {".*", 404, "no message 1 waits in queue 'q' in vhost"},
	} {
		attack(t, "rights", "a command about a queue without "+name, func(t *testing.T) {
			p := newParty(t)
			p.queue("q")
			p.grant("", "", c.read)
			ch := p.channel(p.connect(1))
			returns := ch.NotifyReturn(make(chan amqp.Return, 1))
			headers := amqp.Table{"x-queue": "q", "x-schedule-seq": int64(1)}
			if err := ch.Publish("amq.quorate.command", "schedule.cancel", true, false, amqp.Publishing{Headers: headers}); err != nil {
				t.Fatal(err)
			}
			if r := soon(p, time.Now(), "the return", returns); r.ReplyCode != c.code || !strings.Contains(r.ReplyText, c.text) {
				t.Errorf("returned with %d %s", r.ReplyCode, r.ReplyText)
			}
		})
	}
	attack(t, "rights", "a binding key of somebody else", func(t *testing.T) {
		bad(t, "read", "#", func(ch *amqp.Channel) error { return ch.QueueBind("q", "#", "amq.topic", false, nil) })
	})
}

// TestUserID: nobody publishes in the name of another, whichever way the property
// comes.
func TestUserID(t *testing.T) {
	t.Parallel()
	ways := map[string]struct {
		exchange, key string
		headers       amqp.Table
		tx            bool
		given         string
	}{
		"to an exchange":           {exchange: "amq.direct", key: "k"},
		"to the default exchange":  {key: "q"},
		"to a queue that is not":   {key: "none"},
		"in a transaction":         {key: "q", tx: true},
		"with a delay":             {exchange: "later", key: "k", headers: amqp.Table{"x-delay": int32(1000)}},
		"with copies":              {key: "q", headers: amqp.Table{"CC": []any{"q"}}},
		"as a command":             {exchange: "amq.quorate.command", key: "schedule.cancel", headers: amqp.Table{"x-queue": "q"}},
		"of an administrator":      {key: "q", given: "guest"},
		"in other letters":         {key: "q", given: "USER"},
		"to a name of its own":     {exchange: "amq.fanout", given: "user\x00"},
		"of a user who is not one": {key: "q", given: "nobody"},
	}
	for name, w := range ways {
		attack(t, "rights", "user-id of another "+name, func(t *testing.T) {
			p := newParty(t)
			p.queue("q")
			p.exchange("later", "x-delayed-message", amqp.Table{"x-delayed-type": "direct"})
			ch := p.channel(p.connect(2))
			closed := ch.NotifyClose(make(chan *amqp.Error, 1))
			if w.tx {
				if err := ch.Tx(); err != nil {
					t.Fatal(err)
				}
			}
			given := w.given
			if given == "" {
				given = "other"
			}
			if err := ch.Publish(w.exchange, w.key, false, false, amqp.Publishing{UserId: given, Headers: w.headers, Body: []byte("forged")}); err != nil {
				t.Fatal(err)
			}
			since := time.Now()
			p.refused(soon(p, since, "the refusal", closed), 406, fmt.Sprintf("user_id property set to '%s' but authenticated user was '%s'", given, p.user))
			if n := p.ready("q"); n != 0 {
				t.Errorf("%d messages came through", n)
			}
		})
	}
}

// TestHiddenNames: who has no right on a name is not told whether it is there.
func TestHiddenNames(t *testing.T) {
	t.Parallel()
	for name, m := range map[string]struct {
		text string
		do   func(ch *amqp.Channel, name string) error
	}{
		"passive declare of a queue": {"configure access to queue 'NAME'", func(ch *amqp.Channel, name string) error {
			_, err := ch.QueueDeclarePassive(name, true, false, false, false, nil)
			return err
		}},
		"passive declare of an exchange": {"configure access to exchange 'NAME'", func(ch *amqp.Channel, name string) error {
			return ch.ExchangeDeclarePassive(name, "direct", true, false, false, false, nil)
		}},
		"declare of a queue": {"configure access to queue 'NAME'", func(ch *amqp.Channel, name string) error {
			_, err := ch.QueueDeclare(name, true, false, false, false, nil)
			return err
		}},
		"declare of an exchange": {"configure access to exchange 'NAME'", func(ch *amqp.Channel, name string) error {
			return ch.ExchangeDeclare(name, "direct", true, false, false, false, nil)
		}},
		"delete of a queue": {"configure access to queue 'NAME'", func(ch *amqp.Channel, name string) error {
			_, err := ch.QueueDelete(name, false, false, false)
			return err
		}},
		"delete of an exchange": {"configure access to exchange 'NAME'", func(ch *amqp.Channel, name string) error { return ch.ExchangeDelete(name, false, false) }},
		"get":                   {"read access to queue 'NAME'", func(ch *amqp.Channel, name string) error { _, _, err := ch.Get(name, true); return err }},
		"consume": {"read access to queue 'NAME'", func(ch *amqp.Channel, name string) error {
			_, err := ch.Consume(name, "", true, false, false, false, nil)
			return err
		}},
		"purge":   {"read access to queue 'NAME'", func(ch *amqp.Channel, name string) error { _, err := ch.QueuePurge(name, false); return err }},
		"bind":    {"write access to queue 'NAME'", func(ch *amqp.Channel, name string) error { return ch.QueueBind(name, "", "amq.direct", false, nil) }},
		"publish": {"write access to exchange 'NAME'", func(ch *amqp.Channel, name string) error { return publishTo(name, "", nil)(ch) }},
	} {
		attack(t, "rights", "names told by "+name, func(t *testing.T) {
			p := newParty(t)
			p.queue("there")
			p.exchange("there", "direct", nil)
			p.grant("^mine", "^mine", "^mine")
			conn := p.connect(1)
			for _, guess := range []string{"there", "missing"} {
				p.refused(m.do(p.channel(conn), guess), 403, strings.ReplaceAll(m.text, "NAME", guess)+" in vhost '"+p.vhost+"' refused")
			}
		})
	}
	attack(t, "rights", "that an exchange delays", func(t *testing.T) {
		p := newParty(t)
		p.exchange("there", "x-delayed-message", amqp.Table{"x-delayed-type": "direct"})
		p.grant("^amq", "^amq", "^amq")
		conn := p.connect(1)
		for _, guess := range []string{"there", "missing"} {
			name := "amq.delayed-" + guess
			_, err := p.channel(conn).QueueDeclarePassive(name, true, false, false, false, nil)
			p.refused(err, 404, "no queue '"+name+"'")
			_, err = p.channel(conn).QueueDeclare(name, true, false, false, false, nil)
			p.refused(err, 403, "queue name '"+name+"' contains reserved prefix")
			_, _, err = p.channel(conn).Get(name, true)
			p.refused(err, 404, "no queue '"+name+"'")
			p.refused(p.channel(conn).QueueBind(name, "", "amq.direct", false, nil), 404, "no queue '"+name+"'")
		}
	})
}
