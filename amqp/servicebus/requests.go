package servicebus

import (
	"bytes"
	"strings"
	"sync"

	"github.com/quorate/quorate/amqp/servicebus/entity"
	"github.com/quorate/quorate/amqp/servicebus/sas"
	"github.com/quorate/quorate/amqp/v10"
	"github.com/quorate/quorate/amqp/v10/wire"
)

// requestNodes are the nodes of a connection that answer requests: that for tokens, and one for each entity. A client sends
// requests on one link and is answered on another.
type requestNodes struct {
	side *side

	mu      sync.Mutex
	answers map[*v10.Link]answering
	// puts: the connection has a link on which tokens are put, of which it has one at a time.
	puts bool
}

// answering is a link on which requests to a node are answered.
type answering struct {
	node    string
	name    string // of the link
	address string // of the client's end
}

// Bounds of requests.
const (
	maxRequest    = 1 << 20 // bytes, besides what a schedule's messages have
	requestCredit = 64
)

// request is one that is being performed.
type request struct {
	side    *side
	link    *v10.Link // on which it came
	node    string
	entity  *entity.Description // nil: it is for tokens
	part    entity.Part         // of that
	message wire.Message
	props   wire.Properties
	body    wire.MapBytes
	// transaction is the id of that which the request is a part of; nil: none.
	transaction []byte

	status      int32
	condition   string
	description string
	answer      []byte // an encoded map; nil: an empty one
}

// attach attaches a link to the node of an entity; nil: to that for tokens.
func (n *requestNodes) attach(a *v10.Attach, d *entity.Description, part entity.Part) {
	node, perform := "$cbs", n.side.putToken
	if d != nil {
		node, perform = entity.Address{Path: d.Path, Part: part}.String(), n.side.manage
	}
	answer := a.Answer()
	if !a.Role {
		answer.MaxMessageSize = maxRequest
		if d != nil && d.Store() != nil {
			answer.MaxMessageSize += uint64(d.Store().MaxMessageSizeInKilobytes) << 10
		}
		link := &requestLink{n.side, node, d, part, perform}
		if d != nil {
			a.Take(link, 0, answer, requestCredit, func() {})
		} else {
			n.takeTokens(a, link, answer)
		}
		return
	}
	answer.InitialDeliveryCount, answer.MaxMessageSize = wire.Some[uint32](0), a.MaxMessageSize
	to := answering{node: node, name: a.Name}
	if t, ok := a.Target.(*wire.Target); ok {
		to.address = t.Address.Value
	}
	a.Respond(answer, func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		if n.answers == nil {
			n.answers = map[*v10.Link]answering{}
		}
		n.answers[a.Link] = to
		a.Link.Ended(func() {
			n.mu.Lock()
			defer n.mu.Unlock()
			delete(n.answers, a.Link)
		})
	})
}

// takeTokens opens the connection's link on which tokens are put. A program whose earlier one has not ended, as it was cut short,
// is told so, and connects anew.
func (n *requestNodes) takeTokens(a *v10.Attach, l *requestLink, answer *wire.Attach) {
	if !n.claim() {
		a.Refuse(n.side.refuse(wire.ConditionNotAllowed, "The connection has a link to %s already.", l.node))
		return
	}
	begun := false
	a.Take(l, 0, answer, requestCredit, func() {
		begun = true
		a.Link.Ended(n.release)
	})
	if !begun {
		n.release()
	}
}

// claim reports whether the connection had no link on which tokens are put. Then it has one until release.
func (n *requestNodes) claim() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	free := !n.puts
	n.puts = true
	return free
}

func (n *requestNodes) release() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.puts = false
}

// find returns the link on which a request is answered: by the address or the name that it gives, in its session or its
// connection; else the only one of the node. nil: there is none.
func (n *requestNodes) find(from *v10.Link, node, replyTo string) *v10.Link {
	n.mu.Lock()
	defer n.mu.Unlock()
	var best, other *v10.Link
	rank, others := 0, 0
	for l, a := range n.answers {
		fits := 0
		switch {
		case a.node != node:
			continue
		case a.address == replyTo && replyTo != "":
			fits = 4
		case a.name == replyTo:
			fits = 2
		}
		if fits == 0 {
			other = l
			others++
			continue
		}
		if l.Channel() == from.Channel() {
			fits++
		}
		if fits > rank {
			best, rank = l, fits
		}
	}
	if best == nil && others == 1 {
		return other
	}
	return best
}

// requestLink is a link on which requests come.
type requestLink struct {
	side    *side
	node    string
	entity  *entity.Description
	part    entity.Part
	perform func(*request)
}

// Take implements v10.Incoming.
func (l *requestLink) Take(d *v10.Delivery) (next func(), err *wire.Error) {
	r := &request{side: l.side, link: d.Link, node: l.node, entity: l.entity, part: l.part, transaction: d.Transaction}
	if e := r.message.ParseRequest(bytes.Clone(d.Message)); e != nil { // it is performed later
		d.Reject(l.side.refuse(wire.ConditionDecode, "%s", e))
		return nil, nil
	}
	if e := r.message.ReadProperties(&r.props); e != nil {
		d.Reject(l.side.refuse(wire.ConditionDecode, "%s", e))
		return nil, nil
	}
	r.body = r.message.BodyMap()
	d.Accept()
	return func() {
		l.perform(r)
		r.count()
		r.reply()
	}, nil
}

// count tells of the answer.
func (r *request) count() {
	name := strings.TrimPrefix(r.text("operation"), operationPrefix)
	if _, known := operations[name]; !known && (r.entity != nil || name != putOperation) {
		name = "unknown"
	}
	if count := r.side.dialect.Count; count != nil {
		count(name, int(r.status))
	}
}

// reply sends the answer.
func (r *request) reply() {
	to := r.side.nodes.find(r.link, r.node, string(r.props.ReplyTo))
	if to == nil || to.Send(r.encode()) {
		return
	}
	to.Detach(r.side.refuse(wire.ConditionResourceLimit, "Too many answers wait for credit."))
}

// encode returns the answer as a message. Programs read one or the other spelling.
func (r *request) encode() []byte {
	b := wire.Append(nil, &wire.Properties{CorrelationID: r.props.MessageID})
	b = wire.StartApplicationProperties(b)
	at, pairs := len(b), 4
	b = wire.StartMap(b)
	for _, name := range []string{"statusCode", "status-code"} {
		b = wire.AppendInt(wire.AppendString(b, name), r.status)
	}
	for _, name := range []string{"statusDescription", "status-description"} {
		b = wire.AppendString(wire.AppendString(b, name), r.description)
	}
	if r.condition != "" {
		for _, name := range []string{"errorCondition", "error-condition"} {
			b = wire.AppendSymbol(wire.AppendString(b, name), r.condition)
		}
		pairs += 2
	}
	if id, ok := r.message.ApplicationProperties.Get("com.microsoft:tracking-id"); ok && isText(id) {
		b = wire.AppendString(wire.AppendString(b, "com.microsoft:tracking-id"), id.Bytes())
		pairs++
	}
	b = wire.StartValue(wire.EndMap(b, at, pairs))
	if r.answer != nil {
		return append(b, r.answer...)
	}
	at = len(b)
	return wire.EndMap(wire.StartMap(b), at, 0)
}

// done completes a request that has taken effect.
func (r *request) done(status int32, description string, answer []byte) {
	r.status, r.description, r.answer = status, description, answer
}

// fail completes a request that has not.
func (r *request) fail(condition string, status int32, description string) {
	r.condition, r.status, r.description = condition, status, description
}

// failWith completes a request that has failed with an error.
func (r *request) failWith(e *wire.Error) { r.fail(e.Condition, statusOf(e.Condition), e.Description) }

// text returns a text of the request's application properties; empty: there is none.
func (r *request) text(name string) string {
	if v, ok := r.message.ApplicationProperties.Get(name); ok && isText(v) {
		return string(v.Bytes())
	}
	return ""
}

// allows reports whether the client has a right on the entity, and refuses the request if not.
func (r *request) allows(right sas.Rights) bool {
	if r.side.tokens.allows(r.entity.Path, right) {
		return true
	}
	e := r.side.unauthorized(r.entity.Path, right)
	r.side.denied(strings.TrimPrefix(r.text("operation"), operationPrefix), e)
	r.failWith(e)
	return false
}

func isText(v wire.Value) bool {
	return v.Type == wire.String || v.Type == wire.Symbol
}
