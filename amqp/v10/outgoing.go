package v10

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"github.com/quorate/quorate/amqp/v10/wire"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// outgoingLink is a link on which the client receives: a consumer in credit mode.
type outgoingLink struct {
	session  *session
	handle   uint32
	name     string
	consumer uint64 // its number
	copies   bool   // it is shown messages and takes none
	filter   filter // that is in force
	settled  bool   // deliveries are settled when they are sent
	releases bool   // the client understands that the server releases a delivery
	limit    uint64 // of a message, in bytes; 0: none

	// Under counts.mu.
	started bool          // the attach is answered
	early   []fsm.Message // arrived before
}

// attachOutgoing opens a link on which the client receives.
func (s *session) attachOutgoing(l *link, a *wire.Attach) (next func()) {
	queue, e := sourceQueue(a)
	if e != nil {
		s.refuseLink(l, a, e)
		return nil
	}
	out := &outgoingLink{session: s, handle: l.handle, name: a.Name, settled: a.SndSettleMode == sendSettled, limit: a.MaxMessageSize}
	out.copies = a.Source.DistributionMode == modeCopy
	wanted, e := filterOf(a.Source.Filter)
	if e != nil {
		s.refuseLink(l, a, e)
		return nil
	}
	out.releases = a.Source.Outcomes == nil || slices.Contains(a.Source.Outcomes, wire.StateReleased.Symbol())
	s.counts.add(out)
	return func() {
		ctx, cancel := context.WithTimeout(s.conn.Context(), s.conn.Config().OperationTimeout)
		defer cancel()
		spec := fsm.ConsumeSpec{
			Queue: queue, Number: out.consumer, Tag: a.Name, NoAck: out.settled, Credit: true, Browse: out.copies, Arguments: consumerArguments(a.Properties, out.releases),
		}
		if wanted.selector != "" && !out.copies && s.broker.Selects(ctx, spec) {
			out.filter, spec.Selector = wanted, wanted.selector
		}
		err := s.broker.Consume(ctx, spec)
		s.gate.Lock()
		defer s.gate.Unlock()
		if s.state != sessionOpen {
			return
		}
		if err != nil {
			s.counts.remove(out)
			s.refuseLink(l, a, s.refusal("attach", err))
			return
		}
		l.out = out
		s.counts.start(out, answerReceiver(a, out))
	}
}

// sourceQueue returns the queue that a client wants to receive from.
func sourceQueue(a *wire.Attach) (queue string, e *wire.Error) {
	source := a.Source
	switch {
	case source == nil:
		return "", wire.Errorf(wire.ConditionInvalidField, "source is null")
	case source.Dynamic:
		return "", wire.Errorf(wire.ConditionNotImplemented, "Dynamic source not supported: %s", strings.Join(source.Capabilities, ", "))
	case a.RcvSettleMode != 0:
		return "", wire.Errorf(wire.ConditionNotImplemented, "rcv-settle-mode second not supported")
	}
	queue, ok := parseSource(source.Address.Value)
	if !ok {
		return "", wire.Errorf(wire.ConditionInvalidField, "bad source address string: '%s'", source.Address.Value)
	}
	for _, o := range source.Outcomes {
		if wire.OutcomeNamed(o) == wire.NoState {
			return "", wire.Errorf(wire.ConditionNotImplemented, "Outcomes not supported: %s", strings.Join(source.Outcomes, ", "))
		}
	}
	return queue, nil
}

// modeMove and modeCopy are the modes of distribution: a link takes messages, or is shown them.
const (
	modeMove = "move"
	modeCopy = "copy"
)

// answerReceiver returns the answer to an attach.
func answerReceiver(a *wire.Attach, l *outgoingLink) *wire.Attach {
	source := *a.Source
	source.DefaultOutcome = wire.State{Kind: wire.StateReleased}
	if source.Outcomes == nil {
		for _, o := range []wire.Outcome{wire.StateAccepted, wire.StateRejected, wire.StateReleased, wire.StateModified} {
			source.Outcomes = append(source.Outcomes, o.Symbol())
		}
	}
	source.Filter, source.DistributionMode = l.filter.answer(), modeMove
	if l.copies {
		source.DistributionMode = modeCopy
	}
	mode := a.SndSettleMode
	if mode == sendMixed {
		mode = sendUnsettled
	}
	return &wire.Attach{
		Name: a.Name, Handle: a.Handle, SndSettleMode: mode, RcvSettleMode: a.RcvSettleMode, Source: &source, Target: a.Target,
		InitialDeliveryCount: wire.Some[uint32](0), MaxMessageSize: a.MaxMessageSize,
	}
}

// timeoutAction is the consumer argument that says what a consumer timeout does.
const timeoutAction = "x-consumer-timeout-action"

// consumerArguments returns the arguments of a consumer that a link's properties stand for.
func consumerArguments(properties wire.MapBytes, releases bool) *fsm.Table {
	t := &fsm.Table{}
	add := func(name string, v *logpb.Value) { t.Fields = append(t.Fields, &logpb.Field{Name: name, Value: v}) }
	for w := properties.Walk(); w.NextPair(); {
		name := string(w.Key.Bytes())
		n, isInteger := w.Value.Integer()
		switch {
		case name == "rabbitmq:priority" && isInteger:
			add("x-priority", &logpb.Value{Tag: 'l', Int: n})
		case name == "rabbitmq:consumer-timeout" && isInteger && n >= 0:
			add("x-consumer-timeout", &logpb.Value{Tag: 'l', Int: n})
		case strings.HasPrefix(name, "x-"):
			if v := catalogValue(w.Value); v != nil {
				add(name, v)
				releases = releases && name != timeoutAction
			}
		}
	}
	if releases {
		add(timeoutAction, &logpb.Value{Tag: 'S', Str: []byte("suspend")})
	}
	return t
}

// settle ends deliveries as the client says. An error ends the session.
func (s *session) settle(d *wire.Disposition) *wire.Error {
	if !d.Role {
		return nil // it settles what it has published
	}
	outcome, ends, err := outcomeOf(d)
	if err != nil || !ends {
		return err
	}
	if d.State.Kind == wire.StateModified && hasReserved(d.State.Modified.MessageAnnotations) {
		outcome, err = fsm.Requeue, wire.Errorf(wire.ConditionInvalidField, "the key of a message annotation is not a symbol that begins with x-")
	}
	last := d.Last.Or(d.First)
	s.giving = s.counts.take(d.First, last, s.giving[:0])
	s.eachLink(s.giving, func(l *outgoingLink, ids []uint64) {
		s.broker.Settle(l.consumer, ids, outcome)
		if at := s.links[l.handle]; err != nil && at != nil && at.out == l {
			s.detach(at, err)
		}
	})
	if !d.Settled && err == nil {
		s.conn.out.push(s.channel, &wire.Disposition{First: d.First, Last: wire.Some(last), Settled: true, State: d.State})
	}
	return nil
}

// outcomeOf returns what a disposition does to its deliveries. ends: it ends them.
func outcomeOf(d *wire.Disposition) (o fsm.Outcome, ends bool, err *wire.Error) {
	switch d.State.Kind {
	case wire.StateAccepted:
		return fsm.Ack, true, nil
	case wire.StateRejected:
		return fsm.Discard, true, nil
	case wire.StateReleased:
		return fsm.Requeue, true, nil
	case wire.StateModified:
		switch m := &d.State.Modified; {
		case m.UndeliverableHere:
			return fsm.Discard, true, nil
		case m.DeliveryFailed:
			return fsm.RequeueFailed, true, nil
		}
		return fsm.Requeue, true, nil
	case wire.NoState, wire.StateReceived:
		return fsm.Requeue, d.Settled, nil // the source's default outcome
	case wire.StateTransactional:
		return 0, false, wire.Errorf(wire.ConditionNotImplemented, "Transactions not supported")
	}
	return 0, false, wire.Errorf(wire.ConditionInvalidField, "Unrecognised state")
}

// hasReserved reports whether a key of annotations is not a symbol that begins with x-.
func hasReserved(m wire.MapBytes) bool {
	for w := m.Walk(); w.NextPair(); {
		if w.Key.Type != wire.Symbol || !strings.HasPrefix(string(w.Key.Bytes()), "x-") {
			return true
		}
	}
	return false
}

// eachLink calls f for each link that deliveries belong to, with their numbers in ascending order.
func (s *session) eachLink(all []delivery, f func(l *outgoingLink, ids []uint64)) {
	if len(all) == 0 {
		return
	}
	for i := 1; i < len(all); i++ {
		if all[i].link != all[0].link {
			slices.SortStableFunc(all, func(a, b delivery) int { return cmp.Compare(a.link.consumer, b.link.consumer) })
			break
		}
	}
	for len(all) > 0 {
		l, n := all[0].link, 0
		s.ids = s.ids[:0]
		for n < len(all) && all[n].link == l {
			s.ids = append(s.ids, all[n].number)
			n++
		}
		all = all[n:]
		slices.Sort(s.ids)
		f(l, s.ids)
	}
}

// cancel returns the call that ends the consumer of a link, gives back what the client has not settled, and pushes an
// answer.
func (s *session) cancel(l *outgoingLink, answer *wire.Detach) func() {
	return func() {
		ctx, cancel := context.WithTimeout(s.conn.Context(), s.conn.Config().OperationTimeout)
		defer cancel()
		if err := s.broker.Cancel(ctx, l.consumer); err != nil {
			s.refusal("detach", err)
			s.broker.Drop(l.consumer)
		}
		s.gate.Lock()
		defer s.gate.Unlock()
		if s.state == sessionOpen {
			s.giveBack(l)
			s.conn.out.push(s.channel, answer)
		}
	}
}

// giveBack returns what a client has not settled to its queue. The gate is held, or busy is set.
func (s *session) giveBack(l *outgoingLink) {
	all := s.counts.remove(l)
	if len(all) == 0 {
		return
	}
	ids := make([]uint64, len(all))
	for i, d := range all {
		ids[i] = d.number
	}
	slices.Sort(ids)
	s.broker.Settle(l.consumer, ids, fsm.Requeue)
}

// settleWritten settles deliveries of a settled link once they are written.
func (s *session) settleWritten(l *outgoingLink, ids []uint64) {
	s.gate.Lock()
	defer s.gate.Unlock()
	switch {
	case s.claimed:
	case s.busy:
		ids = slices.Clone(ids)
		s.tasks = append(s.tasks, func() { s.broker.Settle(l.consumer, ids, fsm.Ack) })
	default:
		s.broker.Settle(l.consumer, ids, fsm.Ack)
	}
}

// detachConsumer is the task that ends a link on the broker's behalf.
func (s *session) detachConsumer(consumer uint64, e *wire.Error) func() {
	return func() {
		s.gate.Lock()
		defer s.gate.Unlock()
		for _, l := range s.links {
			if l.out != nil && l.out.consumer == consumer {
				s.detach(l, e)
				return
			}
		}
	}
}
