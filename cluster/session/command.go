package session

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/quorate/quorate/cluster/queues"
	"github.com/quorate/quorate/cluster/self"
	"github.com/quorate/quorate/cluster/stream"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/proto/logpb"
)

// commandWait is how long a command waits for a queue without a leader.
const commandWait = 5 * time.Second

// commandRequest is a publish to the command exchange as its verb reads it. It is valid while
// Publish runs.
type commandRequest struct {
	view    *catalog.View
	publish *fsm.Publish
	headers arguments
	// search, if the verb sets it, finds the parts at the leader of a queue.
	search func(ctx context.Context) ([]*commandPart, error)
}

// commandVerb reads the headers of a command and returns its parts, or why the command is refused
// as a whole. It may take deliveries from the channel, as the last thing it does.
type commandVerb func(x *commandExchange, r *commandRequest) ([]*commandPart, error)

// commandVerbs are the routing keys of commands.
var commandVerbs = map[string]commandVerb{
	"lock.renew":               (*commandExchange).renewLocks,
	"message.settle":           (*commandExchange).settleMessages,
	"message.retry":            (*commandExchange).retryMessages,
	"message.defer":            (*commandExchange).deferMessage,
	"message.receive-deferred": (*commandExchange).receiveDeferred,
	"group.renew":              groupVerb(logpb.Group_RENEW),
	"group.release":            groupVerb(logpb.Group_RELEASE),
	"group.set-state":          groupVerb(logpb.Group_SET_STATE),
	"group.get-state":          groupVerb(logpb.Group_GET_STATE),
	"schedule.cancel":          scheduleVerb(logpb.Schedule_CANCEL),
	"schedule.update":          scheduleVerb(logpb.Schedule_MOVE),
	"schedule.fire":            scheduleVerb(logpb.Schedule_FIRE),
	"queue.pause":              pauseVerb(false),
	"queue.resume":             pauseVerb(true),
	"message.delete":           takeVerb(logpb.Take_DELETE),
	"message.move":             takeVerb(logpb.Take_MOVE),
	"message.copy":             takeVerb(logpb.Take_COPY),
	"message.redrive":          takeVerb(logpb.Take_REDRIVE),
}

// clientCommand is a publish to the command exchange. It consists of parts, and is answered when
// each of them has an outcome.
//
// Invariants, under the session's lock: left is the number of parts without an outcome; done once
// the client has been answered.
type clientCommand struct {
	number    uint64
	mandatory bool
	payload   fsm.Payload
	reply     replyAddress
	parts     []*commandPart
	left      int
	late      *time.Timer
	done      bool
}

// commandPart is one command to one queue.
type commandPart struct {
	of      *clientCommand
	command *logpb.Command
	queue   *catalog.Queue // nil: the one that delivered held
	held    fsm.Held       // the delivery, or with tag 0 the consumer, of this channel; zero: none
	taken   bool           // the channel does not hold the delivery any more
	what    string         // the object named in refusals
	// expected is how many deliveries are to be renewed; 0: the answer does not say.
	expected uint64
	result   commandResult // names the object; completed with the outcome

	// Guarded by the session's lock.
	at   *sessionQueue // where the command was sent; nil: nowhere
	err  error
	over bool // it has an outcome
}

// commandExchange executes what clients publish to the command exchange: the routing key is the
// verb, the headers are its arguments.
//
// Invariant: underWay is the number of parts that were sent and not answered by their queues,
// ≤ fsm.MaxUnanswered.
type commandExchange struct {
	session    *Session
	node       *self.Node
	properties Properties // of answers

	// Guarded by the session's lock.
	underWay int
	searches []*commandSearch // the first one is under way
}

// command executes a publish. It is confirmed when the command has taken effect, and negatively if
// it has not; the channel stays open in any case.
func (x *commandExchange) command(v *catalog.View, p *fsm.Publish) {
	c := &clientCommand{number: p.Number, mandatory: p.Mandatory, payload: p.Payload}
	verb, known := commandVerbs[p.RoutingKey]
	err := x.replyTo(v, p, c)
	if err == nil && !known {
		x.refuse(c, nil)
		return
	}
	if err == nil {
		err = p.HeadersError
	}
	r := &commandRequest{view: v, publish: p}
	if err == nil {
		r.headers = argumentsOf(p.Headers())
		c.parts, err = verb(x, r)
	}
	switch {
	case err != nil:
		x.refuse(c, err)
	case r.search != nil:
		x.searchLater(&commandSearch{c, r.search})
	default:
		x.start(c)
	}
}

// refuse answers a command that is not passed on. why nil: there is no such verb.
func (x *commandExchange) refuse(c *clientCommand, why error) {
	x.session.lock()
	defer x.session.unlock()
	x.answer(c, false, why)
}

// start sends the parts of a command.
func (x *commandExchange) start(c *clientCommand) {
	x.session.lock()
	defer x.session.unlock()
	if x.underWay+len(c.parts) > fsm.MaxUnanswered {
		x.keep(c.parts)
		x.answer(c, false, fsm.Refuse(fsm.Unavailable, "too many commands of this channel are waiting for an answer"))
		return
	}
	c.left = len(c.parts)
	c.late = time.AfterFunc(commandWait, func() { x.overdue(c) })
	for _, p := range c.parts {
		p.of = c
		x.send(p)
	}
	x.finish(c)
}

// send sends a part to its queue. The lock is held.
func (x *commandExchange) send(p *commandPart) {
	switch {
	case p.err != nil: // found out before
		x.end(p, p.err)
		return
	case p.queue != nil:
		p.at = x.session.streams.queue(p.queue)
	case !x.place(p):
		x.end(p, fsm.Refuse(fsm.NotFoundKind, "no "+p.what))
		return
	}
	if err := x.mayRenew(p); err != nil {
		x.end(p, err)
		return
	}
	switch to := p.at.stream; {
	case to.Gone():
		x.end(p, x.refusal(p, fsm.Result{Code: fsm.Gone}))
	case to.Over():
		x.end(p, errLost)
	default:
		x.underWay++
		to.Add(p.command, stream.Pending{Note: p})
	}
}

// mayRenew refuses to renew what the user has from a queue that it may not read any
// more: it may only give that up.
func (x *commandExchange) mayRenew(p *commandPart) error {
	if p.command.Kind != logpb.Command_RENEW {
		return nil
	}
	_, err := x.node.View().UseQueue(x.session.conn.by(), catalog.Read, x.session.conn.vhost, p.queue.Name)
	return err
}

// place finds the queue of the consumer or get that a part is about, and completes its command.
// false: the queue is gone, and everything that it has delivered. The lock is held.
func (x *commandExchange) place(p *commandPart) bool {
	number := p.held.Consumer
	if p.held.Get {
		i, ok := x.session.streams.find(number &^ getToken)
		if ok {
			p.at, number = x.session.streams.order[i], 0
		}
	} else if c := x.session.consumers.known[number]; c != nil {
		p.at = c.at
	}
	if p.at == nil {
		return false
	}
	switch c := p.command; c.Kind {
	case logpb.Command_SETTLE:
		c.Settle.Consumer = number
	case logpb.Command_RENEW:
		c.Renew.Consumer = number
	}
	p.queue, _ = x.node.View().QueueByID(p.at.stream.Queue())
	if p.queue == nil {
		p.queue = &catalog.Queue{ID: p.at.stream.Queue(), VHost: x.session.conn.vhost}
	}
	return true
}

// answered handles a queue's answer to a part. The lock is held.
func (x *commandExchange) answered(p *commandPart, r fsm.Result) {
	x.underWay--
	if p.over {
		return // given up; whether it took effect was not known
	}
	err := x.refusal(p, r)
	if err == nil {
		p.result.add(r, x.node.Stamp())
		if s := p.command.Settle; s != nil {
			p.at.countSettled(1, s.Outcome)
		}
		if p.taken {
			x.session.consumers.settled(p.held.Consumer, 1)
		}
	}
	x.end(p, err)
	x.finish(p.of)
}

// refusal returns the client's error for a queue's answer; nil: the command has taken effect.
func (x *commandExchange) refusal(p *commandPart, r fsm.Result) error {
	err := x.session.conn.in.answers.refusal(p.command.Kind, p.queue, r.Code)
	switch {
	case err != nil && isNotDone(r.Code):
		return fsm.Refuse(fsm.NotFoundKind, "no "+p.what)
	case err == nil && r.Count < p.expected && r.Count > 0:
		return fsm.Refuse(fsm.NotFoundKind, "no "+p.what)
	}
	return err
}

// isNotDone reports whether a queue's answer says that the object of a command is not there. A
// repeated command is answered with Rejected whatever the reason was.
func isNotDone(code fsm.Code) bool { return code == fsm.NotFound || code == fsm.Rejected }

// end records the outcome of a part. The lock is held.
func (x *commandExchange) end(p *commandPart, err error) {
	if !p.over {
		p.over, p.err = true, err
		p.of.left--
	}
}

// finish answers a command once all of its parts have an outcome. The lock is held.
func (x *commandExchange) finish(c *clientCommand) {
	if c.left > 0 || c.done {
		return
	}
	var why error
	var kept []*commandPart
	for _, p := range c.parts {
		if p.err == nil {
			continue
		}
		kept = append(kept, p)
		if why == nil {
			why = p.err
		}
	}
	x.keep(kept)
	x.answer(c, why == nil, why)
}

// keep gives deliveries back to the channel that commands have not settled. The lock is held.
func (x *commandExchange) keep(parts []*commandPart) {
	var list []fsm.Held
	for _, p := range parts {
		if p.taken {
			list = append(list, p.held)
		}
	}
	if len(list) > 0 {
		x.session.add(event{kind: eventKept, held: list})
	}
}

// answer reports the outcome of a command to the client, once. why nil and not ok: there is no such
// verb. The lock is held.
func (x *commandExchange) answer(c *clientCommand, ok bool, why error) {
	if c.done {
		return
	}
	c.done = true
	if c.late != nil {
		c.late.Stop()
	}
	if !ok {
		x.session.conn.in.answers.commands.Add(1)
	}
	x.sendReply(c, ok, why)
	if !ok && c.mandatory {
		x.session.add(event{kind: eventRefused, payload: c.payload, err: why})
	}
	switch {
	case ok:
		why = nil
	case why == nil:
		why = fsm.ErrNoCommand
	}
	x.session.confirm(c.number, why)
}

// overdue gives up a command that has waited for too long. It is run by a timer, so a panic ends
// the channel: otherwise nobody would notice.
func (x *commandExchange) overdue(c *clientCommand) {
	if !x.node.Try("abandon a command", func() { x.giveUp(c) }) {
		x.session.fail()
	}
}

// giveUp ends the parts of a command whose queues have no leader. If a queue has one, the part is
// on its way, and is checked again later.
func (x *commandExchange) giveUp(c *clientCommand) {
	var lost []*commandPart
	for _, p := range x.waiting(c) {
		if leader, _, _ := p.at.stream.Route().Leader(); leader == "" {
			lost = append(lost, p)
		}
	}
	x.session.lock()
	defer x.session.unlock()
	for _, p := range lost {
		x.end(p, queues.Leaderless(p.queue))
	}
	x.finish(c)
	if !c.done && !x.session.closing && !x.session.isLost {
		c.late.Reset(commandWait)
	}
}

// waiting returns the parts of a command that have no outcome.
func (x *commandExchange) waiting(c *clientCommand) (list []*commandPart) {
	x.session.lock()
	defer x.session.unlock()
	for _, p := range c.parts {
		if !p.over {
			list = append(list, p)
		}
	}
	return list
}

// replyAddress is where a command wants its answer; to empty: nowhere.
type replyAddress struct {
	to          string // a routing key of the default exchange, or the name of a channel
	correlation []byte
}

// commandAnswer is the answer to a command, as JSON.
type commandAnswer struct {
	OK      bool             `json:"ok"`
	Code    uint16           `json:"code,omitempty"` // that of basic.return
	Error   string           `json:"error,omitempty"`
	Results []*commandResult `json:"results,omitempty"`
}

// commandResult is the outcome of one part of a command. What names its object comes first.
type commandResult struct {
	DeliveryTag   *uint64 `json:"delivery_tag,omitempty"`
	ConsumerTag   string  `json:"consumer_tag,omitempty"`
	LockToken     string  `json:"lock_token,omitempty"`
	DeferralToken string  `json:"deferral_token,omitempty"`
	GroupID       string  `json:"group_id,omitempty"`
	OK            bool    `json:"ok"`
	Code          uint16  `json:"code,omitempty"`
	Error         string  `json:"error,omitempty"`
	Count         *uint64 `json:"count,omitempty"` // of what the command was executed for
	LockedUntil   int64   `json:"locked_until,omitempty"`
	Remaining     *int64  `json:"remaining_ms,omitempty"`
	State         []byte  `json:"state,omitempty"` // in base64
}

// add completes the result of a part that has taken effect.
func (r *commandResult) add(from fsm.Result, now fsm.Time) {
	r.OK = true
	if from.Count > 0 {
		r.Count = &from.Count
	}
	if from.Until != 0 {
		remaining := max(int64(from.Until-now), 0)
		r.LockedUntil, r.Remaining = int64(from.Until), &remaining
	}
	r.State = []byte(from.State)
}

// replyTo finds out where a command wants its answer. It returns an error if the client may not ask
// for one there.
func (x *commandExchange) replyTo(v *catalog.View, p *fsm.Publish, c *clientCommand) error {
	if p.WantsReply && !x.session.replies.takes() {
		return errNoReplies
	}
	if p.Property == nil {
		return nil
	}
	to := string(p.Property(catalog.PropertyReplyTo))
	if to == "" {
		return nil
	}
	if _, direct := fsm.ReplySuffix(to); !direct {
		if err := v.CheckPublish(x.session.conn.user, x.session.conn.vhost, ""); err != nil {
			return err
		}
	}
	c.reply = replyAddress{to: to, correlation: bytes.Clone(p.Property(catalog.PropertyCorrelationID))}
	return nil
}

// sendReply sends the answer to a command, if it wants one. Like any reply it is lost if there is
// nobody to take it. The lock is held.
func (x *commandExchange) sendReply(c *clientCommand, ok bool, why error) {
	if c.reply.to == "" {
		return
	}
	a := commandAnswer{OK: ok}
	if !ok {
		a.Code, a.Error = x.reason(why)
	}
	for _, p := range c.parts {
		if p.err != nil {
			p.result.Code, p.result.Error = x.reason(p.err)
		}
		a.Results = append(a.Results, &p.result)
	}
	body, err := json.Marshal(&a)
	if err != nil {
		panic(err) // it consists of numbers and text
	}
	head, err := fsm.AppendHead(nil, "", c.reply.to, x.properties.Answer(c.reply.correlation), nil)
	if err != nil {
		return // nothing has such a name
	}
	payload := fsm.Payload(append(head, body...))
	if _, direct := fsm.ReplySuffix(c.reply.to); direct {
		x.session.add(event{kind: eventReply, payload: payload})
		return
	}
	x.enqueueReply(c.reply.to, payload)
}

// reason returns the code and text of an error; nil: there is no such command.
func (x *commandExchange) reason(why error) (code uint16, text string) {
	r, _ := why.(*fsm.Refusal)
	return x.properties.Reason(r)
}

// ownMessage is the note of a message that the broker itself sends: nobody waits for its outcome.
type ownMessage struct{}

// enqueueReply sends an answer to a queue. The lock is held.
func (x *commandExchange) enqueueReply(name string, payload fsm.Payload) {
	m := catalog.Message{Keys: []string{name}}
	route, limits, err := x.node.View().Route(x.session.conn.vhost, "", &m, nil)
	if err != nil {
		return
	}
	for _, q := range route {
		u := x.session.streams.queue(q)
		if to := u.stream; to.Over() || to.Ending() || to.Waiting() >= fsm.MaxUnanswered {
			continue
		}
		u.publish(&fsm.Publish{Payload: payload, TTL: -1, Priority: -1}, limits.Of(q).Stored(), false, "", ownMessage{})
	}
}

// arguments are the headers of a command by name.
type arguments map[string]*logpb.Value

func argumentsOf(t *fsm.Table) arguments {
	h := arguments{}
	for _, f := range t.GetFields() {
		h[f.GetName()] = f.GetValue()
	}
	return h
}

func (h arguments) invalid(name string) error {
	return fsm.Refuse(fsm.Precondition, fmt.Sprintf("invalid header '%s' of type '%s'", name, fsm.TypeName(h[name].GetTag())))
}

func (h arguments) text(name string) (s string, given bool, err error) {
	v, given := h[name]
	if given && !isText(v) {
		return "", true, h.invalid(name)
	}
	return string(v.GetStr()), given, nil
}

func isText(v *logpb.Value) bool { return v.GetTag() == 'S' }

func (h arguments) number(name string) (n int64, given bool, err error) {
	v, given := h[name]
	if given && !isNumber(v) {
		return 0, true, h.invalid(name)
	}
	return v.GetInt(), given, nil
}

func isNumber(v *logpb.Value) bool { return strings.ContainsRune("bBsuIilL", rune(v.GetTag())) }

// flag reads a header that is true or false.
func (h arguments) flag(name string, otherwise bool) (is bool, err error) {
	v, given := h[name]
	switch {
	case !given:
		return otherwise, nil
	case v.GetTag() != 't':
		return false, h.invalid(name)
	}
	return v.GetInt() != 0, nil
}

// within is number for one from least to limit.
func (h arguments) within(name string, least, limit int64) (n int64, given bool, err error) {
	n, given, err = h.number(name)
	if err == nil && given && (n < least || n > limit) {
		err = fsm.Refuse(fsm.Precondition, fmt.Sprintf("invalid header '%s': %d is not between %d and %d", name, n, least, limit))
	}
	return n, given, err
}

// shortText is text of at most limit bytes.
func (h arguments) shortText(name string, limit int) (s string, given bool, err error) {
	s, given, err = h.text(name)
	if err == nil && len(s) > limit {
		err = fsm.Refuse(fsm.Precondition, fmt.Sprintf("invalid header '%s': %d bytes exceed the limit of %d", name, len(s), limit))
	}
	return s, given, err
}

// maxNamed bounds the objects that one command may name.
const maxNamed = 256

// list reads a header with one value, or another one with several. given: there is one of them.
func (h arguments) list(one, several string, is func(*logpb.Value) bool) (values []*logpb.Value, given bool, err error) {
	v, single := h[one]
	all, plural := h[several]
	switch {
	case single && plural:
		return nil, true, fsm.Refuse(fsm.Precondition, fmt.Sprintf("a command must have either %s or %s", one, several))
	case single:
		values, several = []*logpb.Value{v}, one
	case !plural:
		return nil, false, nil
	case all.GetTag() != 'A':
		return nil, true, h.invalid(several)
	default:
		values = all.GetArray()
	}
	if len(values) == 0 || len(values) > maxNamed {
		return nil, true, fsm.Refuse(fsm.Precondition, fmt.Sprintf("invalid header '%s': %d values are not between 1 and %d", several, len(values), maxNamed))
	}
	for _, v := range values {
		if !is(v) {
			return nil, true, fsm.Refuse(fsm.Precondition, fmt.Sprintf("invalid header '%s': a value of type '%s'", several, fsm.TypeName(v.GetTag())))
		}
	}
	return values, true, nil
}

// due reads when a message is to become due: at an instant, or after a delay, stored as in
// logpb.Enqueue. A time in the past means now.
func (h arguments) due(limit, now int64) (at int64, delayPlusOne uint64, given bool, err error) {
	at, timed, err := h.number("x-opt-delivery-time")
	if err != nil {
		return 0, 0, false, err
	}
	delay, delayed, err := h.number("x-delay")
	switch {
	case err != nil:
		return 0, 0, false, err
	case timed && delayed:
		return 0, 0, false, fsm.Refuse(fsm.Precondition, "a command must have either x-delay or x-opt-delivery-time")
	case delay > limit:
		return 0, 0, false, fsm.Refuse(fsm.Precondition, fmt.Sprintf("invalid x-delay '%d': it must be at most %d", delay, limit))
	case timed && at > now && at-now > limit:
		return 0, 0, false, fsm.Refuse(fsm.Precondition, fmt.Sprintf("invalid x-opt-delivery-time '%d': it must be at most %d ms from now", at, limit))
	case timed:
		return max(at, 1), 0, true, nil
	case delayed:
		return 0, uint64(max(delay, 0)) + 1, true, nil
	}
	return 0, 0, false, nil
}
