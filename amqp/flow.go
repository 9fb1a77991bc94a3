package amqp

import "sync/atomic"

// flow bounds what a connection has handed to the broker and not been told
// the outcome of. The reader adds and waits; anybody releases.
type flow struct {
	maxCount, maxBytes int64
	count, bytes       atomic.Int64
	waiting            atomic.Bool
	wake               chan struct{} // capacity 1
}

func newFlow(maxCount, maxBytes int64) *flow {
	return &flow{maxCount: maxCount, maxBytes: maxBytes, wake: make(chan struct{}, 1)}
}

func (f *flow) add(count, bytes int64) {
	f.count.Add(count)
	f.bytes.Add(bytes)
}

func (f *flow) release(count, bytes int64) {
	if count == 0 && bytes == 0 {
		return
	}
	f.count.Add(-count)
	f.bytes.Add(-bytes)
	if f.waiting.Load() && f.low() {
		select {
		case f.wake <- struct{}{}:
		default:
		}
	}
}

// full reports whether the reader has to stop.
func (f *flow) full() bool {
	return f.count.Load() >= f.maxCount || f.bytes.Load() >= f.maxBytes
}

// low reports whether a stopped reader may go on: a quarter below the bound,
// so that it does not stop again at the next message.
func (f *flow) low() bool {
	return f.count.Load() <= f.maxCount/4*3 && f.bytes.Load() <= f.maxBytes/4*3
}

// wait blocks while f is full. It returns false if done was closed meanwhile.
func (f *flow) wait(done <-chan struct{}) bool {
	if !f.full() {
		return true
	}
	f.waiting.Store(true)
	defer f.waiting.Store(false)
	for !f.low() {
		select {
		case <-f.wake:
		case <-done:
			return false
		}
	}
	return true
}
