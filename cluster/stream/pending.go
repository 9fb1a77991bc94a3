package stream

import (
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// Pending is one command that waits for its answer.
type Pending struct {
	// Payload of a message that the command brings; nil: it brings none.
	Payload []byte
	// Call is who waits for the answer; nil: nobody.
	Call *Call
	// The owner's own: they come back with the answer.
	Number    uint64
	Mandatory bool
	Note      any

	seq     uint64
	encoded []byte // nil: a settlement that is encoded when it is sent
	settle  settlement
}

// Command decodes the command again.
func (p *Pending) Command() (*logpb.Command, error) {
	var e logpb.Entry
	if err := e.UnmarshalVT(p.encoded); err != nil {
		return nil, err
	}
	return e.Commands[0], nil
}

// pendingList is a queue of commands, ascending by number.
//
// Invariant: 0 ≤ head ≤ len(list); what is before head has been answered.
type pendingList struct {
	list []Pending
	head int
}

func (l *pendingList) len() int { return len(l.list) - l.head }

// at returns the i-th command of those that wait.
func (l *pendingList) at(i int) *Pending { return &l.list[l.head+i] }

func (l *pendingList) push(p Pending) {
	if l.head == len(l.list) {
		l.list, l.head = l.list[:0], 0
	}
	l.list = append(l.list, p)
}

// pop leaves the first command out. It can still be read until compact.
func (l *pendingList) pop() { l.head++ }

// compact drops answered commands from the front of the list.
func (l *pendingList) compact() {
	if l.head > 64 && l.head*2 > len(l.list) {
		n := copy(l.list, l.list[l.head:])
		clear(l.list[n:])
		l.list, l.head = l.list[:n], 0
	}
}

// settlement is of deliveries to one consumer.
type settlement struct {
	consumer uint64
	outcome  fsm.Outcome
	ranges   []uint64 // alternating: first, length
}

// joins reports whether a settlement that begins with a delivery may be added.
func (x *settlement) joins(consumer, first uint64, outcome fsm.Outcome) bool {
	return x.consumer == consumer && x.outcome == outcome && lastOf(x.ranges) < first
}

// lastOf returns the last id in alternating (first, length) pairs.
func lastOf(r []uint64) uint64 { return r[len(r)-2] + r[len(r)-1] - 1 }

func appendRanges(r, ids []uint64) []uint64 {
	for _, id := range ids {
		if n := len(r); n > 0 && r[n-2]+r[n-1] == id {
			r[n-1]++
		} else {
			r = append(r, id, 1)
		}
	}
	return r
}

// Call is a command somebody waits for.
type Call struct {
	Kind    logpb.Command_Kind
	Cancels uint64 // consumer that is over with the answer; 0: none

	// Valid once Done is closed.
	Result fsm.Result
	Got    *fsm.Message // by a get; nil: none
	// Refused is what the client is told of the result; nil: success. It belongs to
	// who waits.
	Refused error

	get   bool
	tries int // how often a get whose message got lost may be repeated
	done  chan struct{}
}

// getTries bounds the repetitions of a get whose message got lost.
const getTries = 5

func newCall(c *logpb.Command) *Call {
	k := &Call{
		Kind: c.Kind, done: make(chan struct{}), get: c.Kind == logpb.Command_GET, Cancels: c.GetCancel().GetConsumer(),
	}
	if k.get && !c.GetGet().GetNoAck() {
		k.tries = getTries // without an acknowledgement the message is gone
	}
	return k
}

// Done is closed with the answer.
func (k *Call) Done() <-chan struct{} { return k.done }

// Finish gives whoever waits the answer. It is called once: by the owner, after
// what the stream has told it before.
func (k *Call) Finish(r fsm.Result) {
	k.Result = r
	close(k.done)
}

// again reports whether a get has to be repeated, and counts that: it was
// answered, and its message was lost on its way.
func (k *Call) again(r fsm.Result) bool {
	if k == nil || !k.get || r.Code != fsm.OK || k.Got != nil || k.tries == 0 {
		return false
	}
	k.tries--
	return true
}
