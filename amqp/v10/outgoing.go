package v10

import (
	"context"
	"slices"
	"strings"

	"github.com/quorate/quorate/amqp/message"
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
	detaches bool   // a consumer timeout ends the link all the same
	second   bool   // the client settles when it knows what its outcome has done
	strict   bool   // an outcome that comes too late ends the link
	limit    uint64 // of a message, in bytes; 0: none
	keeps    bool   // see Form.Keeps
	quiet    bool   // see Form.Quiet
	answers  bool   // what it carries comes from its dialect, or answers the requests of a pair
	pair     *pair  // whose requests it answers; nil: it does not
	form     Form
	hears    func(*fsm.News) // of its dialect; nil: there is none
	queue    string
	until    uint32 // the delivery-count up to which the client takes messages; under the gate

	// Under counts.mu.
	own       *sending      // its credit; nil: the broker has it
	waiting   [][]byte      // messages of its dialect that wait for that
	count     uint32        // delivery-count
	started   bool          // the attach is answered
	early     []fsm.Message // arrived before
	requested bool          // these came for credit of the dialect: they wait for the client's
	news      linkNews
}

// attachOutgoing opens a link on which the client receives.
func (s *session) attachOutgoing(l *link, a *wire.Attach) (next func()) {
	if a.Source != nil && a.Source.Dynamic && l.temporary == "" {
		return s.dynamic.attachSource(l, a)
	}
	queue, e := sourceQueue(a)
	if e != nil {
		s.refuseLink(l, a, e)
		return nil
	}
	out := &outgoingLink{session: s, handle: l.handle, name: a.Name, queue: queue, form: plainForm{}, settled: a.SndSettleMode == sendSettled, limit: a.MaxMessageSize}
	out.second, out.strict = a.RcvSettleMode == receiveSecond, isText(a.Properties, "x-late-settle", "error")
	out.copies = a.Source.DistributionMode == modeCopy
	wanted, e := filterOf(a.Source.Filter)
	if e != nil {
		s.refuseLink(l, a, e)
		return nil
	}
	out.releases = a.Source.Outcomes == nil || slices.Contains(a.Source.Outcomes, wire.StateReleased.Symbol())
	out.detaches = isText(a.Properties, timeoutAction, "detach")
	s.counts.add(out)
	return func() {
		ctx, cancel := context.WithTimeout(s.conn.Context(), s.conn.Config().OperationTimeout)
		defer cancel()
		spec := fsm.ConsumeSpec{
			Queue: queue, Number: out.consumer, Tag: a.Name, NoAck: out.settled, Credit: true, Browse: out.copies,
			Arguments: consumerArguments(a.Properties, out.releases && !out.detaches),
		}
		if wanted.selector != "" && !out.copies && s.broker.Selects(ctx, spec) {
			out.filter, spec.Selector = wanted, wanted.selector
		}
		out.opened(l, a, s.broker.Consume(ctx, spec))
	}
}

// opened answers an attach, which has the address of the source, once the broker has the consumer or has refused it with
// an error.
func (out *outgoingLink) opened(l *link, a *wire.Attach, err error) {
	s := out.session
	s.gate.Lock()
	defer s.gate.Unlock()
	switch {
	case s.state != sessionOpen:
	case err != nil:
		s.counts.remove(out)
		s.refuseLink(l, a, s.refusal("attach", err))
	default:
		l.out, l.address = out, a.Source.Address
		s.counts.start(out, answerReceiver(a, out))
	}
}

// sourceQueue returns the queue that a client wants to receive from.
func sourceQueue(a *wire.Attach) (queue string, e *wire.Error) {
	source := a.Source
	if source == nil {
		return "", wire.Errorf(wire.ConditionInvalidField, "source is null")
	}
	queue, ok := parseSource(source.Address.Value)
	if !ok || queue == fsm.ReplyQueue {
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

// receiveSecond is the rcv-settle-mode in which the client settles when it knows what its outcome has done.
const receiveSecond = 1

// isText reports whether a property is this text.
func isText(properties wire.MapBytes, name, text string) bool {
	v, ok := properties.Get(name)
	return ok && (v.Type == wire.String || v.Type == wire.Symbol) && string(v.Bytes()) == text
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
		case name == timeoutAction && isText(properties, name, "detach"): // what happens if nobody says otherwise
			add(name, &logpb.Value{Tag: 'S', Str: []byte("cancel")})
		case strings.HasPrefix(name, "x-"):
			if v := argument(w.Value); v != nil {
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

// argument returns a value as an argument of a consumer. None of them has values in it, of which a few bytes can stand for
// many: such a one is of the wrong type, whatever is in it.
func argument(v wire.Value) *logpb.Value {
	switch v.Type {
	case wire.List, wire.Array:
		return &logpb.Value{Tag: 'A'}
	case wire.Map:
		return &logpb.Value{Tag: 'F', Table: &fsm.Table{}}
	}
	return message.Value(v)
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

// giveBack returns what a client has not settled to its queue, or only what it has not received if the link keeps the rest. The
// gate is held, or busy is set.
func (s *session) giveBack(l *outgoingLink) {
	unsent := l.unsent()
	all := s.counts.remove(l)
	if l.keeps {
		all = slices.DeleteFunc(all, func(d delivery) bool { return !unsent[d.number] })
	}
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
