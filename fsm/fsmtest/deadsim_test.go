package fsmtest

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/queue"
	"github.com/quorate/quorate/proto/logpb"
)

// deadSim is a few queues, and a forwarder that carries dead letters between
// them over a network that loses, repeats and reorders. Every queue has its
// own log, its own leader and its own clock; a leader knows nothing but the
// state of its machine.
type deadSim struct {
	t      fataler
	queues []*simQueue
	net    []packet
	labels int
	// refused lists the transfers that a target has refused, ascending.
	refused map[stream][]uint64
}

// stream is the stream of transfers from one queue to another.
type stream struct{ from, to fsm.QueueID }

// simQueue is a queue, and what the simulation knows about it.
type simQueue struct {
	id          fsm.QueueID
	m           *queue.Machine
	index, term uint64
	now         fsm.Time
	seq         uint64 // of the only publisher and consumer
	eff         fsm.Effects
	// labels name the messages by where their payloads lie.
	labels map[fsm.Ref]string
	// arrived lists, per source, the labels in the order they came to be here.
	arrived map[fsm.QueueID][]string
	// owed lists, per target, what was routed there, in order.
	owed map[fsm.QueueID][]string
	gone bool
}

// packet is a command on its way to a queue's leader.
type packet struct {
	to    fsm.QueueID
	cmd   *logpb.Command
	label string // of what an enqueue carries
	from  fsm.QueueID
}

const payloadSize = 50

func newDeadSim(t fataler, queues int) *deadSim {
	s := &deadSim{t: t, refused: map[stream][]uint64{}}
	for i := range queues {
		id := fsm.QueueID(100 + i)
		q := &simQueue{
			id: id, m: queue.New(fmt.Sprint("q", i), id), term: 1, now: start, labels: map[fsm.Ref]string{},
			arrived: map[fsm.QueueID][]string{}, owed: map[fsm.QueueID][]string{},
		}
		s.queues = append(s.queues, q)
		s.apply(q, packet{cmd: &logpb.Command{Kind: logpb.Command_CONFIGURE, Configure: &logpb.Configure{
			Config: simConfig(i),
		}}})
	}
	return s
}

// simConfig: the first queue delivers at least once; the others are short, and
// refuse.
func simConfig(i int) *logpb.QueueConfig {
	c := &logpb.QueueConfig{DeadLetter: true, DeliveryLimit: 1}
	if i == 0 {
		c.DeadLetterStrategy = logpb.QueueConfig_AT_LEAST_ONCE
	} else {
		c.MaxLengthPlusOne, c.Overflow = 4, logpb.QueueConfig_REJECT_PUBLISH
	}
	return c
}

func (s *deadSim) queue(id fsm.QueueID) *simQueue {
	return s.queues[slices.IndexFunc(s.queues, func(q *simQueue) bool { return q.id == id })]
}

// apply puts one command into a queue's log.
func (s *deadSim) apply(q *simQueue, p packet) fsm.Result {
	q.index++
	meta := fsm.Meta{Index: q.index, Term: q.term, Now: q.now, Session: fsm.SessionFrom(p.cmd.Session)}
	unrouted, waiting := q.m.UnroutedLetters(1<<20), q.m.WaitingLetters(0, 1<<20)
	enqueued := q.m.Stats().Counters.Enqueued
	q.eff.Reset()
	r := q.m.Apply(meta, p.cmd, &q.eff)
	if err := q.m.Check(); err != nil {
		s.t.Fatalf("queue %d after %v: %v", q.id, p.cmd, err)
	}
	if q.m.Stats().Counters.Enqueued > enqueued {
		q.labels[fsm.Ref{Index: q.index, Size: payloadSize}] = p.label
		q.arrived[p.from] = append(q.arrived[p.from], p.label)
	}
	switch {
	case p.cmd.Kind != logpb.Command_ROUTE_DEAD:
	case p.cmd.RouteDead.Retry:
		s.noteRetry(q, p.cmd.RouteDead.Routes, waiting)
	default:
		s.note(q, p.cmd.RouteDead, unrouted)
	}
	return r
}

// noteRetry remembers what the queue owes since letters that waited were routed.
func (s *deadSim) noteRetry(q *simQueue, routes []*logpb.DeadRoute, waiting []queue.Letter) {
	for _, l := range waiting {
		if len(routes) == 0 {
			return
		}
		if routes[0].Letter != l.Number {
			continue
		}
		for _, target := range routes[0].Targets {
			if id := fsm.QueueID(target); !slices.Contains(l.Done, id) {
				q.owed[id] = append(q.owed[id], q.labels[l.Ref])
			}
		}
		routes = routes[1:]
	}
}

// note remembers what the queue owes since its letters were routed.
func (s *deadSim) note(q *simQueue, r *logpb.RouteDead, unrouted []queue.Letter) {
	routed := len(unrouted) - len(q.m.UnroutedLetters(1<<20))
	want := 0
	if len(unrouted) > 0 && unrouted[0].Number == r.First {
		want = min(len(unrouted), len(r.Routes))
	}
	if routed != want {
		s.t.Fatalf("queue %d: %d letters were routed by %v, want %d of %+v", q.id, routed, r, want, unrouted)
	}
	for i := range want {
		for _, target := range r.Routes[i].Targets {
			q.owed[fsm.QueueID(target)] = append(q.owed[fsm.QueueID(target)], q.labels[unrouted[i].Ref])
		}
	}
}

// publish enqueues a new message.
func (s *deadSim) publish(q *simQueue, ttl uint64) {
	s.labels++
	s.apply(q, packet{label: fmt.Sprint("m", s.labels), cmd: &logpb.Command{
		Kind: logpb.Command_ENQUEUE, Enqueue: &logpb.Enqueue{Size: payloadSize, TtlPlusOne: ttl},
	}})
}

// refuse takes a message from the queue and discards it.
func (s *deadSim) refuse(q *simQueue, outcome logpb.Settle_Outcome) {
	me := fsm.SessionID{Node: 1, Boot: 1, Num: 1}.Proto()
	q.seq++
	r := s.apply(q, packet{cmd: &logpb.Command{Kind: logpb.Command_GET, Session: me, Seq: q.seq, Get: &logpb.Get{}}})
	if r.Code != fsm.OK {
		return
	}
	id := q.eff.Deliveries[0].ID
	q.seq++
	s.apply(q, packet{cmd: &logpb.Command{Kind: logpb.Command_SETTLE, Session: me, Seq: q.seq, Settle: &logpb.Settle{
		Outcome: outcome, Ranges: []uint64{id, 1},
	}}})
}

// pass lets time go by, and a tick if one is due.
func (s *deadSim) pass(q *simQueue, d fsm.Millis) {
	q.now = q.now.Add(d)
	if next := q.m.NextDeadline(); next != 0 && next <= q.now {
		s.apply(q, packet{cmd: &logpb.Command{Kind: logpb.Command_TICK}})
	}
}

// route has the leader propose routes for up to n unrouted letters; choose
// says where a letter goes. The proposal may be under way for long, or be
// lost.
func (s *deadSim) route(q *simQueue, n int, choose func() []uint64) {
	letters := q.m.UnroutedLetters(n)
	if len(letters) == 0 {
		return
	}
	r := &logpb.RouteDead{First: letters[0].Number}
	for range letters {
		r.Routes = append(r.Routes, &logpb.DeadRoute{Targets: choose()})
	}
	s.send(packet{to: q.id, cmd: &logpb.Command{Kind: logpb.Command_ROUTE_DEAD, RouteDead: r}})
}

// retry has the leader propose routes for the letters that wait.
func (s *deadSim) retry(q *simQueue, choose func() []uint64) {
	r := &logpb.RouteDead{Retry: true}
	for _, l := range q.m.WaitingLetters(0, 1<<20) {
		if targets := choose(); len(targets) > 0 {
			r.Routes = append(r.Routes, &logpb.DeadRoute{Letter: l.Number, Targets: targets})
		}
	}
	if len(r.Routes) > 0 {
		s.send(packet{to: q.id, cmd: &logpb.Command{Kind: logpb.Command_ROUTE_DEAD, RouteDead: r}})
	}
}

// forward has the leader send up to n transfers to a target, beginning with
// number from.
func (s *deadSim) forward(q *simQueue, target fsm.QueueID, from uint64, n int) {
	for _, o := range q.m.PendingTransfers(target, from, n) {
		if o.Number < from {
			s.t.Fatalf("queue %d: transfer %d although asked from %d", q.id, o.Number, from)
		}
		s.send(packet{to: target, from: q.id, label: q.labels[o.Letter.Ref], cmd: &logpb.Command{
			Kind: logpb.Command_ENQUEUE, Session: fsm.SessionID{Boot: uint64(q.id)}.Proto(), Seq: o.Number,
			Enqueue: &logpb.Enqueue{Size: payloadSize, Deaths: o.Letter.Deaths},
		}})
	}
}

func (s *deadSim) send(p packet) { s.net = append(s.net, p) }

// deliver lets packet i arrive; keep leaves a copy of it in the network.
func (s *deadSim) deliver(i int, keep bool) {
	p := s.net[i]
	if !keep {
		s.net = slices.Delete(s.net, i, i+1)
	}
	q := s.queue(p.to)
	r := s.apply(q, p)
	if p.from == 0 {
		return
	}
	source, way := s.queue(p.from), stream{p.from, p.to}
	switch r.Code {
	case fsm.OK, fsm.Rejected:
		refused := slices.Contains(s.refused[way], p.cmd.Seq)
		if r.Code == fsm.OK && refused {
			s.t.Fatalf("from %d to %d: transfer %d was refused and then taken", p.from, p.to, p.cmd.Seq)
		}
		if r.Code == fsm.Rejected && !refused {
			s.refused[way] = append(s.refused[way], p.cmd.Seq)
		}
		s.send(packet{to: p.from, cmd: &logpb.Command{Kind: logpb.Command_SETTLE_DEAD, SettleDead: &logpb.SettleDead{
			Target: uint64(p.to), Last: p.cmd.Seq, Refused: slices.Clone(s.refused[way]),
		}}})
	case fsm.Gap:
		s.forward(source, p.to, r.Next, 3)
	case fsm.NoSession: // the first transfer has not arrived
		s.forward(source, p.to, 1, 3)
	case fsm.Gone:
		s.send(packet{to: p.from, cmd: &logpb.Command{Kind: logpb.Command_SETTLE_DEAD, SettleDead: &logpb.SettleDead{
			Target: uint64(p.to), Gone: true,
		}}})
	default:
		s.t.Fatalf("queue %d answers %v to a transfer", p.to, r)
	}
}

// lose drops packet i.
func (s *deadSim) lose(i int) { s.net = slices.Delete(s.net, i, i+1) }

// elect gives a queue a new leader, which has restored its machine and knows
// nothing of what is under way.
func (s *deadSim) elect(q *simQueue) {
	q.term++
	m := queue.New(q.m.Name(), q.id)
	if err := restoreInto(m, q.m); err != nil {
		s.t.Fatalf("queue %d: %v", q.id, err)
	}
	q.m = m
	q.eff.Reset()
	q.m.Resume(&q.eff)
	if q.m.Stats().Outbox.Messages > 0 && !q.eff.Outbox {
		s.t.Fatalf("queue %d has letters and its new leader is not told", q.id)
	}
}

// drop deletes a queue; what is owed to it is owed no more.
func (s *deadSim) drop(q *simQueue) {
	s.apply(q, packet{cmd: &logpb.Command{Kind: logpb.Command_DELETE, Delete: &logpb.Delete{}}})
	q.gone = true
}

// settle lets the forwarders work on a network without faults until nothing
// is left to do.
func (s *deadSim) settle(choose func(q *simQueue) []uint64) {
	for range 1000 {
		for len(s.net) > 0 {
			s.deliver(0, false)
		}
		idle := true
		for _, q := range s.queues {
			s.refuse(q, logpb.Settle_ACK) // there is room again
			if q.m.Stats().Outbox.Messages == 0 {
				continue
			}
			idle = false
			s.retry(q, func() []uint64 { return choose(q) })
			s.route(q, 1<<20, func() []uint64 { return choose(q) })
			for _, t := range q.m.DeadLetterTargets(0, 1<<20) {
				s.forward(q, t.ID, 0, 5)
			}
		}
		if idle {
			return
		}
	}
	s.t.Fatalf("the outboxes do not drain:\n%s", s.queues[0].m)
}

// check compares what has arrived with what was owed and not refused: each
// letter once at each target, in order. A queue that delivers at least once has
// lost none. A queue that was deleted got a part of it, from the
// beginning.
func (s *deadSim) check() {
	for _, source := range s.queues {
		if source.gone {
			continue
		}
		c := source.m.Stats().Counters
		if source.m.Config().DeadLetterStrategy == logpb.QueueConfig_AT_LEAST_ONCE && c.DeadConfirmed != c.DeadLettered {
			s.t.Fatalf("queue %d: %d of %d letters have arrived", source.id, c.DeadConfirmed, c.DeadLettered)
		}
		for _, q := range s.queues {
			var owed []string
			for i, label := range source.owed[q.id] {
				if !slices.Contains(s.refused[stream{source.id, q.id}], uint64(i+1)) {
					owed = append(owed, label)
				}
			}
			arrived := q.arrived[source.id]
			if q.gone {
				owed = owed[:min(len(owed), len(arrived))]
			}
			if !slices.Equal(owed, arrived) {
				s.t.Fatalf("from %d to %d:\nowed    %v\narrived %v", source.id, q.id, owed, arrived)
			}
			if once := slices.Compact(slices.Sorted(slices.Values(arrived))); source.id != q.id && len(once) != len(arrived) {
				s.t.Fatalf("from %d to %d: something has arrived twice: %v", source.id, q.id, arrived)
			}
		}
	}
}

// TestDeadLettersArriveOnce holds three queues whose letters travel over a bad
// network to promise S8: exactly once at each routed target, in order.
func TestDeadLettersArriveOnce(t *testing.T) {
	check(t, 4, func(t *rapid.T) {
		d := &deadDraw{deadSim: newDeadSim(t, 3), g: &generator{t: t}}
		t.Repeat(map[string]func(*rapid.T){"step": func(*rapid.T) { d.step() }})
		d.settle(d.choose)
		d.check()
	})
}

// deadDraw draws what happens in a simulation.
type deadDraw struct {
	*deadSim
	g *generator
}

// choose draws where a letter goes. Letters only travel to later queues, so
// that they all come to rest.
func (d *deadDraw) choose(q *simQueue) []uint64 {
	var targets []uint64
	for _, other := range d.queues {
		if other.id > q.id && d.g.n("target", 3) != 2 {
			targets = append(targets, uint64(other.id))
		}
	}
	return targets
}

func (d *deadDraw) step() {
	q := d.queues[d.g.n("queue", len(d.queues))]
	action := d.g.n("action", 32)
	if len(d.net) == 0 && (action == 2 || action == 4 || action == 6 || action >= 20) {
		action = 0
	}
	switch {
	case action == 0 || action == 16 || action == 17:
		d.publish(q, uint64(of(d.g, "ttl", 0, 0, 101, 1)))
	case action == 1 || action == 18:
		d.refuse(q, of(d.g, "outcome", logpb.Settle_DISCARD, logpb.Settle_DISCARD, logpb.Settle_REQUEUE_FAILED, logpb.Settle_ACK))
	case action == 2 || action >= 26:
		d.deliver(d.g.n("packet", len(d.net)), false)
	case action == 3 || action >= 11 && action <= 13:
		d.route(q, 1+d.g.n("letters", 5), func() []uint64 { return d.choose(q) })
	case action == 4 || action >= 20 && action <= 22: // the network repeats
		d.deliver(d.g.n("packet", len(d.net)), true)
	case action == 6 || action >= 23:
		d.lose(d.g.n("packet", len(d.net)))
	case action == 5 || action == 7 || action == 14 || action == 15:
		d.forwardSome(q)
	case action == 8 || action == 19:
		d.pass(q, fsm.Millis(d.g.n("ms", 300)))
	case action == 9:
		d.elect(q)
	case action == 10 && d.g.oneIn("try again", 2):
		d.retry(q, func() []uint64 { return d.choose(q) })
	case action == 10 && d.g.oneIn("really", 16):
		d.drop(d.queues[len(d.queues)-1])
	}
}

// forwardSome sends a few transfers, possibly not the oldest ones.
func (d *deadDraw) forwardSome(q *simQueue) {
	targets := q.m.DeadLetterTargets(0, 1<<20)
	if len(targets) == 0 {
		return
	}
	to := targets[d.g.n("target", len(targets))]
	d.forward(q, to.ID, to.Confirmed+uint64(d.g.n("from", 3)), 1+d.g.n("transfers", 4))
}
