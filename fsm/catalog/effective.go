package catalog

import (
	"slices"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// Defaults are a node's settings for queues that do not say otherwise. They
// differ from node to node, so they are no part of the state; Apply compares
// settings with zero Defaults.
type Defaults struct {
	// ConsumerTimeout of replicated queues; 0: none.
	ConsumerTimeout fsm.Millis
	// DisconnectedTimeout of all queues; 0: the machine's.
	DisconnectedTimeout fsm.Millis
	// TimeoutAction of all queues; empty: TimeoutCancel.
	TimeoutAction TimeoutAction
}

// Settings returns the effective settings of a queue on a node with these
// defaults: what its arguments, its flags and the policies in force say. The
// result is the caller's.
//
// For a store they come from its exchange, and defaults do not count. Revision
// grows with each change that an entry made; defaults change the result without
// it. The queue need not be there.
func (v *View) Settings(q *Queue, d Defaults) *logpb.QueueConfig {
	if x, ok := v.Exchange(q.VHost, q.StoreOf); ok && q.StoreOf != "" {
		return x.storeSettings(v.match(q).revision)
	}
	return v.queueSettings(q, v.match(q), d)
}

// queueSettings are q.settings of the cluster's version: before 3 no queue is told
// what programs of that time do not know, such as whether its delivery limit is the
// default one.
func (s *clusterSettings) queueSettings(q *Queue, f policyMatch, d Defaults) *logpb.QueueConfig {
	c := q.settings(f, d)
	if s.FSMVersion() < 3 {
		c.DropExpired = false
		c.DeliveryLimitSet, c.Unique, c.MaxPrefetch, c.Dispatch = false, false, 0, logpb.QueueConfig_ROUND_ROBIN
		c.ForwardCopies, c.ForwardRefusedDies, c.IdleDeadLetters, c.RefusePublishes = false, false, false, false
	}
	return c
}

// SentRefused returns the queue for messages that somebody has sent from q to another queue, and
// that this one does not take, or that is gone (x-sent-refused-queue).
func (q *Queue) SentRefused(v *View) (*Queue, bool) {
	name, given := text(lookup(v.Arguments(q), sentRefusedArgument))
	if !given || v.FSMVersion() < filters {
		return nil, false
	}
	to, ok := v.Queue(q.VHost, name)
	return to, ok && to.ID != q.ID
}

// effective looks up what arguments and policies say together. arguments are
// those in force, policies the merged definition; either may be nil.
type effective struct{ arguments, policies *fsm.Table }

// of is what is said of a queue that f belongs to.
func (f policyMatch) of(q *Queue) effective { return effective{f.arguments(q), f.definition()} }

// value returns the value of a policy key; nil: nobody has given one. Requires:
// if both are given, the key has a rule argue. A policy is the strong side.
func (e effective) value(key string) *logpb.Value {
	argument, policy := lookup(e.arguments, "x-"+key), lookup(e.policies, key)
	switch {
	case policy == nil:
		return argument
	case argument == nil:
		return policy
	}
	return findPolicyKey(key).argue.apply(policy, argument)
}

// settings computes the effective settings of a queue that is no store; f is
// what matches it. It depends on the record, f and defaults alone. The result
// is new. A message TTL of 0 is not the same as none, hence the values stored
// plus one; where 0 means never, as for Expires, the value is stored as it is.
func (q *Queue) settings(f policyMatch, defaults Defaults) *logpb.QueueConfig {
	e := f.of(q)
	c := &logpb.QueueConfig{
		TtlPlusOne:             stored(e.value("message-ttl")),
		Expires:                uint64(e.value("expires").GetInt()),
		ConsumerTimeoutPlusOne: stored(e.value("consumer-timeout")),
		MaxLengthPlusOne:       stored(e.value("max-length")),
		MaxLengthBytesPlusOne:  stored(e.value("max-length-bytes")),
		DeliveryLimit:          DefaultDeliveryLimit,
		AutoDelete:             q.AutoDelete,
		Overflow:               logpb.QueueConfig_Overflow(max(e.choice("overflow", overflows), 0)),
		MessageTtlFirst:        e.choice("ttl-precedence", precedences) == 1,
		AutoDeleteOnIdle:       uint64(e.value("auto-delete-on-idle").GetInt()),
		IdleCountsRouted:       lookup(q.Arguments, "x-idle-counts-routed").GetInt() != 0,
		IdleDeadLetters:        lookup(q.Arguments, "x-idle-dead-letters").GetInt() != 0,
		ExpiresKeepPending:     e.value("expires-keep-pending").GetInt() != 0,
		DeadLetterMaxPlusOne:   stored(e.value("dead-letter-max-pending")),
		DeliveryDelay:          uint64(e.value("delivery-delay").GetInt()),
		SingleActive:           lookup(q.Arguments, "x-single-active-consumer").GetInt() != 0,
		Retry:                  logpb.QueueConfig_Retry(max(e.choice("delayed-retry-type", retries), 0)),
		RetryMin:               uint64(e.value("delayed-retry-min").GetInt()),
		RetryMax:               uint64(e.value("delayed-retry-max").GetInt()),
		MaxPriorityPlusOne:     uint32(stored(lookup(q.Arguments, "x-max-priority"))),
		Paused:                 e.value("pause-consumers").GetInt() != 0,
		RefusePublishes:        e.value("refuse-publishes").GetInt() != 0,
		Revision:               f.revision,
	}
	if c.Classic = q.Classic; c.Classic && c.MaxPriorityPlusOne == 0 {
		c.MaxPriorityPlusOne = 1
	}
	if q.classicKind() {
		c.DeliveryLimit = -1
	} else if c.ConsumerTimeoutPlusOne == 0 && defaults.ConsumerTimeout > 0 {
		c.ConsumerTimeoutPlusOne = fsm.Some(defaults.ConsumerTimeout).Stored()
	}
	if v := e.value("consumer-disconnected-timeout"); v != nil || defaults.DisconnectedTimeout == 0 {
		c.DisconnectedTimeoutPlusOne = stored(v)
	} else {
		c.DisconnectedTimeoutPlusOne = fsm.Some(defaults.DisconnectedTimeout).Stored()
	}
	if v := e.value("delivery-limit"); v != nil {
		c.DeliveryLimit, c.DeliveryLimitSet = v.GetInt(), true
	}
	c.DeadLetterExchange, c.DeadLetter = text(e.value("dead-letter-exchange"))
	c.DeadLetterRoutingKey, c.HasDeadLetterRoutingKey = text(e.value("dead-letter-routing-key"))
	if v := e.value("dead-letter-expired"); v != nil {
		c.DropExpired = v.GetInt() == 0
	}
	c.DeadLetterOnDelete = e.value("dead-letter-on-delete").GetInt() != 0
	c.DeadLetterStrategy = logpb.QueueConfig_DeadLetterStrategy(e.choice("dead-letter-strategy", strategies) + 1)
	e.setRetries(c)
	e.setLocks(c)
	e.setGroups(c)
	e.setForward(c)
	c.DeadlineOrder = byDeadline(q.Arguments)
	c.DedupWindow = uint64(e.value("dedup-window").GetInt())
	c.Unique = e.unique() != ""
	c.MaxPrefetch = uint32(e.value("max-prefetch").GetInt())
	c.Dispatch = logpb.QueueConfig_Dispatch(max(e.choice("dispatch", dispatches), 0))
	c.AuditMaxPlusOne = stored(e.value("audit-max"))
	return c
}

// setRetries sets how long delayed retries wait.
func (e effective) setRetries(c *logpb.QueueConfig) {
	c.RetryStrategy = logpb.QueueConfig_RetryStrategy(max(e.choice("delayed-retry-strategy", retryStrategies), 0))
	c.RetryMultiplier = uint32(e.value("delayed-retry-multiplier").GetInt())
	if s, given := text(e.value("delayed-retry-steps")); given {
		c.RetrySteps, _ = retrySteps(s)
	}
	c.RetryJitter = uint32(e.value("delayed-retry-jitter").GetInt())
	c.RetryCountsAcquired = e.choice("delayed-retry-count", retryCounts) == 1
}

// setLocks sets how long deliveries are locked.
func (e effective) setLocks(c *logpb.QueueConfig) {
	c.Lock = uint64(e.value("lock-duration").GetInt())
	c.MaxLock = uint64(e.value("max-lock-duration").GetInt())
	c.CountLockExpiry = e.value("count-lock-expiry").GetInt() != 0
}

// setGroups sets what only arguments say: whether a queue has groups is fixed,
// since its messages are told apart when they come.
func (e effective) setGroups(c *logpb.QueueConfig) {
	number := func(name string) uint64 { return uint64(lookup(e.arguments, name).GetInt()) }
	word := func(name string) string { s, _ := text(lookup(e.arguments, name)); return s }
	if c.Groups = groupsOf(e.arguments); c.Groups == logpb.QueueConfig_NO_GROUPS {
		return
	}
	c.GroupRequired = number("x-group-required") != 0
	c.GroupExpiry = word("x-group-expiry") == groupExpiries[1]
	c.GroupLinger = number("x-group-linger")
	c.GroupStateTtl = number("x-group-state-ttl")
}

// setForward sets where all messages go on to. Requires: the groups are set. A
// policy does not forward from a queue with groups, as an argument cannot.
func (e effective) setForward(c *logpb.QueueConfig) {
	exchange, given := text(e.value("forward-to-exchange"))
	if !given || c.Groups != logpb.QueueConfig_NO_GROUPS {
		return
	}
	c.Forward, c.ForwardExchange = true, exchange
	c.ForwardRoutingKey, c.HasForwardRoutingKey = text(e.value("forward-to-routing-key"))
	c.ForwardCopies = lookup(e.arguments, "x-forward-copies").GetInt() != 0
	c.ForwardRefusedDies = e.choice("forward-refused", refusals) == 1
}

// choice returns the position of a key's value among values; -1: none given. An
// index into values is what the log's enumerations number, so their order must
// not change. A value that is none of them gives -1, too.
func (e effective) choice(key string, values []string) int {
	s, ok := text(e.value(key))
	if !ok {
		return -1
	}
	return slices.Index(values, s)
}

// optional returns a duration; none if v is no whole number. A negative number
// is none as well. The unit is the caller's: stored uses it for lengths.
func optional(v *logpb.Value) fsm.Optional[fsm.Millis] {
	if n, ok := integer(v); ok && n >= 0 {
		return fsm.Some(fsm.Millis(n))
	}
	return fsm.Optional[fsm.Millis]{}
}

// stored returns an integer as the log stores what need not be given.
func stored(v *logpb.Value) uint64 { return optional(v).Stored() }

// Source says where a setting comes from.
type Source string

// Sources of a consumer timeout.
const (
	FromConsumer Source = "consumer"
	FromArgument Source = "queue"
	FromPolicy   Source = "policy"
	FromNode     Source = "node"
	FromNobody   Source = "none"
)

// TimeoutSource says where the consumer timeout of a queue comes from on a node
// with these defaults, for consumers that bring none of their own. It follows
// the rules of settings: the smaller of policy and argument, and the node's
// default only if neither is given and the queue is not of the classic kind.
func (vs *vhosts) TimeoutSource(q *Queue, d Defaults) Source {
	const key = "consumer-timeout"
	e := vs.match(q).of(q)
	argument, policy := lookup(e.arguments, "x-"+key), lookup(e.policies, key)
	switch {
	case policy != nil && (argument == nil || policy.GetInt() < argument.GetInt()):
		return FromPolicy
	case argument != nil:
		return FromArgument
	case !q.classicKind() && d.ConsumerTimeout > 0:
		return FromNode
	}
	return FromNobody
}

// TimeoutAction is what a consumer timeout does on a node with these defaults,
// to consumers that bring no action of their own: what the queue's argument
// says, or else the policies, or else the node. It is never empty.
func (vs *vhosts) TimeoutAction(q *Queue, d Defaults) TimeoutAction {
	s, given := text(vs.match(q).of(q).value("consumer-timeout-action"))
	switch {
	case given:
		return TimeoutAction(s)
	case d.TimeoutAction != "":
		return d.TimeoutAction
	}
	return TimeoutCancel
}

// Ceilings are the longest times-to-live that the exchanges on a message's way
// allow it in the queues it goes to. A queue that several ways lead to counts
// the exchanges of all of them. The zero Ceilings allow everything. They are
// valid for the View that Route was called on.
type Ceilings struct {
	all  fsm.Optional[fsm.Millis] // not given: no limit, or see each
	each map[*Queue]fsm.Optional[fsm.Millis]
}

// Of returns the limit for one of the queues. In ms; not given: no limit. q
// must be one of the queues that Route has appended.
func (c Ceilings) Of(q *Queue) fsm.Optional[fsm.Millis] {
	if c.each != nil {
		return c.each[q]
	}
	return c.all
}

// ceilings computes the limits on a walk that is done. Only a walk that has
// led from an exchange with a limit to another one, or from another one to an
// exchange with a limit, is done again, one exchange at a time.
//
// x is the exchange published to. An exchange is visited again each time that
// its limit falls, and limits come from finitely many exchanges, so the loop
// ends, even if bindings form a cycle. It allocates; walks without a limit, or
// with one exchange, do not. Requires: m answers as in the first walk, m.Local
// included; a queue that only the first walk has found has no limit.
func (r *router) ceilings(x *Exchange, m *Message) Ceilings {
	if !r.limited {
		return Ceilings{}
	}
	if len(r.further.list) == 0 {
		return Ceilings{all: x.ttl}
	}
	reached := map[string]fsm.Optional[fsm.Millis]{x.Name: x.ttl} // exchange → limit of all ways to it, itself included
	each := map[*Queue]fsm.Optional[fsm.Millis]{}
	for todo := []string{x.Name}; len(todo) > 0; todo = todo[1:] {
		name := todo[0]
		step := router{vh: r.vh, first: name, decoded: r.decoded, table: r.table, again: true}
		if name == "" {
			step.byName(m.Keys)
		} else if from := r.vh.exchanges.at(name); from != nil {
			step.visit(from, m)
		}
		for _, q := range step.queues.list {
			each[q] = each[q].Least(reached[name])
		}
		for _, next := range step.further.list {
			had, known := reached[next]
			limit := had.Least(reached[name])
			if to := r.vh.exchanges.at(next); to != nil {
				limit = limit.Least(to.ttl)
			}
			if !known || limit != had {
				reached[next] = limit
				todo = append(todo, next)
			}
		}
	}
	return Ceilings{each: each}
}

// noEnds is the setting audit-max 0 as the log stores it.
const noEnds = 1

// Needs says what a queue must be told about a message besides what all queues
// are told.
type Needs struct {
	MessageID bool   // it finds duplicates by it
	Label     bool   // it remembers what publishers call messages, for its record of ends
	Unique    string // what makes the key of a message, see UniqueKey; empty: it asks for none
	// Times are headers in which messages say when they are due and when they expire; nil: it reads none.
	Times *HeaderTimes
	Tally string // the property by whose values it counts messages, header: and the name of a header; empty: by none
}

// HeaderTimes are names of headers that hold times; empty: none does.
type HeaderTimes struct {
	Due, Expiry string
	Delay       fsm.Millis // of a message that does not say when it is due
}

// HasWill reports whether what is left of a queue when it ends is dead-lettered, as its arguments and
// the policies in force have it.
func (vs *vhosts) HasWill(q *Queue) bool {
	e := vs.match(q).of(q)
	return e.value("dead-letter-on-delete").GetInt() != 0 && e.value("dead-letter-exchange") != nil
}

// Needs returns what a queue must be told about messages, as its arguments and
// the policies in force have it. A delayed exchange has no such settings.
func (vs *vhosts) Needs(q *Queue) Needs {
	if q.StoreOf != "" {
		return Needs{Label: true}
	}
	e := vs.match(q).of(q)
	n := Needs{MessageID: e.value("dedup-window").GetInt() != 0, Label: stored(e.value("audit-max")) != noEnds, Unique: e.unique()}
	if header := e.value("age-header").GetStr(); len(header) > 0 {
		n.Tally = byHeader + string(header)
	}
	due, expiry := e.value("delivery-time-header"), e.value("expiry-header")
	if due != nil || expiry != nil {
		n.Times = &HeaderTimes{string(due.GetStr()), string(expiry.GetStr()), fsm.Millis(e.value("delivery-delay").GetInt())}
	}
	return n
}
