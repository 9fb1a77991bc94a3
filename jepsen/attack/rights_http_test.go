package attack

import (
	"fmt"
	"net/url"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// TestWaitingMessages: who may not read a queue, or write to an exchange, is shown
// nothing of what waits there, and changes nothing of it.
func TestWaitingMessages(t *testing.T) {
	t.Parallel()
	const delayed, scheduled = "/api/exchanges/VHOST/later/delayed", "/api/queues/VHOST/q/scheduled"
	for _, c := range []struct{ method, path, body string }{
		{"GET", delayed + "?headers=true", ""}, {"DELETE", delayed, ""}, {"DELETE", delayed + "/1", ""},
		{"PATCH", delayed + "/1", `{"delay":1}`}, {"POST", delayed + "/1/fire", ""},
		{"GET", scheduled + "?headers=true", ""}, {"DELETE", scheduled, ""}, {"DELETE", scheduled + "/1", ""},
		{"PATCH", scheduled + "/1", `{"delay":1}`}, {"POST", scheduled + "/1/fire", ""},
		{"GET", "/api/queues/VHOST/q/messages/peek", ""},
		{"POST", "/api/queues/VHOST/q/get", `{"count":1,"ackmode":"ack_requeue_true","encoding":"auto"}`},
	} {
		attack(t, "rights", c.method+" "+c.path, func(t *testing.T) {
			p := newParty(t, "management")
			p.queue("q")
			p.exchange("later", "x-delayed-message", amqp.Table{"x-delayed-type": "direct"})
			const hidden = "nobody is to see this"
			p.publish("later", hidden, amqp.Publishing{Headers: amqp.Table{"x-delay": int32(600_000), "secret": hidden}})
			p.publish("", "q", amqp.Publishing{Headers: amqp.Table{"secret": hidden}, Body: []byte(hidden)})
			p.grant("", "^mine$", "^mine$")
			p.denied(1, c.method, p.fill(c.path), c.body, 401, "Access refused.")
			p.admin("DELETE", p.path("permissions", p.vhost, p.user), nil)
			if status, text := p.ask(1, c.method, p.fill(c.path), c.body); status != 404 && status != 401 {
				t.Errorf("without access to the vhost: %d %s", status, text)
			}
		})
	}
}

// TestPoliciesThatTake: nobody has messages brought to them by a policy who may
// not read where they come from, and write where they go.
func TestPoliciesThatTake(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		write, read, definition string
	}{
		"dead letters without write":     {"", ".*", `"dead-letter-exchange":"mine","max-length":0`},
		"dead letters without read":      {".*", "^mine$", `"dead-letter-exchange":"mine","max-length":0`},
		"dead letters by another key":    {".*", "^mine$", `"dead-letter-routing-key":"mine"`},
		"what has no queue without read": {".*", "^mine$", `"alternate-exchange":"mine"`},
		"what has no queue to another's": {"^mine$", ".*", `"alternate-exchange":"x"`},
	} {
		attack(t, "rights", "a policy that takes "+name, func(t *testing.T) {
			p := newParty(t, "policymaker")
			p.grant(".*", c.write, c.read)
			p.denied(2, "PUT", p.path("policies", p.vhost, "p"), `{"pattern":"","definition":{`+c.definition+`}}`, 401, "Access refused.")
		})
	}
	attack(t, "rights", "a policy on one's own, which may be", func(t *testing.T) {
		p := newParty(t, "policymaker")
		p.grant("", "^mine$", "^mine\\.")
		if status, text := p.ask(0, "PUT", p.path("policies", p.vhost, "p"), `{"pattern":"^mine\\.","definition":{"dead-letter-exchange":"mine"}}`); status != 201 {
			t.Errorf("%d %s", status, text)
		}
	})
	attack(t, "rights", "a policy of operators by a policymaker", func(t *testing.T) {
		p := newParty(t, "policymaker")
		p.denied(0, "PUT", p.path("operator-policies", p.vhost, "p"), `{"pattern":"","definition":{"max-length":1}}`, 401, "Not administrator user")
	})
}

// TestClosingOthers: whoever is no administrator closes their own connections only.
func TestClosingOthers(t *testing.T) {
	t.Parallel()
	for _, tag := range []string{"management", "policymaker", "monitoring"} {
		attack(t, "rights", "closing others' connections with the tag "+tag, func(t *testing.T) {
			p := newParty(t, tag)
			theirs := p.connectAs("guest", 0)
			name := url.PathEscape(fmt.Sprintf("%s -> %s", theirs.LocalAddr(), p.c.Nodes[0].AMQP))
			status, _ := p.ask(1, "DELETE", "/api/connections/"+name, "")
			if want := map[bool]int{true: 401, false: 404}[tag == "monitoring"]; status != want {
				t.Errorf("by name: %d, want %d", status, want)
			}
			p.denied(1, "DELETE", "/api/connections/username/guest", "", 401, "Not administrator user")
			if ch, err := theirs.Channel(); err != nil {
				t.Errorf("it is closed: %v", err)
			} else {
				ch.Close()
			}
			mine := p.connect(0)
			gone := mine.NotifyClose(make(chan *amqp.Error, 1))
			if status, text := p.ask(1, "DELETE", "/api/connections/username/"+p.user, ""); status != 204 {
				t.Errorf("one's own: %d %s", status, text)
			}
			p.refused(soon(p, time.Now(), "the close", gone), 320, "Closed via management plugin")
		})
	}
}

// TestClimbing: nobody gives themselves what they have not got.
func TestClimbing(t *testing.T) {
	t.Parallel()
	for _, tag := range []string{"management", "policymaker", "monitoring"} {
		for _, c := range []struct{ method, path, body string }{
			{"PUT", "/api/users/USER", `{"password":"x","tags":"administrator"}`},
			{"PUT", "/api/users/another", `{"password":"x","tags":"administrator"}`},
			{"PUT", "/api/permissions/VHOST/USER", `{"configure":".*","write":".*","read":".*"}`},
			{"DELETE", "/api/topic-permissions/VHOST/USER", ""},
			{"GET", "/api/users", ""},
			{"PUT", "/api/vhosts/another", "{}"},
			{"PUT", "/api/vhost-limits/VHOST/max-connections", `{"value":-1}`},
		} {
			attack(t, "rights", c.method+" "+c.path+" with the tag "+tag, func(t *testing.T) {
				p := newParty(t, tag)
				p.grant("", "", "")
				p.denied(0, c.method, p.fill(c.path), c.body, 401, "Not administrator user")
			})
		}
	}
	attack(t, "rights", "HTTP without a tag", func(t *testing.T) {
		newParty(t).denied(0, "GET", "/api/whoami", "", 401, "Not management user")
	})
}
