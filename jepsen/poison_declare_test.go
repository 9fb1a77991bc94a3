package jepsen

import (
	"fmt"
	"slices"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"
)

// tooLong is the refusal of an argument of the case's queue that cannot be
// longer than a short string.
func tooLong(name string) func(*poisoned, string) string {
	return func(p *poisoned, text string) string {
		if len(text) <= 255 {
			return ""
		}
		return precondition("invalid arg '%s' for queue '%s' in vhost '/': {value_too_long,%d}", name, p.id, len(text))
	}
}

// notAmong is the refusal of an argument that is none of some words.
func notAmong(name, reason string) func(*poisoned, string) string {
	return func(p *poisoned, _ string) string {
		return precondition("invalid arg '%s' for queue '%s' in vhost '/': %s", name, p.id, reason)
	}
}

// tooLarge is the refusal of what is kept of a whole that has more bytes than
// all of it may have. beside is how many there are beside the text.
func tooLarge(what string, beside int) func(*poisoned, string) string {
	return func(p *poisoned, text string) string { return tooLargeAs(precondition, what, p.id, beside+len(text)) }
}

func tooLargeAs(refusal func(string, ...any) string, what, name string, octets int) string {
	const most = 4096
	if octets <= most {
		return ""
	}
	return refusal("%s '%s' have %d bytes, at most %d are allowed", what, name, octets, most)
}

// poisonedLetters are strings that dead letters go by.
var poisonedLetters = []poison{
	{name: "dead-letter routing key", refusal: tooLong("x-dead-letter-routing-key"), try: func(p *poisoned, text string) error {
		return p.dieWithKey(amqp.Table{"x-dead-letter-routing-key": text}, text)
	}},
	{name: "dead-letter exchange", refusal: tooLong("x-dead-letter-exchange"), try: func(p *poisoned, text string) error {
		return p.declare(amqp.Table{"x-dead-letter-exchange": text})
	}},
	{name: "dead-letter routing key at amq.fanout", refusal: tooLong("x-dead-letter-routing-key"), try: func(p *poisoned, text string) error {
		args := amqp.Table{"x-dead-letter-exchange": "amq.fanout", "x-dead-letter-routing-key": text, "x-message-ttl": 100}
		if err := p.declare(args); err != nil {
			return err
		}
		ch, err := p.channel()
		if err == nil {
			err = p.sink(ch, "amq.fanout")
		}
		if err == nil {
			err = p.publish(ch, "", p.id, amqp.Publishing{})
		}
		if err == nil {
			_, err = p.take(ch, p.id+"-sink")
		}
		return err
	}},
}

// poisonedArguments are the other arguments of queues that have texts.
func poisonedArguments() []poison {
	reasons := map[string]string{
		"x-dead-letter-strategy": "invalid_dlx_strategy", "x-overflow": "invalid_overflow", "x-ttl-precedence": "invalid_ttl_precedence",
		"x-queue-leader-locator": "invalid_queue_locator_arg", "x-delayed-retry-type": "invalid_delayed_retry_type",
		// A text where a number belongs, or a truth.
		"x-expires": `"expected integer, got longstr"`, "x-hold": "{unacceptable_type,longstr}",
	}
	list := []poison{
		{name: "x-queue-type", try: declareWith("x-queue-type"), refusal: func(p *poisoned, text string) string {
			return precondition(`invalid arg 'x-queue-type' for queue '%s' in vhost '/': "unsupported queue type '%s'"`, p.id, text)
		}},
		{name: "x-name-prefix", try: func(p *poisoned, text string) error {
			ch, err := p.channel()
			if err == nil {
				_, err = ch.QueueDeclare("", true, false, false, false, amqp.Table{"x-name-prefix": text})
			}
			return err
		}, refusal: func(_ *poisoned, text string) string {
			return precondition("Queue name prefix '%s' exceeds the 64-byte limit", text)
		}},
		{name: "unknown argument", try: func(p *poisoned, text string) error { return p.twice(amqp.Table{"x-unknown": text}) },
			refusal: tooLarge("arguments of queue", 15)},
		{name: "x-queue-mode", try: func(p *poisoned, text string) error { return p.twice(amqp.Table{"x-queue-mode": text}) },
			refusal: tooLarge("arguments of queue", 18)},
		{name: "nested argument", try: func(p *poisoned, text string) error {
			return p.twice(amqp.Table{"x-nested": amqp.Table{"in": []any{"one", text}}})
		}, refusal: tooLarge("arguments of queue", 14+8+8+5)},
	}
	for name, reason := range reasons {
		list = append(list, poison{name: name, try: declareWith(name), refusal: notAmong(name, reason)})
	}
	slices.SortStableFunc(list, func(a, b poison) int { return strings.Compare(a.name, b.name) })
	return list
}

func declareWith(name string) func(*poisoned, string) error {
	return func(p *poisoned, text string) error { return p.declare(amqp.Table{name: text}) }
}

// twice declares the case's queue and declares it again.
func (p *poisoned) twice(args amqp.Table) error {
	if err := p.declare(args); err != nil {
		return err
	}
	if err := p.declare(args); err != nil {
		return fmt.Errorf("again: %w", err)
	}
	return nil
}
