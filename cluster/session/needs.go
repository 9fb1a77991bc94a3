package session

import (
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/proto/logpb"
)

// needs caches what a queue must be told about messages. The session's lock guards it.
type needs struct {
	in *catalog.View // where they are from; nil: not asked yet
	as catalog.Needs
}

// ask updates it to a view.
func (n *needs) ask(v *catalog.View, q *catalog.Queue) {
	if n.in != v {
		n.in, n.as = v, v.Needs(q)
	}
}

// tell adds to an enqueue what the queue needs to know about the payload. Most queues need nothing,
// and the properties are not read.
func (x *publisher) tell(e *logpb.Enqueue, payload fsm.Payload, n catalog.Needs) {
	if n.MessageID {
		e.MessageId = string(x.properties.Property(payload.Properties(), catalog.PropertyMessageID))
	}
}
