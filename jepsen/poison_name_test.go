package jepsen

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"time"

	"github.com/quorate/quorate/jepsen/internal/await"
	amqp "github.com/rabbitmq/amqp091-go"
)

// bound declares a direct exchange, or one of another kind, and binds the case's
// sink to it.
func (p *poisoned) bound(kind, key string, args amqp.Table) (*amqp.Channel, error) {
	ch, err := p.channel()
	if err == nil {
		err = ch.ExchangeDeclare(p.id, kind, true, false, false, false, nil)
	}
	if err == nil {
		_, err = ch.QueueDeclare(p.id+"-sink", true, false, false, false, nil)
	}
	if err == nil {
		err = ch.QueueBind(p.id+"-sink", key, p.id, false, args)
	}
	return ch, err
}

// bindKey binds with a routing key and publishes with it.
func bindKey(kind string) func(*poisoned, string) error {
	return func(p *poisoned, text string) error {
		ch, err := p.bound(kind, text, nil)
		if err == nil {
			err = p.publish(ch, p.id, text, amqp.Publishing{})
		}
		if err != nil {
			return err
		}
		d, err := p.take(ch, p.id+"-sink")
		if err == nil && d.RoutingKey != text {
			err = fmt.Errorf("it came with key %.300q", d.RoutingKey)
		}
		if err == nil {
			err = ch.QueueUnbind(p.id+"-sink", text, p.id, nil)
		}
		return err
	}
}

// poisonedBindings are texts in bindings.
var poisonedBindings = []poison{
	{name: "direct binding key", short: true, try: bindKey("direct")},
	{name: "topic binding key", short: true, try: bindKey("topic")},
	{name: "fanout binding key", short: true, try: bindKey("fanout")},
	{name: "headers binding key", short: true, try: bindKey("headers")},
	{name: "binding key of a hash exchange", short: true, try: bindKey("x-consistent-hash"), refusal: func(_ *poisoned, text string) string {
		return precondition("The binding key must be an integer: %q", text)
	}},
	{name: "header to match", try: func(p *poisoned, text string) error {
		ch, err := p.bound("headers", "", amqp.Table{"x-match": "all", "note": text})
		if err == nil {
			err = p.publish(ch, p.id, "", amqp.Publishing{Headers: amqp.Table{"note": text}})
		}
		if err == nil {
			_, err = p.take(ch, p.id+"-sink")
		}
		return err
	}, refusal: func(p *poisoned, text string) string {
		return tooLargeAs(precondition, "arguments of binding to", p.id+"-sink", 16+10+len(text))
	}},
	{name: "name of a header to match", short: true, try: func(p *poisoned, text string) error {
		ch, err := p.bound("headers", "", amqp.Table{text: "here"})
		if err == nil {
			err = p.publish(ch, p.id, "", amqp.Publishing{Headers: amqp.Table{text: "here"}})
		}
		if err == nil {
			_, err = p.take(ch, p.id+"-sink")
		}
		return err
	}},
	{name: "x-match", try: func(p *poisoned, text string) error {
		_, err := p.bound("headers", "", amqp.Table{"x-match": text})
		return err
	}, refusal: func(_ *poisoned, text string) string {
		return precondition("Invalid x-match field value %q; expected all, any, all-with-x, or any-with-x", text)
	}},
}

// poisonedNames are names of queues and consumers, and what consumers say.
var poisonedNames = []poison{
	{name: "name of a queue", short: true, try: func(p *poisoned, text string) error {
		return p.dieAt(ending(text, "q"))
	}},
	{name: "name of a queue that is not there", short: true, try: func(p *poisoned, text string) error {
		ch, err := p.channel()
		if err == nil {
			_, err = ch.QueueDeclarePassive(ending(text, "n"), true, false, false, false, nil)
		}
		return err
	}, refusal: func(_ *poisoned, text string) string {
		return reply(404, "NOT_FOUND", "no queue '%s' in vhost '/'", ending(text, "n"))
	}},
	{name: "reserved name", short: true, try: func(p *poisoned, text string) error {
		ch, err := p.channel()
		if err == nil {
			_, err = ch.QueueDeclare("amq."+text[4:], true, false, false, false, nil)
		}
		return err
	}, refusal: func(_ *poisoned, text string) string {
		return reply(403, "ACCESS_REFUSED", "queue name 'amq.%s' contains reserved prefix 'amq.*'", text[4:])
	}},
	{name: "exchange that is not there", short: true, try: func(p *poisoned, text string) error {
		ch, err := p.channel()
		if err != nil {
			return err
		}
		return p.publish(ch, ending(text, "n"), "", amqp.Publishing{})
	}, refusal: func(_ *poisoned, text string) string {
		return reply(404, "NOT_FOUND", "no exchange '%s' in vhost '/'", ending(text, "n"))
	}},
	{name: "consumer tag", short: true, try: consumeAs},
	{name: "argument of a consumer", try: consumeWith("x-unknown"), refusal: tooLarge("arguments of a consumer of", 15)},
	{name: "x-consumer-timeout-action", try: consumeWith("x-consumer-timeout-action"), refusal: notAmong("x-consumer-timeout-action", "invalid_consumer_timeout_action")},
	{name: "x-priority of a consumer", try: consumeWith("x-priority"), refusal: notAmong("x-priority", `"expected integer, got longstr"`)},
}

// dieAt lets a message die in a queue of this name and looks for the name in the
// history of the letter.
func (p *poisoned) dieAt(name string) error {
	ch, err := p.channel()
	if err != nil {
		return err
	}
	dead := p.id
	if err := ch.ExchangeDeclare(dead, amqp.ExchangeFanout, true, false, false, false, nil); err != nil {
		return err
	}
	if _, err := ch.QueueDeclare(dead, true, false, false, false, nil); err != nil {
		return err
	}
	if err := ch.QueueBind(dead, "", dead, false, nil); err != nil {
		return err
	}
	if _, err := ch.QueueDeclare(name, true, false, false, false, amqp.Table{"x-message-ttl": dieAfter, "x-dead-letter-exchange": dead}); err != nil {
		return err
	}
	if err := p.publish(ch, "", name, amqp.Publishing{}); err != nil {
		return err
	}
	d, err := p.take(ch, dead)
	if err == nil && d.Headers["x-first-death-queue"] != name {
		err = fmt.Errorf("it died in %.300v", d.Headers["x-first-death-queue"])
	}
	return err
}

func consumeWith(name string) func(*poisoned, string) error {
	return func(p *poisoned, text string) error {
		ch, err := p.channel()
		if err == nil {
			_, err = ch.QueueDeclare(p.id, true, false, false, false, nil)
		}
		if err == nil {
			_, err = ch.Consume(p.id, "", false, false, false, false, amqp.Table{name: text})
		}
		return err
	}
}

// consumeAs consumes under a tag, is listed with it, and is cancelled by the end
// of the queue.
func consumeAs(p *poisoned, text string) error {
	ch, err := p.channel()
	if err == nil {
		_, err = ch.QueueDeclare(p.id, true, false, false, false, nil)
	}
	if err != nil {
		return err
	}
	cancelled := ch.NotifyCancel(make(chan string, 1))
	deliveries, err := ch.Consume(p.id, text, true, false, false, false, nil)
	if err == nil {
		err = p.publish(ch, "", p.id, amqp.Publishing{})
	}
	if err != nil {
		return err
	}
	select {
	case d := <-deliveries:
		if d.ConsumerTag != text {
			return fmt.Errorf("delivered to %.300q", d.ConsumerTag)
		}
	case <-time.After(arriveWithin):
		return errors.New("no delivery")
	}
	listed := func() (bool, error) {
		var all []struct {
			Tag string `json:"consumer_tag"`
		}
		err := p.node.Call(p.ctx, http.MethodGet, "/api/consumers", nil, &all)
		return slices.ContainsFunc(all, func(c struct {
			Tag string `json:"consumer_tag"`
		}) bool {
			return c.Tag == text
		}), err
	}
	if err := await.Until(p.ctx, 20*time.Millisecond, "the consumer in the list", listed); err != nil {
		return err
	}
	other, err := p.channel()
	if err == nil {
		_, err = other.QueueDelete(p.id, false, false, false)
	}
	if err != nil {
		return err
	}
	select {
	case tag := <-cancelled:
		if tag != text {
			return fmt.Errorf("cancelled was %.300q", tag)
		}
	case <-time.After(arriveWithin):
		return errors.New("not cancelled")
	}
	return nil
}

// ending is a text of 255 bytes that ends with another letter.
func ending(text, letter string) string { return text[:254] + letter }

// path is where the HTTP API has something of this name.
func path(of, name string) string { return "/api/" + of + "/" + url.PathEscape(name) }
