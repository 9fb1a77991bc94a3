package wire

// Outcome is the kind of a delivery state.
type Outcome byte

// Kinds of delivery states. StateOther is one that is neither of the others, with any contents.
const (
	NoState Outcome = iota
	StateReceived
	StateAccepted
	StateRejected
	StateReleased
	StateModified
	StateDeclared
	StateTransactional
	StateOther
)

// State is the state of a delivery. Only the field that belongs to its kind counts.
type State struct {
	Kind     Outcome
	Received Received
	Rejected Rejected
	Modified Modified
	// Transactional belongs to two kinds: of StateDeclared it has no outcome.
	Transactional *TransactionalState
}

// symbolOf are the names of the four outcomes in a source's outcomes.
var symbolOf = [...]string{
	StateAccepted: "amqp:accepted:list", StateRejected: "amqp:rejected:list",
	StateReleased: "amqp:released:list", StateModified: "amqp:modified:list",
}

// OutcomeNamed returns the outcome with this symbol, and NoState if there is none.
func OutcomeNamed(symbol string) Outcome {
	for o, s := range symbolOf {
		if s != "" && s == symbol {
			return Outcome(o)
		}
	}
	return NoState
}

// Symbol returns the name of one of the four outcomes.
func (o Outcome) Symbol() string { return symbolOf[o] }

// state reads a delivery state into s.
func (d *decoder) state(s *State) {
	s.Kind = NoState
	code, ok := d.descriptor()
	if !ok {
		return
	}
	switch code {
	case uint64(factsOfReceived.code):
		s.Kind = StateReceived
		d.into(&s.Received)
	case uint64(factsOfAccepted.code):
		s.Kind = StateAccepted
		d.into(&Accepted{})
	case uint64(factsOfRejected.code):
		s.Kind = StateRejected
		d.into(&s.Rejected)
	case uint64(factsOfReleased.code):
		s.Kind = StateReleased
		d.into(&Released{})
	case uint64(factsOfModified.code):
		s.Kind = StateModified
		d.into(&s.Modified)
	case uint64(factsOfDeclared.code):
		var t Declared
		d.into(&t)
		s.Kind, s.Transactional = StateDeclared, &TransactionalState{TxnID: t.TxnID}
	case uint64(factsOfTransactionalState.code):
		s.Kind, s.Transactional = StateTransactional, new(TransactionalState)
		d.into(s.Transactional)
	default:
		s.Kind = StateOther
		d.skip()
	}
}

// state appends a delivery state of a known kind.
func (e *encoder) state(s *State) {
	switch s.Kind {
	case StateReceived:
		e.composite(&s.Received)
	case StateAccepted:
		e.put(append(AppendDescriptor(e.b, factsOfAccepted.code), cList0))
	case StateRejected:
		e.composite(&s.Rejected)
	case StateReleased:
		e.put(append(AppendDescriptor(e.b, factsOfReleased.code), cList0))
	case StateModified:
		e.composite(&s.Modified)
	case StateDeclared:
		e.composite(&Declared{TxnID: s.Transactional.TxnID})
	case StateTransactional:
		e.composite(s.Transactional)
	default:
		e.null()
	}
}
