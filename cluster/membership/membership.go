// Package membership manages this node's place among the nodes of its cluster: the data folder with
// its identity, the directory of nodes and the links to them, founding and joining a cluster,
// admitting and forgetting other nodes, and the members of the catalog's raft group.
//
// It promises that a node which has lost what it voted for or acknowledged never comes back as the
// member that it was, that links exist to members only, and that the catalog's group changes by one
// member at a time, with a majority left to commit the change. It does not know of queues: package
// placement moves their replicas.
package membership

import (
	"context"
	"crypto/x509"
	"fmt"
	"log/slog"
	"net"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/quorate/quorate/cluster/audit"
	replicated "github.com/quorate/quorate/cluster/catalog"
	"github.com/quorate/quorate/cluster/certs"
	"github.com/quorate/quorate/cluster/peer"
	"github.com/quorate/quorate/cluster/worker"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
)

// Config describes a node and how it becomes a member.
type Config struct {
	Node, Cluster string
	DataDir       string
	// FS is the filesystem that DataDir is in; nil: that of the operating system.
	FS vfs.FS
	// Nodes is the static list, including this node: name → address of the peer listener. New nodes
	// found a cluster together with all others on the list.
	Nodes map[string]string
	// Contacts are addresses of nodes of an existing cluster, or names of them, which this node
	// joins if it is new. It then does not found one.
	Contacts []string
	// Resolve returns the addresses that a contact stands for, whenever they are used; nil: it is
	// one itself.
	Resolve func(ctx context.Context, contact string) ([]string, error)
	// Token authorizes this node to join their cluster; zero: it is on their list, or known.
	Token certs.Token
	// PlainTokens allows the token to be sent over plain links to other hosts, too.
	PlainTokens bool
	// Enrolment obtains a certificate for this node when it joins; nil: it has one, or its links
	// are plain.
	Enrolment Enrolment
	// Signer signs certificates for joining nodes; nil: they bring their own.
	Signer   Signer
	Security *peer.Security // of links; nil: they are plain
	Dial     func(ctx context.Context, address string) (net.Conn, error)
	Versions fsm.Versions // of the machines
	Exit     func(code int)
	Logger   *slog.Logger
	Audit    *audit.Log // nil: nothing is audited
	// KindNodes and KindAdmit are the kinds of the calls to other nodes.
	KindNodes, KindAdmit peer.Kind
}

// Enrolment obtains a certificate for a node.
type Enrolment interface {
	// Request returns a certificate request; nil: the node has a certificate.
	Request() ([]byte, error)
	// Accept takes the certificate and the valid authorities, as PEM.
	Accept(certificate, authorities []byte) error
}

// Parts are the parts of the node that its membership uses.
type Parts struct {
	Mesh        *peer.Mesh
	Incarnation [16]byte // of this process, as presented by the mesh
	Catalog     *replicated.Catalog
	Guard       *worker.Guard
	Now         func() fsm.Time
	// SetNodes is called with the names of all nodes when these change.
	SetNodes func(names []string)
	// Last is the last index of a node's catalog replica; false: it does not say.
	Last func(ctx context.Context, node string) (index uint64, ok bool)
	// Isolated reports whether this node is cut off from a majority.
	Isolated func() bool
	// Renewed is called when the process has got a new boot number.
	Renewed func(boot uint64)
}

// Membership is the membership of one node. Open takes its data folder, Start connects it, Join
// makes the node a member; Stop and Close end it.
type Membership struct {
	config       Config
	slog         *slog.Logger
	directory    *directory
	links        *links
	joiner       *joiner
	verifier     *verifier
	members      *members
	admission    *admission
	registration *registration
	catalog      *replicated.Catalog
	loops        *worker.Tasks // nil before Connect
}

// Open locks the data folder and reads this node's identity.
func Open(c Config) (*Membership, error) {
	if c.FS == nil {
		c.FS = vfs.Default
	}
	if err := makeFolder(c.FS, c.DataDir); err != nil {
		return nil, fmt.Errorf("data directory: %w", err)
	}
	m := &Membership{config: c, slog: c.Logger}
	var err error
	if m.directory, err = openDirectory(c.FS, c.DataDir, c.Node); err != nil {
		return nil, fmt.Errorf("open data directory: %w", err)
	}
	m.links = newLinks(&m.config, m.directory)
	if err := m.checkStores(); err != nil {
		_ = m.directory.close() // the first error is the one that matters
		return nil, err
	}
	return m, nil
}

// checkStores finds out, before the stores are opened, whether the node has lost the record of its
// votes and acknowledgements. In that case it must not continue as the member that it was: it takes
// a new identity and joins again, as with an empty data folder. It is an error for the only node of
// a cluster, which nobody could bring up to date.
func (m *Membership) checkStores() error {
	kept := m.directory.record()
	if kept.Index == 0 || kept.Rejoins {
		return nil
	}
	lost, err := missing(m.config.FS, m.config.DataDir)
	if err != nil || lost == "" {
		return err
	}
	if len(m.links.others()) == 0 {
		return fmt.Errorf("data folder %s has lost its %s, and no other node of the cluster can provide it: restore it, or empty the folder to start over",
			m.config.DataDir, lost)
	}
	m.slog.Error("the data folder has lost the record of this node's votes: the node rejoins, and the others bring it up to date", "lost", lost)
	return m.directory.renew()
}

// Identity is the identity of the data folder.
func (m *Membership) Identity() []byte { return m.directory.record().Identity }

// Admit says whether a node may have a link; see peer.Config.
func (m *Membership) Admit(node string, identity []byte) error { return m.links.admit(node, identity) }

// Introduce answers a node that has no link; see peer.Config.
func (m *Membership) Introduce(ctx context.Context, who peer.Caller, request []byte) ([]byte, error) {
	return m.admission.onIntroduce(ctx, who, request)
}

// Connect wires the membership to the other parts of the node. It is called once, before the mesh
// starts.
func (m *Membership) Connect(p Parts) {
	c := &m.config
	m.catalog, m.loops = p.Catalog, worker.NewTasks(p.Guard)
	m.links.mesh, m.links.setNodes, m.links.view = p.Mesh, p.SetNodes, p.Catalog.View
	m.joiner = &joiner{config: c, slog: m.slog, links: m.links, catalog: p.Catalog}
	m.verifier = &verifier{config: c, slog: m.slog, links: m.links, joiner: m.joiner, catalog: p.Catalog, guard: p.Guard, isolated: p.Isolated}
	m.members = &members{config: c, slog: m.slog, links: m.links, catalog: p.Catalog, now: p.Now, last: p.Last}
	m.admission = &admission{config: c, slog: m.slog, links: m.links, catalog: p.Catalog, members: m.members}
	m.registration = &registration{
		config: c, slog: m.slog, directory: m.directory, catalog: p.Catalog, incarnation: p.Incarnation, renewed: p.Renewed,
		check: worker.New(worker.Options{Pause: registerPause}),
	}
	p.Mesh.HandleCall(c.KindNodes, m.links.onNodes)
	p.Mesh.HandleCall(c.KindAdmit, m.admission.onAdmit)
}

// Resume starts the catalog of a node that has a past or is a cluster by itself. All others start
// with Join.
func (m *Membership) Resume() error { return m.joiner.resume() }

// Start starts the loops that maintain the membership. The mesh must have started.
func (m *Membership) Start() {
	m.loops.Loop("ask for the list of nodes", func(ctx context.Context) {
		m.links.refresh.Run(ctx.Done(), func(time.Time) (again time.Duration) { m.links.askNodes(ctx); return 0 })
	})
	m.loops.Loop("keep the catalog's members", m.members.run)
	m.loops.Loop("verify the membership of this node", m.verifier.run)
}

// KeepRegistered registers the process again whenever it is declared dead. It is called once the
// node uses the numbers that Join has returned.
func (m *Membership) KeepRegistered() { m.loops.Loop("stay registered", m.registration.run) }

// Join makes the node part of a cluster, unless it is already, and registers it.
func (m *Membership) Join(ctx context.Context) (Registration, error) {
	if err := m.joiner.join(ctx); err != nil {
		return Registration{}, err
	}
	r, err := m.registration.register(ctx)
	if err != nil {
		return r, fmt.Errorf("register in the catalog: %w", err)
	}
	return r, nil
}

// AwaitFounders waits, after a cluster has been founded, until all nodes of the static list have
// been seen once. The version is then raised at once rather than with the next check of the members:
// what clients declare before it has the meaning of an earlier version for good.
func (m *Membership) AwaitFounders(ctx context.Context) error {
	if err := m.joiner.awaitFounders(ctx); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, raiseWait)
	defer cancel()
	m.members.raiseIfAll(ctx)
	return nil
}

// Changed applies the list of nodes of a view. It does not wait.
func (m *Membership) Changed(v *catalog.View) {
	m.links.learn(v.Index(), membersIn(v))
	m.registration.check.Wake()
}

// Names lists all nodes by name.
func (m *Membership) Names() []string { return m.links.names() }

// Refused counts the nodes that came with a data folder other than the known one.
func (m *Membership) Refused() int64 { return m.links.refused.Load() }

// ForgetNode removes a node that has stopped for good, and its replicas. Its queues get other
// replicas where nodes are free. It is no error if the node is unknown.
func (m *Membership) ForgetNode(ctx context.Context, name string) error {
	return m.members.forget(ctx, name)
}

// CertificateTaken records the new certificate that this node presents from now on.
func (m *Membership) CertificateTaken(c *x509.Certificate) {
	m.slog.Info("certificate of this node has been replaced", "fingerprint", certs.Fingerprint(c), "expires", c.NotAfter)
	m.config.Audit.Write(audit.Event{
		Kind: audit.Cluster, Action: "certificate.replace", Origin: audit.Origin{Protocol: "cluster"},
		Target: map[string]string{"node": m.config.Node}, Detail: certificateDetail(c), Outcome: audit.OK,
	})
}

// Stop ends the loops. It may be called before Start, and again.
func (m *Membership) Stop() {
	if m.loops != nil {
		m.loops.Stop()
	}
}

// Close releases the data folder. The stores in it must have been closed.
func (m *Membership) Close() error { return m.directory.close() }
