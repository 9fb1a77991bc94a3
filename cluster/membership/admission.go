package membership

import (
	"bytes"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/quorate/quorate/cluster/audit"
	"github.com/quorate/quorate/cluster/certs"
	"github.com/quorate/quorate/cluster/group"
	"github.com/quorate/quorate/cluster/peer"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/peerpb"
)

// freshWait bounds how long who is asked about a membership waits for a view that
// is up to date.
const freshWait = time.Second

// Signer makes certificates.
type Signer interface {
	// Sign returns a node's certificate, and that and the authorities as PEM.
	Sign(node string, request []byte) (made *x509.Certificate, certificate, authorities []byte, err error)
}

var (
	errNoToken       = errors.New("a node that is new joins with a token: quoratectl token create makes one, cluster_formation.token takes it")
	errNoCertificate = errors.New("without a certificate a node may only ask to join, with a token")
	errNoSigner      = errors.New("this node signs no certificates: ask one that has cluster.ssl_options.cakeyfile")
)

// admission answers nodes that have no link. It checks who asks for what and has
// the catalog's leader decide whether a node joins.
type admission struct {
	config  *Config
	slog    *slog.Logger
	links   *links
	catalog *group.Catalog
	members *members
}

// onIntroduce answers a node that has no link.
func (a *admission) onIntroduce(ctx context.Context, who peer.Caller, req []byte) ([]byte, error) {
	var ask peerpb.Ask
	if err := proto.Unmarshal(req, &ask); err != nil {
		return nil, err
	}
	if err := checkCaller(who, &ask); err != nil {
		return nil, err
	}
	if ask.Cluster != a.config.Cluster || ask.Version != peer.Version || ask.Node == "" || len(ask.Identity) != identitySize {
		return nil, fmt.Errorf("node %q of cluster %q, version %d, is none of ours", ask.Node, ask.Cluster, ask.Version)
	}
	told := a.introduction()
	told.Fresh = !a.catalog.Started()
	if known, _ := a.links.directory.knows(ask.Node); bytes.Equal(known, ask.Identity) {
		told.Known = known // who another folder stands for is nobody's business
	}
	switch {
	case ask.Place:
		a.answerMembership(ctx, &ask, told)
	case ask.Join:
		if err := a.admit(ctx, who, &ask, told); err != nil {
			return nil, err
		}
	}
	return proto.Marshal(told)
}

func (a *admission) introduction() *peerpb.Told {
	return &peerpb.Told{Node: a.config.Node, Identity: a.links.directory.record().Identity}
}

// checkCaller refuses who asks in the name of another node, and has who has no
// certificate ask for nothing but to be admitted.
func checkCaller(who peer.Caller, ask *peerpb.Ask) error {
	if !who.Guest() {
		return who.Is(ask.Node)
	}
	if !ask.Join || ask.Place || len(ask.Token) != certs.SecretSize || len(ask.CertificateRequest) == 0 {
		return errNoCertificate
	}
	return certs.CheckNode(ask.Node)
}

// admit has the catalog's leader decide whether a node joins, and makes its
// certificate if it has none.
func (a *admission) admit(ctx context.Context, who peer.Caller, ask *peerpb.Ask, told *peerpb.Told) error {
	// Whatever the caller says of these. The secret stays here.
	ask.Unproven, ask.TokenHash = who.Guest(), nil
	if len(ask.Token) > 0 {
		ask.TokenHash, ask.Token = certs.HashSecret(ask.Token), nil
	}
	var give func()
	if ask.Unproven {
		var err error
		if give, err = a.certify(who, ask, told); err != nil {
			return err // before the token is used
		}
	}
	switch leader := a.catalog.Leader(); leader {
	case "":
		told.Error = "the catalog has no leader"
		return nil
	case a.config.Node:
		a.decide(ctx, ask, told)
	default:
		answer, err := peer.Ask[peerpb.Told](ctx, a.links.mesh, leader, a.config.KindAdmit, ask)
		if err != nil {
			return err
		}
		told.Admitted, told.Error, told.Members, told.Index = answer.Admitted, answer.Error, answer.Members, answer.Index
	}
	switch {
	case !told.Admitted:
		a.refused(who, ask, told.Error)
	case give != nil:
		give()
	}
	return nil
}

// onAdmit decides, as the catalog's leader, on a node that has asked another one.
func (a *admission) onAdmit(ctx context.Context, _ string, req []byte) ([]byte, error) {
	var ask peerpb.Ask
	if err := proto.Unmarshal(req, &ask); err != nil {
		return nil, err
	}
	told := a.introduction()
	a.decide(ctx, &ask, told)
	return proto.Marshal(told)
}

func (a *admission) decide(ctx context.Context, ask *peerpb.Ask, told *peerpb.Told) {
	if err := a.members.admit(ctx, ask); err != nil {
		told.Error = err.Error()
		return
	}
	told.Admitted = true
	a.links.listNodes(told)
}

// refused says in the logs who was not admitted. It is called several times a
// second.
func (a *admission) refused(who peer.Caller, ask *peerpb.Ask, reason string) {
	name, what := ask.Node, "node does not join"
	if ask.Unproven {
		name, what = "", "node without a certificate does not join" // names cost it nothing
	}
	a.links.mesh.Complain(name, what, fmt.Errorf("%s, node %q at %s", reason, fsm.Short(ask.Node), who.Host))
	a.config.Audit.Write(audit.Event{
		Kind: audit.Cluster, Action: "node.join", Origin: audit.Origin{Protocol: "cluster", Address: who.Host},
		Target: map[string]string{"node": fsm.Short(ask.Node)}, Detail: tokenDetail(ask.TokenHash), Outcome: audit.Refused, Reason: reason,
	})
}

// certify makes the certificate of a node that asks to be admitted, and returns
// what gives it to the node once it was.
func (a *admission) certify(who peer.Caller, ask *peerpb.Ask, told *peerpb.Told) (give func(), err error) {
	if a.config.Signer == nil {
		return nil, errNoSigner
	}
	made, certificate, authorities, err := a.config.Signer.Sign(ask.Node, ask.CertificateRequest)
	if err != nil {
		return nil, err
	}
	ask.CertificateRequest = nil
	return func() {
		told.Certificate, told.Authorities = certificate, authorities
		a.slog.Info("node gets a certificate", "node", ask.Node, "fingerprint", certs.Fingerprint(made), "expires", made.NotAfter)
		a.config.Audit.Write(audit.Event{
			Kind: audit.Cluster, Action: "certificate.issue", Origin: audit.Origin{Protocol: "cluster", Address: who.Host},
			Target: map[string]string{"node": ask.Node}, Detail: certificateDetail(made), Outcome: audit.OK,
		})
	}, nil
}

func certificateDetail(c *x509.Certificate) map[string]any {
	return map[string]any{"fingerprint": certs.Fingerprint(c), "expires": c.NotAfter.UTC().Format("2006-01-02T15:04:05Z")}
}

// answerMembership answers a node that asks whether it is a member. That it is
// none is said only by a view that is up to date: a majority stands behind it.
func (a *admission) answerMembership(ctx context.Context, ask *peerpb.Ask, told *peerpb.Told) {
	if a.links.directory.announce(ask.Node, ask.Identity, ask.Address) {
		a.slog.Info("node has another address", "node", ask.Node, "address", ask.Address)
		a.links.update(nil)
	}
	if !a.catalog.Started() {
		return
	}
	if bytes.Equal(told.Known, ask.Identity) {
		a.links.listNodes(told)
	}
	ctx, cancel := context.WithTimeout(ctx, freshWait)
	defer cancel()
	if a.catalog.Refresh(ctx) != nil {
		return
	}
	view := a.catalog.View()
	state, known := view.NodeByName(ask.Node)
	told.Current, told.Index = true, view.Index()
	told.Gone = !known || len(state.Identity) > 0 && !bytes.Equal(state.Identity, ask.Identity)
	if told.Gone {
		told.Known, told.Members = nil, nil
	}
}
