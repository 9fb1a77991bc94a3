package v10

import (
	"bytes"
	"strings"

	"github.com/quorate/quorate/amqp/v10/wire"
	"github.com/quorate/quorate/fsm"
)

// command completes the publish of a command to the broker: what it holds are the deliveries of the session, its arguments
// the application properties, and its body the bytes of the message's. An error rejects it.
func (p *publisher) command(out *fsm.Publish, m *wire.Message) *wire.Error {
	if to := p.properties.ReplyTo; to != nil {
		if _, ok := parseSource(string(to)); !ok {
			return wire.Errorf(wire.ConditionPreconditionFailed, "bad 'reply-to' address string: '%s'", to)
		}
	}
	head, err := fsm.AppendHead(nil, out.Exchange, out.RoutingKey, nil, nil)
	if err != nil {
		return protocolError(err)
	}
	out.Payload, out.Holdings, out.Property = appendBody(head, m), &p.session.counts, p.commandProperty
	return nil
}

// commanded is called before a command is published, whose number this is.
func (p *publisher) commanded(number uint64) {
	p.commands.Store(true)
	c := &p.session.counts
	c.mu.Lock()
	defer c.mu.Unlock()
	c.taken.command = number
}

// answered is called when publishes have their outcomes, of which some may be commands.
func (p *publisher) answered(first, last uint64) {
	c := &p.session.counts
	c.mu.Lock()
	defer c.mu.Unlock()
	c.taken.answered(first, last)
}

// commandProperty is property for a command, whose answer goes to a queue.
func (p *publisher) commandProperty(name string) []byte {
	if name == "reply_to" {
		queue, _ := parseSource(string(p.properties.ReplyTo))
		return []byte(queue)
	}
	return p.property(name)
}

// keptProperties is commandProperty for a command that waits, when the scratch has another message.
func (p *publisher) keptProperties() func(name string) []byte {
	kept := map[string][]byte{}
	for _, name := range []string{"reply_to", "correlation_id"} {
		kept[name] = bytes.Clone(p.commandProperty(name))
	}
	return func(name string) []byte { return kept[name] }
}

// appendBody appends the bytes of a body: those of data sections, or of a value that is a text or bytes.
func appendBody(dst []byte, m *wire.Message) []byte {
	for data := range m.Data {
		dst = append(dst, data...)
	}
	if v, err := m.BodyValue(); err == nil && (v.Type == wire.Binary || v.Type == wire.String) {
		dst = append(dst, v.Bytes()...)
	}
	return dst
}

// isCommand reports whether a message is a command to the broker.
func (a address) isCommand() bool { return a.exchange == fsm.CommandExchange }

// outcomeOf returns the outcome of publishes that the client is told, which for equal reasons is the same.
func (p *publisher) outcomeOf(why error) (state wire.Outcome, e *wire.Error) {
	switch {
	case why == nil:
		return wire.StateAccepted, nil
	case why == fsm.ErrUnroutable:
		if e := p.session.conn.side.Unroutable(); e != nil {
			return wire.StateRejected, e
		}
		return wire.StateReleased, nil
	case why != p.why:
		p.why, p.refusal = why, p.session.refusal("transfer", why)
	}
	return wire.StateRejected, p.refusal
}

// notTakenReasons are the words for fsm.NotTaken.
var notTakenReasons = [...]string{fsm.TooLong: "maxlen", fsm.NoGroup: "group-required", fsm.Scheduled: "scheduled", fsm.OutOfOrder: "unavailable"}

// notTaken returns what a client sees of a queue's refusal.
func notTaken(n *fsm.NotTaken) *wire.Error {
	condition := wire.ConditionPreconditionFailed
	if n.Reason == fsm.TooLong {
		condition = wire.ConditionResourceLimit
	}
	e := wire.Errorf(condition, "%s", n.Error())
	info := wire.AppendString(wire.AppendSymbol(wire.StartMap(nil), "queue"), strings.ToValidUTF8(n.Queue, "\uFFFD"))
	info = wire.AppendSymbol(wire.AppendSymbol(info, "reason"), notTakenReasons[n.Reason])
	e.Info = wire.EndMap(info, 0, 2)
	return e
}
