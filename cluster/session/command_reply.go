package session

import (
	"bytes"
	"encoding/json"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
)

// replyAddress is where a command wants its answer; to empty: nowhere.
type replyAddress struct {
	to          string // a routing key of the default exchange, or the name of a channel
	correlation []byte
}

// commandAnswer is the answer to a command, as JSON.
type commandAnswer struct {
	OK      bool             `json:"ok"`
	Code    uint16           `json:"code,omitempty"` // that of basic.return
	Error   string           `json:"error,omitempty"`
	Results []*commandResult `json:"results,omitempty"`
}

// commandResult is the outcome of one part of a command. What names its object comes first.
type commandResult struct {
	DeliveryTag   uint64  `json:"delivery_tag,omitempty"`
	ConsumerTag   string  `json:"consumer_tag,omitempty"`
	LockToken     string  `json:"lock_token,omitempty"`
	DeferralToken string  `json:"deferral_token,omitempty"`
	GroupID       string  `json:"group_id,omitempty"`
	OK            bool    `json:"ok"`
	Code          uint16  `json:"code,omitempty"`
	Error         string  `json:"error,omitempty"`
	Count         *uint64 `json:"count,omitempty"` // of what the command was executed for
	LockedUntil   int64   `json:"locked_until,omitempty"`
	Remaining     *int64  `json:"remaining_ms,omitempty"`
	State         []byte  `json:"state,omitempty"` // in base64
}

// add completes the result of a part that has taken effect.
func (r *commandResult) add(from fsm.Result, now fsm.Time) {
	r.OK = true
	if from.Count > 0 {
		r.Count = &from.Count
	}
	if from.Until != 0 {
		remaining := max(int64(from.Until-now), 0)
		r.LockedUntil, r.Remaining = int64(from.Until), &remaining
	}
	r.State = []byte(from.State)
}

// replyTo finds out where a command wants its answer. It returns an error if the client may not ask
// for one there.
func (x *commandExchange) replyTo(v *catalog.View, p *fsm.Publish, c *clientCommand) error {
	if p.WantsReply && !x.replies.takes() {
		return errNoReplies
	}
	if p.Property == nil {
		return nil
	}
	to := string(p.Property(catalog.PropertyReplyTo))
	if to == "" {
		return nil
	}
	if _, direct := fsm.ReplySuffix(to); !direct {
		if err := v.CheckPublish(x.conn.user, x.conn.vhost, ""); err != nil {
			return err
		}
	}
	c.reply = replyAddress{to: to, correlation: bytes.Clone(p.Property(catalog.PropertyCorrelationID))}
	return nil
}

// sendReply sends the answer to a command, if it wants one. Like any reply it is lost if there is
// nobody to take it. The lock is held.
func (x *commandExchange) sendReply(c *clientCommand, ok bool, why error) {
	if c.reply.to == "" {
		return
	}
	a := commandAnswer{OK: ok}
	if !ok {
		a.Code, a.Error = x.reason(why)
	}
	for _, p := range c.parts {
		if p.err != nil {
			p.result.Code, p.result.Error = x.reason(p.err)
		}
		a.Results = append(a.Results, &p.result)
	}
	body, err := json.Marshal(&a)
	if err != nil {
		panic(err) // it consists of numbers and text
	}
	head, err := fsm.AppendHead(nil, "", c.reply.to, x.properties.Answer(c.reply.correlation), nil)
	if err != nil {
		return // nothing has such a name
	}
	payload := fsm.Payload(append(head, body...))
	if _, direct := fsm.ReplySuffix(c.reply.to); direct {
		x.calls.add(event{kind: eventReply, payload: payload})
		return
	}
	x.enqueueReply(c.reply.to, payload)
}

// reason returns the code and text of an error; nil: there is no such command.
func (x *commandExchange) reason(why error) (code uint16, text string) {
	r, _ := why.(*fsm.Refusal)
	return x.properties.Reason(r)
}

// ownMessage is the note of a message that the broker itself sends: nobody waits for its outcome.
type ownMessage struct{}

// enqueueReply sends an answer to a queue. The lock is held.
func (x *commandExchange) enqueueReply(name string, payload fsm.Payload) {
	m := catalog.Message{Keys: []string{name}}
	route, limits, err := x.node.view().Route(x.conn.vhost, "", &m, nil)
	if err != nil {
		return
	}
	for _, q := range route {
		u := x.streams.queue(q)
		if to := u.stream; to.Over() || to.Ending() || to.Waiting() >= fsm.MaxUnanswered {
			continue
		}
		u.add(&fsm.Publish{Payload: payload, TTL: -1, Priority: -1}, limits.Of(q).Stored(), false, "", ownMessage{})
	}
}
