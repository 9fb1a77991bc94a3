package v10

import (
	"sort"
	"sync"

	"github.com/quorate/quorate/amqp/v10/wire"
)

// outcomes knows the unfinished publishes of a session, which are numbered from 1: what they count in the
// connection's flow control while the broker has them, and the outcomes of which the client has not been told.
//
// Invariants: numbers in list[head:] ascend; a number that is not there is finished or not used yet; list[head] is not
// finished. Memory is at most about twice that of the unfinished publishes, however long the oldest one waits.
type outcomes struct {
	channel uint16 // its number; fixed
	mu      sync.Mutex
	list    []publishing
	head    int
	live    int // entries of list that are not finished
	last    uint64
	fresh   []span // resolved since AppendFrames was called
	queued  bool   // in the outbox's list of what has frames to make
	run     wire.Disposition
	// expect counts the memory of outcomes that wait for the writer, as Outbox.Expect does; nil: nobody does.
	expect func(n int64)
	// release counts publishes of links that have got an outcome; nil: nobody does. What close does not count is released by then.
	release func(count, bytes int64)
}

// publishing is one publish that is not finished, or not dropped yet.
type publishing struct {
	number  uint64
	id      uint32 // delivery-id
	size    uint32
	settled bool // the client is not told
	late    bool // it has been told, before there was an outcome
	state   wire.Outcome
	done    bool
	err     *wire.Error // of a rejection
	link    *incomingLink
}

// outcomeBytes is about what an outcome costs besides its text while it waits for the writer.
const outcomeBytes = 128

// waits is what an outcome costs that waits for the writer.
func (p *publishing) waits() int64 {
	if p.err == nil {
		return outcomeBytes
	}
	return outcomeBytes + int64(len(p.err.Description)+len(p.err.Info))
}

// counts has memory of outcomes counted.
func (o *outcomes) counts(n int64) {
	if o.expect != nil && n != 0 {
		o.expect(n)
	}
}

// span is a range of publish numbers, both ends included.
type span struct{ first, last uint64 }

// add adds a publish and returns its number.
func (o *outcomes) add(link *incomingLink, id, size uint32, settled bool) uint64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.list) == cap(o.list) && o.live <= len(o.list)/2 {
		o.compact()
	}
	o.last++
	o.live++
	o.list = append(o.list, publishing{number: o.last, id: id, size: size, settled: settled, link: link})
	return o.last
}

// compact drops finished publishes.
func (o *outcomes) compact() {
	kept := o.list[:0]
	for _, p := range o.list[o.head:] {
		if !p.done {
			kept = append(kept, p)
		}
	}
	clear(o.list[len(kept):])
	o.list, o.head = kept, 0
}

// at returns the position of the first publish with a number ≥ number.
func (o *outcomes) at(number uint64) int {
	tail := o.list[o.head:]
	if len(tail) == 0 || number <= tail[0].number {
		return o.head
	}
	if d := number - tail[0].number; d < uint64(len(tail)) && tail[d].number == number {
		return o.head + int(d)
	}
	return o.head + sort.Search(len(tail), func(i int) bool { return tail[i].number >= number })
}

// resolve records the outcome of a range of publishes; those that already have one keep it. each is called for
// those that now have it. queue: AppendFrames is to be called.
func (o *outcomes) resolve(first, last uint64, state wire.Outcome, err *wire.Error, each func(*publishing)) (queue bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	tell, waits, count, bytes := false, int64(0), int64(0), int64(0)
	for i := o.at(first); i < len(o.list) && o.list[i].number <= last; i++ {
		p := &o.list[i]
		if p.state != wire.NoState {
			continue
		}
		p.state, p.err = state, err
		if each(p); p.link != nil {
			count, bytes = count+1, bytes+int64(p.size)
		}
		if p.settled || p.late {
			o.finish(p)
		} else {
			tell, waits = true, waits+p.waits()
		}
	}
	if o.release != nil {
		o.release(count, bytes)
	}
	o.trim()
	if !tell {
		return false
	}
	o.counts(waits)
	if n := len(o.fresh); n > 0 && o.fresh[n-1].last+1 == first {
		o.fresh[n-1].last = last
	} else {
		o.fresh = append(o.fresh, span{first, last})
	}
	queue, o.queued = !o.queued, true
	return queue
}

// overdue returns the delivery-ids of publishes up to a number that have no outcome yet, but for those that are certain to get one.
// The client is to be told of them by the caller: it hears nothing of their outcomes, until which they are counted.
func (o *outcomes) overdue(last uint64, certain func(number uint64) bool) (ids []uint32) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for i := o.head; i < len(o.list) && o.list[i].number <= last; i++ {
		if p := &o.list[i]; p.state == wire.NoState && !p.settled && !p.late && !certain(p.number) {
			p.late = true
			ids = append(ids, p.id)
		}
	}
	return ids
}

// waiting returns the number of the newest publish, and whether any has no outcome.
func (o *outcomes) waiting() (last uint64, some bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.last, o.live > 0
}

func (o *outcomes) finish(p *publishing) {
	p.done, p.link, p.err = true, nil, nil
	o.live--
}

// trim moves head to the first publish that is not finished.
func (o *outcomes) trim() {
	if o.live == 0 {
		o.list, o.head = o.list[:0], 0
		return
	}
	for o.list[o.head].done {
		o.head++
	}
}

// AppendFrames appends a disposition for each run of delivery-ids with the same outcome.
func (o *outcomes) AppendFrames(dst []byte) []byte {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.queued = false
	open, told := false, int64(0)
	for _, s := range o.fresh {
		for i := o.at(s.first); i < len(o.list) && o.list[i].number <= s.last; i++ {
			p := &o.list[i]
			if p.done || p.state == wire.NoState {
				continue
			}
			if open && o.extends(p) {
				o.run.Last.Value++
			} else {
				if open {
					dst = wire.AppendDisposition(dst, o.channel, &o.run)
				}
				open = true
				o.run = wire.Disposition{Role: true, First: p.id, Last: wire.Some(p.id), Settled: true, State: wire.State{Kind: p.state, Rejected: wire.Rejected{Error: p.err}}}
			}
			told += p.waits()
			o.finish(p)
		}
	}
	o.counts(-told)
	if open {
		dst = wire.AppendDisposition(dst, o.channel, &o.run)
	}
	o.fresh, o.run = o.fresh[:0], wire.Disposition{}
	o.trim()
	return dst
}

// extends reports whether an outcome is a part of the present run.
func (o *outcomes) extends(p *publishing) bool {
	return p.id == o.run.Last.Value+1 && p.state == o.run.State.Kind && p.err == o.run.State.Rejected.Error
}

// close ends everything and returns what was still waiting. resolve and AppendFrames have no effect afterwards.
func (o *outcomes) close() (count, bytes int64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	told := int64(0)
	for i := range o.list[o.head:] {
		switch p := &o.list[o.head+i]; {
		case p.done:
		case p.state == wire.NoState:
			count++
			bytes += int64(p.size)
		default:
			told += p.waits()
		}
	}
	o.counts(-told)
	o.list, o.head, o.live, o.fresh = nil, 0, 0, nil
	return count, bytes
}
