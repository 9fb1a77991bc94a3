package membership

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/proto"

	replicated "github.com/quorate/quorate/cluster/catalog"
	"github.com/quorate/quorate/cluster/peer"
	"github.com/quorate/quorate/cluster/worker"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/proto/logpb"
	"github.com/quorate/quorate/proto/peerpb"
)

const (
	joinEvery      = 200 * time.Millisecond // between two rounds of questions
	dialWait       = 3 * time.Second        // for one connection
	introduceWait  = 15 * time.Second       // for one answer; an admission takes some entries
	awaitNodesPoll = 20 * time.Millisecond  // between two checks whether all founders are there
)

// joiner makes this node part of a cluster: it founds or joins one, and starts the catalog.
type joiner struct {
	config  *Config
	slog    *slog.Logger
	links   *links
	catalog *replicated.Catalog
	founded atomic.Bool // by this process
}

// resume starts the catalog of a node that has a past or is a cluster by itself. All others start
// with join.
func (j *joiner) resume() error {
	past, err := j.catalog.HasPast()
	if err != nil {
		return fmt.Errorf("catalog: look for existing state: %w", err)
	}
	alone := len(j.config.Nodes) == 1 && len(j.config.Contacts) == 0
	directory := j.links.directory
	kept := directory.record()
	switch {
	case kept.Rejoins:
		return nil
	case !past && kept.Index > 0: // it has joined, and got no further
		j.links.update(nil)
		return j.catalog.Start(nil)
	case !past && !alone && len(kept.Founders) == 0:
		return nil
	case len(kept.Nodes) == 0 || alone && !past:
		founders := map[string]member{}
		for name, address := range j.config.Nodes {
			founders[name] = member{Address: address}
		}
		if !past {
			founders[j.config.Node] = member{Address: j.config.Nodes[j.config.Node], Identity: kept.Identity}
		}
		if err := directory.found(founders); err != nil {
			return err
		}
		j.founded.Store(!past)
	case len(kept.Founders) > 0 && !past:
		j.founded.Store(true)
	}
	j.links.update(nil)
	return j.catalog.Start(directory.record().Founders)
}

// join makes a node without a past part of a cluster: it founds one together with the other nodes
// of the static list, all of which must be up and new, or joins the existing one.
func (j *joiner) join(ctx context.Context) error {
	last := ""
	for !j.catalog.Started() {
		err := j.tryJoin(ctx)
		if err == nil || j.catalog.Started() {
			return err
		}
		if text := sorted(err.Error()); text != last {
			last = text
			j.slog.Info("not yet part of a cluster", "reason", text)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("become part of a cluster: %w (%w)", ctx.Err(), err)
		case <-time.After(joinEvery):
		}
	}
	return nil
}

// sorted orders the lines of an error that joins several: DNS may list the same addresses in
// another order each time, which is no news.
func sorted(text string) string {
	lines := strings.Split(text, "\n")
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

func (j *joiner) tryJoin(ctx context.Context) error {
	switch {
	case j.links.directory.record().Rejoins:
		return j.joinAt(ctx, j.links.others())
	case len(j.config.Contacts) > 0:
		addresses, err := j.links.contacts(ctx)
		if len(addresses) == 0 {
			return err
		}
		return j.joinAt(ctx, addresses)
	}
	me := j.links.directory.record().Identity
	founders := map[string]member{j.config.Node: {Address: j.config.Nodes[j.config.Node], Identity: me}}
	var exists []string
	var away error
	for name, address := range j.config.Nodes {
		if name == j.config.Node {
			continue
		}
		reply, err := j.introduce(ctx, address, askIdentity)
		switch {
		case err != nil:
			away = errors.Join(away, fmt.Errorf("node %s at %s: %w", name, address, err))
			continue
		case reply.Node != name:
			return fmt.Errorf("node %q answers at the address of %q", reply.Node, name)
		case !reply.Fresh && !bytes.Equal(reply.Known, me):
			exists = append(exists, address)
		}
		founders[name] = member{Address: address, Identity: reply.Identity}
	}
	if len(exists) > 0 {
		return j.joinAt(ctx, exists)
	}
	if away != nil {
		return away
	}
	if err := j.links.directory.found(founders); err != nil {
		return err
	}
	j.links.update(nil)
	j.founded.Store(true)
	return j.catalog.Start(slices.Sorted(maps.Keys(founders)))
}

// errItself means that a name stands for this node, too.
var errItself = errors.New("this node has reached itself")

// joinAt asks nodes to admit this one to their cluster until one does.
func (j *joiner) joinAt(ctx context.Context, addresses []string) error {
	var errs []error
	for _, address := range addresses {
		reply, err := j.introduce(ctx, address, askToJoin)
		if err == nil && reply.Node == j.config.Node {
			err = errItself
		}
		if err == nil && !reply.Admitted {
			err = errors.New(reply.Error)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", address, err))
			continue
		}
		if err := j.takeCertificate(reply); err != nil {
			return err
		}
		j.slog.Info("node has joined a cluster", "through", reply.Node, "nodes", len(reply.Members))
		j.links.learn(reply.Index, membersOf(reply))
		if err := j.links.directory.joined(); err != nil {
			return err
		}
		return j.catalog.Start(nil)
	}
	return errors.Join(errs...)
}

// purpose is what a node without a link asks of another one.
type purpose int

const (
	askIdentity   purpose = iota // its identity
	askToJoin                    // to be admitted to its cluster
	askMembership                // whether the caller is still a member, see verifier
)

// introduce asks the node at an address.
func (j *joiner) introduce(ctx context.Context, address string, what purpose) (*peerpb.IntroduceReply, error) {
	ctx, cancel := context.WithTimeout(ctx, introduceWait)
	defer cancel()
	req := &peerpb.IntroduceRequest{
		Cluster: j.config.Cluster, Node: j.config.Node, Identity: j.links.directory.record().Identity,
		Address: j.config.Nodes[j.config.Node], Version: peer.Version, Join: what == askToJoin, Verify: what == askMembership,
		OldestVersion: j.config.Versions.Oldest, NewestVersion: j.config.Versions.Newest,
	}
	var by *peer.Invitation
	if req.Join {
		var err error
		if by, err = j.invitation(req); err != nil {
			return nil, err
		}
	}
	encoded, err := proto.Marshal(req)
	if err != nil {
		return nil, err
	}
	dial := func(ctx context.Context, address string) (net.Conn, error) {
		ctx, cancel := context.WithTimeout(ctx, dialWait) // the next address may answer
		defer cancel()
		return j.config.Dial(ctx, address)
	}
	answer, is, err := peer.Introduce(ctx, dial, j.config.Security, by, address, encoded)
	if err != nil {
		return nil, err
	}
	reply := &peerpb.IntroduceReply{}
	if err := proto.Unmarshal(answer, reply); err != nil {
		return nil, err
	}
	return reply, is(reply.Node)
}

// invitation adds to a request this node's token and what else it needs to be admitted by it. nil:
// the node has no token.
func (j *joiner) invitation(req *peerpb.IntroduceRequest) (*peer.Invitation, error) {
	if len(j.config.Token.Secret) == 0 {
		return nil, nil
	}
	req.Token = j.config.Token.Secret
	if j.config.Enrolment != nil {
		var err error
		if req.CertificateRequest, err = j.config.Enrolment.Request(); err != nil {
			return nil, err
		}
	}
	return &peer.Invitation{Authority: j.config.Token.Authority, Plain: j.config.PlainTokens}, nil
}

// takeCertificate accepts the certificate that this node was given when it was admitted.
func (j *joiner) takeCertificate(reply *peerpb.IntroduceReply) error {
	if j.config.Enrolment == nil || len(reply.Certificate) == 0 {
		return nil
	}
	return j.config.Enrolment.Accept(reply.Certificate, reply.Authorities)
}

// awaitFounders waits, after a cluster has been founded, until every node of the static list has a
// number, so that the first queues get all their replicas.
func (j *joiner) awaitFounders(ctx context.Context) error {
	if !j.founded.Load() {
		return nil
	}
	poll := time.NewTicker(awaitNodesPoll)
	defer poll.Stop()
	for {
		missing := ""
		for _, name := range slices.Sorted(maps.Keys(j.config.Nodes)) {
			if _, known := j.catalog.View().NodeByName(name); !known {
				missing = name
			}
		}
		if missing == "" {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("node %s has never joined: %w", missing, ctx.Err())
		case <-poll.C:
		}
	}
}

const (
	registerWait  = 5 * time.Second        // bounds one attempt to register
	registerPause = 100 * time.Millisecond // between two attempts
)

// Registration holds the numbers that the catalog has assigned to this process.
type Registration struct {
	Node fsm.NodeID
	Boot uint64
}

// registration registers this process in the catalog under its incarnation. Whenever the process
// was declared dead but is alive, it registers again and gets a new boot number.
type registration struct {
	config      *Config
	slog        *slog.Logger
	directory   *directory
	catalog     *replicated.Catalog
	incarnation [16]byte
	boot        atomic.Uint64 // 0: none yet
	renewed     func(boot uint64)
	check       *worker.Worker
}

// register obtains a boot number for this process from the catalog, or returns the one it has. It
// may be repeated.
func (r *registration) register(ctx context.Context) (Registration, error) {
	results, err := r.catalog.Propose(ctx, &logpb.CatalogCommand{Body: &logpb.CatalogCommand_RegisterNode{
		RegisterNode: &logpb.RegisterNode{
			Name: r.config.Node, PeerAddress: r.config.Nodes[r.config.Node], Incarnation: r.incarnation[:], Identity: r.directory.record().Identity,
			OldestVersion: r.config.Versions.Oldest, NewestVersion: r.config.Versions.Newest,
		},
	}})
	if err != nil {
		return Registration{}, err
	}
	if err := catalog.Refused(results[0]); err != nil {
		return Registration{}, err
	}
	r.boot.Store(results[0].Boot)
	return Registration{fsm.NodeID(results[0].Node), results[0].Boot}, nil
}

// valid reports whether the catalog lists this process under its current boot number.
func (r *registration) valid() bool {
	boot := r.boot.Load()
	state, known := r.catalog.View().NodeByName(r.config.Node)
	if boot == 0 || !known || !bytes.Equal(state.Incarnation, r.incarnation[:]) {
		return true // it is forgotten, or has a successor: nothing to be done
	}
	return !state.Dead && state.Boot == boot
}

// run registers again whenever needed, until ctx ends.
func (r *registration) run(ctx context.Context) {
	r.check.Run(ctx.Done(), func(time.Time) (again time.Duration) {
		if r.valid() {
			return 0
		}
		r.registerAgain(ctx)
		return registerPause
	})
}

func (r *registration) registerAgain(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, registerWait)
	defer cancel()
	before := r.boot.Load()
	registered, err := r.register(ctx)
	if err != nil {
		r.slog.Warn("this node was declared dead and cannot register again", "error", err)
		return
	}
	r.slog.Warn("this node was declared dead; it has registered again, and its clients reconnect",
		"boot", before, "new_boot", registered.Boot)
	r.renewed(registered.Boot)
}
