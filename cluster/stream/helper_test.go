package stream

import (
	"slices"
	"sync"
	"sync/atomic"

	"github.com/quorate/quorate/cluster/group"
	"github.com/quorate/quorate/cluster/group/grouptest"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/proto/logpb"
)

// host is a node alone, in a time of its own.
type host struct {
	*grouptest.Catalog
	t       grouptest.Fatal
	table   *Table
	panics  atomic.Int64
	spawned atomic.Int64
	wanted  atomic.Int64

	mu        sync.Mutex                               // guards what follows
	submit    func(leader string, b group.Batch) error // nil: everything is taken
	requested []Resync
	questions int
	serves    map[string]uint64 // what a node that is asked says; absent: it does not lead
}

func newHost(t grouptest.Fatal) *host {
	h := &host{Catalog: grouptest.NewCatalog(t), t: t}
	h.table = NewTable(h)
	return h
}

func (h *host) Name() string               { return "n1" }
func (h *host) NodeName(fsm.NodeID) string { return "n1" }

func (h *host) Try(_ string, f func()) (ok bool) {
	defer func() {
		if recover() != nil {
			h.panics.Add(1)
		}
	}()
	f()
	return true
}

func (h *host) Spawn(doing string, f func()) bool {
	h.spawned.Add(1)
	go h.Try(doing, f)
	return true
}

func (h *host) Submit(_ *Route, leader string, b group.Batch) error {
	h.mu.Lock()
	submit := h.submit
	h.mu.Unlock()
	if submit == nil {
		return nil
	}
	return submit(leader, b)
}

func (h *host) Ask(_ *Route, _ string, q Resync) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.requested = append(h.requested, q)
}

func (h *host) Leads(of []*Route, node string) (terms []uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.questions++
	return slices.Repeat([]uint64{h.serves[node]}, len(of))
}

// Want counts how often somebody is said to wait for a leader.
func (h *host) Want(*Route) { h.wanted.Add(1) }

func (h *host) QueueGone(id fsm.QueueID) { h.table.QueueGone(id) }

// submits sets what becomes of batches.
func (h *host) submits(f func(leader string, b group.Batch) error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.submit = f
}

// deleteQueue removes a queue from the catalog, and tells the table.
func (h *host) deleteQueue(q *catalog.Queue) {
	h.t.Helper()
	h.Delete(q)
	h.table.QueueGone(q.ID)
}

// mustStream attaches a stream to a new queue, owned by c.
func (h *host) mustStream(c *client) *Stream {
	h.t.Helper()
	return h.attach(c, h.table.Route(h.MustQueue("q")), 1)
}

// attach makes the stream of session num to a queue.
func (h *host) attach(c *client, r *Route, num uint64) *Stream {
	c.stream = New(c, c, fsm.SessionID{Node: 1, Boot: 7, Num: num}, r)
	r.Attach(c.stream)
	return c.stream
}

// client is an owner that keeps what it is told.
type client struct {
	sync.Mutex
	stream   *Stream
	answered map[uint64]int // publishes, by number: how often
	refused  int            // publishes that were not answered with OK
	lost     int
	failed   int
	gone     int
	notices  []Notice
	messages []fsm.Message
	full     bool
	brittle  bool // Gone panics
}

func (c *client) Answered(p *Pending, r fsm.Result) {
	if p.Call != nil {
		p.Call.Finish(r)
	}
	if p.Payload == nil {
		return
	}
	if c.answered == nil {
		c.answered = map[uint64]int{}
	}
	c.answered[p.Number]++
	if r.Code != fsm.OK {
		c.refused++
	}
}

func (c *client) Lost() {
	c.stream.Abandon()
	c.lost++
}

func (c *client) Failed() {
	c.stream.Abandon()
	c.failed++
}

func (c *client) Gone() {
	if c.brittle {
		panic("injected")
	}
	c.Lock()
	defer c.Unlock()
	c.gone++
}

func (c *client) Passed(uint64) {}

func (c *client) Noticed(n Notice) {
	c.Lock()
	defer c.Unlock()
	c.notices = append(c.notices, n)
}

func (c *client) Accept(int) bool           { return !c.full }
func (c *client) CanTake(int) bool          { return !c.full }
func (c *client) Deliver(all []fsm.Message) { c.messages = append(c.messages, all...) }

func (c *client) publish(number uint64, body string) {
	c.Lock()
	defer c.Unlock()
	p := grouptest.Payload(body)
	c.stream.Add(&logpb.Command{Kind: logpb.Command_ENQUEUE, Enqueue: &logpb.Enqueue{Size: uint32(len(p))}}, Pending{Payload: p, Number: number})
}

func (c *client) settle(outcome fsm.Outcome, ids ...uint64) {
	c.Lock()
	defer c.Unlock()
	c.stream.AddSettle(0, ids, outcome)
}

func (c *client) request(k *logpb.Command) *Call {
	c.Lock()
	defer c.Unlock()
	return c.stream.Request(k)
}

func (c *client) consumer(number uint64) *Consumer {
	c.Lock()
	defer c.Unlock()
	x := &Consumer{}
	c.stream.AddConsumer(number, x)
	return x
}

// overdue is what the watch asks the leader about the commands.
func (c *client) overdue() []Resync {
	c.Lock()
	defer c.Unlock()
	return c.stream.overdueCommands(c.stream.route.host.Now())
}

// mustBeWhole checks the invariant of a stream.
func (c *client) mustBeWhole(t grouptest.Fatal) {
	t.Helper()
	c.Lock()
	defer c.Unlock()
	s := c.stream
	oldest := s.next - uint64(s.pending.len())
	for i := range s.pending.len() {
		if seq := s.pending.at(i).seq; seq != oldest+uint64(i) {
			t.Fatalf("command %d is in place %d behind %d", seq, i, oldest)
		}
	}
	if s.sent >= s.next || s.heavy >= s.next || s.wait.requested >= s.next || s.wait.resent > maxResent {
		t.Fatalf("oldest %d, sent %d, heavy %d, next %d, %+v", oldest, s.sent, s.heavy, s.next, s.wait)
	}
}

func isDone(k *Call) bool {
	select {
	case <-k.Done():
		return true
	default:
		return false
	}
}

// take collects what a stream has to send, as its route does.
func take(s *Stream) []group.Batch {
	var all []group.Batch
	for full := true; full; {
		b := NewLoad()
		full = s.Take(&b)
		_ = b.Submit(func(b group.Batch) error {
			all = append(all, b)
			return nil
		})
	}
	return all
}

func ids(ranges []uint64) (all []uint64) {
	for ; len(ranges) > 0; ranges = ranges[2:] {
		for i := range ranges[1] {
			all = append(all, ranges[0]+i)
		}
	}
	return all
}

// tell gives a stream answers of its leader.
func tell(s *Stream, answers ...group.Outcome) {
	leader, _, _ := s.route.Leader()
	s.Answer(leader, answers)
}
