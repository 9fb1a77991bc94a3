package session

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base32"
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/proto/logpb"
)

// maxRenewed bounds the deliveries of one Renew.
const maxRenewed = 1000

// renewLocks makes the locks of deliveries end later.
func (x *commandExchange) renewLocks(r *commandRequest) ([]*commandPart, error) {
	duration, _, err := r.headers.within("x-lock-duration", fsm.MinLock, fsm.MaxLock)
	if err != nil {
		return nil, err
	}
	upTo, err := r.headers.flag("x-multiple", false)
	if err != nil {
		return nil, err
	}
	tag, byConsumer, err := r.headers.text("x-consumer-tag")
	if err != nil {
		return nil, err
	}
	named, err := readNamed(r)
	switch {
	case err != nil:
		return nil, err
	case byConsumer == named.given():
		return nil, fsm.Refuse(fsm.Precondition, "lock.renew requires one of x-delivery-tag, x-delivery-tags, x-consumer-tag, x-lock-token and x-lock-tokens")
	case upTo && len(named.tags) != 1:
		return nil, fsm.Refuse(fsm.Precondition, "x-multiple requires x-delivery-tag")
	case byConsumer:
		number := r.publish.Holdings.Consumer(tag)
		if number == 0 {
			return nil, fsm.Refuse(fsm.NotFoundKind, fmt.Sprintf("no consumer '%s' on this channel", tag))
		}
		return renewParts(r.publish.Holdings.Of(number), tag, uint64(duration)), nil
	case upTo:
		tag := named.tags[0]
		if _, ok := r.publish.Holdings.Find(tag); !ok {
			return nil, fsm.Refuse(fsm.NotFoundKind, unknownTag(tag))
		}
		return renewParts(r.publish.Holdings.UpTo(tag), "", uint64(duration)), nil
	}
	return x.partsOf(r, named, false, func() *logpb.Command { return renewCommand(uint64(duration)) })
}

func renewCommand(duration uint64) *logpb.Command {
	return &logpb.Command{Kind: logpb.Command_RENEW, Renew: &logpb.Renew{Duration: duration}}
}

// renewParts renews many deliveries of this channel, those of a consumer by as few commands as
// possible.
func renewParts(all []fsm.Held, tag string, duration uint64) (parts []*commandPart) {
	newest := map[uint64]*commandPart{} // by consumer
	for _, h := range all {
		p := newest[h.Consumer]
		if p == nil || p.expected == maxRenewed {
			p = &commandPart{
				held: fsm.Held{Consumer: h.Consumer, Get: h.Get}, command: renewCommand(duration),
				what: "lock on some of the deliveries", result: commandResult{ConsumerTag: tag},
			}
			newest[h.Consumer] = p
			parts = append(parts, p)
		}
		if r := p.command.Renew.Ranges; len(r) > 0 && r[len(r)-2]+r[len(r)-1] == h.ID {
			r[len(r)-1]++
		} else {
			p.command.Renew.Ranges = append(r, h.ID, 1)
		}
		p.expected++
	}
	return parts
}

// settleMessages ends deliveries, as the methods do, and says whether that took effect.
func (x *commandExchange) settleMessages(r *commandRequest) ([]*commandPart, error) {
	name, _, err := r.headers.text("x-outcome")
	if err != nil {
		return nil, err
	}
	outcome, known := fsm.OutcomeNamed(name)
	if !known {
		return nil, fsm.Refuse(fsm.Precondition, fmt.Sprintf("invalid x-outcome '%s': it must be ack, requeue, reject or dead-letter", name))
	}
	reason, description, err := readReason(r.headers)
	if err != nil {
		return nil, err
	}
	return x.settling(r, &logpb.Settle{Outcome: outcome, Reason: reason, Description: description})
}

// readReason reads what a receiver says about a message.
func readReason(h arguments) (reason, description string, err error) {
	if reason, _, err = h.shortText("x-reason", fsm.MaxSettleReason); err == nil {
		description, _, err = h.shortText("x-description", fsm.MaxSettleDescription)
	}
	return reason, description, err
}

// retryMessages returns messages, to be ready again at a time.
func (x *commandExchange) retryMessages(r *commandRequest) ([]*commandPart, error) {
	at, delay, given, err := r.headers.due(r.view.Setting(catalog.ScheduleMaxDelay), x.node.Now())
	if err == nil && !given {
		err = fsm.Refuse(fsm.Precondition, "message.retry requires either x-delay or x-opt-delivery-time")
	}
	if err != nil {
		return nil, err
	}
	failed, err := r.headers.flag("x-delivery-failed", true)
	if err != nil {
		return nil, err
	}
	reason, description, err := readReason(r.headers)
	if err != nil {
		return nil, err
	}
	s := &logpb.Settle{Outcome: fsm.Requeue, DueAt: at, DelayPlusOne: delay, Reason: reason, Description: description}
	if failed {
		s.Outcome = fsm.RequeueFailed
	}
	return x.settling(r, s)
}

// deferMessage puts a message aside under a token.
func (x *commandExchange) deferMessage(r *commandRequest) ([]*commandPart, error) {
	token, _, err := r.headers.shortText("x-deferral-token", fsm.MaxShort)
	if err == nil && token == "" {
		err = fsm.Refuse(fsm.Precondition, "message.defer requires x-deferral-token")
	}
	if err != nil {
		return nil, err
	}
	at, delay, _, err := r.headers.due(r.view.Setting(catalog.ScheduleMaxDelay), x.node.Now())
	if err != nil {
		return nil, err
	}
	if named, err := readNamed(r); err == nil && named.count() > 1 {
		return nil, fsm.Refuse(fsm.Precondition, "message.defer takes a single message, as each has its own token")
	}
	return x.settling(r, &logpb.Settle{Outcome: fsm.Defer, DueAt: at, DelayPlusOne: delay, Deferral: token})
}

// settling returns parts that settle what the headers name.
func (x *commandExchange) settling(r *commandRequest, s *logpb.Settle) ([]*commandPart, error) {
	named, err := readNamed(r)
	switch {
	case err != nil:
		return nil, err
	case !named.given():
		return nil, fsm.Refuse(fsm.Precondition, "a command about messages requires one of x-delivery-tag, x-delivery-tags, x-lock-token and x-lock-tokens")
	}
	return x.partsOf(r, named, true, func() *logpb.Command {
		return &logpb.Command{Kind: logpb.Command_SETTLE, Settle: &logpb.Settle{
			Outcome: s.Outcome, DueAt: s.DueAt, DelayPlusOne: s.DelayPlusOne, Deferral: s.Deferral,
			Reason: s.Reason, Description: s.Description, Strict: true,
		}}
	})
}

// named are the deliveries that a command is about: of this channel by their tags, or of any by
// their lock tokens.
type named struct {
	tags   []uint64
	tokens []string
	queue  string // all tokens are of this one; empty: not given
}

func (n named) given() bool { return n.count() > 0 }
func (n named) count() int  { return len(n.tags) + len(n.tokens) }

// readNamed reads which deliveries a command is about, if it names any.
func readNamed(r *commandRequest) (n named, err error) {
	h := r.headers
	tokens, byToken, err := h.list("x-lock-token", "x-lock-tokens", isText)
	if err != nil {
		return n, err
	}
	for _, v := range tokens {
		n.tokens = append(n.tokens, string(v.GetStr()))
	}
	if n.queue, _, err = h.text("x-queue"); err != nil {
		return n, err
	}
	tags, byTag, err := h.list("x-delivery-tag", "x-delivery-tags", isNumber)
	if err == nil && byTag && byToken {
		err = fsm.Refuse(fsm.Precondition, "a command may name deliveries by tags or by lock tokens, not both")
	}
	for _, v := range tags {
		if v.GetInt() < int64(r.publish.Holdings.First()) {
			return n, fsm.Refuse(fsm.Precondition, fmt.Sprintf("invalid delivery tag %d", v.GetInt()))
		}
		n.tags = append(n.tags, uint64(v.GetInt()))
	}
	return n, err
}

func unknownTag(tag uint64) string { return fmt.Sprintf("unknown delivery tag %d", tag) }

// partsOf returns one part for each delivery, with a command of its own. take: the channel gives
// the deliveries up.
func (x *commandExchange) partsOf(r *commandRequest, n named, take bool, command func() *logpb.Command) (parts []*commandPart, err error) {
	for _, token := range n.tokens {
		p, err := x.tokenPart(r, token, n.queue, command())
		if err != nil {
			return nil, err
		}
		parts = append(parts, p)
	}
	find := r.publish.Holdings.Find
	if take {
		find = r.publish.Holdings.Take
	}
	for _, tag := range n.tags {
		p := &commandPart{what: fmt.Sprintf("lock on delivery %d", tag), result: commandResult{DeliveryTag: &tag}}
		var ok bool
		if p.held, ok = find(tag); ok {
			p.taken = take
			p.command = command()
			setRanges(p.command, p.held.ID, 1)
		} else {
			p.err = fsm.Refuse(fsm.NotFoundKind, unknownTag(tag))
		}
		parts = append(parts, p)
	}
	return parts, nil
}

// tokenPart completes a command for the delivery that a lock token names. The error refuses the
// whole command: the user may not read the queue.
func (x *commandExchange) tokenPart(r *commandRequest, text, queue string, c *logpb.Command) (*commandPart, error) {
	p := &commandPart{command: c, what: "lock with this token", result: commandResult{LockToken: text}}
	if queue != "" {
		if _, err := r.view.UseQueue(x.session.conn.by(), catalog.Read, x.session.conn.vhost, queue); err != nil {
			return nil, err
		}
	}
	t, ok := parseLockToken(text, r.view.LockSecret())
	q, known := r.view.QueueByID(t.queue)
	if !ok || !known || q.VHost != x.session.conn.vhost || queue != "" && q.Name != queue {
		p.err = fsm.Refuse(fsm.NotFoundKind, "no "+p.what)
		return p, nil
	}
	var err error
	if p.queue, err = r.view.UseQueue(x.session.conn.by(), catalog.Read, x.session.conn.vhost, q.Name); err != nil {
		return nil, err
	}
	t.name(c)
	return p, nil
}

// name makes a command be about the delivery.
func (t lockToken) name(c *logpb.Command) {
	setRanges(c, t.delivery, 1)
	if c.Renew != nil {
		c.Renew.Consumer, c.Renew.Holder = t.of.Number, t.of.Session.Proto()
	} else {
		c.Settle.Consumer, c.Settle.Holder = t.of.Number, t.of.Session.Proto()
	}
}

func setRanges(c *logpb.Command, ranges ...uint64) {
	if c.Renew != nil {
		c.Renew.Ranges = ranges
	} else {
		c.Settle.Ranges = ranges
	}
}

// receiveDeferred hands deferred messages to a consumer of this channel.
func (x *commandExchange) receiveDeferred(r *commandRequest) ([]*commandPart, error) {
	name, _, err := r.headers.text("x-queue")
	if err != nil {
		return nil, err
	}
	tag, _, err := r.headers.text("x-consumer-tag")
	if err != nil {
		return nil, err
	}
	tokens, given, err := r.headers.list("x-deferral-token", "x-deferral-tokens", isText)
	switch {
	case err != nil:
		return nil, err
	case !given || tag == "":
		return nil, fsm.Refuse(fsm.Precondition, "message.receive-deferred requires x-queue, x-consumer-tag and x-deferral-token or x-deferral-tokens")
	}
	q, err := r.view.TakeFrom(x.session.conn.by(), x.session.conn.vhost, name)
	if err != nil {
		return nil, err
	}
	number, err := x.consumerAt(q, r.publish.Holdings, tag)
	if err != nil {
		return nil, err
	}
	var parts []*commandPart
	for _, t := range tokens {
		token := string(t.GetStr())
		parts = append(parts, &commandPart{
			queue: q, what: fmt.Sprintf("message deferred as '%s' in %s", token, q), result: commandResult{DeferralToken: token},
			command: &logpb.Command{Kind: logpb.Command_RECEIVE_DEFERRED, ReceiveDeferred: &logpb.ReceiveDeferred{
				Consumer: number, Tokens: []string{token},
			}},
		})
	}
	return parts, nil
}

// consumerAt finds a consumer of this channel at a queue by its tag.
func (x *commandExchange) consumerAt(q *catalog.Queue, holdings fsm.Holdings, tag string) (number uint64, err error) {
	number = holdings.Consumer(tag)
	x.session.mu.Lock()
	defer x.session.mu.Unlock()
	if c := x.session.consumers.known[number]; c == nil || c.over || c.at.stream.Queue() != q.ID {
		return 0, fsm.Refuse(fsm.NotFoundKind, fmt.Sprintf("no consumer '%s' of %s on this channel", tag, q))
	}
	return number, nil
}

// groupVerb returns a verb about a group that a consumer of this channel holds.
func groupVerb(action logpb.Group_Action) commandVerb {
	return func(x *commandExchange, r *commandRequest) ([]*commandPart, error) {
		var words []string
		for _, name := range []string{"x-queue", "x-group-id", "x-consumer-tag"} {
			s, given, err := r.headers.text(name)
			if err == nil && (!given || s == "" && name != "x-queue") {
				err = fsm.Refuse(fsm.Precondition, "commands about groups require x-queue, x-group-id and x-consumer-tag")
			}
			if err != nil {
				return nil, err
			}
			words = append(words, s)
		}
		q, err := r.view.TakeFrom(x.session.conn.by(), x.session.conn.vhost, words[0])
		if err != nil {
			return nil, err
		}
		number, err := x.consumerAt(q, r.publish.Holdings, words[2])
		if err != nil {
			return nil, err
		}
		c := &logpb.Group{Action: action, Id: words[1], Consumer: number}
		if action == logpb.Group_SET_STATE {
			if c.State = x.properties.Body(r.publish.Payload); len(c.State) > fsm.MaxGroupState {
				return nil, fsm.Refuse(fsm.Precondition, fmt.Sprintf("the state of a group may have at most %d bytes, not %d", fsm.MaxGroupState, len(c.State)))
			}
		}
		return []*commandPart{{
			queue: q, command: &logpb.Command{Kind: logpb.Command_GROUP, Group: c}, result: commandResult{GroupID: c.Id},
			what: fmt.Sprintf("group '%s' that a consumer holds in %s, or no space for its state", c.Id, q),
		}}, nil
	}
}

// scheduleVerb returns a verb about messages that wait for their time.
func scheduleVerb(action logpb.Schedule_Action) commandVerb {
	return func(x *commandExchange, r *commandRequest) ([]*commandPart, error) {
		q, err := x.scheduleQueue(r.view, r.headers)
		if err != nil {
			return nil, err
		}
		c, err := readSchedule(action, r.headers)
		if err == nil && action == logpb.Schedule_MOVE {
			given := false
			c.DueAt, c.DelayPlusOne, given, err = r.headers.due(r.view.Setting(catalog.ScheduleMaxDelay), x.node.Now())
			if err == nil && !given {
				err = fsm.Refuse(fsm.Precondition, "schedule.update requires either x-delay or x-opt-delivery-time")
			}
		}
		if err != nil {
			return nil, err
		}
		what := fmt.Sprintf("message '%s' waits in %s", c.Id, q)
		if c.Message != 0 {
			what = fmt.Sprintf("message %d waits in %s", c.Message, q)
		}
		return []*commandPart{{queue: q, command: &logpb.Command{Kind: logpb.Command_SCHEDULE, Schedule: c}, what: what}}, nil
	}
}

// readSchedule reads which messages a command is about.
func readSchedule(action logpb.Schedule_Action, h arguments) (c *logpb.Schedule, err error) {
	c = &logpb.Schedule{Action: action}
	var numbers []uint64
	for _, name := range []string{"x-schedule-seq", "x-count"} {
		n, given, err := h.number(name)
		if err == nil && given && n < 1 {
			err = h.invalid(name)
		}
		if err != nil {
			return nil, err
		}
		numbers = append(numbers, uint64(n))
	}
	if c.Id, _, err = h.text("x-schedule-id"); err != nil {
		return nil, err
	}
	c.Message, c.Count = numbers[0], numbers[1]
	given := 0
	for _, is := range []bool{c.Id != "", c.Message != 0, c.Count != 0} {
		if is {
			given++
		}
	}
	if given != 1 || c.Count != 0 && action != logpb.Schedule_FIRE {
		return nil, fsm.Refuse(fsm.Precondition, "name a message by x-schedule-id or x-schedule-seq; schedule.fire may have x-count instead")
	}
	return c, nil
}

// scheduleQueue finds the queue, or the store of the exchange, that a command refers to.
func (x *commandExchange) scheduleQueue(v *catalog.View, h arguments) (*catalog.Queue, error) {
	queue, isQueue, err := h.text("x-queue")
	if err != nil {
		return nil, err
	}
	exchange, isExchange, err := h.text("x-exchange")
	switch {
	case err != nil:
		return nil, err
	case isQueue == isExchange:
		return nil, fsm.Refuse(fsm.Precondition, "a command must have either x-queue or x-exchange")
	case isQueue:
		return v.UseQueue(x.session.conn.by(), catalog.Read, x.session.conn.vhost, queue)
	}
	return v.UseStore(x.session.conn.by(), x.session.conn.vhost, exchange)
}

// lockToken names a delivery to whoever holds its text. The node that serves the consumer makes
// the text, any node understands it: it ends with a MAC by the cluster's secret, so nobody can make
// one up or change one. It says nothing about whether the delivery is still held.
type lockToken struct {
	queue    fsm.QueueID
	of       fsm.ConsumerID
	delivery uint64
}

// lockMACSize is how much of the MAC is in a token.
const lockMACSize = 16

// maxLockToken is the length of the longest token.
const maxLockToken = (6*binary.MaxVarintLen64 + lockMACSize + 4) / 5 * 8

var lockEncoding = base32.StdEncoding.WithPadding(base32.NoPadding)

// text returns the token as clients see it; empty without a secret.
func (t lockToken) text(secret []byte) string {
	if len(secret) == 0 {
		return ""
	}
	var space [6*binary.MaxVarintLen64 + sha256.Size]byte
	raw := space[:0]
	for _, n := range [...]uint64{uint64(t.queue), uint64(t.of.Session.Node), t.of.Session.Boot, t.of.Session.Num, t.of.Number, t.delivery} {
		raw = binary.AppendUvarint(raw, n)
	}
	return lockEncoding.EncodeToString(appendLockMAC(raw, secret, raw))
}

// appendLockMAC appends the MAC of fields.
func appendLockMAC(dst, secret, fields []byte) []byte {
	h := hmac.New(sha256.New, secret)
	h.Write([]byte("lock token"))
	h.Write(fields)
	return append(dst, h.Sum(nil)[:lockMACSize]...)
}

// parseLockToken is the inverse of text. ok false: the text is no token of this cluster. The MAC is
// compared in constant time, before anything else is read.
func parseLockToken(text string, secret []byte) (t lockToken, ok bool) {
	if len(secret) == 0 || len(text) > maxLockToken {
		return t, false
	}
	raw, err := lockEncoding.DecodeString(text)
	if err != nil || len(raw) < lockMACSize || lockEncoding.EncodeToString(raw) != text {
		return t, false
	}
	fields, mac := raw[:len(raw)-lockMACSize], raw[len(raw)-lockMACSize:]
	if !hmac.Equal(mac, appendLockMAC(nil, secret, fields)) {
		return t, false
	}
	var all [6]uint64
	for i := range all {
		n, size := binary.Uvarint(fields)
		if size <= 0 {
			return t, false
		}
		all[i], fields = n, fields[size:]
	}
	return lockToken{
		queue: fsm.QueueID(all[0]), delivery: all[5],
		of: fsm.ConsumerID{Session: fsm.SessionID{Node: fsm.NodeID(all[1]), Boot: all[2], Num: all[3]}, Number: all[4]},
	}, len(fields) == 0
}

// pauseVerb returns a verb that pauses the consumers of a queue, or resumes them.
func pauseVerb(resume bool) commandVerb {
	return func(x *commandExchange, r *commandRequest) ([]*commandPart, error) {
		name, _, err := r.headers.text("x-queue")
		if err != nil {
			return nil, err
		}
		by := x.session.conn.by()
		q, err := r.view.UseQueue(by, catalog.Configure, x.session.conn.vhost, name)
		if err == nil {
			err = catalog.CheckPause(r.view.FSMVersion())
		}
		if err != nil {
			return nil, err
		}
		c := &logpb.Pause{By: by.User, Resume: resume}
		if !resume {
			if c.Reason, _, err = r.headers.shortText("x-reason", fsm.MaxPauseText); err != nil {
				return nil, err
			}
			d, given, err := r.headers.within("x-duration", 1, catalog.MaxTTL)
			if err != nil {
				return nil, err
			}
			if given {
				c.Until = x.node.Now() + d
			}
		}
		return []*commandPart{{queue: q, command: &logpb.Command{Kind: logpb.Command_PAUSE, Pause: c}}}, nil
	}
}

// takeVerb returns a verb that takes messages at hand, which it names by number or by conditions.
func takeVerb(action logpb.Take_Action) commandVerb {
	return func(x *commandExchange, r *commandRequest) ([]*commandPart, error) {
		name, _, err := r.headers.text("x-queue")
		if err != nil {
			return nil, err
		}
		target, sent, err := r.headers.text("x-target-queue")
		if err != nil {
			return nil, err
		}
		by := x.session.conn.by()
		q, err := r.view.TakeFrom(by, x.session.conn.vhost, name)
		if err != nil {
			return nil, err
		}
		var to *catalog.Queue
		if sent {
			if to, err = r.view.UseQueue(by, catalog.Write, x.session.conn.vhost, target); err != nil {
				return nil, err
			}
		}
		c := &logpb.Take{Action: action}
		numbers, named, err := r.headers.list("x-message", "x-messages", isNumber)
		if err != nil {
			return nil, err
		}
		s, given, err := r.headers.conditions()
		switch {
		case err != nil:
			return nil, err
		case !sent && action != logpb.Take_DELETE && action != logpb.Take_REDRIVE || sent && action == logpb.Take_DELETE:
			return nil, fsm.Refuse(fsm.Precondition, "what is moved or copied requires x-target-queue, and what is deleted has none")
		case !named && !given:
			return nil, fsm.Refuse(fsm.Precondition, "a command that takes messages requires x-queue and x-message, x-messages, x-limit or a condition")
		case sent:
			c.Target = uint64(to.ID)
		}
		if err := catalog.CheckTake(r.view.FSMVersion(), q, to); err != nil {
			return nil, err
		}
		for _, n := range numbers {
			if n.GetInt() < 1 {
				return nil, fsm.Refuse(fsm.Precondition, fmt.Sprintf("invalid message %d", n.GetInt()))
			}
			c.Messages = append(c.Messages, uint64(n.GetInt()))
		}
		slices.Sort(c.Messages)
		if back := action == logpb.Take_REDRIVE && !sent; given || back {
			s.Messages, s.Sources = c.Messages, back
			r.search = (&taking{x, by, q, to, action, s}).find
			return nil, nil
		}
		return []*commandPart{{queue: q, command: &logpb.Command{Kind: logpb.Command_TAKE, Take: c}}}, nil
	}
}
