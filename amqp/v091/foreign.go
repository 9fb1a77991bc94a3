package v091

import (
	"github.com/quorate/quorate/amqp"
	messages "github.com/quorate/quorate/amqp/message"
	"github.com/quorate/quorate/amqp/v091/wire"
	"github.com/quorate/quorate/fsm"
)

// Properties reads stored messages, and speaks 0-9-1 for the broker.
type Properties struct{ messages.Properties }

// Reason returns the reply code and text with which a refused command is
// returned. why nil: there is no such command.
func (Properties) Reason(why *fsm.Refusal) (code uint16, text string) { return returnReason(why) }

// Publish makes a publish of a message that did not come over AMQP: properties are those of
// Describe. user is who publishes it. Replies to such a message are not possible. The error is a
// *fsm.Refusal. Its Number is 0.
func (Properties) Publish(user, exchange, key string, properties *fsm.Table, body []byte) (*fsm.Publish, error) {
	raw, err := messages.Properties{}.Encode(properties)
	if err != nil {
		return nil, err
	}
	if limit := maxProperties(amqp.DefaultFrameMax); len(raw) > limit {
		return nil, fsm.Refuse(fsm.Precondition, errPropertiesSize(len(raw), limit).Text)
	}
	read, err := wire.ParseProperties(raw)
	if err != nil {
		return nil, err
	}
	m := &message{publish: fsm.Publish{Exchange: exchange, RoutingKey: key, TTL: -1, Priority: -1}, mandatory: true}
	p := &m.publish
	c := content{user: user, replyName: func() string { return "" }}
	encoded := c.readProperties(m, &read, raw)
	p.MessageID, p.CorrelationID = fsm.Label(read.MessageID), fsm.Label(read.CorrelationID)
	head, err := fsm.AppendHead(nil, exchange, key, encoded, m.blind)
	if err != nil {
		return nil, fsm.Refuse(fsm.Precondition, err.Error())
	}
	p.Payload = append(fsm.Payload(head), body...)
	from := &publisher{current: m}
	p.Headers, p.Property = from.currentHeaders, from.currentProperty
	return p, nil
}
