// Package queues is what happens at the leaders of queues: it brings what their groups have committed
// to the sessions concerned, at any node, sends their dead letters, and answers what is asked about
// them: how many messages they have, and which, for people, backups and comparisons. It also knows
// the way to each leader.
//
// It promises that a session is given what the log says in the order of the log, or learns that it
// misses something; that an answer about a queue is that of its leader; that a queue that has ended
// leaves the catalog. It knows no clients: sessions are streams, see cluster/stream.
package queues

import (
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
	sources *catalog.View // the last view at which no queue had a session of a queue that is gone
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
	x.letters = deadletter.New(deadletter.Config{Node: n.Name(), Host: h, Routes: x.Routes, Properties: c.Properties, Logger: n.Logger})
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
		readsStored: func(to string) bool { return n.Mesh.ReadsStored(to) },
		replica: func(id fsm.GroupID) replica {
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
	x.node.Spawn("watch queues", func() {
		worker.Again(x.node.Stopping(), func() time.Duration {
			x.wait = watchRest
			if x.round() {
				x.wait = 1
			}
			return time.Duration(x.wait) * watchEvery
		})
	})
}

// Close stops the dead letters.
func (x *Queues) Close() { x.letters.Close() }

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
		ctx, cancel := x.node.WhileOpen()
		defer cancel()
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

// endSources ends the sessions of queues that are gone, at all queues that this node leads, if the
// catalog has changed since the last check that found none.
func (x *Queues) endSources() {
	v := x.node.View()
	if v == x.sources {
		return
	}
	more := false
	for _, g := range x.node.Groups.Led() {
		if deadletter.EndSources(g, v) {
			more = true
		}
	}
	if !more {
		x.sources = v
	}
}
