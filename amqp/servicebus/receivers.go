package servicebus

import (
	"context"

	"github.com/quorate/quorate/amqp/servicebus/entity"
	"github.com/quorate/quorate/amqp/servicebus/sas"
	"github.com/quorate/quorate/amqp/v10"
	"github.com/quorate/quorate/amqp/v10/wire"
	"github.com/quorate/quorate/fsm"
)

// receiveAndDelete is the snd-settle-mode of links whose messages are gone once they are sent.
const receiveAndDelete = 1

// attachReceiver opens a link from a queue or subscription, or from dead letters. It blocks.
func (s *side) attachReceiver(a *v10.Attach, d *entity.Description, at entity.Address) {
	delivery := d.Delivery()
	switch {
	case delivery == nil && at.Part != entity.Transfers:
		a.Refuse(s.refuse(wire.ConditionNotAllowed, "Messages cannot be received from a topic: '%s'.", at))
		return
	case !s.open(d, sas.Listen):
		a.Refuse(s.disabled(d.Path))
		return
	}
	if delivery != nil && (at.Part == entity.Main && delivery.ForwardTo != "" || at.Part == entity.DeadLetters && delivery.ForwardDeadLetteredMessagesTo != "") {
		a.Refuse(s.refuse(wire.ConditionNotAllowed, "Cannot create a message receiver on an entity with auto-forwarding enabled: '%s'.", at))
		return
	}
	_, wantsSession := sessionFilter(a)
	sessions := at.Part == entity.Main && delivery.RequiresSession
	switch {
	case sessions && !wantsSession:
		a.Refuse(s.refuse(wire.ConditionNotAllowed, textNoSession))
		return
	case !sessions && wantsSession:
		a.Refuse(s.refuse(wire.ConditionNotAllowed, "A sessionful message receiver cannot be created on an entity that does not require sessions."))
		return
	}
	queue := s.queueOf(d, at.Part)
	f := &form{part: at.Part, lost: s.lost, side: s, path: d.Path, queue: queue, uncounted: s.uncounted(d, at.Part)}
	ctx, cancel := context.WithTimeout(s.client.Context(), s.client.Config().OperationTimeout)
	defer cancel()
	spec := fsm.ConsumeSpec{Queue: queue, Arguments: &fsm.Table{}, Numbered: true}
	if a.SndSettleMode != receiveAndDelete {
		sealer, err := s.sealer(ctx, a.Link, queue)
		if err != nil {
			a.Refuse(s.attachError(err, d.Path))
			return
		}
		f.sealer = sealer
		lock := d.Lock().Milliseconds()
		spec.Arguments.Fields = append(spec.Arguments.Fields, number("x-lock-duration", lock), number("x-lock-detach-grace", lock))
	}
	if sessions {
		s.attachSession(ctx, a, d, f, spec)
		return
	}
	answer := a.Answer()
	answer.InitialDeliveryCount, answer.MaxMessageSize = wire.Some[uint32](0), a.MaxMessageSize
	answer.Properties = linkProperties(a, nil)
	if _, err := a.Consume(ctx, f, spec, nil, nil); err != nil {
		a.Refuse(s.attachError(err, d.Path))
		return
	}
	a.Start(answer, func() { s.tokens.depend(a.Link, d.Path, sas.Listen, nil) })
}
