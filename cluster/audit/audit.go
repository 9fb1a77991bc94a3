// Package audit writes down who changed what, who was refused, and what became
// of the cluster's members: one JSON object a line, apart from the ordinary log.
//
// It promises that a line is one line whatever users call things, and that
// refusals, which anybody can cause, are written at a bounded rate; what is left
// out is counted, and the count is written. It knows no secret: what callers pass
// on as it is are names, never what a client proves itself with.
package audit

import (
	"context"
	"encoding/json"
	"io"
	"sync"
	"time"
)

// Kind groups events.
type Kind string

// The kinds of events.
const (
	Login      Kind = "login"      // who was refused, not who came in
	Access     Kind = "access"     // a user who has no right, or has lost it
	Definition Kind = "definition" // vhosts, users, rights, policies, exchanges, queues, bindings …
	Cluster    Kind = "cluster"    // nodes that come, stop and go, and with what they prove themselves
	Operation  Kind = "operation"  // what operators do that defines nothing
)

// Outcome is what came of what somebody asked for.
type Outcome string

// The outcomes.
const (
	OK      Outcome = "ok"
	Refused Outcome = "refused"
	Failed  Outcome = "failed" // it may have been done
)

// Origin is where a request comes from.
type Origin struct {
	// Protocol is amqp, http, or cluster for what nodes do.
	Protocol string `json:"protocol,omitempty"`
	// Address is the client's, or the node's name.
	Address string `json:"address,omitempty"`
	// Connection is an AMQP connection's name.
	Connection string `json:"connection,omitempty"`
}

// Event is what a line says.
type Event struct {
	Kind Kind `json:"kind"`
	// Action is the AMQP method, the method and path of a request, or a verb.
	Action string `json:"action"`
	User   string `json:"user,omitempty"`
	Origin
	// Target names what it was done to: vhost, queue, user …
	Target map[string]string `json:"target,omitempty"`
	// Detail is what it was changed to, as far as that is no secret.
	Detail  map[string]any `json:"detail,omitempty"`
	Outcome Outcome        `json:"outcome"`
	Reason  string         `json:"reason,omitempty"`
	// Unlogged is how many events like this one were not written before it.
	Unlogged uint64 `json:"unlogged,omitempty"`
}

// line is an event as it is written.
type line struct {
	Time string `json:"time"`
	Node string `json:"node"`
	Event
}

// timeFormat is RFC 3339 in UTC with milliseconds.
const timeFormat = "2006-01-02T15:04:05.000Z"

// Log is where events are written. A nil Log writes nothing.
type Log struct {
	node  string
	clock func() time.Time
	fail  func(error)

	mu       sync.Mutex
	to       io.Writer
	throttle *Throttle
	last     map[string]Event // of each key: what the unwritten ones were like
}

// New returns a log of a node. fail is told of what cannot be written.
func New(node string, to io.Writer, clock func() time.Time, fail func(error)) *Log {
	return &Log{node: node, to: to, clock: clock, fail: fail, throttle: NewThrottle(clock), last: map[string]Event{}}
}

// Write writes an event. Of refusals those of one kind from one place are written
// at a bounded rate.
func (l *Log) Write(e Event) {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if e.Outcome != Refused {
		l.write(e)
		return
	}
	key := string(e.Kind) + " " + place(e.Address)
	for _, left := range l.throttle.Expired() {
		l.writeLeft(left)
	}
	key, ok, before := l.throttle.Allow(key)
	if !ok {
		l.last[key] = e
		return
	}
	delete(l.last, key)
	e.Unlogged = before
	l.write(e)
}

// Close writes what is left to be counted. Nothing may be written after it.
func (l *Log) Close() {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, left := range l.throttle.All() {
		l.writeLeft(left)
	}
}

// writeLeft writes the last one of those that were left out. The lock is held.
func (l *Log) writeLeft(left Left) {
	e, ok := l.last[left.Key]
	if !ok {
		e = Event{Kind: Access, Action: "several", Outcome: Refused}
	}
	delete(l.last, left.Key)
	e.Unlogged = left.Count - 1 // it is one of them
	l.write(e)
}

// write writes an event. The lock is held.
func (l *Log) write(e Event) {
	raw, err := json.Marshal(line{Time: l.clock().UTC().Format(timeFormat), Node: l.node, Event: e})
	if err == nil {
		_, err = l.to.Write(append(ASCII(raw), '\n'))
	}
	if err != nil {
		l.fail(err)
	}
}

type originKey struct{}

// With notes in a context where a request comes from.
func With(ctx context.Context, o Origin) context.Context {
	return context.WithValue(ctx, originKey{}, o)
}

// From returns what With noted.
func From(ctx context.Context) Origin {
	o, _ := ctx.Value(originKey{}).(Origin)
	return o
}
