package conform

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	v10 "github.com/Azure/go-amqp"
)

// What AMQP 1.0 says of things that happen elsewhere: at another node, or to it.
func TestAMQP10Nodes(t *testing.T) {
	c := mustCluster(t)
	for _, scenario := range []struct {
		name string
		run  func(*T)
	}{
		{"rights", senderLosesItsRight}, {"full", fullQueueIsNamed}, {"deleted", queueIsDeletedElsewhere},
		{"commands", commandsAcrossLeaders}, {"leaves", nodeLeaves},
	} {
		t.Run(scenario.name, func(t *testing.T) { scenario.run(newT(t, c, "A10."+scenario.name)) })
	}
}

// peer is a client of AMQP 1.0 with one session.
type peer struct {
	*T
	*v10.Session
	conn *v10.Conn
}

// dial10 connects a user to node n.
func (t *T) dial10(n int, user string) *peer {
	t.Helper()
	p := &peer{T: t}
	t.eventually("a connection", func() (err error) { // a new cluster speaks it as soon as all nodes know it
		p.conn, err = v10.Dial(t.ctx, "amqp://"+t.Nodes[n].AMQP, &v10.ConnOptions{SASLType: v10.SASLTypePlain(user, user)})
		return err
	})
	t.Cleanup(func() { p.conn.Close() })
	var err error
	p.Session, err = p.conn.NewSession(t.ctx, nil)
	t.must(err)
	return p
}

func (p *peer) sender(address string) *v10.Sender {
	p.Helper()
	s, err := p.NewSender(p.ctx, address, nil)
	p.must(err)
	return s
}

func (p *peer) receiver(address string, o *v10.ReceiverOptions) *v10.Receiver {
	p.Helper()
	r, err := p.NewReceiver(p.ctx, address, o)
	p.must(err)
	return r
}

func (p *peer) next(r *v10.Receiver) *v10.Message {
	p.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, patience)
	defer cancel()
	m, err := r.Receive(ctx, nil)
	p.must(err)
	return m
}

// is checks the condition and the text of an error.
func (p *peer) is(err error, condition, text string) *v10.Error {
	p.Helper()
	var e *v10.Error
	var link *v10.LinkError
	var conn *v10.ConnError
	switch {
	case errors.As(err, &link):
		e = link.RemoteErr
	case errors.As(err, &conn):
		e = conn.RemoteErr
	default:
		errors.As(err, &e)
	}
	if e == nil || string(e.Condition) != condition || !strings.Contains(e.Description, text) {
		p.Fatalf("error %v, want %s with %q", err, condition, text)
	}
	return e
}

func text(s string) *v10.Message { return v10.NewMessage([]byte(s)) }

// untilEnded sends until the link has ended, and returns why.
func (p *peer) untilEnded(s *v10.Sender) (why error) {
	p.Helper()
	p.eventually("the end of a link", func() error {
		if why = s.Send(p.ctx, text("x"), nil); why == nil {
			return errors.New("it lives")
		}
		return nil
	})
	return why
}

func senderLosesItsRight(t *T) {
	q := t.queue("q")
	t.must(t.Nodes[0].SetUser(t.ctx, "ann", "ann", ""))
	t.must(t.Nodes[0].SetPermissions(t.ctx, "ann", "", ".*", ".*"))
	p := t.dial10(1, "ann")
	s, other := p.sender("/queues/"+q), p.sender("/exchanges/amq.direct/k")
	t.must(s.Send(t.ctx, text("x"), nil))
	t.must(t.Nodes[2].SetPermissions(t.ctx, "ann", "", "^amq.direct$", ".*"))
	p.is(p.untilEnded(s), "amqp:unauthorized-access", "write access to exchange 'amq.default' in vhost '/' refused for user 'ann'")
	t.must(other.Send(t.ctx, text("x"), nil)) // it may go there
}

func fullQueueIsNamed(t *T) {
	q := t.queue("q", "x-max-length", int64(1), "x-overflow", "reject-publish")
	p := t.dial10(1, "guest")
	s := p.sender("/queues/" + q)
	t.must(s.Send(t.ctx, text("x"), nil))
	e := p.is(s.Send(t.ctx, text("x"), nil), "amqp:resource-limit-exceeded", fmt.Sprintf("queue '%s' exceeded maximum length", q))
	t.equal("queue", e.Info["queue"], any(q))
	t.equal("reason", fmt.Sprint(e.Info["reason"]), "maxlen")
}

func queueIsDeletedElsewhere(t *T) {
	q := t.queue("q")
	p := t.dial10(1, "guest")
	s, r := p.sender("/queues/"+q), p.receiver("/queues/"+q, nil)
	t.must(s.Send(t.ctx, text("x"), nil))
	m := p.next(r)
	t.equal("message", string(m.GetData()), "x")
	_, err := t.openAt(2).QueueDelete(q, false, false, false)
	t.must(err)
	_, err = r.Receive(t.ctx, nil)
	p.is(err, "amqp:resource-deleted", "")
	p.is(p.untilEnded(s), "amqp:resource-deleted", "")
}

// commandsAcrossLeaders: deliveries are named by their ids, links by their names, and the leader dies meanwhile.
func commandsAcrossLeaders(t *T) {
	q, answers := t.queue("q"), t.queue("answers")
	n, others := t.followers(q)
	p := t.dial10(n, "guest")
	s := p.sender("/queues/" + q)
	for i := range 3 {
		t.must(s.Send(t.ctx, text(fmt.Sprint(i)), nil))
	}
	r := p.receiver("/queues/"+q, &v10.ReceiverOptions{Name: "mine", Credit: -1, Properties: map[string]any{"x-lock-duration": int64(60_000)}})
	t.must(r.IssueCredit(3))
	for i := range 3 {
		t.equal("message", string(p.next(r).GetData()), fmt.Sprint(i))
	}
	command := func(verb string, arguments map[string]any) error {
		m := &v10.Message{ApplicationProperties: arguments, Data: [][]byte{nil}, Properties: &v10.MessageProperties{CorrelationID: verb}}
		reply := "/queues/" + answers
		m.Properties.ReplyTo = &reply
		return p.sender("/exchanges/amq.quorate.command/"+verb).Send(t.ctx, m, nil)
	}
	t.must(t.Nodes[others[0]].Kill(t.ctx))
	t.must(command("lock.renew", map[string]any{"x-delivery-tag": uint32(0)}))
	t.must(command("lock.renew", map[string]any{"x-consumer-tag": "mine", "x-lock-duration": int64(90_000)}))
	t.must(command("message.settle", map[string]any{"x-delivery-tag": uint32(0), "x-outcome": "ack"}))
	p.is(command("message.settle", map[string]any{"x-delivery-tag": uint32(0), "x-outcome": "ack"}), "amqp:not-found", "unknown delivery tag 0")
	t.must(command("message.defer", map[string]any{"x-delivery-tag": uint32(1), "x-deferral-token": "later"}))
	t.must(command("message.settle", map[string]any{"x-delivery-tag": uint32(2), "x-outcome": "ack"}))
	p.is(command("no.verb", nil), "amqp:not-implemented", "no such command")
	p.is(command("message.settle", map[string]any{"x-delivery-tag": uint32(1), "x-outcome": "eaten"}), "amqp:precondition-failed", "invalid x-outcome")
	t.must(r.IssueCredit(1))
	t.must(command("message.receive-deferred", map[string]any{"x-queue": q, "x-consumer-tag": "mine", "x-deferral-token": "later"}))
	t.equal("deferred", string(p.next(r).GetData()), "1")
	t.must(command("message.settle", map[string]any{"x-delivery-tag": uint32(3), "x-outcome": "ack"}))
	t.backAgain(others[0])
	t.settled(q)
	// Each command has been answered, as JSON, with its correlation id.
	for i, verb := range []string{"lock.renew", "lock.renew", "message.settle", "message.settle", "message.defer", "message.settle", "no.verb", "message.settle", "message.receive-deferred", "message.settle"} {
		d := t.mustGet(answers)
		var answer struct{ OK bool }
		t.must(json.Unmarshal(d.Body, &answer))
		t.equal("correlation id", d.CorrelationId, verb)
		t.equal(fmt.Sprint(i, " ok"), answer.OK, i != 3 && i != 6 && i != 7)
	}
}

// nodeLeaves is the last one: a node leaves in order, and says so.
func nodeLeaves(t *T) {
	q := t.queue("q")
	n, _ := t.followers(q)
	p := t.dial10(n, "guest")
	r := p.receiver("/queues/"+q, nil)
	t.must(t.Nodes[n].Shutdown(t.ctx))
	_, err := r.Receive(t.ctx, nil)
	p.is(err, "amqp:connection:forced", "shutdown")
	t.must(t.Nodes[n].Restart())
	t.lostConnections()
	t.must(t.Nodes[n].AwaitReady(t.ctx))
}
