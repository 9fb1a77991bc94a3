package servicebus

import (
	"strconv"

	"github.com/quorate/quorate/amqp/servicebus/edit"
	"github.com/quorate/quorate/amqp/servicebus/entity"
	"github.com/quorate/quorate/amqp/v10"
	"github.com/quorate/quorate/amqp/v10/wire"
	"github.com/quorate/quorate/fsm"
)

// Answers to outcomes. An outcome that took effect is answered as it came, but for its contents: programs take any error in a
// rejected state for a failure.
var (
	accepted  = &wire.State{Kind: wire.StateAccepted}
	released  = &wire.State{Kind: wire.StateReleased}
	rejected  = &wire.State{Kind: wire.StateRejected}
	abandoned = &wire.State{Kind: wire.StateModified}
	deferred  = &wire.State{Kind: wire.StateModified, Modified: wire.Modified{UndeliverableHere: true}}
)

// conditionDeadLetter is the condition of a rejected state that says why.
const conditionDeadLetter = "com.microsoft:dead-letter"

// Singly implements v10.Form.
func (f *form) Singly(outcome *wire.State) bool {
	return outcome.Kind == wire.StateModified || outcome.Kind == wire.StateRejected
}

// Answers implements v10.Form.
func (f *form) Answers(outcome *wire.State) (done *wire.State, lost func() *wire.State) {
	done = accepted
	switch outcome.Kind {
	case wire.StateRejected:
		done = rejected
	case wire.StateReleased:
		done = released
	case wire.StateModified:
		if done = abandoned; outcome.Modified.UndeliverableHere {
			done = deferred
		}
	}
	return done, f.lost
}

// Settlement implements v10.Form.
func (f *form) Settlement(outcome *wire.State, of *v10.Received) (how fsm.Settlement, _ *wire.Error) {
	switch outcome.Kind {
	case wire.StateAccepted:
		how.Outcome = fsm.Ack
		return how, nil
	case wire.StateRejected:
		return f.deadLetter(of, outcome.Rejected.Error)
	case wire.StateModified:
		how.Outcome = fsm.RequeueFailed
		if outcome.Modified.UndeliverableHere {
			how.Outcome, how.Deferral = fsm.Defer, deferral(of.Sequence)
		}
		return edited(how, of.Edit, outcome.Modified.MessageAnnotations)
	}
	how.Outcome = fsm.Requeue
	return how, nil
}

// deferral is the token under which a message is deferred.
func deferral(sequence uint64) string { return strconv.FormatUint(sequence, 10) }

// deadLetter settles a message that becomes a dead letter. Dead letters do not die again.
func (f *form) deadLetter(of *v10.Received, why *wire.Error) (how fsm.Settlement, _ *wire.Error) {
	if f.part != entity.Main {
		return how, wire.Errorf(wire.ConditionNotAllowed, "A dead letter cannot be dead-lettered.")
	}
	how.Outcome = fsm.Discard
	if why == nil || why.Condition != conditionDeadLetter {
		return how, nil
	}
	return edited(how, of.Edit, why.Info)
}

// edited adds changes of application properties to a settlement. was is what was changed before.
func edited(how fsm.Settlement, was []byte, properties wire.MapBytes) (fsm.Settlement, *wire.Error) {
	if len(properties) == 0 {
		return how, nil
	}
	changes, _ := edit.Parse(was)
	for w := properties.Walk(); w.NextPair(); {
		if !isText(w.Key) {
			continue
		}
		name, value := string(w.Key.Bytes()), wire.RawValue(w.Encoded)
		if isText(w.Value) && (name == propertyReason || name == propertyDescription) {
			value = wire.AppendString(nil, fsm.Cut(string(w.Value.Bytes()), fsm.MaxSettleDescription))
		}
		if w.Value.Type == wire.Null && (name == propertyReason || name == propertyDescription) {
			continue
		}
		if err := changes.Set(name, value); err != nil {
			return how, wire.Errorf(conditionArgument, "The property '%.100s' cannot have such a value.", name)
		}
	}
	b, err := changes.Append(nil)
	if err != nil {
		return how, wire.Errorf(wire.ConditionResourceLimit, "The properties to modify are too large.")
	}
	how.Edit = b
	return how, nil
}
