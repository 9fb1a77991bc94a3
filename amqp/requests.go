package amqp

import (
	"context"
	"unsafe"

	"github.com/quorate/quorate/amqp/wire"
)

// request is one task of a channel; tasks run in the order of their arrival.
// The fields after kind belong to one kind each.
type request struct {
	kind    requestKind
	method  wire.Method
	message message
	settle  settlement
	task    func(context.Context) error
	size    int // of the method, decoded
}

// weight is the memory of a request while it waits, in bytes.
func (r *request) weight() int64 {
	return int64(unsafe.Sizeof(*r)) + int64(cap(r.message.publish.Payload)+r.size)
}

type requestKind uint8

const (
	requestMethod requestKind = iota
	requestPublish
	requestSettle
	requestTask  // of the server itself
	requestClose // by the client
	requestEnd   // by the server: channel.close has been pushed
)

// id is the id of the method behind a request; 0: none.
func (r *request) id() uint32 {
	switch r.kind {
	case requestMethod:
		return wire.ID(r.method)
	case requestPublish:
		return wire.IDBasicPublish
	case requestSettle:
		return r.settle.method
	}
	return 0
}

// blocks reports whether a request has to wait for the broker.
func (r *request) blocks() bool {
	switch r.kind {
	case requestMethod:
		return methodBlocks(r.method)
	case requestPublish:
		return r.message.isReply()
	case requestSettle:
		return false
	}
	return true
}

// requestQueue holds the requests of a channel that wait for the blocking call
// in progress. It refuses nothing: the reader checks whether it is full, and
// waits at space. The channel's gate guards it.
//
// Invariants: bytes is the sum of the weights in list, and counts in memory; waiting
// only if the queue was full at the last wait, and space has not been signalled
// since.
type requestQueue struct {
	memory  *account // of the channel
	list    []request
	bytes   int64
	waiting bool          // the reader waits at space
	alarmed bool          // there was an alarm when it was checked last
	space   chan struct{} // capacity 1
}

func newRequestQueue(memory *account) requestQueue {
	return requestQueue{memory: memory, space: make(chan struct{}, 1)}
}

// push appends a request, unless what it holds exceeds the bound of an account, which is returned.
func (q *requestQueue) push(r *request) (over *account) {
	w := r.weight()
	if over = q.memory.take(w); over == nil {
		q.list = append(q.list, *r)
		q.bytes += w
	}
	return over
}

// pop removes the oldest request.
func (q *requestQueue) pop() (r request, ok bool) {
	if len(q.list) == 0 {
		return request{}, false
	}
	r = q.list[0]
	q.list[0] = request{}
	q.list = q.list[1:]
	q.count(-r.weight())
	q.wake()
	return r, true
}

func (q *requestQueue) count(n int64) {
	q.bytes += n
	q.memory.add(n)
}

// clear drops all requests and their memory.
func (q *requestQueue) clear() {
	q.list = nil
	q.count(-q.bytes)
	q.wake()
}

func (q *requestQueue) full() bool {
	return len(q.list) >= maxQueued || q.bytes >= maxQueuedBytes || q.alarmed && q.bytes >= alarmedBytes
}

// has reports whether there is a request of this kind.
func (q *requestQueue) has(kind requestKind) bool {
	for i := range q.list {
		if q.list[i].kind == kind {
			return true
		}
	}
	return false
}

// wait reports whether the reader must wait at space, and check again.
func (q *requestQueue) wait(alarmed bool) bool {
	q.alarmed = alarmed
	q.waiting = q.full()
	return q.waiting
}

// wake wakes the reader if the queue is no longer full.
func (q *requestQueue) wake() {
	if q.waiting && !q.full() {
		q.waiting = false
		select {
		case q.space <- struct{}{}:
		default: // it is awake already
		}
	}
}
