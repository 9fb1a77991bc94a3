package servicebus

import (
	"cmp"
	"context"

	"github.com/quorate/quorate/amqp/servicebus/entity"
	"github.com/quorate/quorate/amqp/servicebus/sas"
	"github.com/quorate/quorate/amqp/v10"
	"github.com/quorate/quorate/amqp/v10/wire"
	"github.com/quorate/quorate/fsm"
)

// sender is a link on which a client sends to a queue or topic.
type sender struct {
	side   *side
	entity *entity.Description
	queue  string // of the broker
	// via hands the messages on to the entity; its path is empty: none does, they go there themselves.
	via      entity.Path
	viaQueue string

	// Of the delivery that has arrived, reused.
	reader messageReader
	all    []fsm.Publish
}

// senderCredit is how many deliveries of a link have no outcome yet.
const senderCredit = 200

// batchFormat is the message-format of a delivery whose data sections are messages.
const batchFormat = 0x80013700

// batchSize is the property of a link that says how large a batch may be.
const batchSize = "com.microsoft:max-message-batch-size"

// attachSender opens a link to a queue or topic. It blocks.
func (s *side) attachSender(a *v10.Attach, d *entity.Description, at entity.Address) {
	to, e := s.senderTo(d, at)
	if last, ok := a.Properties.Get(destination); ok && e == nil && isText(last) {
		to, e = s.senderVia(to, string(last.Bytes()))
	}
	if e != nil {
		s.deny(a, e)
		return
	}
	s.openSender(a, to)
}

// destination is the property of a link that says to where its target hands messages on.
const destination = "com.microsoft:transfer-destination-address"

// senderTo returns a sender to an entity.
func (s *side) senderTo(d *entity.Description, at entity.Address) (*sender, *wire.Error) {
	to := &sender{side: s, entity: d, queue: s.queueOf(d, entity.Main)}
	if d.Topic != nil {
		to.queue = d.Path.Store()
	}
	switch {
	case at.Part != entity.Main:
		return nil, s.refuse(wire.ConditionNotAllowed, "Messages cannot be sent to '%s'.", at)
	case d.Subscription != nil:
		return nil, s.refuse(wire.ConditionNotAllowed, "Messages cannot be sent to a subscription: '%s'.", at)
	case !s.open(d, sas.Send):
		return nil, s.disabled(d.Path)
	}
	to.reader.init(to)
	return to, nil
}

// senderVia returns a sender whose messages are handed on by the entity of another one.
func (s *side) senderVia(via *sender, address string) (*sender, *wire.Error) {
	at := entity.ParseAddress(address)
	d, ok := s.entity(at.Path)
	switch {
	case !s.tokens.allows(at.Path, sas.Send):
		return nil, s.unauthorized(at.Path, sas.Send)
	case !ok:
		return nil, s.notFound(at.Path)
	}
	to, e := s.senderTo(d, at)
	if e == nil && to.queue != via.queue {
		to.via, to.viaQueue = via.entity.Path, via.queue
	}
	return to, e
}

// needs are the entities to which the sender needs a right, as long as it is open.
func (s *sender) needs() need {
	n := need{[]entity.Path{s.entity.Path}, sas.Send}
	if s.viaQueue != "" {
		n.paths = append(n.paths, s.via)
	}
	return n
}

// openSender opens the link of a sender. It blocks.
func (s *side) openSender(a *v10.Attach, to *sender) {
	d := to.entity
	ctx, cancel := context.WithTimeout(s.client.Context(), s.client.Config().OperationTimeout)
	defer cancel()
	id, err := a.Link.Broker().Watch(ctx, cmp.Or(to.viaQueue, to.queue))
	if err != nil {
		a.Refuse(s.attachError(err, d.Path))
		return
	}
	largest := min(uint64(d.Store().MaxMessageSizeInKilobytes)<<10, uint64(s.client.Config().MaxMessageSize))
	answer := a.Answer()
	answer.MaxMessageSize = largest
	answer.Properties = linkProperties(a, func(b []byte) ([]byte, int) {
		return wire.AppendUlong(wire.AppendSymbol(b, batchSize), largest), 1
	})
	a.Take(to, id, answer, senderCredit, func() { s.tokens.dependOn(a.Link, to.needs(), nil) })
}

// open reports whether the status of an entity allows links with a right. A subscription gives nothing while its topic does
// not.
func (s *side) open(d *entity.Description, right sas.Rights) bool {
	status := d.Common().Status
	if right == sas.Send {
		return status.Sends()
	}
	if d.Subscription != nil {
		if topic, ok := s.entity(entity.Path{Name: d.Path.Name}); ok && !topic.Common().Status.Receives() {
			return false
		}
	}
	return status.Receives()
}

// disabled is the error for an entity whose status does not allow what is asked for.
func (s *side) disabled(p entity.Path) *wire.Error {
	return s.refuse(conditionDisabled, "Messaging entity 'sb://%s/%s' is currently disabled.", s.host, p)
}

// attachError explains why a link cannot be had; that a queue is not there is said with the name of its entity.
func (s *side) attachError(err error, p entity.Path) *wire.Error {
	e := s.Explain(err)
	if e.Condition == wire.ConditionNotFound {
		return s.notFound(p)
	}
	return e
}

// linkProperties returns the properties of an answer: those that add appends, and the client's id for its own log.
func linkProperties(a *v10.Attach, add func([]byte) (_ []byte, pairs int)) wire.MapBytes {
	const tracking = "com.microsoft:tracking-id"
	b, pairs := wire.StartMap(nil), 0
	if add != nil {
		b, pairs = add(b)
	}
	if v, ok := a.Properties.Get(tracking); ok && isText(v) {
		b = wire.AppendString(wire.AppendSymbol(b, tracking), v.Bytes())
		pairs++
	}
	return wire.EndMap(b, 0, pairs)
}

// Take implements v10.Incoming. Several messages are taken in together, or none of them.
func (s *sender) Take(d *v10.Delivery) (next func(), _ *wire.Error) {
	s.all = s.all[:0]
	err := s.side.short()
	if err == nil {
		err = s.read(d)
	}
	if d.Transaction != nil {
		s.side.transactions.send(s, d, err)
		return nil, nil
	}
	switch {
	case err != nil:
		d.Reject(err)
		return nil, nil
	case s.viaQueue != "":
		next = d.Post(sizeOf(s.all), s.side.poster(d.Link, s.viaQueue, &fsm.Unit{Onward: s.all}), nil)
	case len(s.all) == 1:
		next = d.Publish(&s.all[0])
	default:
		next = d.Post(sizeOf(s.all), s.side.poster(d.Link, s.queue, &fsm.Unit{Sends: s.all}), nil)
	}
	if next != nil {
		s.all = nil // it is used until then
	}
	return next, nil
}

// poster returns what has a queue perform a unit.
func (s *side) poster(l *v10.Link, queue string, u *fsm.Unit) func(number uint64) error {
	return func(number uint64) error {
		ctx, cancel := context.WithTimeout(s.client.Context(), s.client.Config().OperationTimeout)
		defer cancel()
		return machineOf(l).Post(ctx, queue, u, number)
	}
}

// sizeOf returns how many bytes messages have.
func sizeOf(all []fsm.Publish) (n int) {
	for i := range all {
		n += len(all[i].Payload)
	}
	return n
}

// read reads what has arrived into all.
func (s *sender) read(d *v10.Delivery) *wire.Error {
	if d.Format != batchFormat {
		return s.add(d.Message)
	}
	var envelope wire.Message
	if err := envelope.ParseRequest(d.Message); err != nil {
		return s.side.refuse(wire.ConditionDecode, "%s", err)
	}
	for data := range envelope.Data {
		if len(s.all) == fsm.MaxUnit {
			return s.side.refuse(wire.ConditionMessageSize, "A batch has at most %d messages.", fsm.MaxUnit)
		}
		if err := s.add(data); err != nil {
			return err
		}
	}
	if len(s.all) == 0 {
		return s.side.refuse(conditionArgument, "A batch has no messages.")
	}
	return nil
}

// add reads a message into all.
func (s *sender) add(encoded []byte) *wire.Error {
	s.all = append(s.all, fsm.Publish{})
	m := &s.all[len(s.all)-1]
	err := s.reader.read(encoded, m)
	if err == nil && s.viaQueue != "" && m.Schedule != nil {
		err = s.side.refuse(wire.ConditionNotAllowed, textScheduled)
	}
	return err
}
