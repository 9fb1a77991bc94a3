// Package management declares queues by AMQP 1.0: a request is a message to /management, and its answer comes on a
// link of the same name.
package management

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strconv"

	"github.com/Azure/go-amqp"
)

// Links are the pair of links that requests and their answers go by.
type Links struct {
	out  *amqp.Sender
	in   *amqp.Receiver
	last int
}

// Open attaches the pair in a session.
func Open(ctx context.Context, s *amqp.Session) (*Links, error) {
	paired := map[string]any{"paired": true}
	// A request is refused while there is no credit for its answer, which the receiver gives when it is attached.
	in, err := s.NewReceiver(ctx, "/management", &amqp.ReceiverOptions{Name: "management", Properties: paired, Credit: 8})
	if err != nil {
		return nil, err
	}
	out, err := s.NewSender(ctx, "/management", &amqp.SenderOptions{
		Name: "management", Properties: paired, SettlementMode: amqp.SenderSettleModeSettled.Ptr(),
	})
	return &Links{out: out, in: in}, err
}

// Declare declares a durable queue, unless it is there.
func (l *Links) Declare(ctx context.Context, queue string, arguments map[string]any) error {
	if arguments == nil {
		arguments = map[string]any{}
	}
	_, err := l.Request(ctx, "PUT", "/queues/"+url.PathEscape(queue), map[string]any{"arguments": arguments})
	return err
}

// Close detaches the pair.
func (l *Links) Close(ctx context.Context) error {
	return errors.Join(l.out.Close(ctx), l.in.Close(ctx))
}

// Request sends a request and returns the body of its answer. A status from 400 on is an error.
func (l *Links) Request(ctx context.Context, method, path string, body any) (any, error) {
	l.last++
	replyTo := "$me"
	err := l.out.Send(ctx, &amqp.Message{
		Properties: &amqp.MessageProperties{MessageID: uint64(l.last), To: &path, Subject: &method, ReplyTo: &replyTo},
		Value:      body,
	}, nil)
	if err != nil {
		return nil, err
	}
	answer, err := l.in.Receive(ctx, nil)
	if err != nil {
		return nil, err
	}
	if err := l.in.AcceptMessage(ctx, answer); err != nil {
		return nil, err
	}
	if status, err := strconv.Atoi(*answer.Properties.Subject); err != nil || status >= 400 {
		return nil, fmt.Errorf("%s %s: %s: %v", method, path, *answer.Properties.Subject, answer.Value)
	}
	return answer.Value, nil
}
