package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/quorate/quorate/cluster/group"
	"github.com/quorate/quorate/cluster/peer"
	"github.com/quorate/quorate/cluster/stats"
	"github.com/quorate/quorate/cluster/worker"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/proto/logpb"
	"github.com/quorate/quorate/proto/peerpb"
)

const (
	introduceEvery = 200 * time.Millisecond // between two rounds of questions
	introduceWait  = 15 * time.Second       // for one answer; an admission takes some entries
	tendEvery      = 250 * time.Millisecond // between two looks at the catalog's members
	maxVoters      = 7                      // of the catalog
	catalogSlack   = 64                     // entries by which a node that gets a vote may lag
)

// enter makes a node without a past part of a cluster: it founds one together
// with the other nodes of the static list, all of which have to be there and
// new, or it joins the one that there is.
func (n *Node) enter(ctx context.Context) error {
	last := ""
	for {
		err := n.enterOnce(ctx)
		if err == nil || n.catalog.Started() {
			return err
		}
		if text := err.Error(); text != last {
			last = text
			n.slog.Info("not yet part of a cluster", "reason", text)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("become part of a cluster: %w (%w)", ctx.Err(), err)
		case <-time.After(introduceEvery):
		}
	}
}

func (n *Node) enterOnce(ctx context.Context) error {
	switch {
	case n.directory.record().Rejoins:
		return n.joinAt(ctx, n.others())
	case len(n.config.Contacts) > 0:
		return n.joinAt(ctx, n.config.Contacts)
	}
	me := n.directory.record().Identity
	founders := map[string]member{n.config.Name: {Address: n.config.Nodes[n.config.Name], Identity: me}}
	var exists []string
	var away error
	for name, address := range n.config.Nodes {
		if name == n.config.Name {
			continue
		}
		told, err := n.introduce(ctx, address, askWho)
		switch {
		case err != nil:
			away = errors.Join(away, fmt.Errorf("node %s at %s: %w", name, address, err))
			continue
		case told.Node != name:
			return fmt.Errorf("node %q answers at the address of %q", told.Node, name)
		case !told.Fresh && !bytes.Equal(told.Known, me):
			exists = append(exists, address)
		}
		founders[name] = member{Address: address, Identity: told.Identity}
	}
	if len(exists) > 0 {
		return n.joinAt(ctx, exists)
	}
	if away != nil {
		return away
	}
	if err := n.directory.found(founders); err != nil {
		return err
	}
	n.meet(nil)
	n.founded.Store(true)
	return n.catalog.Start(slices.Sorted(maps.Keys(founders)))
}

// joinAt asks nodes for a place in their cluster until one has given it.
func (n *Node) joinAt(ctx context.Context, addresses []string) error {
	var errs []error
	for _, address := range addresses {
		told, err := n.introduce(ctx, address, askToJoin)
		if err == nil && !told.Admitted {
			err = errors.New(told.Error)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", address, err))
			continue
		}
		if err := n.takeCertificate(told); err != nil {
			return err
		}
		n.slog.Info("node has joined a cluster", "through", told.Node, "nodes", len(told.Members))
		n.learnNodes(told.Index, n.membersTold(told))
		if err := n.directory.joined(); err != nil {
			return err
		}
		return n.catalog.Start(nil)
	}
	return errors.Join(errs...)
}

// errand is what a node that has no link wants of another one.
type errand int

const (
	askWho      errand = iota // who it is
	askToJoin                 // a place in its cluster
	askForPlace               // see seekPlace
)

// introduce asks the node at an address.
func (n *Node) introduce(ctx context.Context, address string, what errand) (*peerpb.Told, error) {
	ctx, cancel := context.WithTimeout(ctx, introduceWait)
	defer cancel()
	ask := &peerpb.Ask{
		Cluster: n.config.ClusterName, Node: n.config.Name, Identity: n.directory.record().Identity,
		Address: n.config.Nodes[n.config.Name], Version: peer.Version, Join: what == askToJoin, Place: what == askForPlace,
		OldestVersion: n.config.Versions.Oldest, NewestVersion: n.config.Versions.Newest,
	}
	var by *peer.Invitation
	if ask.Join {
		var err error
		if by, err = n.invitation(ask); err != nil {
			return nil, err
		}
	}
	encoded, err := proto.Marshal(ask)
	if err != nil {
		return nil, err
	}
	answer, is, err := peer.Introduce(ctx, n.config.Dial, n.config.Security, by, address, encoded)
	if err != nil {
		return nil, err
	}
	told := &peerpb.Told{}
	if err := proto.Unmarshal(answer, told); err != nil {
		return nil, err
	}
	return told, is(told.Node)
}

// onIntroduce answers a node that has no link.
func (n *Node) onIntroduce(ctx context.Context, who peer.Caller, req []byte) ([]byte, error) {
	var ask peerpb.Ask
	if err := proto.Unmarshal(req, &ask); err != nil {
		return nil, err
	}
	if err := checkCaller(who, &ask); err != nil {
		return nil, err
	}
	if ask.Cluster != n.config.ClusterName || ask.Version != peer.Version || ask.Node == "" || len(ask.Identity) != identitySize {
		return nil, fmt.Errorf("node %q of cluster %q, version %d, is none of ours", ask.Node, ask.Cluster, ask.Version)
	}
	told := &peerpb.Told{Node: n.config.Name, Identity: n.directory.record().Identity, Fresh: !n.catalog.Started()}
	if known, _ := n.directory.knows(ask.Node); bytes.Equal(known, ask.Identity) {
		told.Known = known // who another folder stands for is nobody's business
	}
	switch {
	case ask.Place:
		n.answerPlace(ctx, &ask, told)
	case ask.Join:
		if err := n.letIn(ctx, who, &ask, told); err != nil {
			return nil, err
		}
	}
	return proto.Marshal(told)
}

// onAdmit answers a node that has asked another one.
func (n *Node) onAdmit(ctx context.Context, _ string, req []byte) ([]byte, error) {
	var ask peerpb.Ask
	if err := proto.Unmarshal(req, &ask); err != nil {
		return nil, err
	}
	told := &peerpb.Told{Node: n.config.Name, Identity: n.directory.record().Identity}
	n.answerJoin(ctx, &ask, told)
	return proto.Marshal(told)
}

func (n *Node) answerJoin(ctx context.Context, ask *peerpb.Ask, told *peerpb.Told) {
	if err := n.givePlace(ctx, ask); err != nil {
		told.Error = err.Error()
		return
	}
	told.Admitted = true
	n.tellNodes(told)
}

// givePlace makes a node a member of the cluster; only the catalog's leader can.
// A node that has lost its disk first ceases to be a member: as long as its
// vote counted, it would be asked for it, and would not know how it had voted.
func (n *Node) givePlace(ctx context.Context, ask *peerpb.Ask) error {
	n.admission.Lock()
	defer n.admission.Unlock()
	if !n.catalog.Leads() {
		return errors.New("the catalog has a new leader")
	}
	admit, err := n.mayJoin(ask)
	if err != nil {
		return err
	}
	if err := n.View().CheckVersions(ask.Node, fsm.Announced(ask)); err != nil {
		return err
	}
	state, known := n.View().NodeByName(ask.Node)
	same := known && bytes.Equal(state.Identity, ask.Identity)
	if !same {
		if ask.Node == n.config.Name || n.mesh.Alive(ask.Node) {
			return fmt.Errorf("a node named %s is running", ask.Node)
		}
		if known {
			if err := n.View().CheckRemoval(ask.Node); err != nil {
				return err
			}
		}
		if err := n.expel(ask.Node); err != nil {
			return err
		}
		n.slog.Info("node is admitted", "node", ask.Node, "address", ask.Address, "replaces", known)
	}
	results, err := n.Note(ctx, &logpb.CatalogCommand{Body: &logpb.CatalogCommand_AdmitNode{AdmitNode: admit}})
	if err != nil {
		return err
	}
	if err := catalog.Refused(results[0]); err != nil {
		return err
	}
	if !same {
		n.auditJoin(admit)
	}
	if slices.ContainsFunc(n.catalog.Configuration(), func(m group.Member) bool { return m.Node == ask.Node }) {
		return nil
	}
	return n.catalog.Add(ask.Node)
}

// expel takes a node out of the catalog's group, if those that stay are able
// to commit that.
func (n *Node) expel(node string) error {
	var stay []string
	found := false
	for _, m := range n.catalog.Configuration() {
		if m.Node == node {
			found = true
		} else if m.Voter {
			stay = append(stay, m.Node)
		}
	}
	if !found {
		return nil
	}
	if !n.mesh.HasMajority(stay) {
		return fmt.Errorf("without %s the catalog would have no majority", node)
	}
	return n.catalog.Remove(node)
}

// ForgetNode removes a node that has stopped for good, and its replicas. The
// queues get others where nodes are free. A node that is not known is fine.
func (n *Node) ForgetNode(ctx context.Context, name string) error {
	if name == n.config.Name || n.mesh.Alive(name) {
		return fsm.Refuse(fsm.Precondition, "node '"+name+"' is running: it must be stopped first")
	}
	ctx, cancel := context.WithTimeout(ctx, settleWait)
	defer cancel()
	results, err := n.Propose(ctx, &logpb.CatalogCommand{Body: &logpb.CatalogCommand_ForgetNode{ForgetNode: &logpb.ForgetNode{Name: name}}})
	if err != nil {
		return err
	}
	return catalog.Refused(results[0])
}

// tend keeps the members of the catalog's group in line with its nodes, while
// this node leads it.
func (n *Node) tend() {
	worker.Every(n.life.Done(), tendEvery, func() {
		if n.catalog.Leader() == n.config.Name && n.strayed() {
			n.tendOnce()
		}
	})
}

// strayed reports whether tendOnce might have something to do.
func (n *Node) strayed() bool {
	config, view := n.catalog.Configuration(), n.View()
	if len(config) != len(view.Nodes()) {
		return true
	}
	if common, _ := view.CommonVersion(); common > view.FSMVersion() {
		return true
	}
	voters, silent := 0, 0
	for _, m := range config {
		switch _, known := view.NodeByName(m.Node); {
		case !known:
			return true
		case m.Voter:
			voters++
		case n.Online(m.Node):
			silent++
		}
	}
	return moreVoters(voters, silent)
}

// moreVoters reports whether one of so many members without a vote should get
// one: the number of voters is odd, and at most maxVoters.
func moreVoters(voters, silent int) bool {
	if voters%2 == 0 {
		return silent > 0 && voters < maxVoters
	}
	return silent > 1 && voters+2 <= maxVoters
}

func (n *Node) tendOnce() {
	n.admission.Lock()
	defer n.admission.Unlock()
	if !n.catalog.Leads() {
		return
	}
	config, founders := n.catalog.Configuration(), n.directory.record().Founders
	var voters, silent []string
	for _, m := range config {
		switch _, known := n.View().NodeByName(m.Node); {
		case !known && !slices.Contains(founders, m.Node) && m.Node != n.config.Name:
			if err := n.expel(m.Node); err != nil {
				n.slog.Warn("node that has gone stays a member of the catalog", "node", m.Node, "error", err)
				continue
			}
			return
		case m.Voter:
			voters = append(voters, m.Node)
		default:
			silent = append(silent, m.Node)
		}
	}
	for _, s := range n.View().Nodes() {
		if !slices.ContainsFunc(config, func(m group.Member) bool { return m.Node == s.Name }) {
			if err := n.catalog.Add(s.Name); err != nil {
				n.slog.Warn("node is not added to the catalog", "node", s.Name, "error", err)
			}
			return
		}
	}
	n.promoteNode(len(voters), silent)
	if len(config) == len(n.View().Nodes()) {
		n.raiseVersion()
	}
}

// raiseVersion makes the newest version that all nodes support the cluster's.
// Every member of the catalog's group must have its record: the program of one
// that has not registered yet may support less.
func (n *Node) raiseVersion() {
	common, _ := n.View().CommonVersion()
	now, to := n.View().FSMVersion(), int64(common)
	if common <= now {
		return
	}
	if err := n.PutSetting(n.life, catalog.FSMVersion, &to); err != nil {
		n.slog.Warn("fsm_version is not raised", "from", now, "to", to, "error", err)
		return
	}
	n.slog.Info("fsm_version is raised", "from", now, "to", to)
}

// promoteNode gives a node that has caught up a vote on the catalog, unless
// that would leave an even number of voters.
func (n *Node) promoteNode(voters int, silent []string) {
	var ready []string
	for _, name := range silent {
		if n.Online(name) && n.catalogCurrent(name) {
			ready = append(ready, name)
		}
	}
	if !moreVoters(voters, len(ready)) {
		return
	}
	if err := n.catalog.Promote(ready[0]); err != nil {
		n.slog.Warn("node gets no vote on the catalog", "node", ready[0], "error", err)
		return
	}
	n.slog.Info("node votes on the catalog", "node", ready[0])
}

func (n *Node) catalogCurrent(name string) bool {
	ctx, cancel := context.WithTimeout(n.life, placeCall)
	defer cancel()
	r, err := n.replicas.Of(ctx, name, stats.CatalogGroup)
	return err == nil && r != nil && r.Last+catalogSlack >= n.catalog.Progress().Commit
}
