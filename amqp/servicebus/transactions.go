package servicebus

import (
	"crypto/rand"
	"sync"
	"time"

	"github.com/quorate/quorate/amqp"
	"github.com/quorate/quorate/amqp/servicebus/entity"
	"github.com/quorate/quorate/amqp/v10"
	"github.com/quorate/quorate/amqp/v10/wire"
	"github.com/quorate/quorate/fsm"
)

// transactions are those of a connection that are not discharged. What is done in one is kept here, and is nowhere else before it
// is discharged: then it is one unit of one queue.
type transactions struct {
	side *side

	mu     sync.Mutex
	all    map[string]*transaction // by id
	memory *amqp.Account           // what they hold; nil: there was none yet
	closed bool
}

// transaction is what a client has done under an id.
//
// Invariant: if failed, or over, it holds nothing.
type transaction struct {
	id    string
	link  *v10.Link // on which it was declared
	timer *time.Timer
	// failed is why it cannot be committed; nil: it may be.
	failed *wire.Error

	entity  string // key of that which it is about; empty: of none yet
	settles string // queue, whose deliveries it ends; empty: it ends none
	sends   []transfer
	endings []fsm.Ending
	retired []*v10.Received // on links, what it ends
	size    int64
}

// transfer is a message of a transaction.
type transfer struct {
	message fsm.Publish
	from    string // queue that hands it on, or that it is for
}

// Bounds of transactions.
const (
	maxTransactions  = 64      // of a connection
	maxSteps         = 1000    // messages and settlements
	maxStepBytes     = 4 << 20 // of messages
	maxControl       = 4096    // bytes of a declare or discharge
	transactionTime  = 2 * time.Minute
	transactionIDLen = 16
)

// Texts of what a transaction cannot do.
const (
	textScheduled = "A message that another entity hands on cannot be scheduled."
	textOneEntity = "A transaction cannot be about more than one entity. It is about '%s', and not about '%s'."
)

// attach opens a link on which transactions are declared and discharged.
func (t *transactions) attach(a *v10.Attach) {
	answer := a.Answer()
	answer.MaxMessageSize = maxControl
	a.Take(t, 0, answer, requestCredit, func() {
		a.Link.Ended(func() { t.abandon(a.Link) })
	})
}

// Take implements v10.Incoming.
func (t *transactions) Take(d *v10.Delivery) (next func(), _ *wire.Error) {
	code, fields := control(d.Message)
	s := t.side
	switch {
	case d.Settled:
		return nil, s.refuse(wire.ConditionNotAllowed, "A transaction is declared and discharged by a transfer that is not settled.")
	case code == codeDeclare:
		id, err := t.declare(d.Link)
		if err != nil {
			d.Reject(err)
			break
		}
		d.Answer(&wire.State{Kind: wire.StateDeclared, Transactional: &wire.TransactionalState{TxnID: []byte(id)}})
	case code == codeDischarge:
		w := fields.Walk()
		id, fail := "", false
		if w.Next() && w.Value.Type == wire.Binary {
			id = string(w.Value.Bytes())
		}
		if w.Next() && w.Value.Type == wire.Boolean {
			fail = w.Value.Bool()
		}
		return t.discharge(d, id, fail), nil
	default:
		d.Reject(s.refuse(wire.ConditionDecode, "It is neither a declare nor a discharge."))
	}
	return nil, nil
}

// Descriptors of what a controller's messages hold.
const (
	codeDeclare   = 0x31
	codeDischarge = 0x32
)

// control reads a message of a controller: the descriptor of its value, and the fields of that.
func control(encoded []byte) (code uint64, fields wire.Value) {
	var m wire.Message
	if m.ParseRequest(encoded) != nil {
		return 0, fields
	}
	v, err := m.BodyValue()
	w := v.Walk()
	if err != nil || v.Type != wire.Described || !w.Next() {
		return 0, fields
	}
	switch {
	case w.Value.Type == wire.Ulong:
		code = w.Value.Unsigned()
	case isText(w.Value) && string(w.Value.Bytes()) == "amqp:declare:list":
		code = codeDeclare
	case isText(w.Value) && string(w.Value.Bytes()) == "amqp:discharge:list":
		code = codeDischarge
	}
	w.Next()
	return code, w.Value
}

// declare begins a transaction.
func (t *transactions) declare(l *v10.Link) (id string, _ *wire.Error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.all) >= maxTransactions || t.closed {
		return "", t.side.refuse(wire.ConditionResourceLimit, "A connection has at most %d transactions.", maxTransactions)
	}
	if t.memory == nil {
		t.all, t.memory = map[string]*transaction{}, t.side.client.NewPart(t.relieve)
	}
	var random [transactionIDLen]byte
	_, _ = rand.Read(random[:]) // it never fails
	tx := &transaction{id: string(random[:]), link: l}
	limit := t.side.dialect.Transaction
	if limit == 0 {
		limit = transactionTime
	}
	tx.timer = time.AfterFunc(limit, func() { t.fail(tx, conditionTooLate, "The transaction took longer than %v.", limit) })
	t.all[tx.id] = tx
	return tx.id, nil
}

// fail has a transaction end without effect.
func (t *transactions) fail(tx *transaction, condition, format string, args ...any) *wire.Error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.failLocked(tx, t.side.refuse(condition, format, args...))
}

func (t *transactions) failLocked(tx *transaction, why *wire.Error) *wire.Error {
	if tx.failed == nil {
		tx.failed = why
		t.empty(tx)
	}
	return why
}

// empty forgets what a transaction has done. mu is held.
func (t *transactions) empty(tx *transaction) {
	t.memory.Add(-tx.size)
	tx.sends, tx.endings, tx.retired, tx.size = nil, nil, nil, 0
}

// relieve ends all transactions without effect, because they hold too much.
func (t *transactions) relieve(over *amqp.Account) bool {
	why := "The node has too little memory."
	if over != nil {
		why = amqp.AboutHeld(over)
	}
	t.side.client.Start(func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		for _, tx := range t.all {
			t.failLocked(tx, t.side.refuse(wire.ConditionResourceLimit, "%s", why))
		}
	})
	return true
}

// abandon ends the transactions that were declared on a link.
func (t *transactions) abandon(l *v10.Link) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, tx := range t.all {
		if tx.link == l {
			t.remove(tx)
		}
	}
}

// remove forgets a transaction. mu is held.
func (t *transactions) remove(tx *transaction) {
	tx.timer.Stop()
	t.empty(tx)
	delete(t.all, tx.id)
}

// close is called when the connection is over.
func (t *transactions) close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = true
	for _, tx := range t.all {
		t.remove(tx)
	}
	if t.memory != nil {
		t.memory.Close(true)
	}
}

// find returns a transaction that can still be committed. mu is held.
func (t *transactions) find(id []byte) (*transaction, *wire.Error) {
	tx := t.all[string(id)]
	if tx == nil {
		return nil, t.side.refuse(conditionUnknownID, "The transaction is not known.")
	}
	return tx, tx.failed
}

// takes reports whether a transaction may have more steps, of so many bytes, about an entity. One that it may not have fails it.
// mu is held.
func (t *transactions) takes(tx *transaction, about entity.Path, steps int, bytes int64) *wire.Error {
	about.Subscription = "" // a topic and its subscriptions are one
	key := about.Key()
	switch {
	case tx.entity != "" && tx.entity != key && key != "":
		return t.failLocked(tx, t.side.refuse(wire.ConditionNotAllowed, textOneEntity, tx.entity, key))
	case len(tx.sends)+len(tx.endings)+steps > maxSteps, tx.size+bytes > maxStepBytes:
		return t.failLocked(tx, t.side.refuse(wire.ConditionResourceLimit, "A transaction has at most %d steps and %d bytes.", maxSteps, maxStepBytes))
	}
	if over := t.memory.Take(bytes); over != nil {
		return t.failLocked(tx, t.side.refuse(wire.ConditionResourceLimit, "%s", amqp.AboutHeld(over)))
	}
	if tx.entity == "" {
		tx.entity = key
	}
	tx.size += bytes
	return nil
}

// send makes messages that have arrived a part of a transaction. err is why they cannot be sent at all; nil: they can. Messages on
// the session of the transaction itself may be for any entity: the one that it is about hands them on, also if it is about that only
// later.
func (t *transactions) send(s *sender, d *v10.Delivery, err *wire.Error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	tx, unknown := t.find(d.Transaction)
	switch {
	case unknown != nil:
		err = unknown
	case err != nil:
		t.failLocked(tx, err)
	default:
		about := s.entity.Path
		switch own := tx.link.Channel() == d.Link.Channel(); {
		case own && (tx.entity != "" || s.viaQueue == ""):
			about = entity.Path{}
		case s.viaQueue != "":
			about = s.via
		}
		err = t.takes(tx, about, len(s.all), int64(sizeOf(s.all)))
	}
	if err != nil {
		d.Reject(err)
		return
	}
	for i := range s.all {
		from := s.viaQueue
		if from == "" {
			from = s.queue
		}
		tx.sends = append(tx.sends, transfer{s.all[i], from})
	}
	s.all = nil
	d.Answer(&wire.State{Kind: wire.StateTransactional, Transactional: &wire.TransactionalState{TxnID: d.Transaction, Outcome: *accepted}})
}

// settle makes settlements of deliveries of a queue a part of a transaction. of is what it ends on a link; nil: it is not of one.
func (t *transactions) settle(id []byte, about entity.Path, queue string, endings []fsm.Ending, of *v10.Received) *wire.Error {
	t.mu.Lock()
	defer t.mu.Unlock()
	tx, err := t.find(id)
	if err != nil {
		return err
	}
	if tx.settles != "" && tx.settles != queue {
		return t.failLocked(tx, t.side.refuse(wire.ConditionNotAllowed, textOneEntity, tx.settles, queue))
	}
	if err := t.takes(tx, about, len(endings), 0); err != nil {
		return err
	}
	tx.settles, tx.endings = queue, append(tx.endings, endings...)
	if of != nil {
		tx.retired = append(tx.retired, of)
	}
	return nil
}

// Enlist implements v10.Form.
func (f *form) Enlist(id []byte, outcome *wire.State, of *v10.Received) *wire.State {
	switch outcome.Kind {
	case wire.StateAccepted, wire.StateRejected, wire.StateReleased, wire.StateModified:
	default:
		return rejection(f.side.refuse(conditionArgument, "The outcome is not known."))
	}
	how, err := f.Settlement(outcome, of)
	if err != nil {
		err = f.side.track(err)
	} else {
		h := fsm.Handle{Number: of.Sequence, Acquired: of.Acquired}
		err = f.side.transactions.settle(id, f.path, f.queue, []fsm.Ending{{Handles: []fsm.Handle{h}, Settlement: how}}, of)
	}
	if err != nil {
		return rejection(err)
	}
	done, _ := f.Answers(outcome)
	return &wire.State{Kind: wire.StateTransactional, Transactional: &wire.TransactionalState{TxnID: append([]byte(nil), id...), Outcome: *done}}
}

// discharge ends a transaction: all of it is done, or nothing.
func (t *transactions) discharge(d *v10.Delivery, id string, fail bool) (next func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	tx, err := t.find([]byte(id))
	if tx == nil {
		d.Reject(err)
		return nil
	}
	queue, unit, ok := tx.unit()
	retired, size := tx.retired, tx.size
	t.remove(tx)
	switch {
	case fail:
		d.Accept()
	case err != nil && err.Condition == conditionTooLate:
		d.Reject(err)
	case err != nil:
		d.Reject(t.rolledBack(err))
	case !ok:
		d.Reject(t.rolledBack(t.side.refuse(wire.ConditionNotAllowed, textScheduled)))
	case queue == "":
		d.Accept()
	default:
		return d.Post(int(size), t.side.poster(d.Link, queue, unit), func(why *wire.Error) *wire.Error {
			if why != nil {
				return t.rolledBack(why)
			}
			for _, r := range retired {
				r.Forget()
			}
			return nil
		})
	}
	return nil
}

// rolledBack is the error for a transaction of which nothing was done.
func (t *transactions) rolledBack(why *wire.Error) *wire.Error {
	return wire.Errorf(conditionRollback, "The transaction was rolled back. %s: %s", why.Condition, why.Description)
}

// unit returns what a transaction does in a queue; none if that is empty. Messages for other queues are handed on by it. ok false:
// that cannot be.
func (tx *transaction) unit() (queue string, u *fsm.Unit, ok bool) {
	queue, u = tx.settles, &fsm.Unit{Endings: tx.endings}
	if queue == "" && len(tx.sends) > 0 {
		queue = tx.sends[0].from
	}
	for i := range tx.sends {
		switch m := tx.sends[i].message; {
		case m.RoutingKey == queue:
			u.Sends = append(u.Sends, m)
		case m.Schedule != nil:
			return queue, u, false
		default:
			u.Onward = append(u.Onward, m)
		}
	}
	return queue, u, true
}
