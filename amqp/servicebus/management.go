package servicebus

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"time"

	"github.com/quorate/quorate/amqp/servicebus/edit"
	"github.com/quorate/quorate/amqp/servicebus/entity"
	"github.com/quorate/quorate/amqp/servicebus/sas"
	"github.com/quorate/quorate/amqp/v10/wire"
	"github.com/quorate/quorate/fsm"
)

// operation is a request that the nodes of entities answer.
type operation struct {
	right   sas.Rights
	perform func(*request, context.Context) error
}

// operationPrefix begins the names of operations.
const operationPrefix = "com.microsoft:"

// operations are all of them.
var operations = map[string]operation{
	"peek-message":               {sas.Listen, (*request).peek},
	"renew-lock":                 {sas.Listen, (*request).renewLocks},
	"receive-by-sequence-number": {sas.Listen, (*request).receiveDeferred},
	"update-disposition":         {sas.Listen, (*request).updateDisposition},
	"schedule-message":           {sas.Send, (*request).schedule},
	"cancel-scheduled-message":   {sas.Send, (*request).cancelScheduled},
	"batch-delete-messages":      {sas.Listen, (*request).deleteBatch},
	"renew-session-lock":         {sas.Listen, (*request).renewSession},
	"set-session-state":          {sas.Listen, (*request).setState},
	"get-session-state":          {sas.Listen, (*request).getState},
	"get-message-sessions":       {sas.Listen, (*request).listSessions},
	"add-rule":                   {sas.Manage, (*request).addRule},
	"remove-rule":                {sas.Manage, (*request).removeRule},
	"enumerate-rules":            {sas.Manage, (*request).listRules},
}

// Bounds of requests.
const (
	maxWait    = 60 * time.Second
	maxPeeked  = 500       // messages
	maxAnswers = 512 << 10 // bytes of messages in an answer, besides the first one
)

// manage performs a request to the node of an entity.
func (s *side) manage(r *request) {
	name, ok := strings.CutPrefix(r.text("operation"), operationPrefix)
	op, known := operations[name]
	if !ok || !known {
		r.failWith(s.refuse(wire.ConditionNotImplemented, "The operation '%.100s' is not supported.", r.text("operation")))
		return
	}
	if r.transaction != nil && name != "update-disposition" {
		r.failWith(s.refuse(conditionArgument, "The operation '%.100s' cannot be a part of a transaction.", r.text("operation")))
		return
	}
	if !r.allows(op.right) {
		return
	}
	ctx, cancel := context.WithTimeout(s.client.Context(), r.timeout())
	defer cancel()
	r.done(200, "OK", nil)
	if err := op.perform(r, ctx); err != nil {
		r.failWith(s.failed(err))
	}
}

// timeout is how long a request may take.
func (r *request) timeout() time.Duration {
	for _, name := range []string{"server-timeout", "com.microsoft:server-timeout"} {
		if v, ok := r.message.ApplicationProperties.Get(name); ok {
			if ms, ok := v.Integer(); ok && ms > 0 {
				return min(time.Duration(ms)*time.Millisecond, maxWait)
			}
		}
	}
	return r.side.client.Config().OperationTimeout
}

// failed is Explain for what requests can fail with besides.
func (s *side) failed(err error) *wire.Error {
	invalid, full := new(entity.Invalid), new(entity.Full)
	switch {
	case errors.As(err, &full):
		return s.refuse(wire.ConditionResourceLimit, "%s", full)
	case errors.As(err, &invalid):
		return s.refuse(conditionArgument, "%s", invalid)
	case errors.Is(err, errSessionLost):
		return s.refuse(conditionSessionLost, textSessionLost)
	case errors.Is(err, fsm.ErrNoMessage):
		return s.refuse(conditionNoMessage, "Failed to lock or find one or more specified messages. The message does not exist.")
	}
	return s.Explain(err)
}

// malformed is the error for a request that lacks a field, or has it of another type.
func (r *request) malformed(field string) error {
	return r.side.refuse(conditionArgument, "The request is malformed: '%s'.", field)
}

// queue is the broker's queue that a request is about: of a topic that in which it keeps what it is sent.
func (r *request) queue() string {
	if r.entity.Topic != nil && r.part != entity.Transfers {
		return r.entity.Path.Store()
	}
	return r.side.queueOf(r.entity, r.part)
}

// machine is what the request is performed by.
func (r *request) machine() Machine { return machineOf(r.link) }

// sessionID returns the session that a request is about, as its group. given false: it is about none.
func (r *request) sessionID() (group string, given bool) {
	v, ok := r.body.Get("session-id")
	if !ok || !isText(v) {
		return "", false
	}
	return entity.GroupOf(string(v.Bytes())), true
}

func (r *request) integer(name string) (int64, bool) {
	v, ok := r.body.Get(name)
	if !ok {
		return 0, false
	}
	return v.Integer()
}

// flag reads a boolean, which is false if it is not there.
func (r *request) flag(name string) bool {
	v, ok := r.body.Get(name)
	return ok && v.Type == wire.Boolean && v.Bool()
}

// peek shows messages by their numbers.
func (r *request) peek(ctx context.Context) error {
	from, ok := r.integer("from-sequence-number")
	if !ok {
		return r.malformed("from-sequence-number")
	}
	count, ok := r.integer("message-count")
	if !ok || count < 1 {
		return r.malformed("message-count")
	}
	group, _ := r.sessionID()
	found, err := r.machine().PeekFrom(ctx, r.queue(), uint64(max(from, 1)), int(min(count, maxPeeked)), group)
	if err != nil {
		return err
	}
	if len(found) == 0 {
		r.done(204, "There are no messages available.", nil)
		return nil
	}
	f, size, n := r.form(nil), 0, 0
	list := wire.StartList(nil)
	for i := range found {
		m := f.encode(&found[i].Message, stateOf(found[i].State), false)
		if size += len(m); size > maxAnswers && n > 0 {
			break
		}
		if r.flag("omit-message-body") {
			m = m[:len(m)-len(f.Body(&found[i].Message))]
		}
		entry := newFields()
		entry.binary("message", m, false)
		list = append(list, entry.end()...)
		n++
	}
	answer := newFields()
	answer.raw("messages", wire.EndList(list, 0, n))
	r.answer = answer.end()
	return nil
}

// stateOf returns the state of a message as programs know it.
func stateOf(s fsm.MessageState) int32 {
	switch s {
	case fsm.DeferredState:
		return stateDeferred
	case fsm.ScheduledState:
		return stateScheduled
	}
	return stateActive
}

// form is how the queue's messages look.
func (r *request) form(sealer *sealer) *form {
	return &form{sealer: sealer, part: r.part, uncounted: r.side.uncounted(r.entity, r.part)}
}

// handles reads the tokens of locks. One that no node has made is one that is lost.
func (r *request) handles(ctx context.Context) (*sealer, []fsm.Handle, error) {
	v, _ := r.body.Get("lock-tokens")
	tokens, ok := tokensIn(v)
	if !ok {
		return nil, nil, r.malformed("lock-tokens")
	}
	sealer, err := r.side.sealer(ctx, r.link, r.queue())
	if err != nil {
		return nil, nil, err
	}
	var all []fsm.Handle
	for _, t := range tokens {
		h, ok := sealer.open(t)
		if !ok {
			return nil, nil, fsm.ErrNotHeld
		}
		all = append(all, h)
	}
	return sealer, all, nil
}

// renewLocks has locks begin anew.
func (r *request) renewLocks(ctx context.Context) error {
	_, all, err := r.handles(ctx)
	if err != nil {
		return err
	}
	if r.entity.Delivery() != nil && r.entity.Delivery().RequiresSession && r.part == entity.Main {
		return fsm.ErrNotHeld // they end with the lock of their session
	}
	until, err := r.machine().RenewLocks(ctx, r.queue(), all)
	if err != nil {
		return err
	}
	ends := make([]fsm.Time, len(all))
	for i := range ends {
		ends[i] = until
	}
	answer := newFields()
	answer.raw("expirations", appendArray(nil, cTimestamp, ends))
	r.answer = answer.end()
	return nil
}

// receiveDeferred hands out deferred messages.
func (r *request) receiveDeferred(ctx context.Context) error {
	v, _ := r.body.Get("sequence-numbers")
	numbers, ok := numbersIn(v)
	if !ok {
		return r.malformed("sequence-numbers")
	}
	if r.entity.Delivery() == nil && r.part != entity.Transfers {
		return r.malformed("operation")
	}
	mode, ok := r.integer("receiver-settle-mode")
	if !ok {
		mode = 1
	}
	sealer, err := r.side.sealer(ctx, r.link, r.queue())
	if err != nil {
		return err
	}
	wish := fsm.Deferred{Delete: mode == 0, Lock: fsm.Millis(r.entity.Lock().Milliseconds())}
	for _, n := range numbers {
		wish.Tokens = append(wish.Tokens, deferral(n))
	}
	found, err := r.machine().TakeDeferred(ctx, r.queue(), wish)
	if err != nil {
		return err
	}
	f := r.form(sealer)
	list := wire.StartList(nil)
	for i := range found {
		m := &found[i]
		entry := newFields()
		entry.binary("message", f.encode(m, stateDeferred, !wish.Delete), false)
		if !wish.Delete {
			entry.raw("lock-token", wire.AppendUUID(nil, sealer.seal(handleOf(m))))
		}
		list = append(list, entry.end()...)
	}
	answer := newFields()
	answer.raw("messages", wire.EndList(list, 0, len(found)))
	r.answer = answer.end()
	return nil
}

// updateDisposition ends deliveries, which are named by their tokens.
func (r *request) updateDisposition(ctx context.Context) error {
	status, _ := r.body.Get("disposition-status")
	if string(status.Bytes()) == "renewed" && r.transaction == nil {
		return r.renewLocks(ctx)
	}
	_, all, err := r.handles(ctx)
	if err != nil {
		return err
	}
	unit := &fsm.Unit{}
	for _, h := range all {
		how, err := r.settlement(ctx, string(status.Bytes()), h)
		if err != nil {
			return err
		}
		if n := len(unit.Endings); n > 0 && how.Outcome == fsm.Ack {
			unit.Endings[n-1].Handles = append(unit.Endings[n-1].Handles, h)
			continue
		}
		unit.Endings = append(unit.Endings, fsm.Ending{Handles: []fsm.Handle{h}, Settlement: how})
	}
	if r.transaction != nil {
		return asError(r.side.transactions.settle(r.transaction, r.entity.Path, r.queue(), unit.Endings, nil))
	}
	_, err = r.machine().Perform(ctx, r.queue(), unit)
	return err
}

// asError returns nothing for no error.
func asError(e *wire.Error) error {
	if e == nil {
		return nil
	}
	return e
}

// settlement returns what a status does to a message.
func (r *request) settlement(ctx context.Context, status string, h fsm.Handle) (how fsm.Settlement, err error) {
	var changes edit.Edit
	switch status {
	case "completed":
		how.Outcome = fsm.Ack
		return how, nil
	case "unlocked":
		how.Outcome = fsm.Requeue
		return how, nil
	case "abandoned":
		how.Outcome = fsm.RequeueFailed
	case "defered", "deferred":
		how.Outcome, how.Deferral = fsm.Defer, deferral(h.Number)
	case "suspended":
		if r.part != entity.Main {
			return how, r.side.refuse(wire.ConditionNotAllowed, "A dead letter cannot be dead-lettered.")
		}
		how.Outcome = fsm.Discard
		for name, property := range map[string]string{"deadletter-reason": propertyReason, "deadletter-description": propertyDescription} {
			if v, ok := r.body.Get(name); ok && isText(v) {
				_ = changes.Set(property, wire.AppendString(nil, fsm.Cut(string(v.Bytes()), fsm.MaxSettleDescription)))
			}
		}
	default:
		return how, r.malformed("disposition-status")
	}
	properties := r.properties()
	if changes.Empty() && len(properties) == 0 {
		return how, nil
	}
	was, err := r.editOf(ctx, h)
	if err != nil {
		return how, err
	}
	before, _ := edit.Parse(was)
	now, err := before.Then(changes).Append(nil)
	if err != nil {
		return how, r.malformed("properties-to-modify")
	}
	how.Edit = now
	how, e := edited(how, now, properties)
	if e != nil {
		return how, e
	}
	return how, nil
}

// properties returns the map of properties that a settlement changes.
func (r *request) properties() wire.MapBytes {
	for w := r.body.Walk(); w.NextPair(); {
		if string(w.Key.Bytes()) == "properties-to-modify" && w.Value.Type == wire.Map {
			return wire.MapBytes(w.Encoded)
		}
	}
	return nil
}

// editOf returns what has been changed of a message before.
func (r *request) editOf(ctx context.Context, h fsm.Handle) ([]byte, error) {
	found, err := r.machine().PeekFrom(ctx, r.queue(), h.Number, 1, "")
	if err != nil || len(found) == 0 || found[0].Message.Sequence != h.Number {
		return nil, err
	}
	return found[0].Message.Edit, nil
}

// schedule sends messages that become ready later.
func (r *request) schedule(ctx context.Context) error {
	list, _ := r.body.Get("messages")
	if list.Type != wire.List || list.Len() == 0 || list.Len() > maxNamed || r.entity.Subscription != nil || r.part != entity.Main {
		return r.malformed("messages")
	}
	if !r.entity.Common().Status.Sends() {
		return r.side.disabled(r.entity.Path)
	}
	if err := r.side.short(); err != nil {
		return err
	}
	to := &sender{side: r.side, entity: r.entity, queue: r.queue()}
	to.reader.init(to)
	for w := list.Walk(); w.Next(); {
		if w.Value.Type != wire.Map {
			return r.malformed("messages")
		}
		encoded := messageIn(w.Value)
		if encoded == nil {
			return r.malformed("message")
		}
		if int64(len(encoded)) > r.entity.Store().MaxMessageSizeInKilobytes<<10 {
			return r.side.refuse(wire.ConditionMessageSize, "The message is larger than the entity allows.")
		}
		if err := to.add(bytes.Clone(encoded)); err != nil {
			return err
		}
	}
	first, err := r.machine().Perform(ctx, r.queue(), &fsm.Unit{Sends: to.all})
	if err != nil {
		return err
	}
	numbers := make([]uint64, len(to.all))
	for i := range numbers {
		numbers[i] = first + uint64(i)
	}
	answer := newFields()
	answer.raw("sequence-numbers", appendArray(nil, cLong, numbers))
	r.answer = answer.end()
	return nil
}

// messageIn returns the encoded message in an entry of a request.
func messageIn(entry wire.Value) []byte {
	for w := entry.Walk(); w.NextPair(); {
		if string(w.Key.Bytes()) == "message" && w.Value.Type == wire.Binary {
			return w.Value.Bytes()
		}
	}
	return nil
}

// cancelScheduled takes scheduled messages back.
func (r *request) cancelScheduled(ctx context.Context) error {
	v, _ := r.body.Get("sequence-numbers")
	numbers, ok := numbersIn(v)
	if !ok {
		return r.malformed("sequence-numbers")
	}
	return r.machine().CancelScheduled(ctx, r.queue(), numbers)
}

// maxDeleted bounds the messages that one request deletes.
const maxDeleted = 4000

// deleteBatch deletes messages that came before a time.
func (r *request) deleteBatch(ctx context.Context) error {
	count, ok := r.integer("message-count")
	if !ok || count < 1 || count > maxDeleted {
		return r.malformed("message-count")
	}
	before, ok := r.body.Get("enqueued-time-utc")
	if !ok || before.Type != wire.Timestamp {
		return r.malformed("enqueued-time-utc")
	}
	group, _ := r.sessionID()
	n, err := r.machine().DeleteBefore(ctx, r.queue(), int(count), fsm.Time(before.Signed()), group)
	if err != nil {
		return err
	}
	if n == 0 {
		r.done(204, "There are no messages to delete.", nil)
	}
	answer := newFields()
	answer.int("message-count", int32(n))
	r.answer = answer.end()
	return nil
}
