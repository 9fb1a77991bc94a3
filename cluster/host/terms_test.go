package host

import (
	"cmp"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/cluster/group"
	"github.com/quorate/quorate/cluster/peer/peertest"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/queue"
	"github.com/quorate/quorate/proto/logpb"
)

// terms is a group of three replicas whose leader changes, and a client of it, who
// publishes, consumes, and asks again for whatever it has had no answer to. What
// the replicas do is compared with what the log says.
type terms struct {
	*trio
	tune  []any
	valve *peertest.Valve
	runs  []*termsRun // of hosts, as they were started
	log   map[uint64]*raft.Log
	// samples are hashes of replicas by index.
	samples map[uint64][32]byte

	publisher, consumer *termsStream
	led                 uint64 // term of the leader that has got everything
	noticed             int    // what has been seen of leaders and lost commands
	again               bool   // something has to be sent again
	last                uint64 // newest delivery that was accepted
	accepted            map[uint64]fsm.Ref
	open                []uint64 // accepted and not settled
	times               map[fsm.Ref]int
	requeued            map[fsm.Ref]bool
}

// termsRun is one process of a host, and how much of what it did was read.
type termsRun struct {
	name                          string
	outside                       *outside
	outcomes, deliveries, resyncs int
}

// termsStream is one session.
type termsStream struct {
	id         fsm.SessionID
	next       uint64
	unanswered []*termsCommand
	answers    map[uint64]fsm.Code
	submitted  map[termsSubmission]int // how often
	light      bool
}

// termsSubmission is a command that was given to a process.
type termsSubmission struct {
	to  group.Outside
	seq uint64
}

type termsCommand struct {
	cmd     *logpb.Command
	payload []byte
}

func mustTerms(t *testing.T, tune ...any) *terms {
	c := &terms{
		tune:  tune,
		valve: peertest.NewValve(),
		log:   map[uint64]*raft.Log{}, samples: map[uint64][32]byte{}, accepted: map[uint64]fsm.Ref{},
		times: map[fsm.Ref]int{}, requeued: map[fsm.Ref]bool{},
	}
	stream := func(n uint64, light bool) *termsStream {
		return &termsStream{id: fsm.SessionID{Node: 1, Boot: 5, Num: n}, next: 1, answers: map[uint64]fsm.Code{}, submitted: map[termsSubmission]int{}, light: light}
	}
	c.publisher, c.consumer = stream(1, false), stream(2, true)
	c.trio = mustTrio(t, append(tune, c.valve.Tune)...)
	for i, h := range c.hosts {
		c.runs = append(c.runs, &termsRun{name: trioNames[i], outside: h.outside})
	}
	c.mustOpen(1)
	c.consumer.send(&logpb.Command{Kind: logpb.Command_CONSUME, Consume: &logpb.Consume{Consumer: 1, Prefetch: 50}}, nil)
	return c
}

// restart opens a host that was shut.
func (c *terms) restart(i int) {
	c.t.Helper()
	name := trioNames[i]
	l, err := net.Listen("tcp", c.nodes[name].Addr().String())
	if err != nil {
		c.t.Fatal(err)
	}
	c.nodes[name] = l
	c.hosts[i] = mustHostOf(c.t, c.hosts[i].dir, name, c.nodes, slog.New(slog.NewTextHandler(c.trio.log, nil)), append(c.tune, c.valve.Tune)...)
	c.runs = append(c.runs, &termsRun{name: name, outside: c.hosts[i].outside})
	c.mustOpenAt(c.hosts[i], 1)
}

// send makes a command the next one of a session.
func (s *termsStream) send(cmd *logpb.Command, payload []byte) {
	cmd.Session, cmd.Seq = s.id.Proto(), s.next
	s.next++
	s.unanswered = append(s.unanswered, &termsCommand{cmd, payload})
}

// submit gives a replica commands of a stream, as one batch or more.
func (s *termsStream) submit(to group.Outside, g *group.Group, all []*termsCommand) error {
	for part := range slices.Chunk(all, 20) {
		b := group.Batch{Light: s.light}
		for _, x := range part {
			b.Commands = group.AppendCommand(b.Commands, x.cmd)
			b.Count++
			s.submitted[termsSubmission{to, x.cmd.Seq}]++
			if x.payload != nil {
				b.Payloads = append(b.Payloads, x.payload)
				b.Bytes += len(x.payload)
			}
		}
		if err := g.Submit(b); err != nil {
			return err
		}
	}
	return nil
}

// publish gives the leader messages, of which nobody knows yet what becomes; ttl
// negative: they live for ever.
func (c *terms) publish(n int, ttl fsm.Millis) {
	first := len(c.publisher.unanswered)
	for range n {
		body := fmt.Appendf(nil, "message %d", c.publisher.next)
		c.publisher.send(&logpb.Command{
			Kind: logpb.Command_ENQUEUE, Enqueue: &logpb.Enqueue{Size: uint32(len(body)), TtlPlusOne: uint64(ttl + 1)},
		}, body)
	}
	if g := c.leader(); g == nil || c.led != g.Leading() || c.publisher.submit(c.host(g).outside, g, c.publisher.unanswered[first:]) != nil {
		c.again = true
	}
}

// leader is the replica that leads in the latest term; nil: there is none.
func (c *terms) leader() (leader *group.Group) {
	for _, h := range c.hosts {
		if g := h.Group(1); !h.closed && g != nil && g.Leading() != 0 && (leader == nil || g.Leading() > leader.Leading()) {
			leader = g
		}
	}
	return leader
}

// pump does what a client does: it reads, settles, and sends again.
func (c *terms) pump() {
	noticed := 0
	for _, r := range c.runs {
		r.outside.mu.Lock()
		noticed += r.outside.undecided + len(r.outside.terms)
		outcomes, deliveries, resyncs := r.outside.outcomes[r.outcomes:], r.outside.deliveries[r.deliveries:], r.outside.resyncs[r.resyncs:]
		r.outcomes, r.deliveries, r.resyncs = len(r.outside.outcomes), len(r.outside.deliveries), len(r.outside.resyncs)
		r.outside.mu.Unlock()
		for _, d := range deliveries {
			c.accept(&d)
		}
		for _, x := range resyncs {
			for i := range x.Held {
				if x.Held[i].ID > c.last { // what is missing was settled
					c.last = x.Held[i].ID - 1
				}
				c.accept(&x.Held[i])
			}
			c.last = max(c.last, x.Last)
			c.again = c.again || x.More != 0
		}
		for _, o := range outcomes {
			c.answer(o)
		}
	}
	c.settle()
	if noticed != c.noticed {
		c.noticed, c.again = noticed, true
	}
	if g := c.leader(); g != nil && (c.again || c.led != g.Leading()) {
		c.led, c.again = g.Leading(), false
		if c.publisher.submit(c.host(g).outside, g, c.publisher.unanswered) != nil || c.consumer.submit(c.host(g).outside, g, c.consumer.unanswered) != nil {
			c.again = true
		}
		g.Resync(fsm.ConsumerID{Session: c.consumer.id, Number: 1}, c.last)
	}
}

// accept takes the next delivery of the consumer; one that leaves others out has
// to be asked for again.
func (c *terms) accept(d *fsm.Delivery) {
	if ref, ok := c.accepted[d.ID]; ok && ref != d.Ref {
		c.t.Errorf("delivery %d is of %v, and was of %v", d.ID, d.Ref, ref)
	}
	switch {
	case d.ID <= c.last:
	case d.ID > c.last+1:
		c.again = true
	default:
		c.last = d.ID
		c.accepted[d.ID] = d.Ref
		c.open = append(c.open, d.ID)
		if c.times[d.Ref]++; c.times[d.Ref] > 1 && !c.requeued[d.Ref] {
			c.t.Errorf("%v is delivered again without a cause", d.Ref)
		}
		if (d.Acquired > 0) != (c.times[d.Ref] > 1) {
			c.t.Errorf("%v is delivered for the %d. time and says %d", d.Ref, c.times[d.Ref], d.Acquired+1)
		}
	}
}

// settle settles what was accepted: one in seven goes back, once.
func (c *terms) settle() {
	for _, id := range c.open {
		s := &logpb.Settle{Consumer: 1, Ranges: []uint64{id, 1}}
		if ref := c.accepted[id]; id%7 == 0 && !c.requeued[ref] {
			c.requeued[ref], s.Outcome = true, logpb.Settle_REQUEUE
		}
		c.consumer.send(&logpb.Command{Kind: logpb.Command_SETTLE, Settle: s}, nil)
		n := len(c.consumer.unanswered)
		if g := c.leader(); g == nil || c.consumer.submit(c.host(g).outside, g, c.consumer.unanswered[n-1:]) != nil {
			c.again = true
		}
	}
	c.open = c.open[:0]
}

func (c *terms) stream(id fsm.SessionID) *termsStream {
	if id == c.consumer.id {
		return c.consumer
	}
	return c.publisher
}

// answer takes answers. One that asks for earlier commands is none.
func (c *terms) answer(o group.Outcome) {
	s := c.stream(o.Session)
	for seq := o.First; seq < o.First+o.Run; seq++ {
		if o.Result.Code == fsm.Gap || o.Result.Code == fsm.NoSession {
			c.again = true
			continue
		}
		if was, ok := s.answers[seq]; ok && was != o.Result.Code {
			c.t.Errorf("command %d of %v was answered %d, and now %d", seq, s.id, was, o.Result.Code)
		}
		s.answers[seq] = o.Result.Code
		s.unanswered = slices.DeleteFunc(s.unanswered, func(x *termsCommand) bool { return x.cmd.Seq == seq })
	}
}

// until lets the client work until something is so.
func (c *terms) until(what string, f func() bool) {
	c.t.Helper()
	await(c.t, what, func() bool {
		c.pump()
		return f()
	})
}

// rest waits until everything is answered, and nothing is left in the queue.
func (c *terms) rest() {
	c.t.Helper()
	c.until("everything is done", func() (done bool) {
		g := c.leader()
		if g == nil || len(c.publisher.unanswered)+len(c.consumer.unanswered) > 0 {
			return false
		}
		g.View(func(m *queue.Machine) { done = m.Stats().Ready.Messages+m.Stats().Unacknowledged.Messages == 0 })
		return done
	})
}

// traffic is a few messages from their publish to their ack.
func (c *terms) traffic(n int) {
	c.t.Helper()
	c.publish(n, -1)
	c.rest()
}

// at is the number of the host of a replica.
func (c *terms) at(g *group.Group) int { return slices.Index(trioNames, c.nodeOf(g)) }

// elect has a host win an election, or another one that is not left out; the client
// goes on meanwhile.
func (c *terms) elect(i int, but ...int) *group.Group {
	c.t.Helper()
	var before uint64
	for _, h := range c.hosts {
		if !h.closed {
			before = max(before, h.Group(1).Term())
		}
	}
	var stood time.Time
	var next *group.Group
	c.until("somebody else leads", func() bool {
		if next = c.leader(); next != nil && next.Leading() > before && !slices.Contains(but, c.at(next)) {
			return true
		}
		if time.Since(stood) > time.Second { // its log may be too short, or a link is broken
			stood = time.Now()
			in(c.hosts[i].Group(1))
			c.hosts[i].mesh.Campaign(1)
			if i++; i == len(c.hosts) {
				i = 0
			}
			for slices.Contains(but, i) || c.hosts[i].closed {
				i = (i + 1) % len(c.hosts)
			}
		}
		return false
	})
	return next
}

// gather reads what is committed, and samples the states of replicas. What replicas
// have at an index is the same.
func (c *terms) gather() {
	c.t.Helper()
	for _, h := range c.hosts {
		if h.closed {
			continue
		}
		g := h.Group(1)
		applied := g.AppliedIndex()
		first, err := in(g).Store().FirstIndex()
		if err != nil {
			c.t.Fatal(err)
		}
		for index := max(first, 1); index <= applied; index++ {
			l := new(raft.Log)
			if in(g).Store().GetLog(index, l) != nil || in(g).Store().Complete(l) != nil {
				continue // cut meanwhile
			}
			if was := c.log[index]; was == nil {
				c.log[index] = l
			} else if was.Term != l.Term || string(was.Data) != string(l.Data) || string(was.Extensions) != string(l.Extensions) {
				c.t.Errorf("entry %d of %s differs", index, h.config.Node)
			}
		}
		g.View(func(m *queue.Machine) {
			index, hash := m.Index(), m.Hash()
			if was, ok := c.samples[index]; ok && was != hash {
				c.t.Errorf("at entry %d the state of %s is another one", index, h.config.Node)
			}
			c.samples[index] = hash
		})
	}
}

// said is what the log says.
type said struct {
	outcomes   map[termsOutcome]map[uint64]int            // terms in which it is said, and how often
	deliveries map[fsm.ConsumerID]map[uint64]saidDelivery // by number
	machine    *queue.Machine
}

type termsOutcome struct {
	session fsm.SessionID
	seq     uint64
	result  fsm.Result
}

type saidDelivery struct {
	d    fsm.Delivery
	term uint64
}

// machine is the queue's before its first entry.
func (c *terms) machine() *queue.Machine {
	spec := c.hosts[0].Group(1).Spec()
	m := queue.New(spec.Name, spec.Queue)
	m.Supports(c.hosts[0].config.Newest)
	return m
}

// replayed applies the log to a new machine.
func (c *terms) replayed() said {
	c.t.Helper()
	s := said{map[termsOutcome]map[uint64]int{}, map[fsm.ConsumerID]map[uint64]saidDelivery{}, c.machine()}
	var clock int64
	indexes := slices.Sorted(maps.Keys(c.log))
	for i, index := range indexes {
		l := c.log[index]
		if index != uint64(i)+indexes[0] || indexes[0] != 1 {
			c.t.Fatalf("entry %d is unknown", index-1)
		}
		if l.Type != raft.LogCommand {
			continue
		}
		var e logpb.Entry
		if err := e.UnmarshalVT(l.Data); err != nil {
			c.t.Fatal(err)
		}
		if e.Now < clock {
			c.t.Errorf("entry %d of term %d is of %d, after %d", index, l.Term, e.Now, clock)
		}
		clock = e.Now
		s.entry(l, &e)
		if hash, ok := c.samples[index]; ok && s.machine.Hash() != hash {
			c.t.Errorf("at entry %d a replica was in another state than the log gives", index)
		}
	}
	return s
}

// entry applies an entry.
func (s *said) entry(l *raft.Log, e *logpb.Entry) {
	m := fsm.Meta{Index: l.Index, Term: l.Term, Now: fsm.Time(e.Now), Version: e.Version}
	var eff fsm.Effects
	for _, cmd := range e.Commands {
		m.Session = fsm.SessionFrom(cmd.Session)
		r := s.machine.Apply(m, cmd, &eff)
		m.Offset += cmd.GetEnqueue().GetSize()
		if cmd.Seq > 0 {
			o := termsOutcome{m.Session, cmd.Seq, r}
			if s.outcomes[o] == nil {
				s.outcomes[o] = map[uint64]int{}
			}
			s.outcomes[o][l.Term]++
		}
	}
	for _, d := range eff.Deliveries {
		if s.deliveries[d.To] == nil {
			s.deliveries[d.To] = map[uint64]saidDelivery{}
		}
		s.deliveries[d.To][d.ID] = saidDelivery{d, l.Term}
	}
}

// verify compares what the hosts have done with what the log says.
func (c *terms) verify() {
	c.t.Helper()
	c.rest()
	var g *group.Group
	c.until("a leader has applied all", func() bool { // there may be another one meanwhile
		g = c.leader()
		return g != nil && g.Barrier(patience) == nil
	})
	for _, h := range c.hosts {
		c.until("all have applied all", func() bool { return h.closed || h.Group(1).AppliedIndex() >= g.AppliedIndex() })
	}
	c.gather()
	s := c.replayed()
	owner := map[uint64]*termsRun{}
	for _, r := range c.runs {
		r.outside.mu.Lock()
		for _, term := range r.outside.terms {
			if was := owner[term]; term != 0 && was != nil && was != r {
				c.t.Errorf("%s and %s lead in term %d", was.name, r.name, term)
			}
			owner[term] = r
		}
		r.outside.mu.Unlock()
	}
	for _, r := range c.runs {
		c.verifyRun(r, owner, &s)
	}
	counters := s.machine.Stats().Counters
	if n := uint64(len(c.publisher.answers)); counters.Enqueued != n || n != c.publisher.next-1 || counters.Acked+counters.Expired != n {
		c.t.Errorf("%d were published, %d answered, %d enqueued, %d acked, %d expired", c.publisher.next-1, n, counters.Enqueued, counters.Acked, counters.Expired)
	}
	if len(s.deliveries[fsm.ConsumerID{Session: c.consumer.id, Number: 1}]) != len(c.accepted) {
		c.t.Errorf("the log has %d deliveries, the consumer got %d", len(s.deliveries[fsm.ConsumerID{Session: c.consumer.id, Number: 1}]), len(c.accepted))
	}
}

// verifyRun checks that one process has done what its terms say, and no more. It answers a command that
// was applied before once more for each time that it is given it.
func (c *terms) verifyRun(r *termsRun, owner map[uint64]*termsRun, s *said) {
	c.t.Helper()
	r.outside.mu.Lock()
	defer r.outside.mu.Unlock()
	if r.outside.overlap {
		c.t.Errorf("%s has performed two things at a time", r.name)
	}
	times := map[termsOutcome]int{}
	for _, o := range r.outside.outcomes {
		for seq := o.First; seq < o.First+o.Run; seq++ {
			times[termsOutcome{o.Session, seq, o.Result}]++
		}
	}
	for o, n := range times {
		may := 0
		for term, k := range s.outcomes[o] {
			if owner[term] == r {
				may += k
			}
		}
		if o.result.Code == fsm.Gap || o.result.Code == fsm.NoSession && s.outcomes[o] == nil {
			continue // a leader says what it has, or that it has nothing
		}
		if n > may && (len(s.outcomes[o]) == 0 || n > c.stream(o.session).submitted[termsSubmission{r.outside, o.seq}]) {
			c.t.Errorf("%s has answered %+v %d times, its terms say %d", r.name, o, n, may)
		}
	}
	given := map[uint64]bool{}
	for _, d := range r.outside.deliveries {
		is, ok := s.deliveries[d.To][d.ID]
		if !ok || is.d.Ref != d.Ref || is.d.Acquired != d.Acquired || owner[is.term] != r || given[d.ID] {
			c.t.Errorf("%s has delivered %d of %v (again: %t); the log says %+v", r.name, d.ID, d.Ref, given[d.ID], is)
		}
		given[d.ID] = true
	}
	if !slices.IsSortedFunc(r.outside.deliveries, func(a, b fsm.Delivery) int { return cmp.Compare(a.ID, b.ID) }) {
		c.t.Errorf("%s has delivered in another order than that of the log", r.name)
	}
	for _, x := range r.outside.resyncs {
		for _, d := range x.Held {
			if is := s.deliveries[d.To][d.ID]; is.d.Ref != d.Ref {
				c.t.Errorf("%s says that %v holds %v as %d, the log %v", r.name, d.To, d.Ref, d.ID, is.d.Ref)
			}
		}
	}
}
