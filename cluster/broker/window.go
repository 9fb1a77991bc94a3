package broker

import (
	"sync/atomic"

	"github.com/quorate/quorate/cluster/group"
)

// maxUnwritten bounds the weight of what a channel has been given and has not
// written. What comes above it stays with the queue's leader, and is asked for
// as soon as there is room for an answer.
const maxUnwritten = 4 << 20

// window is what a channel has been given of consumers' messages and has not
// written.
//
// Invariant: unwritten ≥ 0, and what is accepted begins below maxUnwritten.
type window struct {
	unwritten atomic.Int64 // weight of the messages
	hungry    atomic.Bool  // somebody is behind and waits for unwritten to fall
}

// accept counts a message, if there is room for it.
func (w *window) accept(bytes int) bool {
	if w.unwritten.Load() >= maxUnwritten {
		return false
	}
	w.unwritten.Add(int64(bytes + group.DeliveryWeight))
	return true
}

// fits reports whether there is room for so many answers of a frame each. If not,
// written will report that somebody is hungry.
func (w *window) fits(answers int) bool {
	limit := int64(maxUnwritten - answers*maxFrameBytes)
	if w.unwritten.Load() <= limit {
		return true
	}
	w.hungry.Store(true)
	return w.unwritten.Load() <= limit // it may have fallen before hungry was set
}

// written takes messages out, and reports whether somebody hungry has room again.
func (w *window) written(count, bytes int) bool {
	left := w.unwritten.Add(-int64(bytes + count*group.DeliveryWeight))
	return left <= maxUnwritten-maxFrameBytes && w.hungry.Swap(false)
}
