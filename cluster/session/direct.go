package session

import (
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/quorate/quorate/cluster/queues"
	"github.com/quorate/quorate/cluster/stream"
	"github.com/quorate/quorate/cluster/traffic"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/fsm/queue"
	"github.com/quorate/quorate/proto/logpb"
	"github.com/quorate/quorate/proto/peerpb"
)

// directSince is the machine version that knows what is in this file.
const directSince = 3

// The methods in this file ask a queue directly. They wait for its answer, and may be called at any time by any
// goroutine, but not while a Consume, Cancel or Get of the session for the same queue has no answer: a queue repeats
// an answer, after a change of leader, only if it was the last one of the session.

// ask sends a command to a queue and waits for its answer. payload is what it brings.
func (s *Session) ask(ctx context.Context, q *catalog.Queue, c *logpb.Command, payload []byte) (*stream.Call, error) {
	s.mu.Lock()
	u := s.streams.queue(q)
	if u.turn == nil {
		u.turn = make(chan struct{}, 1)
	}
	s.mu.Unlock()
	select {
	case u.turn <- struct{}{}:
	case <-ctx.Done():
		return nil, queues.Leaderless(q)
	}
	s.mu.Lock()
	k := u.stream.RequestWith(c, payload)
	s.mu.Unlock()
	err := s.conn.in.answers.await(ctx, q, u.stream.Route(), k)
	select {
	case <-k.Done():
		<-u.turn
	default: // it may have an answer yet
		s.conn.in.node.Spawn("await an answer", func() {
			select {
			case <-k.Done():
			case <-s.conn.in.node.Life().Done():
			}
			<-u.turn
		})
	}
	return k, err
}

// find returns a queue that the user may use so.
func (s *Session) find(ctx context.Context, name string, takes bool) (*catalog.View, *catalog.Queue, error) {
	v := s.conn.in.node.FreshView(ctx)
	if v.FSMVersion() < directSince {
		return nil, nil, fsm.Refuse(fsm.NotImplemented, "this needs a program on all nodes that knows it")
	}
	var q *catalog.Queue
	var err error
	if takes {
		q, err = v.TakeFrom(s.conn.by(), s.conn.vhost, name)
	} else {
		q, err = v.UseQueue(s.conn.by(), catalog.Write, s.conn.vhost, name)
	}
	return v, q, err
}

// Perform does in a queue all that a unit says, or nothing if it returns an error: fsm.ErrNotHeld if a delivery is not
// held any more, *fsm.NotTaken if the queue takes a message in no more. The messages for the queue are numbered from
// first on. The payloads belong to the broker then.
func (s *Session) Perform(ctx context.Context, name string, u *fsm.Unit) (first uint64, err error) {
	p, q, payload, err := s.prepare(ctx, name, u)
	if err != nil {
		return 0, err
	}
	k, err := s.ask(ctx, q, p.command, payload)
	if err != nil {
		return 0, err
	}
	if err := p.refusal(k.Result.Code); err != nil {
		return 0, err
	}
	if k.Refused == nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		p.count(s)
	}
	return k.Result.Next, k.Refused
}

// Post is Perform without a wait for the queue: SessionEvents.Confirmed tells what has become of the unit, under a number
// as publishes have them. An error is at once, and nothing is told then. It keeps the order of units and publishes.
func (s *Session) Post(ctx context.Context, name string, u *fsm.Unit, number uint64) error {
	p, _, payload, err := s.prepare(ctx, name, u)
	if err != nil {
		return err
	}
	s.lock()
	defer s.unlock()
	if to := p.at.stream; to.Over() || to.Ending() {
		return queues.NoQueue(p.queue)
	}
	p.at.stream.Add(p.command, stream.Pending{Payload: payload, Number: number, Confirm: true, Note: p})
	return nil
}

// posted is a unit that a queue is about to perform.
type posted struct {
	queue   *catalog.Queue
	at      *sessionQueue
	unit    *fsm.Unit
	command *logpb.Command
}

// prepare checks a unit for a queue.
func (s *Session) prepare(ctx context.Context, name string, u *fsm.Unit) (p *posted, q *catalog.Queue, payload []byte, err error) {
	if err := checkUnit(u); err != nil {
		return nil, nil, nil, err
	}
	v, q, err := s.find(ctx, name, len(u.Endings) > 0)
	if err == nil && len(u.Sends)+len(u.Onward) > 0 {
		_, err = v.UseQueue(s.conn.by(), catalog.Write, s.conn.vhost, name)
	}
	if err != nil {
		return nil, nil, nil, err
	}
	p = &posted{queue: q, unit: u}
	unit, payload, err := s.unitOf(v, p)
	p.command = &logpb.Command{Kind: logpb.Command_UNIT, Unit: unit}
	return p, q, payload, err
}

// refusal returns why a queue has not performed the unit; nil: it has, or is gone.
func (p *posted) refusal(code fsm.Code) error {
	switch {
	case code == fsm.NotFound, code == fsm.Rejected && len(p.unit.Endings) > 0 && len(p.unit.Sends) == 0:
		return fsm.ErrNotHeld
	case code == fsm.InUse:
		return fsm.Refuse(fsm.Precondition, "another message is deferred under this token in "+p.queue.String())
	case code == fsm.Rejected:
		reason := fsm.TooLong
		if p.queue.RequiresGroup() && slices.ContainsFunc(p.command.Unit.Commands, func(c *logpb.Command) bool { return c.Kind == logpb.Command_ENQUEUE && c.Enqueue.GroupId == "" }) {
			reason = fsm.NoGroup
		}
		return &fsm.NotTaken{Queue: p.queue.Name, Reason: reason}
	}
	return nil
}

// answered tells what has become of a posted unit. The lock is held.
func (p *posted) answered(s *Session, number uint64, code fsm.Code) {
	why := p.refusal(code)
	switch {
	case code == fsm.OK:
		p.count(s)
	case code == fsm.Gone:
		why = fsm.ErrUnroutable
	case why == nil:
		s.conn.in.queues.OddAnswer(p.queue.ID, "unit", code)
		why = &fsm.NotTaken{Queue: p.queue.Name, Reason: fsm.OutOfOrder}
	}
	s.tell(number, why)
}

// checkUnit returns what a queue would not take for a unit.
func checkUnit(u *fsm.Unit) error {
	handles, tokens := map[uint64]bool{}, map[string]bool{}
	refuse := func(text string) error { return fsm.Refuse(fsm.Precondition, "invalid unit: "+text) }
	if n := len(u.Sends) + len(u.Onward) + len(u.Endings); n == 0 || n > fsm.MaxUnit {
		return refuse(fmt.Sprintf("%d messages and settlements are not between 1 and %d", n, fsm.MaxUnit))
	}
	for i := range u.Sends {
		if w := u.Sends[i].Schedule; w != nil && w.ID != "" {
			return refuse("a message has a schedule id")
		}
	}
	for i := range u.Endings {
		e := &u.Endings[i]
		defers := e.Outcome == fsm.Defer
		switch {
		case len(e.Handles) == 0, defers && (len(e.Handles) != 1 || e.Deferral == "" || len(e.Deferral) > fsm.MaxShort || tokens[e.Deferral]):
			return refuse("a settlement has the wrong number of deliveries, or no token of its own")
		case len(e.Edit) > fsm.MaxEdit:
			return refuse(fmt.Sprintf("an edit of %d bytes exceeds the limit of %d", len(e.Edit), fsm.MaxEdit))
		}
		for _, h := range e.Handles {
			if handles[h.Number] {
				return refuse("a delivery is named twice")
			}
			handles[h.Number] = true
		}
		tokens[e.Deferral] = tokens[e.Deferral] || defers
	}
	if len(handles) > fsm.MaxNumbers {
		return refuse(fmt.Sprintf("%d deliveries exceed the limit of %d", len(handles), fsm.MaxNumbers))
	}
	return nil
}

// unitOf returns a unit in the form of the log, and the payload that it brings.
func (s *Session) unitOf(v *catalog.View, of *posted) (unit *logpb.Unit, payload []byte, err error) {
	q, u := of.queue, of.unit
	unit = &logpb.Unit{}
	size := 0
	for _, list := range [][]fsm.Publish{u.Sends, u.Onward} {
		for i := range list {
			size += len(list[i].Payload)
		}
	}
	if size > math.MaxInt32 {
		return nil, nil, fsm.Refuse(fsm.Precondition, "invalid unit: it is too large")
	}
	payload = make([]byte, 0, size)
	add := func(e *logpb.Enqueue, p *fsm.Publish) {
		unit.Commands = append(unit.Commands, &logpb.Command{Kind: logpb.Command_ENQUEUE, Enqueue: e})
		payload = append(payload, p.Payload...)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	to := s.streams.queue(q)
	of.at = to
	to.needs.ask(v, q)
	for i := range u.Sends {
		p, e := &u.Sends[i], &logpb.Enqueue{}
		to.describe(e, p, 0, false, s.groupIn(q, p.Payload))
		add(e, p)
	}
	for i := range u.Onward {
		p := &u.Onward[i]
		target, err := s.onward(v, q, p.RoutingKey)
		if err == nil && target.ID == q.ID {
			err = fsm.Refuse(fsm.Precondition, "invalid unit: a message that goes on has to have another queue")
		}
		if err != nil {
			return nil, nil, err
		}
		e := &logpb.Enqueue{}
		to.describe(e, p, 0, false, "")
		e.SendTo, e.DueAt, e.DelayPlusOne, e.UniqueKey = uint64(target.ID), 0, 0, nil
		add(e, p)
	}
	for i := range u.Endings {
		unit.Commands = append(unit.Commands, &logpb.Command{Kind: logpb.Command_SETTLE, Settle: settleOf(&u.Endings[i])})
	}
	unit.Size = uint32(size)
	return unit, payload, nil
}

// onward returns the queue for a message that goes on from q to another one. What is for a queue that is gone goes to the one for
// what is not taken, if there is any.
func (s *Session) onward(v *catalog.View, q *catalog.Queue, name string) (*catalog.Queue, error) {
	to, err := v.UseQueue(s.conn.by(), catalog.Write, s.conn.vhost, name)
	if gone := new(fsm.Refusal); errors.As(err, &gone) && gone.Kind == fsm.NotFoundKind {
		if refused, ok := q.SentRefused(v); ok {
			return refused, nil
		}
	}
	return to, err
}

// settleOf returns a settlement of a unit in the form of the log.
func settleOf(e *fsm.Ending) *logpb.Settle {
	return &logpb.Settle{
		Outcome: e.Outcome, Numbers: pairsOf(e.Handles), DueAt: int64(e.DueAt), Deferral: e.Deferral, Reason: e.Reason, Description: e.Description,
		Annotations: annotationsOf(&e.Settlement),
	}
}

// pairsOf returns handles in the form of the log.
func pairsOf(handles []fsm.Handle) (pairs []uint64) {
	handles = slices.Clone(handles)
	slices.SortFunc(handles, func(a, b fsm.Handle) int { return cmp.Compare(a.Number, b.Number) })
	for _, h := range handles {
		pairs = append(pairs, h.Number, uint64(h.Acquired))
	}
	return pairs
}

// count counts what a unit has done. The lock is held.
func (p *posted) count(s *Session) {
	for _, list := range [][]fsm.Publish{p.unit.Sends, p.unit.Onward} {
		for i := range list {
			s.tally.Published("", len(list[i].Payload), 1, true)
			s.tally.Confirmed()
			p.at.counts[traffic.Publish]++
		}
	}
	for i := range p.unit.Endings {
		p.at.countSettled(len(p.unit.Endings[i].Handles), p.unit.Endings[i].Outcome)
	}
}

// RenewLocks lets the locks of deliveries begin anew, or of none: fsm.ErrNotHeld. until is when the first of them ends.
func (s *Session) RenewLocks(ctx context.Context, name string, handles []fsm.Handle) (until fsm.Time, err error) {
	if n := len(handles); n == 0 || n > fsm.MaxNumbers {
		return 0, fsm.Refuse(fsm.Precondition, fmt.Sprintf("%d deliveries are not between 1 and %d", n, fsm.MaxNumbers))
	}
	_, q, err := s.find(ctx, name, true)
	if err != nil {
		return 0, err
	}
	for { // a repetition is answered without the time
		k, err := s.ask(ctx, q, &logpb.Command{Kind: logpb.Command_RENEW, Renew: &logpb.Renew{Numbers: pairsOf(handles)}}, nil)
		switch {
		case err != nil:
			return 0, err
		case isNotDone(k.Result.Code):
			return 0, fsm.ErrNotHeld
		case k.Refused != nil || k.Result.Count > 0:
			return k.Result.Until, k.Refused
		}
	}
}

// TakeDeferred hands deferred messages to the session, or none: fsm.ErrNoMessage. Some may be missing of those that are
// deleted, if the leader of the queue changes: nobody gets them.
func (s *Session) TakeDeferred(ctx context.Context, name string, d fsm.Deferred) ([]fsm.Message, error) {
	if n := len(d.Tokens); n == 0 || n > fsm.MaxNumbers || n > len(slices.Compact(slices.Sorted(slices.Values(d.Tokens)))) {
		return nil, fsm.Refuse(fsm.Precondition, fmt.Sprintf("%d different tokens are not between 1 and %d", n, fsm.MaxNumbers))
	}
	s.conn.consumes.Store(true)
	_, q, err := s.find(ctx, name, true)
	if err != nil {
		return nil, err
	}
	k, err := s.ask(ctx, q, &logpb.Command{Kind: logpb.Command_RECEIVE_DEFERRED, ReceiveDeferred: &logpb.ReceiveDeferred{
		Tokens: d.Tokens, NoAck: d.Delete, Lock: uint64(d.Lock),
	}}, nil)
	switch {
	case err != nil:
		return nil, err
	case isNotDone(k.Result.Code):
		return nil, fsm.ErrNoMessage
	}
	return k.Taken, k.Refused
}

// CancelScheduled deletes scheduled messages by number, or none: fsm.ErrNoMessage.
func (s *Session) CancelScheduled(ctx context.Context, name string, numbers []uint64) error {
	numbers = slices.Compact(slices.Sorted(slices.Values(numbers)))
	if n := len(numbers); n == 0 || n > fsm.MaxNumbers {
		return fsm.Refuse(fsm.Precondition, fmt.Sprintf("%d messages are not between 1 and %d", n, fsm.MaxNumbers))
	}
	_, q, err := s.find(ctx, name, false)
	if err != nil {
		return err
	}
	k, err := s.ask(ctx, q, &logpb.Command{Kind: logpb.Command_SCHEDULE, Schedule: &logpb.Schedule{Messages: numbers}}, nil)
	switch {
	case err != nil:
		return err
	case isNotDone(k.Result.Code):
		return fsm.ErrNoMessage
	}
	return k.Refused
}

// peekedPlaces are where messages are that PeekFrom shows.
var peekedPlaces = map[queue.Place]fsm.MessageState{
	queue.Ready: fsm.ReadyState, queue.Returned: fsm.ReadyState, queue.Grouped: fsm.ReadyState, queue.Delayed: fsm.ReadyState,
	queue.CheckedOut: fsm.HeldState, queue.Deferred: fsm.DeferredState, queue.Scheduled: fsm.ScheduledState,
}

// PeekFrom shows up to limit messages by number, from a number on, wherever they are, of a group or, if that is empty, of
// any or none. It may show fewer than there are, but none only if there are none.
func (s *Session) PeekFrom(ctx context.Context, name string, from uint64, limit int, group string) ([]fsm.Peeked, error) {
	_, q, err := s.find(ctx, name, true)
	if err != nil {
		return nil, err
	}
	in := []queue.Place{queue.Ready, queue.Delayed, queue.CheckedOut, queue.Deferred, queue.Scheduled}
	all, err := s.conn.in.queues.PeekAll(ctx, q, in, group, max(from, 1)-1, limit)
	list := make([]fsm.Peeked, len(all))
	for i := range all {
		p := &all[i]
		list[i] = fsm.Peeked{Message: p.Message, State: peekedPlaces[p.Place], DueAt: p.DueAt}
		if p.Deferral != "" { // it may be held by somebody who has asked for it
			list[i].State = fsm.DeferredState
		}
	}
	return list, err
}

// DeleteBefore deletes up to limit messages that are ready and came before an instant, of a group or, if that is empty,
// of any or none. It returns how many.
func (s *Session) DeleteBefore(ctx context.Context, name string, limit int, before fsm.Time, group string) (n uint64, err error) {
	v, q, err := s.find(ctx, name, true)
	if err == nil {
		err = catalog.CheckTake(v.FSMVersion(), q, nil)
	}
	if err != nil {
		return 0, err
	}
	if before <= 0 {
		return 0, nil
	}
	for n < uint64(max(limit, 0)) {
		r := &peerpb.SelectRequest{
			Limit: uint32(min(uint64(limit)-n, queues.MaxSelected)), Before: int64(before), OlderThan: uint64(max(s.conn.in.node.Now()-int64(before), 0)) + 1, OfGroup: group,
		}
		found := uint64(0)
		err = queues.SelectAll(r, func() (*peerpb.SelectReply, error) { return s.conn.in.queues.Select(ctx, q, r) }, func(some *peerpb.SelectReply) error {
			if len(some.Messages) == 0 {
				return nil
			}
			found += uint64(len(some.Messages))
			k, err := s.ask(ctx, q, &logpb.Command{Kind: logpb.Command_TAKE, Take: &logpb.Take{Messages: some.Messages}}, nil)
			if err == nil {
				n, err = n+k.Result.Count, k.Refused
			}
			return err
		})
		if err != nil || found == 0 {
			return n, err
		}
	}
	return n, nil
}

// Group does something with a group that a consumer of the session holds, or returns fsm.ErrNotHeld. until is when its
// lock ends, 0: never; state is what was asked for.
func (s *Session) Group(ctx context.Context, consumer uint64, id string, action fsm.GroupAction, set []byte) (until fsm.Time, state []byte, err error) {
	s.mu.Lock()
	c := s.known[consumer]
	s.mu.Unlock()
	if c == nil {
		return 0, nil, fsm.ErrNotHeld
	}
	if len(set) > fsm.MaxGroupState {
		return 0, nil, fsm.Refuse(fsm.Precondition, fmt.Sprintf("the state of a group may have at most %d bytes, not %d", fsm.MaxGroupState, len(set)))
	}
	q, known := s.conn.in.node.View().QueueByID(c.at.stream.Queue())
	if !known {
		return 0, nil, fsm.ErrNotHeld
	}
	k, err := s.ask(ctx, q, &logpb.Command{Kind: logpb.Command_GROUP, Group: &logpb.Group{Action: action, Id: id, Consumer: consumer, State: set}}, nil)
	switch {
	case err != nil:
		return 0, nil, err
	case k.Result.Code == fsm.NotFound || k.Result.Code == fsm.InUse:
		return 0, nil, fsm.ErrNotHeld
	case k.Result.Code == fsm.Rejected:
		return 0, nil, &fsm.NotTaken{Queue: q.Name, Reason: fsm.TooLong}
	}
	return k.Result.Until, []byte(k.Result.State), k.Refused
}

// Groups lists groups of a queue by id, after an id: those that have messages or a state, or are held.
func (s *Session) Groups(ctx context.Context, name, after string, limit int) ([]fsm.GroupInfo, error) {
	_, q, err := s.find(ctx, name, true)
	if err != nil {
		return nil, err
	}
	page, err := s.conn.in.queues.GroupsAfter(ctx, q, after, limit)
	list := make([]fsm.GroupInfo, len(page.Items))
	for i := range page.Items {
		g := &page.Items[i]
		list[i] = fsm.GroupInfo{ID: g.ID, Messages: g.Messages, Held: g.Held, HasState: g.HasState, StateSet: fsm.Time(g.StateSetAt)}
	}
	return list, err
}

// LockKey returns a secret for names of deliveries of a queue, the same at every node of the cluster; nil: it has none.
func (s *Session) LockKey(ctx context.Context, name string) ([]byte, error) {
	v, q, err := s.find(ctx, name, true)
	if err != nil || len(v.LockSecret()) == 0 {
		return nil, err
	}
	h := hmac.New(sha256.New, v.LockSecret())
	h.Write([]byte("lock key"))
	h.Write(binary.BigEndian.AppendUint64(nil, uint64(q.ID)))
	return h.Sum(nil)[:lockKeySize], nil
}

// lockKeySize is the length of a LockKey.
const lockKeySize = 16
