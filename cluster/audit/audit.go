// Package audit logs changes, refusals and the membership of the cluster, one JSON
// object a line, separately from the ordinary log.
//
// It promises that names cannot break a line, and that refusals, which anybody can
// cause, are written at a bounded rate; omitted ones are counted, and the count is
// written. It does not filter secrets: callers pass names only, never credentials.
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
	Login      Kind = "login"      // refused logins; successful ones are not logged
	Access     Kind = "access"     // missing or revoked permissions
	Definition Kind = "definition" // vhosts, users, permissions, policies, exchanges, queues, bindings …
	Cluster    Kind = "cluster"    // nodes that join, stop or leave, their tokens and certificates
	Operation  Kind = "operation"  // operators' actions that change no definition
)

// Outcome is the outcome of a request.
type Outcome string

// The outcomes.
const (
	OK      Outcome = "ok"
	Refused Outcome = "refused"
	Failed  Outcome = "failed" // it may have been carried out
)

// Origin is where a request comes from.
type Origin struct {
	// Protocol is amqp (0-9-1), amqp10, http, or cluster for actions of nodes.
	Protocol string `json:"protocol,omitempty"`
	// Address is the client's, or the node's name.
	Address string `json:"address,omitempty"`
	// Connection is an AMQP connection's name.
	Connection string `json:"connection,omitempty"`
}

// Event is the content of a line.
type Event struct {
	Kind Kind `json:"kind"`
	// Action is the AMQP method, the method and path of a request, or a verb.
	Action string `json:"action"`
	User   string `json:"user,omitempty"`
	Origin
	// Target names the object of the action: vhost, queue, user …
	Target map[string]string `json:"target,omitempty"`
	// Detail is the new value, without secrets.
	Detail  map[string]any `json:"detail,omitempty"`
	Outcome Outcome        `json:"outcome"`
	Reason  string         `json:"reason,omitempty"`
	// Unlogged is how many similar events were omitted before this one.
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

// Log writes events. A nil Log writes nothing.
type Log struct {
	node  string
	clock func() time.Time
	fail  func(error)

	mu       sync.Mutex
	to       io.Writer
	throttle *Throttle
	last     map[string]Event // the last omitted event of each key
}

// New returns a log of a node. fail is called with the error of each event that
// cannot be written.
func New(node string, to io.Writer, clock func() time.Time, fail func(error)) *Log {
	return &Log{node: node, to: to, clock: clock, fail: fail, throttle: NewThrottle(clock), last: map[string]Event{}}
}

// Write writes an event. Refusals of one kind from one address are written at a
// bounded rate.
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

// Close writes the counts of omitted events. Write must not be called after it.
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

// writeLeft writes the last omitted event of a key, with the count of the others.
// The lock is held.
func (l *Log) writeLeft(left Left) {
	e, ok := l.last[left.Key]
	if !ok {
		e = Event{Kind: Access, Action: "several", Outcome: Refused}
	}
	delete(l.last, left.Key)
	e.Unlogged = left.Count - 1 // e itself is one of them
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

// With returns a context that carries the origin of a request.
func With(ctx context.Context, o Origin) context.Context {
	return context.WithValue(ctx, originKey{}, o)
}

// From returns the origin that With put into a context.
func From(ctx context.Context) Origin {
	o, _ := ctx.Value(originKey{}).(Origin)
	return o
}
