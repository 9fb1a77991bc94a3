package servicebus

import (
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

	// Of the delivery that has arrived, reused.
	reader messageReader
	all    []fsm.Publish
}

// Bounds of senders.
const (
	senderCredit = 200
	maxBatch     = 4500 // messages
)

// batchFormat is the message-format of a delivery whose data sections are messages.
const batchFormat = 0x80013700

// batchSize is the property of a link that says how large a batch may be.
const batchSize = "com.microsoft:max-message-batch-size"

// attachSender opens a link to a queue or topic. It blocks.
func (s *side) attachSender(a *v10.Attach, d *entity.Description, at entity.Address) {
	queue := queueOf(d, entity.Main)
	if d.Topic != nil {
		queue = d.Path.Store()
	}
	switch {
	case at.Part != entity.Main:
		a.Refuse(s.refuse(wire.ConditionNotAllowed, "Messages cannot be sent to '%s'.", at))
		return
	case d.Subscription != nil:
		a.Refuse(s.refuse(wire.ConditionNotAllowed, "Messages cannot be sent to a subscription: '%s'.", at))
		return
	case !s.open(d, sas.Send):
		a.Refuse(s.disabled(d.Path))
		return
	}
	ctx, cancel := context.WithTimeout(s.client.Context(), s.client.Config().OperationTimeout)
	defer cancel()
	id, err := a.Link.Broker().Watch(ctx, queue)
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
	to := &sender{side: s, entity: d, queue: queue}
	to.reader.init(to)
	a.Take(to, id, answer, senderCredit, func() { s.tokens.depend(a.Link, d.Path, sas.Send, nil) })
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

// Take implements v10.Incoming. A batch has one outcome: if one of its messages is refused, so is the whole.
func (s *sender) Take(d *v10.Delivery) (next func(), _ *wire.Error) {
	s.all = s.all[:0]
	if err := s.read(d); err != nil {
		d.Reject(err)
		return nil, nil
	}
	next = d.Publish(s.all)
	if next != nil {
		s.all = nil // it is used until then
	}
	return next, nil
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
		if len(s.all) == maxBatch {
			return s.side.refuse(conditionArgument, "A batch has at most %d messages.", maxBatch)
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
	return s.reader.read(encoded, &s.all[len(s.all)-1])
}
