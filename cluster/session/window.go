package session

import (
	"sync/atomic"

	"github.com/quorate/quorate/cluster/group"
)

// maxUnwritten bounds the weight of what a channel has been given and has not written. What exceeds
// it stays with the queue's leader, and is asked for as soon as there is space for an answer.
const maxUnwritten = 4 << 20

// window tracks the consumers' messages that a channel has been given and has not written.
//
// Invariant: unwritten ≥ 0, and a message is accepted only while unwritten < maxUnwritten.
type window struct {
	unwritten atomic.Int64 // weight of the messages
	hungry    atomic.Bool  // a consumer is behind and waits for unwritten to fall
}

// accept counts a message if there is space for it.
func (w *window) accept(bytes int) bool {
	if w.unwritten.Load() >= maxUnwritten {
		return false
	}
	w.unwritten.Add(int64(bytes + group.DeliveryWeight))
	return true
}

// fits reports whether there is space for a number of answers of one frame each. If not, written
// will report that a consumer is waiting.
func (w *window) fits(answers int) bool {
	limit := int64(maxUnwritten - answers*maxFrameBytes)
	if w.unwritten.Load() <= limit {
		return true
	}
	w.hungry.Store(true)
	return w.unwritten.Load() <= limit // it may have fallen before hungry was set
}

// written subtracts messages, and reports whether a waiting consumer has space again.
func (w *window) written(count, bytes int) bool {
	left := w.unwritten.Add(-int64(bytes + count*group.DeliveryWeight))
	return left <= maxUnwritten-maxFrameBytes && w.hungry.Swap(false)
}
