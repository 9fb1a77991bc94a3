package membership

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/quorate/quorate/cluster/audit"
	replicated "github.com/quorate/quorate/cluster/catalog"
	"github.com/quorate/quorate/cluster/certs"
	"github.com/quorate/quorate/cluster/mgmt/api"
	"github.com/quorate/quorate/cluster/peer"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
	"github.com/quorate/quorate/proto/peerpb"
)

// freshWait bounds how long a node that is asked about a membership waits for an up-to-date view.
const freshWait = time.Second

// Signer signs certificates.
type Signer interface {
	// Sign returns a node's certificate, and both the certificate and the authorities as PEM.
	Sign(node string, request []byte) (made *x509.Certificate, certificate, authorities []byte, err error)
}

var (
	errNoToken       = errors.New("a new node needs a token to join: create one with quoratectl token create and set cluster_formation.token")
	errNoCertificate = errors.New("without a certificate a node can only request to join, with a token")
	errNoSigner      = errors.New("this node does not sign certificates: join at a node with cluster.ssl_options.cakeyfile")
)

// admission answers nodes that have no link. It checks the caller's identity and request, and has
// the catalog's leader decide whether a node joins.
type admission struct {
	config  *Config
	slog    *slog.Logger
	links   *links
	catalog *replicated.Catalog
	members *members
}

// onIntroduce answers a node that has no link.
func (a *admission) onIntroduce(ctx context.Context, who peer.Caller, raw []byte) ([]byte, error) {
	var req peerpb.IntroduceRequest
	if err := proto.Unmarshal(raw, &req); err != nil {
		return nil, err
	}
	if err := checkCaller(who, &req); err != nil {
		return nil, err
	}
	if req.Cluster != a.config.Cluster || req.Version != peer.Version || req.Node == "" || len(req.Identity) != identitySize {
		return nil, fmt.Errorf("node %q belongs to cluster %q and speaks version %d of the links, not to cluster %q and version %d", req.Node, req.Cluster, req.Version, a.config.Cluster, peer.Version)
	}
	reply := a.introduction()
	reply.Fresh = !a.catalog.Started()
	if known, _ := a.links.directory.knows(req.Node); bytes.Equal(known, req.Identity) {
		reply.Known = known // another folder's identity is not disclosed
	}
	switch {
	case req.Verify:
		a.answerMembership(ctx, &req, reply)
	case req.Join:
		if err := a.admit(ctx, who, &req, reply); err != nil {
			return nil, err
		}
	}
	return proto.Marshal(reply)
}

func (a *admission) introduction() *peerpb.IntroduceReply {
	return &peerpb.IntroduceReply{Node: a.config.Node, Identity: a.links.directory.record().Identity}
}

// checkCaller returns an error if the caller asks in the name of another node, or has no
// certificate and asks for anything except to be admitted.
func checkCaller(who peer.Caller, req *peerpb.IntroduceRequest) error {
	if !who.Uncertified() {
		return who.Is(req.Node)
	}
	if !req.Join || req.Verify || len(req.Token) != certs.SecretSize || len(req.CertificateRequest) == 0 {
		return errNoCertificate
	}
	return certs.CheckNode(req.Node)
}

// admit has the catalog's leader decide whether a node joins, and makes its certificate if it has
// none.
func (a *admission) admit(ctx context.Context, who peer.Caller, req *peerpb.IntroduceRequest, reply *peerpb.IntroduceReply) error {
	// Overwrite what the caller says about these. The secret stays here.
	req.Unproven, req.TokenHash = who.Uncertified(), nil
	if len(req.Token) > 0 {
		req.TokenHash, req.Token = certs.HashSecret(req.Token), nil
	}
	var give func()
	if req.Unproven {
		var err error
		if give, err = a.certify(who, req, reply); err != nil {
			return err // before the token is used
		}
	}
	switch leader := a.catalog.Leader(); leader {
	case "":
		reply.Error = "the catalog has no leader"
		return nil
	case a.config.Node:
		a.decide(ctx, req, reply)
	default:
		answer, err := peer.Ask[peerpb.IntroduceReply](ctx, a.links.mesh, leader, a.config.KindAdmit, req)
		if err != nil {
			return err
		}
		reply.Admitted, reply.Error, reply.Members, reply.Index = answer.Admitted, answer.Error, answer.Members, answer.Index
	}
	switch {
	case !reply.Admitted:
		a.refused(who, req, reply.Error)
	case give != nil:
		give()
	}
	return nil
}

// onAdmit decides, as the catalog's leader, on a node that has asked another one.
func (a *admission) onAdmit(ctx context.Context, _ string, raw []byte) ([]byte, error) {
	var req peerpb.IntroduceRequest
	if err := proto.Unmarshal(raw, &req); err != nil {
		return nil, err
	}
	reply := a.introduction()
	a.decide(ctx, &req, reply)
	return proto.Marshal(reply)
}

func (a *admission) decide(ctx context.Context, req *peerpb.IntroduceRequest, reply *peerpb.IntroduceReply) {
	if err := a.members.admit(ctx, req); err != nil {
		reply.Error = err.Error()
		return
	}
	reply.Admitted = true
	a.links.listNodes(reply)
}

// refused logs a node that was not admitted. It is called several times a second.
func (a *admission) refused(who peer.Caller, req *peerpb.IntroduceRequest, reason string) {
	name, what := req.Node, "node refused to join"
	if req.Unproven {
		name, what = "", "node without a certificate refused to join" // names cost it nothing
	}
	a.links.mesh.Complain(name, what, fmt.Errorf("%s, node %q at %s", reason, fsm.Short(req.Node), who.Host))
	a.config.Audit.Write(audit.Event{
		Kind: audit.Cluster, Action: "node.join", Origin: audit.Origin{Protocol: "cluster", Address: who.Host},
		Target: map[string]string{"node": fsm.Short(req.Node)}, Detail: tokenDetail(req.TokenHash), Outcome: audit.Refused, Reason: reason,
	})
}

// certify makes the certificate of a node that asks to be admitted, and returns a function that
// gives it to the node once it is admitted.
func (a *admission) certify(who peer.Caller, req *peerpb.IntroduceRequest, reply *peerpb.IntroduceReply) (give func(), err error) {
	if a.config.Signer == nil {
		return nil, errNoSigner
	}
	made, certificate, authorities, err := a.config.Signer.Sign(req.Node, req.CertificateRequest)
	if err != nil {
		return nil, err
	}
	req.CertificateRequest = nil
	return func() {
		reply.Certificate, reply.Authorities = certificate, authorities
		a.slog.Info("certificate issued to node", "node", req.Node, "fingerprint", certs.Fingerprint(made), "expires", made.NotAfter)
		a.config.Audit.Write(audit.Event{
			Kind: audit.Cluster, Action: "certificate.issue", Origin: audit.Origin{Protocol: "cluster", Address: who.Host},
			Target: map[string]string{"node": req.Node}, Detail: certificateDetail(made), Outcome: audit.OK,
		})
	}, nil
}

func certificateDetail(c *x509.Certificate) map[string]any {
	return map[string]any{"fingerprint": certs.Fingerprint(c), "expires": c.NotAfter.UTC().Format("2006-01-02T15:04:05Z")}
}

// answerMembership answers a node that asks whether it is a member. A negative answer is given only
// by an up-to-date view, which a majority stands behind.
func (a *admission) answerMembership(ctx context.Context, req *peerpb.IntroduceRequest, reply *peerpb.IntroduceReply) {
	if a.links.directory.announce(req.Node, req.Identity, req.Address) {
		a.slog.Info("node has a new address", "node", req.Node, "address", req.Address)
		a.links.update(nil)
	}
	if !a.catalog.Started() {
		return
	}
	if bytes.Equal(reply.Known, req.Identity) {
		a.links.listNodes(reply)
	}
	ctx, cancel := context.WithTimeout(ctx, freshWait)
	defer cancel()
	if a.catalog.Refresh(ctx) != nil {
		return
	}
	view, record := a.catalog.View(), a.links.directory.record()
	reply.Current, reply.Index = true, view.Index()
	if reply.Removed = isGone(req, view, &record); reply.Removed {
		reply.Known, reply.Members = nil, nil
	}
}

func tokenDetail(hash []byte) map[string]any {
	if len(hash) == 0 {
		return nil
	}
	return map[string]any{"token": tokenID(hash)}
}

// tokenID identifies a token without being a secret.
func tokenID(hash []byte) string { return hex.EncodeToString(hash[:min(len(hash), 8)]) }

// CreateToken creates a token that admits one node, which must have this name unless node is empty.
// An error that is a *fsm.Refusal is the caller's fault.
func (m *Membership) CreateToken(ctx context.Context, ttl fsm.Millis, node string) (api.JoinToken, error) {
	if node != "" {
		if err := certs.CheckNode(node); err != nil {
			return api.JoinToken{}, fsm.Refuse(fsm.Precondition, err.Error())
		}
	}
	var authority []byte
	if s := m.config.Security; s != nil {
		var err error
		if authority, err = s.Keys.Authority(); err != nil {
			return api.JoinToken{}, fsm.Refuse(fsm.Precondition, err.Error())
		}
	}
	t, err := certs.NewToken(authority)
	if err != nil {
		return api.JoinToken{}, err
	}
	err = m.members.propose(ctx, &logpb.CatalogCommand{Body: &logpb.CatalogCommand_PutJoinToken{PutJoinToken: &logpb.PutJoinToken{
		Hash: t.Hash(), Ttl: uint64(max(ttl, 0)), Node: node,
	}}})
	return api.JoinToken{ID: tokenID(t.Hash()), Token: t.Text(), Node: node, TTL: int64(ttl)}, err
}

// Tokens lists the tokens that have not expired.
func (m *Membership) Tokens() []api.JoinToken {
	list, now := []api.JoinToken{}, m.members.now()
	for _, t := range m.catalog.View().JoinTokens() {
		if left := t.Expires - int64(now); left > 0 {
			list = append(list, api.JoinToken{ID: tokenID(t.Hash), Node: t.Node, UsedBy: t.UsedBy, TTL: left})
		}
	}
	return list
}

// RevokeToken revokes a token; false: there is none with this id.
func (m *Membership) RevokeToken(ctx context.Context, id string) (bool, error) {
	for _, t := range m.catalog.View().JoinTokens() {
		if tokenID(t.Hash) == id {
			return true, m.members.propose(ctx, &logpb.CatalogCommand{Body: &logpb.CatalogCommand_DeleteJoinToken{
				DeleteJoinToken: &logpb.DeleteJoinToken{Hash: t.Hash},
			}})
		}
	}
	return false, nil
}
