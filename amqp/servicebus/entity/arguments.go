package entity

import (
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// Destinations are the broker's queues to which an entity forwards; empty: it does not. Transfers is the one for what it could not
// hand on.
type Destinations struct {
	Messages, DeadLetters, Transfers string
}

// longestTTL is the longest time that the broker's arguments take, in ms. What is
// longer is for ever.
const longestTTL = 315_360_000_000

// IsUncounted reports whether d is longer than the broker's arguments take, and not for ever.
func (d Duration) IsUncounted() bool { return d.Milliseconds() > longestTTL && d < Forever }

// megabyte is in bytes.
const megabyte = 1 << 20

// table collects arguments.
type table struct{ fields []*logpb.Field }

func (t *table) add(name string, v *logpb.Value) {
	t.fields = append(t.fields, &logpb.Field{Name: name, Value: v})
}

func (t *table) text(name, value string) {
	t.add(name, &logpb.Value{Tag: 'S', Str: []byte(value)})
}

func (t *table) number(name string, value int64) { t.add(name, &logpb.Value{Tag: 'l', Int: value}) }

// flag adds what is true.
func (t *table) flag(name string, value bool) {
	if value {
		t.add(name, &logpb.Value{Tag: 't', Int: 1})
	}
}

// time adds a time that ends.
func (t *table) time(name string, d Duration) {
	if ms := d.Milliseconds(); ms <= longestTTL {
		t.number(name, ms)
	}
}

// base begins with what all queues have. Queues of the type classic keep the order
// of what comes back, have neither priorities nor a limit or timeout that nobody has
// set, and are replicated as all durable ones are.
func base() *table {
	t := &table{}
	t.text("x-queue-type", "classic")
	return t
}

func (t *table) common(c *Common) {
	t.time("x-message-ttl", c.DefaultMessageTimeToLive)
	t.time("x-auto-delete-on-idle", c.AutoDeleteOnIdle)
	t.flag("x-idle-dead-letters", true) // they go with the entity
}

// sends refuses all that is sent to what has this status, forwarded or not.
func (t *table) sends(s Status) { t.flag("x-refuse-publishes", !s.Sends()) }

func (t *table) store(s *Store) {
	t.number("x-max-length-bytes", s.MaxSizeInMegabytes*megabyte)
	t.text("x-overflow", "reject-publish")
	if s.RequiresDuplicateDetection {
		t.time("x-dedup-window", s.DuplicateDetectionHistoryTimeWindow)
	}
}

func (t *table) delivery(d *Delivery, deadLetters string) {
	t.number("x-lock-duration", d.LockDuration.Milliseconds())
	t.flag("x-count-lock-expiry", true)
	t.number("x-delivery-limit", int64(d.MaxDeliveryCount)-1)
	t.text("x-dead-letter-exchange", "")
	t.text("x-dead-letter-routing-key", deadLetters)
	t.text("x-dead-letter-strategy", "at-least-once")
	if !d.DeadLetteringOnMessageExpiration {
		t.add("x-dead-letter-expired", &logpb.Value{Tag: 't'})
	}
	if d.RequiresSession {
		t.flag("x-message-groups", true)
		t.flag("x-group-required", true)
		t.text("x-group-expiry", "group")
	}
}

// forward sends everything to a queue. dies: what that does not take is a dead letter; else
// it waits.
func (t *table) forward(to string, dies bool) {
	if to == "" {
		return
	}
	t.text("x-forward-to-exchange", "")
	t.text("x-forward-to-routing-key", to)
	if dies {
		t.text("x-forward-refused", "dead-letter")
	}
}

// Arguments are those of the queue that keeps the messages of a queue or
// subscription. Requires: d is one. A source of forwarding is never idle.
func (d *Description) Arguments(to Destinations) *fsm.Table {
	t, common := base(), *d.Common()
	if to.Messages != "" {
		common.AutoDeleteOnIdle = Forever
	}
	t.common(&common)
	if s := d.Store(); s != nil {
		t.store(s)
		t.sends(common.Status)
	}
	t.delivery(d.Delivery(), Address{d.Path, DeadLetters}.Object())
	t.text("x-sent-refused-queue", to.Transfers)
	t.forward(to.Messages, true)
	return &fsm.Table{Fields: t.fields}
}

// DeadLetterArguments are those of the queue of the dead letters of a queue or
// subscription. Nothing expires, dies or fails there, so what is forwarded waits.
func (d *Description) DeadLetterArguments(to Destinations) *fsm.Table {
	t := base()
	t.number("x-lock-duration", d.Lock().Milliseconds())
	t.number("x-delivery-limit", -1)
	t.forward(to.DeadLetters, false)
	return &fsm.Table{Fields: t.fields}
}

// TransferArguments are those of the queue for what a queue or topic could not hand on: dead letters that stay.
func (d *Description) TransferArguments() *fsm.Table { return d.DeadLetterArguments(Destinations{}) }

// StoreArguments are those of the queue in which a topic keeps what it is sent
// until its exchange has routed it. Requires: d is a topic.
func (d *Description) StoreArguments(to Destinations) *fsm.Table {
	t := base()
	t.time("x-message-ttl", d.Topic.DefaultMessageTimeToLive)
	t.store(&d.Topic.Store)
	t.sends(d.Topic.Status)
	t.text("x-sent-refused-queue", to.Transfers)
	t.text("x-forward-to-exchange", Address{Path: d.Path}.Object())
	t.flag("x-forward-copies", true)
	return &fsm.Table{Fields: t.fields}
}

// ExchangeArguments are those of the exchange of a topic. Requires: d is a topic.
func (d *Description) ExchangeArguments() *fsm.Table {
	t := &table{}
	t.time("x-message-ttl", d.Topic.DefaultMessageTimeToLive)
	t.time("x-auto-delete-on-idle", d.Topic.AutoDeleteOnIdle)
	return &fsm.Table{Fields: t.fields}
}
