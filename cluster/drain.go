package cluster

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/quorate/quorate/cluster/mgmt/api"
	"github.com/quorate/quorate/cluster/stats"
	"github.com/quorate/quorate/cluster/worker"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/proto/logpb"
)

const (
	// markWait bounds how long a node that stops tells the others so.
	markWait = time.Second
	// turnOutWait bounds how long clients may take to leave a draining node.
	turnOutWait = 5 * time.Second
	// drainWait bounds how long a drain moves leaderships.
	drainWait = 60 * time.Second
	// leaveWait bounds the same for a node that stops without a drain.
	leaveWait = 15 * time.Second
	// keepAwayEvery is how often a draining node looks whether it leads.
	keepAwayEvery = time.Second
	// heirPause is how long it is waited for members that are not caught up.
	heirPause = 100 * time.Millisecond
	// transfersAtOnce is how many leaderships a node hands over at a time. More
	// at a time take as long altogether, and each of them longer.
	transfersAtOnce = 32
	// maxHeirLag is how many entries behind its leader's log an heir's may end.
	maxHeirLag = 64
)

// maintenance is what clients of a draining node are told.
const maintenance = "Node was put into maintenance mode"

// Door is how clients come in.
type Door interface {
	// Shut keeps new clients out, tells those that are in to leave, and
	// returns when they have, or ctx ends.
	Shut(ctx context.Context, reason string)
	// Open lets clients in again. It does nothing if they are let in.
	Open() error
	// Expel tells all clients to leave. It does not wait.
	Expel(reason string)
	// Renew looks at what each client that is in may do now: who may not be there
	// any more is told to leave. It does not wait.
	Renew()
	// Connections describes who is in.
	Connections() []api.Connection
	// SetAlarm says why nobody may publish for now; empty: everybody may. It
	// does not block.
	SetAlarm(reason string)
	// CloseConnection sends away whose connection has this name, and returns
	// false if there is none.
	CloseConnection(name, reason string) bool
}

// SetDoor gives the node the clients' way in. It is called before Join.
func (n *Node) SetDoor(d Door) {
	n.door = d
	n.alarm.Block(d)
}

// commit commits catalog commands.
type commit func(context.Context, ...*logpb.CatalogCommand) ([]*logpb.CatalogResult, error)

// Draining reports whether this node is about to stop.
func (n *Node) Draining() bool { return n.drains(n.config.Name) }

// drains reports whether a node is about to stop, as far as this one knows.
func (n *Node) drains(node string) bool {
	if node == n.config.Name && n.leaving.Load() {
		return true
	}
	state, known := n.View().NodeByName(node)
	return known && state.Draining
}

// setDraining marks this node, or takes the mark away. commit is Propose if
// somebody is told of it, else Note.
func (n *Node) setDraining(ctx context.Context, commit commit, draining bool) error {
	r, err := commit(ctx, &logpb.CatalogCommand{Body: &logpb.CatalogCommand_SetDraining{
		SetDraining: &logpb.SetDraining{Name: n.config.Name, Draining: draining},
	}})
	if err != nil {
		return err
	}
	return catalog.Refused(r[0])
}

// Drain prepares the node for its stop: it is marked in the catalog, clients
// are turned out, and what it leads is handed over. It goes on following until
// its process ends. An error says that it could not be marked, and nothing has
// been done; whatever comes after that is done as well as possible.
func (n *Node) Drain(ctx context.Context) (api.Drained, error) {
	n.draining.Lock()
	defer n.draining.Unlock()
	mark, cancel := context.WithTimeout(ctx, settleWait)
	defer cancel()
	if err := n.setDraining(mark, n.Propose, true); err != nil {
		return api.Drained{}, fmt.Errorf("mark the node as draining: %w", err)
	}
	n.slog.Info("node drains")
	if n.door != nil {
		out, cancel := context.WithTimeout(ctx, turnOutWait)
		defer cancel()
		n.door.Shut(out, maintenance)
	}
	ctx, cancel = context.WithTimeout(ctx, drainWait)
	defer cancel()
	d := api.Drained{Node: n.config.Name}
	began := time.Now()
	d.Moved, d.Left = n.handOver(ctx)
	n.slog.Info("node is drained", "moved", d.Moved, "left", d.Left, "took", time.Since(began).Round(time.Millisecond))
	return d, nil
}

// Revive ends what Drain has begun.
func (n *Node) Revive(ctx context.Context) error {
	n.draining.Lock()
	defer n.draining.Unlock()
	ctx, cancel := context.WithTimeout(ctx, settleWait)
	defer cancel()
	if err := n.setDraining(ctx, n.Propose, false); err != nil {
		return fmt.Errorf("unmark the node: %w", err)
	}
	if n.door == nil || !n.ready.Load() {
		return nil
	}
	if err := n.door.Open(); err != nil {
		return fmt.Errorf("listen for clients: %w", err)
	}
	n.slog.Info("node is revived")
	return nil
}

// Leave is a drain for a node that stops: it hands over what it leads until
// ctx ends. Clients have been turned out before. Only the first call does
// anything.
func (n *Node) Leave(ctx context.Context) {
	if n.leaving.Swap(true) {
		return
	}
	n.ready.Store(false)
	if len(n.membership.Names()) == 1 || ctx.Err() != nil || !n.mesh.HasMajority(n.catalog.Voters()) {
		return // there is nobody to tell, or to lead
	}
	mark, cancel := context.WithTimeout(ctx, markWait)
	defer cancel()
	if err := n.setDraining(mark, n.Note, true); err != nil {
		n.slog.Debug("the other nodes are not told that this one stops", "error", err)
	}
	ctx, cancel = context.WithTimeout(ctx, leaveWait)
	defer cancel()
	if moved, left := n.handOver(ctx); moved+left > 0 {
		n.slog.Info("leaderships handed over", "moved", moved, "left", left)
	}
}

// keepAway hands over, time and again, what a draining node has come to lead.
func (n *Node) keepAway() {
	worker.Every(n.life.Done(), keepAwayEvery, func() {
		if n.drains(n.config.Name) && n.draining.TryLock() {
			n.handOverBriefly()
		}
	})
}

// handOverBriefly hands over what can be within a moment. The caller holds
// draining, which it gives back.
func (n *Node) handOverBriefly() {
	defer n.draining.Unlock()
	ctx, cancel := context.WithTimeout(n.life, keepAwayEvery)
	defer cancel()
	n.handOver(ctx)
}

// transfer is one that is to be made.
type transfer struct {
	group    fsm.GroupID
	from, to string
}

// handOver gives what this node leads to others, and returns how many
// leaderships it has given away, and how many it has left: because nobody else
// can take them, or ctx has ended.
func (n *Node) handOver(ctx context.Context) (moved, left int) {
	for {
		led := n.ledHere()
		if len(led) == 0 {
			return moved, 0
		}
		plan := n.heirs(led, n.replicas.Status(ctx))
		done := n.transferAll(ctx, plan, transfersAtOnce)
		if moved += done; done > 0 {
			continue
		}
		if !n.hopes(led) {
			return moved, len(led)
		}
		select {
		case <-ctx.Done():
			return moved, len(led)
		case <-time.After(heirPause):
		}
	}
}

// hopes reports whether somebody may take over one of the groups in a while:
// a member that is up and stays, with a majority to elect it.
func (n *Node) hopes(led map[fsm.GroupID][]string) bool {
	for _, members := range led {
		if n.mesh.HasMajority(members) && slices.ContainsFunc(members, func(m string) bool { return n.Online(m) && !n.drains(m) }) {
			return true
		}
	}
	return false
}

// ledHere lists the groups that this node leads and that have other members,
// with these.
func (n *Node) ledHere() map[fsm.GroupID][]string {
	led := map[fsm.GroupID][]string{}
	if n.catalog.Leader() == n.config.Name && len(n.catalog.Voters()) > 1 {
		led[stats.CatalogGroup] = n.catalog.Voters()
	}
	for _, g := range n.host.Groups() {
		if members := g.Voters(); len(members) > 1 && g.Leading() != 0 {
			led[g.Spec().Group] = members
		}
	}
	return led
}

// heirs plans who is to lead groups instead of this node, evenly; the catalog
// comes first.
func (n *Node) heirs(led map[fsm.GroupID][]string, s stats.ReplicaStatus) []transfer {
	load := map[string]int{}
	var plan []transfer
	for id, members := range led {
		if to := n.heir(id, members, n.config.Name, s, load); to != "" {
			load[to]++
			plan = append(plan, transfer{id, n.config.Name, to})
		}
	}
	slices.SortFunc(plan, func(a, b transfer) int { return int(a.group) - int(b.group) })
	return plan
}

// heir chooses who is to lead a group: of the other members that are up, are
// caught up and stay, the one with the least load; empty: there is none.
func (n *Node) heir(id fsm.GroupID, members []string, leader string, s stats.ReplicaStatus, load map[string]int) string {
	best := ""
	for _, m := range members {
		if m == leader || n.drains(m) || !n.Online(m) || !s.Current(m, id, maxHeirLag) || s[m][id].Role != "follower" || s[m][id].Quarantined {
			continue // a candidate does not take notice of being told to campaign
		}
		if best == "" || load[m] < load[best] {
			best = m
		}
	}
	return best
}

// transferAll makes transfers, some at a time, until ctx ends, and returns how
// many have been made.
func (n *Node) transferAll(ctx context.Context, plan []transfer, atOnce int) (done int) {
	var made atomic.Int64
	var work errgroup.Group
	work.SetLimit(atOnce)
	for _, t := range plan {
		work.Go(func() error {
			if ctx.Err() != nil {
				return nil
			}
			err := worker.ErrPanicked
			n.guard.Try("hand a leadership over", func() { err = n.transfer(ctx, t.group, t.from, t.to) })
			if err == nil {
				made.Add(1)
			} else {
				n.slog.Warn("leadership not handed over", "group", t.group, "from", t.from, "to", t.to, "error", err)
			}
			return nil
		})
	}
	_ = work.Wait() // each says itself what went wrong
	return int(made.Load())
}
