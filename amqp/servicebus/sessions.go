package servicebus

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/quorate/quorate/amqp/servicebus/entity"
	"github.com/quorate/quorate/amqp/servicebus/sas"
	"github.com/quorate/quorate/amqp/v10"
	"github.com/quorate/quorate/amqp/v10/wire"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// errSessionLost: the client does not hold the session, or not any more.
var errSessionLost = errors.New("the session is not held")

// heldSessions are the sessions that a connection's links hold.
type heldSessions struct {
	mu   sync.Mutex
	held map[heldSession]*v10.Link
}

// heldSession names a session.
type heldSession struct{ queue, group string }

func (h *heldSessions) put(of heldSession, l *v10.Link) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.held == nil {
		h.held = map[heldSession]*v10.Link{}
	}
	h.held[of] = l
}

// remove forgets that a link holds a session.
func (h *heldSessions) remove(of heldSession, l *v10.Link) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.held[of] == l {
		delete(h.held, of)
	}
}

func (h *heldSessions) find(of heldSession) *v10.Link {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.held[of]
}

// wish is an attach that waits for a session, and then holds it.
//
// Invariant: exactly one of answer, refuse and the end of the link ends the wait.
type wish struct {
	side    *side
	attach  *v10.Attach
	entity  *entity.Description
	queue   string
	form    *form
	timer   *time.Timer // nil: it does not wait
	mu      sync.Mutex
	settled bool
}

// acceptWait is how long an attach waits for the next session if it does not say.
const acceptWait = 60 * time.Second

// attachSession opens a link from a session, which it holds until it ends. It blocks, but not until there is a session.
func (s *side) attachSession(ctx context.Context, a *v10.Attach, d *entity.Description, f *form, spec fsm.ConsumeSpec) {
	id, _ := sessionFilter(a)
	w := &wish{side: s, attach: a, entity: d, queue: spec.Queue, form: f}
	f.lost, f.session = s.lostSession, true
	spec.Hold = true
	spec.Arguments.Fields = append(spec.Arguments.Fields, number("x-max-groups", 1))
	named := isText(id)
	if named {
		if len([]rune(string(id.Bytes()))) > maxSessionID {
			a.Refuse(s.refuse(conditionArgument, "The SessionId is longer than %d characters.", maxSessionID))
			return
		}
		spec.Arguments.Fields[len(spec.Arguments.Fields)-1] = &logpb.Field{
			Name: entity.GroupAnnotation, Value: &logpb.Value{Tag: 'S', Str: []byte(entity.GroupOf(string(id.Bytes())))},
		}
	}
	ok, err := a.Consume(ctx, f, spec, w.news, func() { w.settle() })
	switch {
	case errors.Is(err, fsm.ErrGroupHeld):
		a.Refuse(s.refuse(conditionSessionLocked, "The requested session '%.200s' cannot be accepted. It may be locked by another receiver.", id.Bytes()))
	case err != nil:
		a.Refuse(s.attachError(err, d.Path))
	case ok && named:
		w.answer(entity.GroupOf(string(id.Bytes())))
	case ok:
		a.Ask()
		w.wait(timeoutOf(a))
	}
}

func number(name string, value int64) *logpb.Field {
	return &logpb.Field{Name: name, Value: &logpb.Value{Tag: 'l', Int: value}}
}

// timeoutOf is how long an attach waits for a session.
func timeoutOf(a *v10.Attach) time.Duration {
	if v, ok := a.Properties.Get(conditionTimeout); ok {
		if ms, ok := v.Integer(); ok && ms >= 0 {
			return min(time.Duration(ms)*time.Millisecond, acceptWait)
		}
	}
	return acceptWait
}

// wait refuses the attach after a time.
func (w *wish) wait(limit time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.settled {
		return // it has a session
	}
	w.timer = time.AfterFunc(limit, func() {
		w.attach.Link.Do(func() {
			if w.settle() {
				w.attach.Refuse(w.side.refuse(conditionTimeout, "No session became available in time."))
			}
		})
	})
}

// settle ends the wait. first: it has not ended before.
func (w *wish) settle() (first bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	first = !w.settled
	w.settled = true
	if w.timer != nil {
		w.timer.Stop()
	}
	return first
}

// news takes in what the queue says of the link.
func (w *wish) news(n *fsm.News) {
	link := w.attach.Link
	switch n.Kind {
	case fsm.GroupsTaken, fsm.GroupsHeld:
		if len(n.Groups) > 0 && !isText(filterValue(w.attach)) {
			group := n.Groups[0]
			link.Do(func() { w.answer(group) })
		}
	case fsm.GroupsLeft:
		link.Detach(w.side.refuse(conditionSessionLost, textSessionLost))
	}
}

func filterValue(a *v10.Attach) wire.Value {
	v, _ := sessionFilter(a)
	return v
}

// answer answers the attach with the session that the link holds. It blocks.
func (w *wish) answer(group string) {
	if !w.settle() {
		return
	}
	s, a := w.side, w.attach
	ctx, cancel := context.WithTimeout(s.client.Context(), s.client.Config().OperationTimeout)
	defer cancel()
	until, _, err := machineOf(a.Link).Group(ctx, a.Link.Consumer(), group, fsm.RenewGroup, nil)
	if err != nil {
		if errors.Is(err, fsm.ErrNotHeld) {
			err = s.refuse(conditionSessionLost, textSessionLost)
		}
		a.Refuse(s.attachError(err, w.entity.Path))
		return
	}
	answer := a.Answer()
	source := *a.Source
	source.Filter = answerFilter(a.Source.Filter, entity.SessionOf(group))
	answer.Source = &source
	answer.InitialDeliveryCount, answer.MaxMessageSize = wire.Some[uint32](0), a.MaxMessageSize
	answer.Properties = linkProperties(a, func(b []byte) ([]byte, int) {
		return wire.AppendLong(wire.AppendSymbol(b, "com.microsoft:locked-until-utc"), ticks(until)), 1
	})
	of := heldSession{w.queue, group}
	a.Start(answer, func() {
		s.sessions.put(of, a.Link)
		s.tokens.depend(a.Link, w.entity.Path, sas.Listen, func() { s.sessions.remove(of, a.Link) })
	})
}

// ticks returns a time as .NET counts it: tenths of microseconds since the year 1.
func ticks(t fsm.Time) int64 { return int64(t)*10_000 + 621_355_968_000_000_000 }

// answerFilter returns the filters of a source with the id of the session in the form in which it was asked for: described, or bare.
func answerFilter(filter wire.MapBytes, id string) wire.MapBytes {
	b, pairs := wire.StartMap(nil), 0
	for w := filter.Walk(); w.NextPair(); {
		pairs++
		if string(w.Key.Bytes()) != filterSession {
			b = append(b, w.Pair...)
			continue
		}
		b = wire.AppendSymbol(b, filterSession)
		if d := w.Value.Walk(); w.Value.Type == wire.Described && d.Next() {
			b = append(b, 0) // a descriptor follows
			if d.Value.Type == wire.Symbol {
				b = wire.AppendSymbol(b, d.Value.Bytes())
			} else {
				b = wire.AppendUlong(b, d.Value.Unsigned())
			}
		}
		b = wire.AppendString(b, id)
	}
	return wire.EndMap(b, 0, pairs)
}

// filterSession is the name of the filter that asks for a session.
const filterSession = "com.microsoft:session-filter"

// sessionFilter returns what a filter of an attach says of a session: its id, or null for the next one. ok false: it wants none.
func sessionFilter(a *v10.Attach) (id wire.Value, ok bool) {
	if a.Source == nil {
		return id, false
	}
	v, ok := a.Source.Filter.Get(filterSession)
	if d := v.Walk(); ok && v.Type == wire.Described && d.Next() && d.Next() {
		v = d.Value
	}
	return v, ok
}

// group does something with a session that a link of the connection holds.
func (r *request) group(ctx context.Context, action fsm.GroupAction, set []byte) (until fsm.Time, state []byte, err error) {
	group, ok := r.sessionID()
	if !ok {
		return 0, nil, r.malformed("session-id")
	}
	l := r.side.sessions.find(heldSession{r.queue(), group})
	if l == nil {
		return 0, nil, errSessionLost
	}
	if l.Channel() == r.link.Channel() {
		until, state, err = machineOf(l).Group(ctx, l.Consumer(), group, action, set)
	} else {
		done := make(chan struct{})
		if !l.Do(func() {
			until, state, err = machineOf(l).Group(ctx, l.Consumer(), group, action, set)
			close(done)
		}) {
			return 0, nil, errSessionLost
		}
		select {
		case <-done:
		case <-ctx.Done():
			return 0, nil, ctx.Err()
		}
	}
	if errors.Is(err, fsm.ErrNotHeld) {
		err = errSessionLost
	}
	return until, state, err
}

// renewSession has the lock of a session begin anew.
func (r *request) renewSession(ctx context.Context) error {
	until, _, err := r.group(ctx, fsm.RenewGroup, nil)
	if err != nil {
		return err
	}
	answer := newFields()
	answer.timestamp("expiration", int64(until))
	r.answer = answer.end()
	return nil
}

// setState sets the state of a session, or clears it.
func (r *request) setState(ctx context.Context) error {
	v, _ := r.body.Get("session-state")
	if v.Type == wire.Binary && len(v.Bytes()) > fsm.MaxGroupState {
		return r.side.refuse(wire.ConditionResourceLimit, "The state of a session has at most %d bytes.", fsm.MaxGroupState)
	}
	_, _, err := r.group(ctx, fsm.SetGroupState, v.Bytes())
	return err
}

// getState returns the state of a session, or null.
func (r *request) getState(ctx context.Context) error {
	_, state, err := r.group(ctx, fsm.GetGroupState, nil)
	if err != nil {
		return err
	}
	answer := newFields()
	answer.binary("session-state", state, len(state) == 0)
	r.answer = answer.end()
	return nil
}

// anySession is the time from which on sessions are listed whether or not their state was set.
const anySession = 253_402_300_799_000

// groupsAtOnce is how many groups are asked for at a time.
const groupsAtOnce = 1000

// listSessions lists sessions that have messages or a state; if a time is given, those whose state was set after it.
func (r *request) listSessions(ctx context.Context) error {
	since, _ := r.body.Get("last-updated-time")
	skip, _ := r.integer("skip")
	top, ok := r.integer("top")
	if !ok || top < 1 || skip < 0 {
		return r.malformed("top")
	}
	stateOnly := since.Type == wire.Timestamp && since.Signed() < anySession // set after that
	var ids []string
	for after, left := "", skip; int64(len(ids)) < top; {
		page, err := r.machine().Groups(ctx, r.queue(), after, groupsAtOnce)
		if err != nil {
			return err
		}
		for _, g := range page {
			switch after = g.ID; {
			case stateOnly && int64(g.StateSet) <= since.Signed(), g.Messages == 0 && !g.HasState:
			case left > 0:
				left--
			case int64(len(ids)) < min(top, groupsAtOnce):
				ids = append(ids, entity.SessionOf(g.ID))
			}
		}
		if len(page) < groupsAtOnce {
			break
		}
	}
	if len(ids) == 0 {
		r.done(204, "Session not found.", nil)
		return nil
	}
	answer := newFields()
	answer.int("skip", int32(skip)+int32(len(ids)))
	answer.int("top", int32(len(ids)))
	answer.raw("sessions-ids", appendTexts(nil, slices.Clip(ids)))
	r.answer = answer.end()
	return nil
}
