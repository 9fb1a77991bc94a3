package cluster

import (
	"context"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"

	"github.com/quorate/quorate/cluster/audit"
	"github.com/quorate/quorate/cluster/broker"
	"github.com/quorate/quorate/cluster/certs"
	"github.com/quorate/quorate/cluster/mgmt/api"
	"github.com/quorate/quorate/cluster/peer"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/proto/logpb"
	"github.com/quorate/quorate/proto/peerpb"
)

// Enrolment gets a node its certificate.
type Enrolment interface {
	// Request asks for one; nil: the node has it.
	Request() ([]byte, error)
	// Accept takes the certificate and the authorities that count, as PEM.
	Accept(certificate, authorities []byte) error
}

// Signer makes certificates.
type Signer interface {
	// Sign returns a node's certificate, and that and the authorities as PEM.
	Sign(node string, request []byte) (made *x509.Certificate, certificate, authorities []byte, err error)
}

var (
	errNoToken = errors.New("a node that is new joins with a token: quoratectl token create makes one, cluster_formation.token takes it")
	errGuest   = errors.New("without a certificate a node may only ask to join, with a token")
	errUnsign  = errors.New("this node signs no certificates: ask one that has cluster.ssl_options.cakeyfile")
)

// invitation puts this node's token into a question, and what else it needs to be
// let in by it. nil: it has none.
func (n *Node) invitation(ask *peerpb.Ask) (*peer.Invitation, error) {
	if len(n.config.Token.Secret) == 0 {
		return nil, nil
	}
	ask.Token = n.config.Token.Secret
	if n.config.Enrolment != nil {
		var err error
		if ask.CertificateRequest, err = n.config.Enrolment.Request(); err != nil {
			return nil, err
		}
	}
	return &peer.Invitation{Authority: n.config.Token.Authority, Plain: n.config.PlainTokens}, nil
}

// takeCertificate takes what this node was given when it was let in.
func (n *Node) takeCertificate(told *peerpb.Told) error {
	if n.config.Enrolment == nil || len(told.Certificate) == 0 {
		return nil
	}
	return n.config.Enrolment.Accept(told.Certificate, told.Authorities)
}

// checkCaller refuses who asks in the name of another node, and has who has no
// certificate ask for nothing but to be let in.
func checkCaller(who peer.Caller, ask *peerpb.Ask) error {
	if !who.Guest() {
		return who.Is(ask.Node)
	}
	if !ask.Join || ask.Place || len(ask.Token) != certs.SecretSize || len(ask.CertificateRequest) == 0 {
		return errGuest
	}
	return certs.CheckNode(ask.Node)
}

// letIn has the catalog's leader decide whether a node joins, and makes its
// certificate if it has none.
func (n *Node) letIn(ctx context.Context, who peer.Caller, ask *peerpb.Ask, told *peerpb.Told) error {
	// Whatever the caller says of these. The secret stays here.
	ask.Unproven, ask.TokenHash = who.Guest(), nil
	if len(ask.Token) > 0 {
		ask.TokenHash, ask.Token = certs.HashSecret(ask.Token), nil
	}
	var hand func()
	if ask.Unproven {
		var err error
		if hand, err = n.certify(who, ask, told); err != nil {
			return err // before the token is used
		}
	}
	switch leader := n.catalog.Leader(); leader {
	case "":
		told.Error = "the catalog has no leader"
		return nil
	case n.config.Name:
		n.answerJoin(ctx, ask, told)
	default:
		answer, err := peer.Ask[peerpb.Told](ctx, n.mesh, leader, broker.KindAdmit, ask)
		if err != nil {
			return err
		}
		told.Admitted, told.Error, told.Members, told.Index = answer.Admitted, answer.Error, answer.Members, answer.Index
	}
	switch {
	case !told.Admitted:
		n.refuseJoin(who, ask, told.Error)
	case hand != nil:
		hand()
	}
	return nil
}

// refuseJoin says in the logs who was not let in. It is told so several times a
// second.
func (n *Node) refuseJoin(who peer.Caller, ask *peerpb.Ask, reason string) {
	name, what := ask.Node, "node does not join"
	if ask.Unproven {
		name, what = "", "node without a certificate does not join" // names cost it nothing
	}
	n.mesh.Complain(name, what, fmt.Errorf("%s, node %q at %s", reason, fsm.Short(ask.Node), who.Host))
	n.config.Audit.Write(audit.Event{
		Kind: audit.Cluster, Action: "node.join", Origin: audit.Origin{Protocol: "cluster", Address: who.Host},
		Target: map[string]string{"node": fsm.Short(ask.Node)}, Detail: tokenDetail(ask.TokenHash), Outcome: audit.Refused, Reason: reason,
	})
}

// certify makes the certificate of a node that asks to be let in, and returns what
// hands it over once it was.
func (n *Node) certify(who peer.Caller, ask *peerpb.Ask, told *peerpb.Told) (hand func(), err error) {
	if n.config.Signer == nil {
		return nil, errUnsign
	}
	made, certificate, authorities, err := n.config.Signer.Sign(ask.Node, ask.CertificateRequest)
	if err != nil {
		return nil, err
	}
	ask.CertificateRequest = nil
	return func() {
		told.Certificate, told.Authorities = certificate, authorities
		n.slog.Info("node gets a certificate", "node", ask.Node, "fingerprint", certs.Fingerprint(made), "expires", made.NotAfter)
		n.config.Audit.Write(audit.Event{
			Kind: audit.Cluster, Action: "certificate.issue", Origin: audit.Origin{Protocol: "cluster", Address: who.Host},
			Target: map[string]string{"node": ask.Node}, Detail: certificateDetail(made), Outcome: audit.OK,
		})
	}, nil
}

func certificateDetail(c *x509.Certificate) map[string]any {
	return map[string]any{"fingerprint": certs.Fingerprint(c), "expires": c.NotAfter.UTC().Format("2006-01-02T15:04:05Z")}
}

// CertificateTaken notes that this node shows another certificate from now on.
func (n *Node) CertificateTaken(c *x509.Certificate) {
	n.slog.Info("certificate of this node has been replaced", "fingerprint", certs.Fingerprint(c), "expires", c.NotAfter)
	n.config.Audit.Write(audit.Event{
		Kind: audit.Cluster, Action: "certificate.replace", Origin: audit.Origin{Protocol: "cluster"},
		Target: map[string]string{"node": n.config.Name}, Detail: certificateDetail(c), Outcome: audit.OK,
	})
}

// mayJoin says what is to be written about a node that joins, or why it must not:
// one that is known or on the list has proved its name, and needs no token.
func (n *Node) mayJoin(ask *peerpb.Ask) (*logpb.AdmitNode, error) {
	m := &logpb.AdmitNode{Name: ask.Node, PeerAddress: ask.Address, Identity: ask.Identity}
	_, listed := n.config.Nodes[ask.Node]
	_, known := n.View().NodeByName(ask.Node)
	switch {
	case !ask.Unproven && (known || listed):
		return m, nil
	case len(ask.TokenHash) == 0:
		return nil, errNoToken
	}
	m.Token = ask.TokenHash
	return m, n.View().CheckJoinToken(m, n.clock.Now())
}

func (n *Node) auditJoin(m *logpb.AdmitNode) {
	n.config.Audit.Write(audit.Event{
		Kind: audit.Cluster, Action: "node.join", Origin: audit.Origin{Protocol: "cluster", Address: m.PeerAddress},
		Target: map[string]string{"node": m.Name}, Detail: tokenDetail(m.Token), Outcome: audit.OK,
	})
}

func tokenDetail(hash []byte) map[string]any {
	if len(hash) == 0 {
		return nil
	}
	return map[string]any{"token": tokenID(hash)}
}

// tokenID tells tokens apart, and lets nobody in.
func tokenID(hash []byte) string { return hex.EncodeToString(hash[:min(len(hash), 8)]) }

// CreateToken makes a token that lets one node in, which must have a name unless
// that is empty. An error that is a *fsm.Refusal is the caller's fault.
func (n *Node) CreateToken(ctx context.Context, ttl fsm.Millis, node string) (api.JoinToken, error) {
	if node != "" {
		if err := certs.CheckNode(node); err != nil {
			return api.JoinToken{}, fsm.Refuse(fsm.Precondition, err.Error())
		}
	}
	var authority []byte
	if s := n.config.Security; s != nil {
		var err error
		if authority, err = s.Keys.Authority(); err != nil {
			return api.JoinToken{}, fsm.Refuse(fsm.Precondition, err.Error())
		}
	}
	t, err := certs.NewToken(authority)
	if err != nil {
		return api.JoinToken{}, err
	}
	err = n.changeTokens(ctx, &logpb.CatalogCommand{Body: &logpb.CatalogCommand_PutJoinToken{PutJoinToken: &logpb.PutJoinToken{
		Hash: t.Hash(), Ttl: uint64(max(ttl, 0)), Node: node,
	}}})
	return api.JoinToken{ID: tokenID(t.Hash()), Token: t.Text(), Node: node, TTL: int64(ttl)}, err
}

// Tokens lists those whose time is not over.
func (n *Node) Tokens() []api.JoinToken {
	list, now := []api.JoinToken{}, n.clock.Now()
	for _, t := range n.View().JoinTokens() {
		if left := t.Expires - int64(now); left > 0 {
			list = append(list, api.JoinToken{ID: tokenID(t.Hash), Node: t.Node, UsedBy: t.UsedBy, TTL: left})
		}
	}
	return list
}

// RevokeToken takes a token back; false: there is none with this id.
func (n *Node) RevokeToken(ctx context.Context, id string) (bool, error) {
	for _, t := range n.View().JoinTokens() {
		if tokenID(t.Hash) == id {
			return true, n.changeTokens(ctx, &logpb.CatalogCommand{Body: &logpb.CatalogCommand_DeleteJoinToken{
				DeleteJoinToken: &logpb.DeleteJoinToken{Hash: t.Hash},
			}})
		}
	}
	return false, nil
}

func (n *Node) changeTokens(ctx context.Context, c *logpb.CatalogCommand) error {
	ctx, cancel := context.WithTimeout(ctx, settleWait)
	defer cancel()
	r, err := n.Propose(ctx, c)
	if err != nil {
		return err
	}
	return catalog.Refused(r[0])
}
