package jepsen

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"reflect"
	"strings"
	"time"

	"github.com/quorate/quorate/jepsen/internal/await"
	amqp "github.com/rabbitmq/amqp091-go"
)

// poisonedMessages are texts that clients put into messages.
var poisonedMessages = []poison{
	{name: "header", try: travelsWith(func(text string) amqp.Table { return amqp.Table{"x-note": text} })},
	{name: "header's name", short: true, try: travelsWith(func(text string) amqp.Table { return amqp.Table{text: "here"} })},
	{name: "nested header", try: travelsWith(func(text string) amqp.Table {
		return amqp.Table{"x-note": amqp.Table{"in": []any{"one", text}}}
	})},
	{name: "x-opt header", try: travelsWith(func(text string) amqp.Table { return amqp.Table{"x-opt-note": text} })},
	{name: "x-schedule-id without a time", try: travelsWith(func(text string) amqp.Table { return amqp.Table{"x-schedule-id": text} })},
	{name: "x-death of the client, queue", try: diesWith(func(text string) amqp.Table {
		return amqp.Table{"x-death": []any{amqp.Table{"queue": text, "reason": "expired", "exchange": "", "count": int64(1)}}}
	})},
	{name: "x-death of the client, routing key", try: diesWith(func(text string) amqp.Table {
		return amqp.Table{"x-death": []any{amqp.Table{"queue": "q", "reason": "expired", "exchange": "", "routing-keys": []any{text}}}}
	})},
	{name: "x-death of the client, reason", try: diesWith(func(text string) amqp.Table {
		return amqp.Table{"x-death": []any{amqp.Table{"queue": "q", "reason": text}}}
	})},
	{name: "x-death of the client, no array", try: diesWith(func(text string) amqp.Table { return amqp.Table{"x-death": text} })},
	{name: "x-first-death-queue of the client", try: diesWith(func(text string) amqp.Table { return amqp.Table{"x-first-death-queue": text} })},
	{name: "x-last-death-reason of the client", try: diesWith(func(text string) amqp.Table { return amqp.Table{"x-last-death-reason": text} })},
	{name: "x-acquired-count of the client", try: diesWith(func(text string) amqp.Table { return amqp.Table{"x-acquired-count": text} })},
	{name: "properties", short: true, try: func(p *poisoned, text string) error {
		m := amqp.Publishing{
			ContentType: text, ContentEncoding: text, CorrelationId: text, ReplyTo: text, MessageId: text, Type: text, AppId: text,
		}
		return p.travels(m, func(d amqp.Delivery) bool {
			return d.ContentType == text && d.ContentEncoding == text && d.CorrelationId == text && d.ReplyTo == text &&
				d.MessageId == text && d.Type == text && d.AppId == text
		})
	}},
	{name: "user-id", short: true, try: func(p *poisoned, text string) error { return p.plain(amqp.Publishing{UserId: text}) },
		refusal: func(_ *poisoned, text string) string {
			return precondition("user_id property set to '%s' but authenticated user was 'guest'", text)
		}},
	{name: "expiration", short: true, try: func(p *poisoned, text string) error { return p.plain(amqp.Publishing{Expiration: text}) },
		refusal: func(_ *poisoned, text string) string {
			return precondition("invalid expiration '%s': no_integer", text)
		}},
	{name: "CC", try: copiesTo("CC"), refusal: copyTooLong("CC")},
	{name: "BCC", try: copiesTo("BCC"), refusal: copyTooLong("BCC")},
	{name: "CC, no array", try: publishWith("CC"), refusal: wrongType("CC")},
	{name: "BCC, no array", try: publishWith("BCC"), refusal: wrongType("BCC")},
	{name: "x-schedule-id", try: func(p *poisoned, text string) error {
		return p.dies(amqp.Table{"x-opt-delivery-delay": dieAfter, "x-schedule-id": text}, nil)
	}, refusal: func(_ *poisoned, text string) string {
		if len(text) <= 255 {
			return ""
		}
		return precondition("invalid x-schedule-id: longer than 255 bytes")
	}},
	{name: "x-schedule-conflict", try: func(p *poisoned, text string) error {
		return p.plain(amqp.Publishing{Headers: amqp.Table{"x-opt-delivery-delay": dieAfter, "x-schedule-conflict": text}})
	}, refusal: func(_ *poisoned, text string) string {
		return precondition("invalid x-schedule-conflict '%.100s': must be replace, reject or ignore", text)
	}},
	{name: "x-opt-delivery-delay", try: publishWith("x-opt-delivery-delay"), refusal: noInteger("x-opt-delivery-delay")},
	{name: "x-opt-delivery-time", try: publishWith("x-opt-delivery-time"), refusal: noInteger("x-opt-delivery-time")},
	{name: "command's verb", short: true, try: func(p *poisoned, text string) error { return p.command(text, nil) },
		refusal: func(*poisoned, string) string { return "312 NO_ROUTE" }},
	{name: "command's queue", try: commandWith("x-queue"), refusal: func(_ *poisoned, text string) string {
		return reply(404, "NOT_FOUND", "no queue '%s' in vhost '/'", text)
	}},
	{name: "command's exchange", try: commandWith("x-exchange"), refusal: func(_ *poisoned, text string) string {
		return reply(404, "NOT_FOUND", "no exchange '%s' in vhost '/'", text)
	}},
	{name: "command's message", try: func(p *poisoned, text string) error {
		if err := p.declare(nil); err != nil {
			return err
		}
		return p.command("schedule.cancel", amqp.Table{"x-queue": p.id, "x-schedule-id": text})
	}, refusal: func(p *poisoned, text string) string {
		return reply(404, "NOT_FOUND", "no message '%s' waits in queue '%s' in vhost '/'", text, p.id)
	}},
}

func wrongType(header string) func(*poisoned, string) string {
	return func(*poisoned, string) string {
		return precondition("invalid message: {unacceptable_type_in_header,%q,longstr}", header)
	}
}

func noInteger(header string) func(*poisoned, string) string {
	return func(_ *poisoned, text string) string {
		return precondition("invalid %s '%.100s': no_integer", header, text)
	}
}

func copyTooLong(header string) func(*poisoned, string) string {
	return func(_ *poisoned, text string) string {
		if len(text) <= 255 {
			return ""
		}
		return precondition("invalid message: routing key of %d bytes in %s exceeds the limit of 255", len(text), header)
	}
}

// plain declares the case's queue and publishes to it.
func (p *poisoned) plain(m amqp.Publishing) error {
	ch, err := p.channel()
	if err == nil {
		_, err = ch.QueueDeclare(p.id, true, false, false, false, nil)
	}
	if err == nil {
		err = p.publish(ch, "", p.id, m)
	}
	return err
}

func publishWith(header string) func(*poisoned, string) error {
	return func(p *poisoned, text string) error {
		return p.plain(amqp.Publishing{Headers: amqp.Table{header: text}})
	}
}

// dies lets a message with these headers die.
func (p *poisoned) dies(headers amqp.Table, check func(amqp.Delivery) bool) error {
	d, err := p.die(nil, amqp.Publishing{Headers: headers})
	if err == nil && (string(d.Body) != p.id || check != nil && !check(d)) {
		err = fmt.Errorf("the dead letter is %.300v, %q", d.Headers, d.Body)
	}
	return err
}

// diesWith lets a message die whose headers say that it has died before. What
// becomes of these is the broker's matter.
func diesWith(headers func(string) amqp.Table) func(*poisoned, string) error {
	return func(p *poisoned, text string) error {
		return p.dies(headers(text), func(d amqp.Delivery) bool {
			deaths, _ := d.Headers["x-death"].([]any)
			if len(deaths) == 0 {
				return false
			}
			newest, _ := deaths[0].(amqp.Table)
			return newest["queue"] == p.id
		})
	}
}

func travelsWith(headers func(string) amqp.Table) func(*poisoned, string) error {
	return func(p *poisoned, text string) error {
		want := headers(text)
		return p.travels(amqp.Publishing{Headers: want}, func(d amqp.Delivery) bool {
			for name := range want {
				if !reflect.DeepEqual(d.Headers[name], want[name]) {
					return false
				}
			}
			return true
		})
	}
}

// travels sends a message all ways there are: it comes back as unroutable, dies,
// is handed out and returned, looked at by HTTP and taken.
func (p *poisoned) travels(m amqp.Publishing, check func(amqp.Delivery) bool) error {
	returned, err := p.comesBack("amq.direct", p.id+"-nowhere", m)
	if err == nil && !check(amqp.Delivery{
		Headers: returned.Headers, ContentType: returned.ContentType, ContentEncoding: returned.ContentEncoding, CorrelationId: returned.CorrelationId,
		ReplyTo: returned.ReplyTo, MessageId: returned.MessageId, Type: returned.Type, AppId: returned.AppId,
	}) {
		err = errors.New("it came back changed")
	}
	if err != nil {
		return err
	}
	d, err := p.die(nil, m)
	if err != nil || !check(d) {
		return fmt.Errorf("it died changed: %v, %.300v", err, d.Headers)
	}
	ch, err := p.channel()
	if err == nil {
		err = p.publish(ch, "", p.id+"-sink", m)
	}
	if err != nil {
		return err
	}
	for range 2 {
		d, got, err := ch.Get(p.id+"-sink", false)
		if err != nil || !got || !check(d) {
			return fmt.Errorf("handed out %v, %v, %.300v", got, err, d.Headers)
		}
		if err := d.Reject(true); err != nil {
			return err
		}
	}
	return p.taken(p.id + "-sink")
}

// comesBack publishes a mandatory message and waits for its return.
func (p *poisoned) comesBack(exchange, key string, m amqp.Publishing) (amqp.Return, error) {
	ch, err := p.channel()
	if err != nil {
		return amqp.Return{}, err
	}
	ctx, cancel := context.WithTimeout(p.ctx, arriveWithin)
	defer cancel()
	returns, closed := ch.NotifyReturn(make(chan amqp.Return, 1)), ch.NotifyClose(make(chan *amqp.Error, 1))
	if err := ch.PublishWithContext(ctx, exchange, key, true, false, m); err != nil {
		return amqp.Return{}, err
	}
	select {
	case r := <-returns:
		return r, nil
	case err := <-closed:
		return amqp.Return{}, fmt.Errorf("closed: %w", err)
	case <-ctx.Done():
		return amqp.Return{}, errors.New("nothing came back")
	}
}

// taken looks at a queue's message by HTTP and takes it.
func (p *poisoned) taken(queue string) error {
	path := "/api/queues/%2F/" + url.PathEscape(queue)
	ctx, cancel := context.WithTimeout(p.ctx, arriveWithin)
	defer cancel()
	for _, mode := range []string{"ack_requeue_true", "ack_requeue_false"} {
		// What a client has rejected on its connection may take a moment to be back.
		err := await.Until(ctx, 20*time.Millisecond, "a message in "+queue, func() (bool, error) {
			status, body, err := p.node.Do(ctx, http.MethodPost, path+"/get", map[string]any{"count": 1, "ackmode": mode, "encoding": "auto"})
			var list []struct{ Payload string }
			if err == nil {
				err = json.Unmarshal(body, &list)
			}
			if err != nil {
				err = fmt.Errorf("taken by HTTP: %d, %w, %.300s", status, err, body)
			}
			return len(list) == 1, err
		})
		if err != nil {
			return err
		}
		if err := p.node.Call(ctx, http.MethodGet, path+"/messages/peek", nil, nil); err != nil {
			return err
		}
	}
	return nil
}

// copiesTo publishes with a second routing key, which alone leads to the queue.
// From there the message dies.
func copiesTo(header string) func(*poisoned, string) error {
	return func(p *poisoned, text string) error {
		ch, err := p.channel()
		if err == nil {
			err = ch.ExchangeDeclare(p.id, amqp.ExchangeDirect, true, false, false, false, nil)
		}
		if err == nil {
			_, err = ch.QueueDeclare(p.id, true, false, false, false, amqp.Table{"x-message-ttl": dieAfter, "x-dead-letter-exchange": p.id + "-dead"})
		}
		if err == nil {
			err = ch.ExchangeDeclare(p.id+"-dead", amqp.ExchangeDirect, true, false, false, false, nil)
		}
		if err == nil {
			_, err = ch.QueueDeclare(p.id+"-sink", true, false, false, false, nil)
		}
		if key := text; err == nil && len(key) <= 255 {
			if err = ch.QueueBind(p.id, key, p.id, false, nil); err == nil {
				err = ch.QueueBind(p.id+"-sink", key, p.id+"-dead", false, nil)
			}
		}
		if err == nil {
			err = p.publish(ch, p.id, "elsewhere", amqp.Publishing{Headers: amqp.Table{header: []any{text}}})
		}
		if err == nil {
			_, err = p.take(ch, p.id+"-sink")
		}
		return err
	}
}

// command asks the broker for something; what comes back is the refusal.
func (p *poisoned) command(verb string, headers amqp.Table) error {
	r, err := p.comesBack("amq.quorate.command", verb, amqp.Publishing{Headers: headers})
	if err != nil {
		return err
	}
	return &amqp.Error{Code: int(r.ReplyCode), Reason: strings.TrimSpace(r.ReplyText)}
}

func commandWith(header string) func(*poisoned, string) error {
	return func(p *poisoned, text string) error {
		return p.command("schedule.cancel", amqp.Table{header: text, "x-schedule-id": "m"})
	}
}
