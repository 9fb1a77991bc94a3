// Package queues is what happens at the leaders of queues: it brings what their groups have committed
// to the sessions concerned, at any node, sends and redrives their dead letters, and answers what is asked about
// them: how many messages they have, and which, for people, backups and comparisons. It also knows
// the way to each leader.
//
// It promises that a session is given what the log says in the order of the log, or learns that it
// misses something; that an answer about a queue is that of its leader; that a queue that has ended
// leaves the catalog. It knows no clients: sessions are streams, see cluster/stream.
package queues

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quorate/quorate/cluster/audit"
	"github.com/quorate/quorate/cluster/deadletter"
	"github.com/quorate/quorate/cluster/expiry"
	"github.com/quorate/quorate/cluster/failure"
	"github.com/quorate/quorate/cluster/group"
	"github.com/quorate/quorate/cluster/peer"
	"github.com/quorate/quorate/cluster/placement"
	"github.com/quorate/quorate/cluster/self"
	"github.com/quorate/quorate/cluster/stream"
	"github.com/quorate/quorate/cluster/worker"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/fsm/queue"
	"github.com/quorate/quorate/proto/peerpb"
)

// Config is what Queues need.
type Config struct {
	Node       *self.Node
	Uses       *expiry.Uses
	Failures   *failure.Detector
	Properties deadletter.Properties
	Audit      *audit.Log // nil: nothing is audited
	// Size is the number of replicas of a queue, and Locator the way to choose its leader, unless it
	// says otherwise.
	Size    int
	Locator catalog.Locator
	// Fields reads stored messages; nil: consumers have no selectors.
	Fields Fields
	// Filters are those of exchanges of type x-filter; nil: they make no copies.
	Filters fsm.Filters
	// Between, if not nil, puts something between the queues and the streams of commands to them.
	Between func(stream.Host) stream.Host
}

// Queues are the queues as this node leads them, and as it reaches those that other nodes lead.
type Queues struct {
	*Inspector
	Leaders  *Leaders
	Backups  *Backups
	Timeouts *Timeouts
	Routes   *stream.Table
	Placer   *placement.Placer

	node       *self.Node
	failures   *failure.Detector
	letters    *deadletter.Sender
	audit      *audit.Log // nil: nothing is audited
	dispatcher dispatcher
	oddAnswers atomic.Uint64
	ended      atomic.Uint64 // queues that were removed because they had ended by themselves

	// Of the watch.
	watched []*stream.Route
	sources sourcePass
	terms   atomic.Uint64 // see sourcesKnown
	rounds  int           // multiples of watchEvery that have passed
	wait    int           // of which the last round is ago
}

// host is this node as used by command streams and dead letters.
type host struct {
	*self.Node
	*expiry.Uses
	*Queues
}

var (
	_ stream.Host     = host{}
	_ deadletter.Host = host{}
)

// New returns the queues; Serve makes them work.
func New(c Config) *Queues {
	n := c.Node
	x := &Queues{node: n, failures: c.Failures, audit: c.Audit, Timeouts: &Timeouts{node: n}}
	h := host{n, c.Uses, x}
	between := stream.Host(h)
	if c.Between != nil {
		between = c.Between(h)
	}
	x.Routes = stream.NewTable(between)
	x.letters = deadletter.New(deadletter.Config{Node: n.Name(), Host: h, Routes: x.Routes, Properties: c.Properties, Filters: c.Filters, Logger: n.Logger})
	x.Leaders = &Leaders{node: n, routes: x.Routes}
	x.Placer = &placement.Placer{Node: n, Routes: x.Routes, Size: c.Size, Locator: c.Locator}
	x.Inspector = &Inspector{
		node: n, routes: x.Routes, leaders: x.Leaders, uses: c.Uses, properties: c.Properties, peeks: peeks{at: map[fsm.QueueID]int64{}},
	}
	x.Backups = &Backups{
		node: n, routes: x.Routes, leaders: x.Leaders, placer: x.Placer, cuts: map[uint64]*cut{}, restoring: map[fsm.QueueID]bool{},
	}
	x.dispatcher = dispatcher{
		Node: n, routes: x.Routes, links: &links{Node: n, transmit: n.Mesh.Send, unsent: map[unsent]struct{}{}},
		chooser:     newChooser(n, c.Fields),
		redriver:    newRedriver(n, c.Properties),
		readsStored: func(to string) bool { return n.Mesh.ReadsStored(to) },
		replica: func(id fsm.GroupID) member {
			if g := n.Groups.Group(id); g != nil {
				return g
			}
			return nil
		},
	}
	return x
}

// Listen registers the handlers. It is called before the mesh starts.
func (x *Queues) Listen() {
	x.dispatcher.listen()
	x.Inspector.listen()
	x.Backups.listen()
}

// Serve starts the watch.
func (x *Queues) Serve() {
	x.node.Loop("watch queues", func(ctx context.Context) {
		worker.Again(ctx.Done(), func() time.Duration {
			x.wait = watchRest
			if x.round() {
				x.wait = 1
			}
			return time.Duration(x.wait) * watchEvery
		})
	})
}

// Close stops the dead letters, the redrives and the search for consumers with selectors.
func (x *Queues) Close() {
	x.letters.Close()
	x.dispatcher.redriver.rounds.Stop()
	x.dispatcher.chooser.rounds.Stop()
}

// Restart begins anew what this node sends at most once: its boot is over.
func (x *Queues) Restart() { x.letters.Restart() }

// PeerChanged handles a node that has come or gone.
func (x *Queues) PeerChanged(ev peer.Event) {
	if !ev.Up {
		x.Routes.NodeDown(ev.Node)
		return
	}
	x.dispatcher.links.announceAll(ev.Node)
	x.Routes.NodeUp(ev.Node) // messages in the meantime may have been lost
}

// QueueGone is called when a queue is gone from the catalog: whatever waits for it is answered, and
// its consumers are cancelled.
func (x *Queues) QueueGone(id fsm.QueueID) {
	x.letters.Drop(id)
	x.Routes.QueueGone(id)
	x.peeks.drop(id)
}

// DropMissing forgets the queues that the catalog no longer holds.
func (x *Queues) DropMissing() {
	view := x.node.View()
	for _, r := range x.Routes.All() {
		if _, ok := view.QueueByID(r.Queue()); !ok {
			x.QueueGone(r.Queue())
		}
	}
	x.letters.CheckAll()
}

// Want tells a queue's members that somebody waits for a leader.
func (h host) Want(of *stream.Route) {
	v := h.View()
	if q, ok := v.QueueByID(of.Queue()); ok && h.Groups != nil {
		h.Groups.Want(q.Group, h.NodeNames(v.Members(q)))
	}
}

// OddAnswer records an answer that no command of this node can get: a bug in this program.
func (x *Queues) OddAnswer(queue fsm.QueueID, command string, code fsm.Code) {
	x.oddAnswers.Add(1)
	x.node.Logger.Error("unexpected answer of a queue", "queue", uint64(queue), "command", command, "code", int(code))
}

// Counts are events since the node started.
type Counts struct {
	TimedOut   uint64 // messages that went back because they were held for too long, while this node led their queues
	LateAcks   uint64 // of those the ones that were settled all the same
	Ended      uint64 // queues that this node led when they ended by themselves
	OddAnswers uint64 // that no command can get
	Resent     uint64 // commands that were to be sent to a leader again
	LostOnce   uint64 // at-most-once dead letters that did not arrive; see deadletter.Sender
}

// Counts counts.
func (x *Queues) Counts() Counts {
	return Counts{
		TimedOut: x.Timeouts.timedOut.Load(), LateAcks: x.Timeouts.acks.Load(), Ended: x.ended.Load(),
		OddAnswers: x.oddAnswers.Load(), Resent: x.Routes.Resent(), LostOnce: x.letters.LostOnce(),
	}
}

// removeGone removes the record of a queue that has ended by itself. It retries until that is done
// or another node leads the queue.
func (x *Queues) removeGone(g *group.Group) {
	spec := g.Spec()
	x.node.Spawn("remove the record of a queue", func() {
		ctx := x.node.Life()
		var why queue.QueueEnd
		var active fsm.Time
		g.View(func(m *queue.Machine) {
			why = m.Stats().Ended
			active, _ = m.Activity()
		})
		q, ok := x.node.View().QueueByID(spec.Queue)
		for ok && g.Leading() != 0 && ctx.Err() == nil {
			if x.node.RemoveRecord(ctx, q) == nil {
				x.noteEnd(q, why, active)
				return
			}
			q, ok = x.node.View().QueueByID(spec.Queue)
		}
	})
}

// noteEnd counts and audits a queue that has ended by itself.
func (x *Queues) noteEnd(q *catalog.Queue, why queue.QueueEnd, active fsm.Time) {
	if why == queue.NotEnded {
		return
	}
	x.ended.Add(1)
	x.audit.Write(audit.Event{
		Kind: audit.Definition, Action: "queue.expire", Origin: audit.Origin{Protocol: "cluster", Address: x.node.Name()}, Outcome: audit.OK,
		Target: map[string]string{"vhost": q.VHost, "queue": q.Name},
		Detail: map[string]any{"reason": why.String(), "last_active": time.UnixMilli(int64(active)).UTC().Format(time.RFC3339)},
	})
}

// How often the watch repeats work that no event causes, in multiples of watchEvery; that is a duration.
const (
	watchEvery  = 250 * time.Millisecond
	watchRest   = 2  // all, while nothing waits
	sourceEvery = 20 // sessions of queues that are gone
)

// round repeats what may have been lost: it searches for leaders that nobody has announced, sends
// unanswered commands again, and ends the sessions of queues that are gone. It reports whether
// something waits. A panic in one step does not affect the others.
func (x *Queues) round() (waits bool) {
	x.watched = x.Routes.Watch(x.watched)
	before := x.rounds
	x.rounds += max(1, x.wait)
	if x.rounds/sourceEvery != before/sourceEvery {
		x.node.Try("end sources", x.endSources)
	}
	waits = len(x.watched) > 0
	x.node.Try("send again", func() { waits = x.dispatcher.links.repeat() || waits })
	x.node.Try("wake dead letters", func() { waits = x.letters.Wake() || waits })
	return waits
}

// endSources ends the sessions of queues that are gone, at the queues that this node leads.
func (x *Queues) endSources() {
	now := sourcesKnown{x.node.View(), x.terms.Load()}
	x.sources.round(now, x.node.Groups.Led, func(id fsm.GroupID, v *catalog.View) (more bool) {
		g := x.node.Groups.Group(id)
		return g != nil && g.Leading() != 0 && deadletter.EndSources(g, v)
	})
}

// sourcePass goes through all queues that this node leads, some per round, if the catalog has changed since a
// pass began that has come to its end, or this node leads another one: its last leader may not have come to it.
// Such a session holds a few bytes, and nobody waits for its end.
type sourcePass struct {
	done  sourcesKnown  // zero: no pass has come to its end
	began sourcesKnown  // the present one
	left  []fsm.GroupID // to be looked at
}

// sourcesKnown is what it depends on whether a queue led here has a session of one that is gone.
type sourcesKnown struct {
	view  *catalog.View
	terms uint64 // in which this node has led queues so far
}

// sourcesAtOnce is how many queues a round looks at: of 70,000 that a node leads, all in 12 minutes.
const sourcesAtOnce = 500

// round looks at some queues. end ends what it can at one, and reports whether it is to be looked at again.
func (p *sourcePass) round(now sourcesKnown, led func() []*group.Group, end func(fsm.GroupID, *catalog.View) (more bool)) {
	if len(p.left) == 0 {
		if now == p.done {
			return
		}
		p.began = now
		for _, g := range led() {
			p.left = append(p.left, g.Spec().Group)
		}
	}
	for range min(len(p.left), sourcesAtOnce) {
		id := p.left[0]
		if p.left = p.left[1:]; end(id, now.view) {
			p.left = append(p.left, id)
		}
	}
	if len(p.left) == 0 {
		p.done = p.began
	}
}

// loggedIDs bounds how many delivery ids a log line names.
const loggedIDs = 20

// getTag stands for the tag where a delivery is one of basic.get.
const getTag = "(basic.get)"

// Timeouts counts the messages that went back because consumers held them for too long, and those
// that were settled late all the same, while this node led their queues. It remembers the last ones,
// and which consumers of this node's clients were told of one. A restart forgets them.
type Timeouts struct {
	node           *self.Node
	timedOut, acks atomic.Uint64

	mu   sync.Mutex
	here []*peerpb.ConsumerTimeout // in queues that this node led, by age
	late []*peerpb.LateConsumer    // by age, each consumer once
}

// note counts and logs deliveries that went back and those that were settled late, once per
// consumer, so that a consumer that is always late does not fill the log.
func (l *Timeouts) note(g *group.Group, w *group.Work) {
	for _, t := range w.Timeouts {
		if !t.Again {
			l.timedOut.Add(uint64(len(t.Deliveries)))
			l.led(g.Spec(), &t, l.node.Stamp())
		}
		if t.First {
			l.log(g, "consumer timeout", t.To, t.Tag, t.Deliveries, t.Limit, t.Held)
		}
	}
	for _, late := range w.LateAcks {
		l.acks.Add(uint64(len(late.Deliveries)))
		if !late.First {
			continue
		}
		l.log(g, "acknowledgement after the consumer timeout", late.Of, late.Tag, late.Deliveries, late.Limit, late.Held)
	}
}

func (l *Timeouts) log(g *group.Group, what string, of fsm.ConsumerID, tag string, ids []uint64, limit, held fsm.Millis) {
	q, ok := l.node.View().QueueByID(g.Spec().Queue)
	if !ok {
		return
	}
	if of.Number == 0 {
		tag = getTag
	}
	l.node.Logger.Info(what, "queue", q.Name, "vhost", q.VHost, "consumer", tag, "node", l.node.NodeName(of.Session.Node),
		"deliveries", ids[:min(len(ids), loggedIDs)], "count", len(ids),
		slog.Duration("held", time.Duration(held)*time.Millisecond), slog.Int64("timeout_ms", int64(limit)))
}

// maxTimeouts is how many consumer timeouts a node remembers, and of how many consumers of its own
// clients it remembers who they were: a channel may be closed because of a timeout.
const maxTimeouts = 256

// led records a timeout in a queue that this node leads.
func (l *Timeouts) led(of group.Spec, t *fsm.Timeout, at fsm.Time) {
	tag := t.Tag
	if t.To.Number == 0 {
		tag = getTag
	}
	x := &peerpb.ConsumerTimeout{
		At: int64(at), Queue: uint64(of.Queue), Vhost: of.VHost, Name: of.Name,
		Node: uint32(t.To.Session.Node), Boot: t.To.Session.Boot, Session: t.To.Session.Num, Number: t.To.Number, Tag: tag,
		Messages: uint64(len(t.Deliveries)), Held: uint64(t.Held), Timeout: uint64(t.Limit),
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.here = append(lastOf(l.here), x)
}

// Noticed records a consumer of this node's clients that is told of a timeout. Messages of it may be told
// again.
func (l *Timeouts) Noticed(x *peerpb.LateConsumer) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.late = slices.DeleteFunc(l.late, func(o *peerpb.LateConsumer) bool {
		return o.Number == x.Number && o.Session.Session == x.Session.Session && o.Session.Boot == x.Session.Boot
	})
	l.late = append(lastOf(l.late), x)
}

// lastOf makes space for one more in a list, which drops its first.
func lastOf[T any](list []T) []T {
	return slices.Delete(list, 0, max(0, len(list)-maxTimeouts+1))
}

// List returns what is remembered, by age.
func (l *Timeouts) List() *peerpb.TimeoutsReply {
	l.mu.Lock()
	defer l.mu.Unlock()
	return &peerpb.TimeoutsReply{Led: slices.Clone(l.here), Served: slices.Clone(l.late)}
}
