package membership

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/quorate/quorate/cluster/audit"
	replicated "github.com/quorate/quorate/cluster/catalog"
	"github.com/quorate/quorate/cluster/replica"
	"github.com/quorate/quorate/cluster/worker"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/proto/logpb"
	"github.com/quorate/quorate/proto/peerpb"
)

const (
	membersEvery = 250 * time.Millisecond // between two checks of the catalog's members while they change
	raiseWait    = time.Second            // for a node that starts to raise the version
	membersRest  = 500 * time.Millisecond // while they do not
	proposeWait  = 5 * time.Second        // for a change of the catalog
	replicaWait  = 5 * time.Second        // for the status of one replica
	maxVoters    = 7                      // of the catalog
	maxVoterLag  = 64                     // entries by which a node may lag to get a vote
)

// members changes, while this node leads the catalog, the membership of the cluster and of the
// catalog's raft group, one node at a time.
//
// Invariant, outside of mu: the group's members are the catalog's nodes, or converge is making them
// so; at most maxVoters of them vote, an odd number.
type members struct {
	config  *Config
	slog    *slog.Logger
	links   *links
	catalog *replicated.Catalog
	now     func() fsm.Time
	last    func(ctx context.Context, node string) (index uint64, ok bool) // of a node's replica of the catalog

	mu sync.Mutex // held during a change
}

// mayJoin returns the record to be written for a joining node, or why it must not join: a node that
// is known or on the list has proved its name, and needs no token.
func (m *members) mayJoin(req *peerpb.IntroduceRequest) (*logpb.AdmitNode, error) {
	a := &logpb.AdmitNode{Name: req.Node, PeerAddress: req.Address, Identity: req.Identity}
	_, listed := m.config.Nodes[req.Node]
	_, known := m.catalog.View().NodeByName(req.Node)
	switch {
	case !req.Unproven && (known || listed):
		return a, nil
	case len(req.TokenHash) == 0:
		return nil, errNoToken
	}
	a.Token = req.TokenHash
	return a, m.catalog.View().CheckJoinToken(a, m.now())
}

// admit makes a node a member of the cluster; only the catalog's leader can. A node that has lost
// its disk first ceases to be a member: while its vote counted, it would be asked to vote without
// knowing how it had voted.
func (m *members) admit(ctx context.Context, req *peerpb.IntroduceRequest) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.catalog.LeadsStill() {
		return errors.New("the catalog has a new leader")
	}
	admit, err := m.mayJoin(req)
	if err != nil {
		return err
	}
	view := m.catalog.View()
	if err := view.CheckVersions(req.Node, fsm.Announced(req)); err != nil {
		return err
	}
	state, known := view.NodeByName(req.Node)
	same := known && bytes.Equal(state.Identity, req.Identity)
	if !same {
		if err := m.replace(req, known); err != nil {
			return err
		}
	}
	results, err := m.catalog.Note(ctx, &logpb.CatalogCommand{Body: &logpb.CatalogCommand_AdmitNode{AdmitNode: admit}})
	if err != nil {
		return err
	}
	if err := catalog.Refused(results[0]); err != nil {
		return err
	}
	if !same {
		m.audit(admit)
	}
	if m.inGroup(req.Node) {
		return nil
	}
	return m.catalog.Add(req.Node)
}

// replace removes from the catalog's group the node that has had the name of another one until now,
// unless it is running. known: there is one.
func (m *members) replace(req *peerpb.IntroduceRequest, known bool) error {
	if req.Node == m.config.Node || m.links.mesh.Alive(req.Node) {
		return fmt.Errorf("a node named %s is running", req.Node)
	}
	if known {
		if err := m.catalog.View().CheckRemoval(req.Node); err != nil {
			return err
		}
	}
	if err := m.remove(req.Node); err != nil {
		return err
	}
	m.slog.Info("node admitted", "node", req.Node, "address", req.Address, "replaces", known)
	return nil
}

func (m *members) audit(a *logpb.AdmitNode) {
	m.config.Audit.Write(audit.Event{
		Kind: audit.Cluster, Action: "node.join", Origin: audit.Origin{Protocol: "cluster", Address: a.PeerAddress},
		Target: map[string]string{"node": a.Name}, Detail: tokenDetail(a.Token), Outcome: audit.OK,
	})
}

// inGroup reports whether a node is in the catalog's group.
func (m *members) inGroup(node string) bool {
	return slices.ContainsFunc(m.catalog.Configuration(), func(x replica.Member) bool { return x.Node == node })
}

// remove removes a node from the catalog's group, if the remaining members can commit that.
func (m *members) remove(node string) error {
	var stay []string
	found := false
	for _, x := range m.catalog.Configuration() {
		if x.Node == node {
			found = true
		} else if x.Voter {
			stay = append(stay, x.Node)
		}
	}
	if !found {
		return nil
	}
	if !m.links.mesh.HasMajority(stay) {
		return fmt.Errorf("without %s the catalog would have no majority", node)
	}
	return m.catalog.Remove(node)
}

// forget removes a node that has stopped for good from the catalog.
func (m *members) forget(ctx context.Context, name string) error {
	if name == m.config.Node || m.links.mesh.Alive(name) {
		return fsm.Refuse(fsm.Precondition, "node '"+name+"' is running: it must be stopped first")
	}
	return m.propose(ctx, &logpb.CatalogCommand{Body: &logpb.CatalogCommand_ForgetNode{ForgetNode: &logpb.ForgetNode{Name: name}}})
}

// propose commits one command.
func (m *members) propose(ctx context.Context, c *logpb.CatalogCommand) error {
	ctx, cancel := context.WithTimeout(ctx, proposeWait)
	defer cancel()
	results, err := m.catalog.Propose(ctx, c)
	if err != nil {
		return err
	}
	return catalog.Refused(results[0])
}

// run keeps the members of the catalog's group in line with its nodes, while this node leads it.
func (m *members) run(ctx context.Context) {
	worker.Again(ctx.Done(), func() time.Duration {
		if m.catalog.Leader() == m.config.Node && m.differ() {
			m.converge(ctx)
			return membersEvery
		}
		return membersRest
	})
}

// differ reports whether converge may have something to do.
func (m *members) differ() bool {
	config, view := m.catalog.Configuration(), m.catalog.View()
	if len(config) != len(view.Nodes()) {
		return true
	}
	if common, _ := view.CommonVersion(); common > view.FSMVersion() {
		return true
	}
	voters, learners := 0, 0
	for _, x := range config {
		switch _, known := view.NodeByName(x.Node); {
		case !known:
			return true
		case x.Voter:
			voters++
		case m.online(x.Node):
			learners++
		}
	}
	return moreVoters(voters, learners)
}

func (m *members) online(node string) bool { return node == m.config.Node || m.links.mesh.Alive(node) }

// moreVoters reports whether one of the learners should get a vote: the number of voters is to be
// odd, and at most maxVoters.
func moreVoters(voters, learners int) bool {
	if voters%2 == 0 {
		return learners > 0 && voters < maxVoters
	}
	return learners > 1 && voters+2 <= maxVoters
}

// converge makes one change that brings the catalog's group in line with its nodes, or gives votes, or
// raises the version of the machines if no change is needed.
func (m *members) converge(ctx context.Context) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.catalog.Leads(ctx) { // a change of the group needs its raft in any case
		return
	}
	view, config, record := m.catalog.View(), m.catalog.Configuration(), m.links.directory.record()
	var learners []string
	voters := 0
	for _, x := range config {
		switch {
		case x.Node != m.config.Node && hasLeft(x.Node, view, &record):
			if err := m.remove(x.Node); err != nil {
				m.slog.Warn("removed node is still a member of the catalog", "node", x.Node, "error", err)
				continue
			}
			return
		case x.Voter:
			voters++
		default:
			learners = append(learners, x.Node)
		}
	}
	for _, s := range view.Nodes() {
		if !slices.ContainsFunc(config, func(x replica.Member) bool { return x.Node == s.Name }) {
			if err := m.catalog.Add(s.Name); err != nil {
				m.slog.Warn("node was not added to the catalog", "node", s.Name, "error", err)
			}
			return
		}
	}
	m.promote(ctx, voters, learners)
	m.raiseIfAll(ctx)
}

// hasLeft reports whether a member of the catalog's group is no longer a node of the cluster. A founder
// that has not registered is one: the record names it until it is in the catalog, so a view older than
// the record says nothing.
func hasLeft(node string, v *catalog.View, r *record) bool {
	_, known := v.NodeByName(node)
	return !known && v.Index() >= r.Index && !slices.Contains(r.Founders, node)
}

// isGone reports whether a node that asks is no member any more: the catalog does not name it, or has another data folder
// under its name.
func isGone(req *peerpb.IntroduceRequest, v *catalog.View, r *record) bool {
	state, known := v.NodeByName(req.Node)
	if !known {
		return hasLeft(req.Node, v, r)
	}
	return len(state.Identity) > 0 && !bytes.Equal(state.Identity, req.Identity)
}

// raiseIfAll is raiseVersion if every member of the catalog's group has its record.
func (m *members) raiseIfAll(ctx context.Context) {
	if len(m.catalog.Configuration()) == len(m.catalog.View().Nodes()) {
		m.raiseVersion(ctx)
	}
}

// raiseVersion sets the cluster's version to the newest one that all nodes support. Every member of
// the catalog's group must have its record: the program of one that has not registered yet may
// support less.
func (m *members) raiseVersion(ctx context.Context) {
	view := m.catalog.View()
	to, _ := view.CommonVersion()
	from := view.FSMVersion()
	if to <= from {
		return
	}
	if err := m.propose(ctx, &logpb.CatalogCommand{Body: &logpb.CatalogCommand_PutSetting{
		PutSetting: &logpb.PutSetting{Name: catalog.FSMVersion, Value: int64(to)},
	}}); err != nil {
		m.slog.Warn("fsm_version was not raised", "from", from, "to", to, "error", err)
		return
	}
	m.slog.Info("fsm_version was raised", "from", from, "to", to)
}

// promote gives caught-up nodes a vote on the catalog, as many as leave the number of voters odd: with
// an even one, fewer nodes may fail than with one voter less.
func (m *members) promote(ctx context.Context, voters int, learners []string) {
	var ready []string
	for _, name := range learners {
		if m.online(name) && m.caughtUp(ctx, name) {
			ready = append(ready, name)
		}
	}
	for ; moreVoters(voters, len(ready)); voters, ready = voters+1, ready[1:] {
		if err := m.catalog.Promote(ready[0]); err != nil {
			m.slog.Warn("node was not made a voter of the catalog", "node", ready[0], "error", err)
			return
		}
		m.slog.Info("node is now a voter of the catalog", "node", ready[0])
	}
}

func (m *members) caughtUp(ctx context.Context, node string) bool {
	ctx, cancel := context.WithTimeout(ctx, replicaWait)
	defer cancel()
	return replica.Follows(m.catalog.Progress, maxVoterLag, func() (uint64, bool) { return m.last(ctx, node) })
}
