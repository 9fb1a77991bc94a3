package queue

import (
	"math/bits"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
	"google.golang.org/protobuf/proto"
)

// defaultDisconnectedTimeout applies if the settings have none.
const defaultDisconnectedTimeout fsm.Millis = 60_000

// millis decodes a duration. One that is too long to be added to an instant
// becomes fsm.MaxTime.
func millis(stored uint64) fsm.Optional[fsm.Millis] {
	return addable(fsm.OptionalFrom[fsm.Millis](stored))
}

// addable is a duration that can be added to an instant.
func addable(d fsm.Optional[fsm.Millis]) fsm.Optional[fsm.Millis] {
	d.Value = min(d.Value, fsm.Millis(fsm.MaxTime))
	return d
}

func number(stored uint64) fsm.Optional[uint64] { return fsm.OptionalFrom[uint64](stored) }

func duration(d uint64) fsm.Millis { return fsm.Millis(min(d, uint64(fsm.MaxTime))) }

// settings are the queue's effective settings, in the form of the log and
// decoded. They are replaced as a whole and never changed, so that their values
// may be retained.
//
// A snapshot has the QueueConfig; the rest is decoded from it again. Decoded
// durations are in [0, fsm.MaxTime], so that adding one to an instant cannot
// overflow.
type settings struct {
	*logpb.QueueConfig

	// Not given means: no limit, and no TTL. A value of 0 is one.
	ttl             fsm.Optional[fsm.Millis] // of messages
	consumerTimeout fsm.Optional[fsm.Millis]
	disconnected    fsm.Millis // how long a suspected node's consumers keep what they hold
	lease           fsm.Millis // 0: the queue has none
	dedup           fsm.Millis // window against duplicates; 0: none
	idle            fsm.Millis // 0: it does not end for idleness
	maxMessages     fsm.Optional[uint64]
	maxBytes        fsm.Optional[uint64]
	maxLetters      fsm.Optional[uint64] // in the outbox
	maxPriority     uint8                // ≤ maxPriority, the constant
	backoff         backoff
	ends            int // how many ends are remembered, ≤ maxEnds
	leastLoaded     bool
}

// defaultSettings are those of every queue until the first Configure, which replaces them: nobody changes them.
var defaultSettings = newSettings(&logpb.QueueConfig{DeliveryLimit: defaultDeliveryLimit})

// newSettings decodes c and retains nothing of it. It validates nothing: values
// out of range are cut. What this version does not know is not kept, since a snapshot
// would have it.
func newSettings(c *logpb.QueueConfig) settings {
	known := proto.CloneOf(c)
	known.ProtoReflect().SetUnknown(nil)
	return settings{
		QueueConfig: known,
		ttl:         millis(c.TtlPlusOne), consumerTimeout: millis(c.ConsumerTimeoutPlusOne),
		disconnected: millis(c.DisconnectedTimeoutPlusOne).Or(defaultDisconnectedTimeout),
		dedup:        duration(c.DedupWindow),
		lease:        duration(c.Expires), idle: duration(c.AutoDeleteOnIdle),
		maxMessages: number(c.MaxLengthPlusOne), maxBytes: number(c.MaxLengthBytesPlusOne),
		maxLetters:  number(c.DeadLetterMaxPlusOne),
		maxPriority: uint8(min(number(uint64(c.MaxPriorityPlusOne)).Or(maxPriority), maxPriority)),
		backoff:     newBackoff(c),
		ends:        int(min(number(c.AuditMaxPlusOne).Or(defaultEnds), maxEnds)),
		leastLoaded: c.Dispatch == logpb.QueueConfig_LEAST_LOADED,
	}
}

// messageTTL is the TTL of a message with its own TTL and a ceiling, as the log stores them.
func (s *settings) messageTTL(own, ceiling uint64) fsm.Optional[fsm.Millis] {
	if own|ceiling == 0 {
		return s.ttl
	}
	return s.leastTTL(fsm.OptionalFrom[fsm.Millis](own), fsm.OptionalFrom[fsm.Millis](ceiling))
}

// leastTTL is messageTTL for decoded values. What is not given does not count.
func (s *settings) leastTTL(own, ceiling fsm.Optional[fsm.Millis]) fsm.Optional[fsm.Millis] {
	if own.Given && s.MessageTtlFirst {
		return addable(own.Least(ceiling))
	}
	return addable(s.ttl.Least(own).Least(ceiling))
}

// priority is the priority of a message with this one of its own, as the log stores it. A message
// without one has 0 in a classic queue.
func (s *settings) priority(stored uint32) uint8 {
	without := uint64(defaultPriority)
	if s.Classic {
		without = 0
	}
	return uint8(min(number(uint64(stored)).Or(without), uint64(s.maxPriority)))
}

// timeout is the consumer timeout for the next delivery to c. Not given: it
// never times out, as with no-ack.
func (s *settings) timeout(c *consumer) fsm.Optional[fsm.Millis] {
	switch {
	case c.noAck:
		return fsm.Optional[fsm.Millis]{}
	case c.ownTimeout.Given:
		return addable(c.ownTimeout)
	}
	return s.consumerTimeout
}

func (s *settings) forwards() bool { return s.Forward && !s.grouped() }

func (s *settings) grouped() bool { return s.Groups != logpb.QueueConfig_NO_GROUPS }

// groupLock is how long c holds a group before it must renew; 0: until it gives it
// up.
func (s *settings) groupLock(c *consumer) fsm.Millis { return fsm.Millis(s.lock(c).length) }

func (s *settings) limited() bool { return s.maxMessages.Given || s.maxBytes.Given }

func (s *settings) fits(c Count) bool {
	return s.maxMessages.Allows(c.Messages) && s.maxBytes.Allows(c.Bytes)
}

// dropsHead reports whether the queue has a length limit and keeps within it by
// dropping what would be handed out next.
func (s *settings) dropsHead() bool {
	return s.limited() && s.Overflow == logpb.QueueConfig_DROP_HEAD
}

const (
	// maxSteps bounds a table of waits. The slowest growth, by 1 % from 1 ms to
	// fsm.MaxTime, takes fewer.
	maxSteps = 5000

	// defaultMultiplier is in percent.
	defaultMultiplier = 200

	// maxJitter is in percent: a message waits for twice its time at most.
	maxJitter = 100
)

// backoff says for how long messages wait that were handed out in vain. It is
// decoded from the settings, and never changed.
type backoff struct {
	kind     logpb.QueueConfig_Retry
	shortest fsm.Millis // linear: what the wait grows by each time
	longest  fsm.Millis // linear: the longest wait
	// Waits of the first, second … attempt; the last one repeats. Empty: linear.
	steps    []fsm.Millis
	jitter   uint64 // percent, either way
	acquired bool   // attempts count, not failures
}

// newBackoff decodes c and retains nothing of it.
func newBackoff(c *logpb.QueueConfig) backoff {
	b := backoff{kind: c.Retry, shortest: duration(c.RetryMin), longest: duration(c.RetryMax), jitter: min(uint64(c.RetryJitter), maxJitter), acquired: c.RetryCountsAcquired}
	switch c.RetryStrategy {
	case logpb.QueueConfig_EXPONENTIAL:
		b.steps = exponential(b.shortest, b.longest, uint64(c.RetryMultiplier))
	case logpb.QueueConfig_STEPS:
		b.steps = append(b.steps, 0) // without steps nothing waits
		for i, d := range c.RetrySteps[:min(len(c.RetrySteps), maxSteps)] {
			b.steps = append(b.steps[:i], duration(d))
		}
	}
	if b.longest == 0 {
		b.longest = b.shortest
	}
	return b
}

// exponential returns waits that grow from the shortest to the longest, 0 for none, by percent. Each is
// rounded down to a microsecond before the next is computed, and to a millisecond when it is used.
func exponential(shortest, longest fsm.Millis, percent uint64) []fsm.Millis {
	const scale = 1000
	if percent == 0 {
		percent = defaultMultiplier
	}
	limit := uint64(fsm.MaxTime)
	if longest != 0 {
		limit = min(uint64(longest), limit/scale) * scale
	}
	wait := min(uint64(shortest), limit/scale) * scale
	steps := []fsm.Millis{fsm.Millis(wait / scale)}
	for len(steps) < maxSteps && wait < limit && percent > 100 && wait > 0 {
		next := limit
		if high, low := bits.Mul64(wait, percent); high < 100 {
			next, _ = bits.Div64(high, low, 100)
		}
		wait = min(next, limit)
		steps = append(steps, fsm.Millis(wait/scale))
	}
	return steps
}

// after is how long message x waits after a delivery that has ended; 0: it does
// not. x counts that delivery, and failed says whether it was a failure.
//
// The linear wait is min(shortest × n, longest) for the n-th attempt, with n ≥ 1. The
// product is not computed before it is known not to overflow. Jitter may exceed
// the longest wait.
func (b *backoff) after(x *message, failed bool, of fsm.QueueID) fsm.Millis {
	if b.kind != logpb.QueueConfig_ALL && (b.kind != logpb.QueueConfig_FAILED || !failed) && (b.kind != logpb.QueueConfig_RETURNED || failed) {
		return 0
	}
	n := max(x.failed, 1)
	if b.acquired {
		n = x.acquired
	}
	wait := b.longest
	switch {
	case len(b.steps) > 0:
		wait = b.steps[min(int(n), len(b.steps))-1]
	case b.shortest <= b.longest/fsm.Millis(n):
		wait = b.shortest * fsm.Millis(n)
	}
	if wait == 0 || b.jitter == 0 {
		return wait
	}
	return jitter(wait, b.jitter, mix(mix(mix(uint64(of))^x.seq)^uint64(x.acquired)))
}

// jitter spreads a wait evenly over percent of it either way, as chance says.
// The result is at least 1.
func jitter(wait fsm.Millis, percent, chance uint64) fsm.Millis {
	w := uint64(wait)
	span := w/100*percent + w%100*percent/100
	return fsm.Millis(max(min(w-span+chance%(2*span+1), uint64(fsm.MaxTime)), 1))
}

// mix is a bijection that scatters its argument: the step of SplitMix64.
func mix(z uint64) uint64 {
	z += 0x9e3779b97f4a7c15
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}
