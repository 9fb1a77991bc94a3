// Package topics is what the broker's exchanges with filters do for topics: each rule of a subscription is a program of
// a binding, and what matches makes copies of a message for the subscription.
//
// Rules without an action make one copy together, each with one makes a copy of its own. What a rule cannot be evaluated
// for, and what has no session although its subscription requires one, goes to the dead letters of the subscription.
//
// A copy is a message of its own: an edit is applied when it is sent to its queue, and is in the log of the topic alone.
package topics

import (
	"cmp"
	"slices"
	"strings"

	"github.com/quorate/quorate/amqp/servicebus/edit"
	"github.com/quorate/quorate/amqp/servicebus/entity"
	"github.com/quorate/quorate/amqp/servicebus/rules"
	"github.com/quorate/quorate/amqp/v10/wire"
	"github.com/quorate/quorate/fsm"
)

// Filters are the filters of all topics.
type Filters struct{}

var _ fsm.Filters = Filters{}

// NewFilterSet returns an empty set of rules for a topic.
func (Filters) NewFilterSet(_, _ string) fsm.FilterSet {
	return &topic{rules: rules.NewSet[uint64](), queues: map[uint64]string{}, known: map[string]*subscription{}}
}

// topic has the rules of the subscriptions of a topic.
//
// Invariant: queues has the binding of each rule in rules.
type topic struct {
	rules   *rules.Set[uint64] // by binding
	queues  map[uint64]string  // of subscriptions
	known   map[string]*subscription
	message rules.Message
	found   []match
}

// match is a rule that matches a message, or cannot be evaluated for it.
type match struct {
	queue string
	rule  *rules.Rule
	err   error
}

// Add adds the rule of a binding. One that takes nothing need not be there.
func (t *topic) Add(id uint64, queue string, program []byte) {
	d, err := entity.DecodeRule(program)
	if err != nil || d.False {
		return
	}
	r, err := Compile(d)
	if err != nil {
		return
	}
	t.rules.Add(id, r)
	t.queues[id] = queue
}

// Remove removes the rule of a binding.
func (t *topic) Remove(id uint64) {
	t.rules.Remove(id)
	delete(t.known, t.queues[id]) // it is read again if another rule has it
	delete(t.queues, id)
}

// Match returns the copies of a message, by queue.
func (t *topic) Match(p fsm.Payload, f fsm.FilterFacts) (copies []fsm.FilterCopy) {
	bare, annotations := sections(p)
	facts := rules.Facts{Number: f.Sequence, EnqueuedAt: int64(f.EnqueuedAt), TTL: -1, Size: len(bare)}
	if f.ExpireAt != 0 {
		facts.TTL = int64(f.ExpireAt - f.EnqueuedAt)
	}
	t.message.Read(bare, annotations, facts)
	t.found = t.found[:0]
	t.rules.Match(&t.message, func(id uint64, r *rules.Rule, err error) {
		t.found = append(t.found, match{t.queues[id], r, err})
	})
	slices.SortFunc(t.found, func(a, b match) int {
		return cmp.Or(strings.Compare(a.queue, b.queue), strings.Compare(a.rule.Name, b.rule.Name))
	})
	for rest := t.found; len(rest) > 0; {
		n := slices.IndexFunc(rest, func(m match) bool { return m.queue != rest[0].queue })
		if n < 0 {
			n = len(rest)
		}
		copies = t.subscription(copies, rest[:n], f.Described)
		rest = rest[n:]
	}
	clear(t.found)
	t.message.Release()
	return copies
}

// subscription appends the copies for one subscription.
func (t *topic) subscription(copies []fsm.FilterCopy, found []match, described func(queue string) []byte) []fsm.FilterCopy {
	s := t.subscriptionOf(found[0].queue, described)
	var failed error
	plain := false
	for _, m := range found {
		switch {
		case m.err != nil:
			failed = m.err
		case m.rule.Action == nil:
			plain = true
		default:
			c, err := m.rule.Action.Run(&t.message)
			if err == nil {
				err = c.Edit.Set(ruleName, wire.AppendString(nil, m.rule.Name))
			}
			if err != nil {
				failed = err
				continue
			}
			copies = s.add(copies, &t.message, c)
		}
	}
	if plain {
		copies = s.add(copies, &t.message, rules.Change{})
	}
	if failed != nil && s.keepsFailed {
		copies = s.die(copies, rules.Change{}, reasonFilter, failed.Error())
	}
	return copies
}

// ruleName is the property of a copy that says which rule has made it.
const ruleName = "RuleName"

// Properties of dead letters, and their reasons.
const (
	deadReason      = "DeadLetterReason"
	deadDescription = "DeadLetterErrorDescription"

	reasonFilter  = "FilterEvaluationException"
	reasonSession = "Session ID is null."
	reasonHeader  = "HeaderSizeExceeded"
)

// subscription is what is to be known of one.
type subscription struct {
	queue, deadLetters string
	text               string // its description
	sessions           bool   // it requires them
	keepsFailed        bool   // a message for which a rule fails is a dead letter
}

// subscriptionOf returns the subscription that has a queue. A queue that is not described as that of one is as if it were
// that of a subscription by default.
func (t *topic) subscriptionOf(queue string, described func(queue string) []byte) *subscription {
	s := t.known[queue]
	if s == nil {
		s = &subscription{queue: queue}
		s.read(nil)
		t.known[queue] = s
	}
	if described == nil {
		return s
	}
	if text := described(queue); string(text) != s.text {
		s.read(text)
	}
	return s
}

// read takes in the description of the subscription.
func (s *subscription) read(text []byte) {
	path := entity.ParseAddress(s.queue).Path
	s.text, s.sessions, s.keepsFailed = string(text), false, false
	if d, err := entity.Decode(text); err == nil && d.Subscription != nil {
		path, s.sessions, s.keepsFailed = d.Path, d.Subscription.RequiresSession, d.Subscription.DeadLetteringOnFilterEvaluationExceptions
	}
	s.deadLetters = entity.Address{Path: path, Part: entity.DeadLetters}.Object()
}

// add appends a copy. Its edit is encoded; one that is too large makes a dead letter.
func (s *subscription) add(copies []fsm.FilterCopy, m *rules.Message, c rules.Change) []fsm.FilterCopy {
	session, changed := c.Edit.Field(edit.GroupID)
	if s.sessions && !(changed && len(session) > 0 || !changed && m.HasSession()) {
		return s.die(copies, c, reasonSession, "The message has no session, and the subscription requires one.")
	}
	b, err := c.Edit.Append(nil)
	if err != nil {
		return s.die(copies, rules.Change{}, reasonHeader, "The changes of the action are too large: "+err.Error()+".")
	}
	one := fsm.FilterCopy{Queue: s.queue, Edit: b}
	if c.HasTTL {
		one.TTL = fsm.Some(fsm.Millis(c.TTL))
	}
	return append(copies, one)
}

// die appends a copy for the dead letters of the subscription.
func (s *subscription) die(copies []fsm.FilterCopy, c rules.Change, reason, description string) []fsm.FilterCopy {
	if c.Edit.Set(deadReason, wire.AppendString(nil, reason)) != nil || c.Edit.Set(deadDescription, wire.AppendString(nil, description)) != nil {
		return copies
	}
	b, err := c.Edit.Append(nil)
	if err != nil {
		return copies
	}
	return append(copies, fsm.FilterCopy{Queue: s.deadLetters, Edit: b, TTL: fsm.Some(fsm.Forever)})
}
