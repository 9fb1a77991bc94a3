package queue

import (
	"math/bits"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

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

// exponential returns waits that begin with the shortest and grow to percent of the
// one before each time, until the longest; 0: there is no longest one. Each is rounded
// down to a microsecond before the next one is computed, and to a millisecond
// when it is used.
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
