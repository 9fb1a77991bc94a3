package jepsen

import (
	"fmt"

	amqp "github.com/rabbitmq/amqp091-go"
)

// exchangeArgument declares an exchange of the case with a text as an argument.
func exchangeArgument(kind, name string, more amqp.Table) func(*poisoned, string) error {
	return func(p *poisoned, text string) error {
		args := amqp.Table{name: text}
		for key, value := range more {
			args[key] = value
		}
		ch, err := p.channel()
		if err == nil {
			err = ch.ExchangeDeclare(p.id, kind, true, false, false, false, args)
		}
		return err
	}
}

func exchangeTooLong(name string) func(*poisoned, string) string {
	return func(p *poisoned, text string) string {
		if len(text) <= 255 {
			return ""
		}
		return precondition("invalid arg '%s' for exchange '%s' in vhost '/': {value_too_long,%d}", name, p.id, len(text))
	}
}

var topics = amqp.Table{"x-delayed-type": "topic"}

// poisonedExchanges are texts in exchanges.
var poisonedExchanges = []poison{
	{name: "alternate-exchange", try: exchangeArgument("direct", "alternate-exchange", nil), refusal: exchangeTooLong("alternate-exchange")},
	{name: "hash-header", try: exchangeArgument("x-consistent-hash", "hash-header", nil), refusal: exchangeTooLong("hash-header")},
	{name: "hash-property", try: exchangeArgument("x-consistent-hash", "hash-property", nil), refusal: func(_ *poisoned, text string) string {
		return precondition("Unsupported property: %s", text)
	}},
	{name: "unknown argument of an exchange", try: exchangeArgument("fanout", "x-unknown", nil), refusal: tooLarge("arguments of exchange", 15)},
	{name: "x-delayed-type", try: exchangeArgument("x-delayed-message", "x-delayed-type", nil), refusal: func(*poisoned, string) string {
		return precondition("Invalid argument, 'x-delayed-type' must be an existing exchange type")
	}},
	{name: "x-delayed-mandatory", try: exchangeArgument("x-delayed-message", "x-delayed-mandatory", topics), refusal: func(p *poisoned, _ string) string {
		return precondition("invalid arg 'x-delayed-mandatory' for exchange '%s' in vhost '/': invalid_delayed_mandatory", p.id)
	}},
	{name: "dead-letter exchange of a delayed exchange", try: exchangeArgument("x-delayed-message", "x-dead-letter-exchange", topics),
		refusal: exchangeTooLong("x-dead-letter-exchange")},
	{name: "dead-letter routing key of a delayed exchange", try: delayedLetter, refusal: exchangeTooLong("x-dead-letter-routing-key")},
	{name: "type of an exchange", short: true, try: func(p *poisoned, text string) error {
		ch, err := p.channel()
		if err == nil {
			err = ch.ExchangeDeclare(p.id, text, true, false, false, false, nil)
		}
		return err
	}, refusal: func(_ *poisoned, text string) string { return precondition("unknown exchange type '%s'", text) }},
	{name: "name of an exchange", short: true, try: func(p *poisoned, text string) error { return p.throughExchange(ending(text, "x"), "fanout", nil) }},
	{name: "name of a delayed exchange", short: true, try: func(p *poisoned, text string) error {
		return p.throughExchange(ending(text, "d"), "x-delayed-message", amqp.Table{"x-delayed-type": "fanout"})
	}},
}

// delayedLetter lets a message become due at a delayed exchange where it has
// nowhere to go: it dies.
func delayedLetter(p *poisoned, text string) error {
	ch, err := p.channel()
	if err == nil {
		err = ch.ExchangeDeclare(p.id+"-dead", amqp.ExchangeFanout, true, false, false, false, nil)
	}
	if err == nil {
		err = p.sink(ch, p.id+"-dead")
	}
	if err == nil {
		err = ch.ExchangeDeclare(p.id, "x-delayed-message", true, false, false, false, amqp.Table{
			"x-delayed-type": "topic", "x-dead-letter-exchange": p.id + "-dead", "x-dead-letter-routing-key": text,
		})
	}
	if err == nil {
		err = p.publish(ch, p.id, "nowhere", amqp.Publishing{Headers: amqp.Table{"x-delay": dieAfter}})
	}
	if err != nil {
		return err
	}
	d, err := p.take(ch, p.id+"-sink")
	if err == nil && d.RoutingKey != text {
		err = fmt.Errorf("the dead letter has the key %.300q", d.RoutingKey)
	}
	return err
}

// throughExchange publishes to an exchange of this name, with the longest routing
// key there is: the message comes back, and then, when there is a way, dies behind it.
func (p *poisoned) throughExchange(name, kind string, args amqp.Table) error {
	ch, err := p.channel()
	if err == nil {
		err = ch.ExchangeDeclare(name, kind, true, false, false, false, args)
	}
	if err != nil {
		return err
	}
	if back, err := p.comesBack(name, p.text, amqp.Publishing{}); err != nil || back.Exchange != name || back.RoutingKey != p.text {
		return fmt.Errorf("came back from %.300q: %w", back.Exchange, err)
	}
	if _, err = p.die(nil, amqp.Publishing{}); err == nil {
		err = ch.QueueBind(p.id, "", name, false, nil)
	}
	if err == nil {
		err = p.publish(ch, name, p.text, amqp.Publishing{Headers: amqp.Table{"x-delay": dieAfter}})
	}
	if err != nil {
		return err
	}
	d, err := p.take(ch, p.id+"-sink")
	if err != nil || d.RoutingKey != p.text {
		return fmt.Errorf("the dead letter: %w, key %.300q", err, d.RoutingKey)
	}
	deaths, _ := d.Headers["x-death"].([]any)
	if len(deaths) == 0 || deaths[0].(amqp.Table)["exchange"] != name {
		return fmt.Errorf("its deaths are %.600v", deaths)
	}
	return nil
}
