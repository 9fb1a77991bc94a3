package broker

import (
	"sync"

	"github.com/quorate/quorate/cluster/group"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// Bounds of one submission.
const (
	maxBatchBytes    = 256 << 10
	maxBatchCommands = 256
	chunkBytes       = 4 << 10
)

// owner is whose commands a lane carries: a client's session, or a queue that
// forwards dead letters. The owner's lock guards its lanes.
type owner interface {
	lock() *sync.Mutex
	// finished is called with the lock held, once for each command, in order.
	finished(l *lane, o *op, r fsm.Result)
	// release unlocks and passes on what the calls above have gathered.
	release()
	// deliver takes messages for a consumer; the lock is not held.
	deliver(l *lane, d delivered)
	// told takes a notice about a consumer; the lock is not held.
	told(l *lane, n told)
	// lost ends the owner: the queue does not know it any more. The lock is held.
	lost(l *lane)
	// failed ends the owner: the lane may be half changed. The lock is held.
	failed(l *lane)
}

// lane is the stream of one session's commands to one queue. Commands stay in
// pending until they are answered; after a change of leader, or a broken
// link, all of them are sent again: the machine drops what it has had.
type lane struct {
	owner  owner
	id     fsm.SessionID
	proto  *logpb.Session
	target *target
	index  uint64 // among the lanes of its session, from 1

	// Guarded by the owner's lock.
	next      uint64 // sequence number of the next command
	pending   []op   // unanswered, ascending; from head
	head      int
	sent      uint64 // commands up to here have been submitted
	heavy     uint64 // the last command that was submitted in a batch that is not light
	dirty     bool   // on the target's list
	gone      bool   // the queue is gone
	lost      bool   // the queue has ended the session
	ending    bool   // SESSION_DOWN is among its commands
	chunk     []byte
	consumers map[uint64]*consumer
	unseen    []settle // to be queued once the answers at hand are taken
	strays    []stray  // publishes that came too late for the queue; see finished
	gapAt     uint64   // last gap that was answered by sending again
	progress  int64    // when something was last answered, ms
	stalls    int      // how often all was sent again without an answer

	enqueue logpb.Enqueue // reused
	command logpb.Command
}

// op is one command that waits for its answer.
type op struct {
	seq     uint64
	encoded []byte // nil: a settle that is encoded when it is sent
	payload []byte
	number  uint64 // of a publish
	fan     *fanout
	waits   *waits // of a publish; nil: it asks for no waiting
	// mandatory: the client of this publish wants to hear if it goes nowhere.
	mandatory bool
	call      *call
	asked     *asked
	settle    settle
}

type settle struct {
	consumer uint64
	outcome  fsm.Outcome
	ranges   []uint64
}

// fanout is shared by the copies of a publish that went to several queues.
type fanout struct {
	left   int           // copies without an answer
	fate   fate          // of those that have one, the gravest
	queues []fsm.QueueID // that were sent a copy; other publishes may share the slice
	chance uint64        // that routed it
}

// waits is what a publish asks for about its time.
type waits struct {
	schedule *fsm.Schedule
	delay    *fsm.Delay
}

// call is a command somebody waits for.
type call struct {
	kind    logpb.Command_Kind
	done    chan struct{}
	result  fsm.Result
	refused error  // what the client is told of the result, see await; nil: success
	cancel  uint64 // consumer that is over with the answer
	get     bool
	tries   int // how often a get whose message got lost may be repeated
	got     *fsm.Message
}

// getTries bounds the repetitions of a get whose message got lost.
const getTries = 5

func newCall(c *logpb.Command) *call {
	k := &call{
		kind: c.Kind, done: make(chan struct{}), get: c.Kind == logpb.Command_GET, cancel: c.GetCancel().GetConsumer(),
	}
	if k.get && !c.GetGet().GetNoAck() {
		k.tries = getTries // without an acknowledgement the message is gone
	}
	return k
}

// answered takes the answer. Nobody has waited yet.
func (k *call) answered(r fsm.Result) {
	k.result = r
	close(k.done)
}

func newLane(o owner, id fsm.SessionID, t *target) *lane {
	return &lane{
		owner: o, id: id, proto: id.Proto(), target: t, next: 1,
		consumers: map[uint64]*consumer{}, progress: t.broker.now(),
	}
}

func (l *lane) waiting() int { return len(l.pending) - l.head }

// add queues a command. The lock is held.
func (l *lane) add(c *logpb.Command, o op) *op {
	c.Session, c.Seq = l.proto, l.next
	if l.next == 1 {
		c.OpenedAt = int64(l.target.broker.config.Stamp())
	}
	l.ending = l.ending || c.Kind == logpb.Command_SESSION_DOWN
	o.seq = l.next
	o.encoded = l.encode(c)
	return l.push(o)
}

func (l *lane) push(o op) *op {
	l.next++
	if l.head == len(l.pending) {
		l.pending, l.head = l.pending[:0], 0
		l.progress = l.target.broker.now()
	}
	l.pending = append(l.pending, o)
	l.wake()
	return &l.pending[len(l.pending)-1]
}

// encode appends the command to the lane's chunk and returns its bytes.
func (l *lane) encode(c *logpb.Command) []byte {
	if cap(l.chunk)-len(l.chunk) < 128 {
		l.chunk = make([]byte, 0, chunkBytes)
	}
	at := len(l.chunk)
	out := group.AppendCommand(l.chunk, c)
	if cap(out) == cap(l.chunk) {
		l.chunk = out
	}
	return out[at:len(out):len(out)]
}

// addPublish queues an enqueue. ceiling is the longest TTL that the exchanges on
// the way allow + 1; 0: any. store: the queue is that of a delayed exchange. The
// lock is held.
func (l *lane) addPublish(p *fsm.Publish, fan *fanout, ceiling uint64, store bool) {
	l.enqueue = logpb.Enqueue{
		Size: uint32(len(p.Payload)), Head: uint32(fsm.Payload(p.Payload).HeadSize()), TtlPlusOne: uint64(p.TTL + 1),
		PriorityPlusOne: uint32(p.Priority + 1), HasExpiration: p.HasExpiration,
		Routed: p.Exchange != "", TtlCeilingPlusOne: ceiling,
	}
	if store {
		l.enqueue.DelayPlusOne = uint64(p.Delay.For) + 1
		l.enqueue.ScheduleId, l.enqueue.Conflict = p.Delay.ID, p.Delay.Conflict
	} else if s := p.Schedule; s != nil {
		l.enqueue.DueAt, l.enqueue.DelayPlusOne = int64(s.At), uint64(s.Delay+1)
		l.enqueue.ScheduleId, l.enqueue.Conflict = s.ID, s.Conflict
	}
	l.command = logpb.Command{Kind: logpb.Command_ENQUEUE, Enqueue: &l.enqueue}
	o := op{payload: p.Payload, number: p.Number, fan: fan, mandatory: p.Mandatory}
	if p.Schedule != nil || p.Delay != nil {
		o.waits = &waits{p.Schedule, p.Delay}
	}
	l.add(&l.command, o)
}

// addSettle queues a settlement, or joins it to the last one that has not
// been sent. ids are ascending. The lock is held.
func (l *lane) addSettle(consumer uint64, ids []uint64, outcome fsm.Outcome) {
	if len(ids) == 0 || l.over() {
		return
	}
	if n := len(l.pending); n > l.head {
		if o := &l.pending[n-1]; o.seq > l.sent && o.encoded == nil && o.settle.consumer == consumer && o.settle.outcome == outcome && lastOf(o.settle.ranges) < ids[0] {
			o.settle.ranges = appendRanges(o.settle.ranges, ids)
			return
		}
	}
	l.push(op{seq: l.next, settle: settle{consumer, outcome, appendRanges(nil, ids)}})
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

// addCall queues a command somebody waits for. The lock is held.
func (l *lane) addCall(c *logpb.Command) *call {
	k := newCall(c)
	switch {
	case l.gone:
		k.answered(fsm.Result{Code: fsm.Gone})
	case l.lost:
		k.answered(fsm.Result{Code: fsm.NoSession})
	default:
		l.add(c, op{call: k})
	}
	return k
}

// over reports whether the stream has ended. The lock is held.
func (l *lane) over() bool { return l.gone || l.lost }

// wake puts the lane on its target's list. The lock is held.
func (l *lane) wake() {
	if !l.dirty {
		l.dirty = true
		l.target.wake(l)
	}
}

// resend makes everything unanswered go out again. The lock is held.
func (l *lane) resend() {
	if l.waiting() > 0 {
		l.sent = l.pending[l.head].seq - 1
		l.wake()
	}
}

// load is what a target submits at a time. What is light may overtake what is
// heavy, also what was submitted earlier.
type load struct{ light, heavy group.Batch }

func newLoad() load { return load{light: group.Batch{Light: true}} }

// submit hands over what there is until it is refused.
func (b *load) submit(to func(group.Batch) bool) bool {
	return (b.light.Count == 0 || to(b.light)) && (b.heavy.Count == 0 || to(b.heavy))
}

// collect moves what has not been sent into batches and reports whether one of
// them is full. Commands are light up to the lane's first payload: as long as
// one that is not is unanswered, what follows must stay behind it. The lock is
// held.
func (l *lane) collect(to *load) (full bool) {
	first := l.head
	if n := l.waiting(); n > 0 && l.sent >= l.pending[l.head].seq {
		first = l.head + min(n, int(l.sent-l.pending[l.head].seq)+1)
	}
	for i := first; i < len(l.pending); i++ {
		o := &l.pending[i]
		b := &to.light
		if o.payload != nil || l.heavy >= l.pending[l.head].seq {
			b = &to.heavy
		}
		if b.Count > 0 && (b.Bytes+len(o.payload) > maxBatchBytes || b.Count >= maxBatchCommands) {
			return true
		}
		if o.encoded == nil {
			o.encoded = l.encodeSettle(o)
		}
		b.Commands = append(b.Commands, o.encoded...)
		b.Count++
		if o.payload != nil {
			b.Payloads = append(b.Payloads, o.payload)
			b.Bytes += len(o.payload)
		}
		l.sent = o.seq
		if b == &to.heavy {
			l.heavy = o.seq
		}
	}
	l.dirty = false
	return false
}

func (l *lane) encodeSettle(o *op) []byte {
	return l.encode(&logpb.Command{
		Kind: logpb.Command_SETTLE, Session: l.proto, Seq: o.seq,
		Settle: &logpb.Settle{Outcome: o.settle.outcome, Consumer: o.settle.consumer, Ranges: o.settle.ranges},
	})
}

// answered takes the outcome of commands. The lock is held.
func (l *lane) answered(first, run uint64, r fsm.Result) {
	if l.waiting() == 0 || first+run <= l.pending[l.head].seq {
		return // an answer to something that was sent twice
	}
	switch {
	case r.Code == fsm.Gap:
		l.gap(r.Next)
		return
	case r.Code == fsm.NoSession && l.pending[l.head].seq == 1 && first > 1:
		// The command that begins the stream was lost, later ones were not.
		l.gap(1)
		return
	case r.Code == fsm.Late:
		l.reopen(fsm.Time(r.Next))
		return
	case r.Code == fsm.NoSession:
		l.owner.lost(l)
		return
	case first > l.pending[l.head].seq:
		// Answers in between have been lost; ask for them again.
		l.gap(l.pending[l.head].seq)
		return
	}
	for l.waiting() > 0 && l.pending[l.head].seq < first+run {
		o := &l.pending[l.head]
		if k := o.call; k != nil && k.get && r.Code == fsm.OK && k.got == nil && k.tries > 0 {
			// The message was lost on its way; a repeated get brings it again.
			k.tries--
			l.sent = o.seq - 1
			l.wake()
			return
		}
		l.head++
		l.owner.finished(l, o, r)
		*o = op{}
	}
	l.progress, l.stalls = l.target.broker.now(), 0
	for _, u := range l.unseen {
		l.push(op{seq: l.next, settle: u})
	}
	l.unseen = nil
	l.compact()
}

// reopen begins a stream whose first command has waited for too long, with the
// queue's own time. The queue has never begun it, unless the stream has come to
// its end and the queue has forgotten that.
func (l *lane) reopen(at fsm.Time) {
	first := &l.pending[l.head]
	if first.seq != 1 {
		return // an answer to a former try
	}
	if l.ending {
		l.owner.lost(l)
		return
	}
	var e logpb.Entry
	if err := e.UnmarshalVT(first.encoded); err != nil {
		panic(err) // it was encoded here
	}
	c := e.Commands[0]
	c.OpenedAt = int64(at)
	first.encoded = l.encode(c)
	l.progress = l.target.broker.now()
	l.resend()
}

// compact drops answered commands from the front of the list.
func (l *lane) compact() {
	if l.head > 64 && l.head*2 > len(l.pending) {
		n := copy(l.pending, l.pending[l.head:])
		clear(l.pending[n:])
		l.pending, l.head = l.pending[:n], 0
	}
}

// gapPause is how long repeated complaints about the same gap are ignored.
const gapPause = 50 // milliseconds

// gap sends again from next on, which is where the machine's stream ends.
func (l *lane) gap(next uint64) {
	now := l.target.broker.now()
	if l.gapAt == next && now-l.progress < gapPause {
		return
	}
	l.gapAt, l.progress = next, now
	l.resend()
}

// maxStalls bounds how long a stream waits before it sends all again.
const maxStalls = 4

// stallRate is how many bytes a millisecond the slowest queue is thought to
// take: so much longer a lane waits for an answer that holds so much.
const stallRate = 2 << 10

// stuck sends again if nothing was answered for a while: for limit and what
// the payloads take at first, then for twice as long each time. A queue that is
// merely slow must not get its work over and over. The lock is held.
func (l *lane) stuck(now, limit int64) {
	if l.waiting() == 0 || now-l.progress <= limit<<l.stalls {
		return
	}
	bytes := int64(0)
	for i := l.head; i < len(l.pending); i++ {
		bytes += int64(len(l.pending[i].payload))
	}
	if now-l.progress > (limit+bytes/stallRate)<<l.stalls {
		l.stalls = min(l.stalls+1, maxStalls)
		l.progress = now
		l.resend()
	}
}

// abandon drops what waits, because the queue has ended the session: whether it
// was applied is not known. Only calls are told. The lock is held.
func (l *lane) abandon() {
	l.lost = true
	for ; l.waiting() > 0; l.head++ {
		if o := &l.pending[l.head]; o.call != nil {
			l.owner.finished(l, o, fsm.Result{Code: fsm.NoSession})
		}
	}
	l.pending, l.head = nil, 0
}

// end answers everything that waits: the queue is gone. The lock is held.
func (l *lane) end() {
	l.gone = true
	for l.waiting() > 0 {
		o := &l.pending[l.head]
		l.head++
		l.owner.finished(l, o, fsm.Result{Code: fsm.Gone})
		*o = op{}
	}
	l.pending, l.head = nil, 0
}
