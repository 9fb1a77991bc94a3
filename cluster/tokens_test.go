package cluster

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/quorate/quorate/cluster/audit"
	"github.com/quorate/quorate/cluster/certs"
	"github.com/quorate/quorate/cluster/logtest"
	"github.com/quorate/quorate/cluster/mgmt/api"
	"github.com/quorate/quorate/cluster/peer"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/peerpb"
)

// secured is a cluster whose links are secured. Its nodes can sign for others.
type secured struct {
	*nodes
	certs string // the authority's folder
	audit logtest.Lines
}

// events are what was audited: action, node, outcome.
func events(t *testing.T, log *logtest.Lines) (all []string) {
	t.Helper()
	for d := json.NewDecoder(strings.NewReader(log.String())); d.More(); {
		var e audit.Event
		if err := d.Decode(&e); err != nil {
			t.Fatal(err)
		}
		all = append(all, fmt.Sprintf("%s %s %s %s", e.Action, e.Target["node"], e.Outcome, e.Reason))
	}
	return all
}

// mustSecured starts nodes on one list, with certificates.
func mustSecured(t *testing.T, first ...string) *secured {
	t.Helper()
	s := &secured{certs: filepath.Join(t.TempDir(), "certs")}
	if _, err := certs.Init(s.certs, certs.NewTerms(time.Hour)); err != nil {
		t.Fatal(err)
	}
	s.nodes = mustCluster(t, func(c *nodes) {
		c.first = first
		s.nodes = c
		c.change = func(config *Config) {
			for name := range config.Nodes {
				if !slices.Contains(first, name) {
					delete(config.Nodes, name)
				}
			}
			s.arm(config)
		}
	})
	return s
}

// arm gives a node its certificate, made before if need be, and the authority's key.
func (s *secured) arm(config *Config) {
	s.t.Helper()
	config.Audit = audit.New(config.Name, &s.audit, time.Now, func(err error) { s.t.Error(err) })
	f := certs.Files{
		Authorities: filepath.Join(s.certs, certs.AuthorityFile), AuthorityKey: filepath.Join(s.certs, certs.AuthorityKeyFile),
		Certificate: filepath.Join(s.certs, config.Name+".pem"), Key: filepath.Join(s.certs, config.Name+".key"),
	}
	if _, err := os.Stat(f.Certificate); err != nil {
		if _, err := certs.Node(s.certs, config.Name, certs.NewTerms(time.Hour)); err != nil {
			s.t.Fatal(err)
		}
	}
	keys, err := certs.Open(config.Name, f, func(err error) { s.t.Error(err) })
	if err != nil {
		s.t.Fatal(err)
	}
	config.Security, config.Signer = &peer.Security{Keys: keys}, keys
}

func mustToken(t *testing.T, n *Node, ttl time.Duration, node string) (certs.Token, api.JoinToken) {
	t.Helper()
	var made api.JoinToken
	err := retried(t, func(ctx context.Context) (err error) {
		made, err = n.membership.CreateToken(ctx, fsm.Millis(ttl.Milliseconds()), node)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	token, err := certs.ParseToken(made.Token)
	if err != nil {
		t.Fatal(err)
	}
	return token, made
}

// newcomer is a node that joins through another one, without a certificate.
func (s *secured) newcomer(name, through string, token certs.Token) Config {
	dir := filepath.Join(s.dir, name, "certs")
	f := certs.Files{Authorities: filepath.Join(dir, "ca.pem"), Certificate: filepath.Join(dir, "node.pem"), Key: filepath.Join(dir, "node.key")}
	change := s.change
	s.change = nil
	config := s.config(name)
	s.change = change
	wait := certs.Wait(name, f, func() (*certs.Keys, error) { return certs.Open(name, f, func(err error) { s.t.Error(err) }) })
	config.Nodes, config.Contacts, config.Token = map[string]string{name: name}, []string{through}, token
	config.Security, config.Enrolment = &peer.Security{Keys: wait}, wait
	return config
}

// mustJoin starts a node that has to become a member.
func (s *secured) mustJoin(config Config) {
	s.t.Helper()
	n, err := Open(config)
	if err != nil {
		s.t.Fatal(err)
	}
	s.all[config.Name] = n
	if err := n.Join(deadline(s.t)); err != nil {
		s.t.Fatal(err)
	}
}

// ask is one question of a node that wants to join, and its answer.
func (s *secured) ask(config Config) (*peerpb.IntroduceReply, error) {
	question := &peerpb.IntroduceRequest{
		Cluster: config.ClusterName, Node: config.Name, Identity: bytes.Repeat([]byte{byte(len(config.Name))}, 16),
		Address: config.Nodes[config.Name], Version: peer.Version, Join: true, Token: config.Token.Secret,
		OldestVersion: fsm.Supported.Oldest, NewestVersion: fsm.Supported.Newest,
	}
	var by *peer.Invitation
	if len(question.Token) > 0 {
		by = &peer.Invitation{Authority: config.Token.Authority, Plain: config.PlainTokens}
		if config.Enrolment != nil {
			var err error
			if question.CertificateRequest, err = config.Enrolment.Request(); err != nil {
				return nil, err
			}
		}
	}
	return introduce(context.Background(), config.Dial, config.Security, by, config.Contacts[0], question)
}

// introduce asks a node without being one.
func introduce(ctx context.Context, dial func(context.Context, string) (net.Conn, error), s *peer.Security, by *peer.Invitation, address string, question *peerpb.IntroduceRequest) (*peerpb.IntroduceReply, error) {
	encoded, err := proto.Marshal(question)
	if err != nil {
		return nil, err
	}
	answer, is, err := peer.Introduce(ctx, dial, s, by, address, encoded)
	if err != nil {
		return nil, err
	}
	reply := &peerpb.IntroduceReply{}
	if err := proto.Unmarshal(answer, reply); err != nil {
		return nil, err
	}
	return reply, is(reply.Node)
}

// A node without a certificate joins by a token, through a node that does not
// lead the catalog: it gets a certificate, is a member, and comes back with it.
// The token is good for nobody else.
func TestJoinByToken(t *testing.T) {
	t.Parallel()
	s := mustSecured(t, "n1", "n2")
	follower := s.all["n1"].catalog.Leader()
	until(t, "the catalog has a leader", func() bool { follower = s.all["n1"].catalog.Leader(); return follower != "" })
	follower = s.other(follower)
	token, made := mustToken(t, s.all[follower], time.Hour, "n3")
	s.mustJoin(s.newcomer("n3", follower, token))
	until(t, "n1 knows who has used the token", func() bool {
		got := tokenOf(s.all["n1"], made)
		return got.UsedBy == "n3" && got.Token == "" && got.TTL > 0
	})
	s.mustClient("n3").mustDeclare("q")
	s.mustMembers("q", "n1", "n2", "n3")
	s.stop("n3")
	again := s.newcomer("n3", follower, token)
	dir := filepath.Join(s.dir, "n3", "certs")
	keys, err := certs.Open("n3", certs.Files{Authorities: filepath.Join(dir, "ca.pem"), Certificate: filepath.Join(dir, "node.pem"), Key: filepath.Join(dir, "node.key")}, func(err error) { t.Error(err) })
	if err != nil {
		t.Fatal(err)
	}
	again.Security, again.Enrolment = &peer.Security{Keys: keys}, nil
	s.mustJoin(again)
	for _, name := range []string{"n3", "n4"} {
		until(t, "the token is refused", func() bool {
			reply, err := s.ask(s.newcomer(name, follower, token))
			if reply.GetAdmitted() || len(reply.GetCertificate()) != 0 {
				t.Fatalf("%s with the token of n3: %+v, %v", name, reply, err)
			}
			return err == nil && reply.Error == used
		})
	}
	want := []string{"node.join n3 ok ", "certificate.issue n3 ok ", "node.join n3 refused " + used, "node.join n4 refused " + used}
	got := slices.DeleteFunc(events(t, &s.audit), func(e string) bool { // nobody led the catalog: it was asked again
		return strings.HasPrefix(e, "node.join n") && strings.Contains(e, " refused ") && !strings.HasSuffix(e, " refused "+used)
	})
	if got = slices.Compact(got); !slices.Equal(got, want) { // an answer that was lost: likewise
		t.Errorf("audited %q, want %q", got, want)
	}
	if text := s.audit.String(); strings.Contains(text, made.Token) || !strings.Contains(text, made.ID) {
		t.Error("the audit log has the secret, or not the token's id")
	}
}

// used is how a token is refused that has let somebody in.
const used = "the token has already been used"

// tokenOf is what a node says of a token; it has no ID if the node knows none.
func tokenOf(n *Node, of api.JoinToken) (found api.JoinToken) {
	for _, t := range n.membership.Tokens() {
		if t.ID == of.ID {
			found = t
		}
	}
	return found
}

// Whoever has no token that is good for it hears so and nothing else: nothing
// is written, and nobody loses its place.
func TestJoinsRefused(t *testing.T) {
	t.Parallel()
	s, foreign := mustSecured(t, "n1"), mustSecured(t, "n1")
	n := s.all["n1"]
	const unknown = "unknown, revoked or expired join token"
	other, _ := mustToken(t, foreign.all["n1"], time.Hour, "")
	mixed := other
	good, _ := mustToken(t, n, time.Hour, "")
	mixed.Authority = good.Authority
	wrong := good
	wrong.Authority = other.Authority
	revoked, made := mustToken(t, n, time.Hour, "")
	if known, err := n.membership.RevokeToken(deadline(t), made.ID); !known || err != nil {
		t.Fatal(known, err)
	}
	if known, err := n.membership.RevokeToken(deadline(t), made.ID); known || err != nil {
		t.Errorf("revoked twice: %v, %v", known, err)
	}
	bound, _ := mustToken(t, n, time.Hour, "n7")
	short, over := mustToken(t, n, time.Second, "")
	until(t, "a token is over", func() bool { return tokenOf(n, over).ID == "" })
	plain := good
	plain.Authority = nil
	index := func() uint64 { return n.View().Index() }
	before, rows := index(), n.View().String()
	for _, tc := range []struct {
		what, node string
		token      certs.Token
		change     func(*Config)
		says       string
	}{
		{"no token", "n4", certs.Token{}, s.arm, "a new node needs a token to join"},
		{"of another cluster", "n4", mixed, nil, unknown},
		{"of another cluster, with a certificate", "n5", mixed, s.arm, unknown},
		{"revoked", "n4", revoked, nil, unknown},
		{"over", "n4", short, nil, unknown},
		{"for another name", "n4", bound, nil, "the token is for another node name"},
		{"a known name", "n1", good, nil, "a node with this name already exists"},
		{"another authority", "n4", wrong, nil, "belongs to another one"},
		{"another authority, with a certificate", "n5", wrong, s.arm, "which is not in"},
		{"a plain cluster's", "n4", plain, nil, "for a cluster whose links are plain"},
		{"a name that is none", "n/4", good, nil, "letters, digits"},
		{"a request that is none", "n4", good, func(c *Config) { c.Enrolment = requests{[]byte("nonsense")} }, "request for a certificate"},
		{"no request", "n4", good, func(c *Config) { c.Enrolment = requests{} }, "without a certificate a node can only request to join"},
	} {
		config := s.newcomer("n9", "n1", tc.token)
		config.Name = tc.node
		if tc.change != nil {
			tc.change(&config)
			if tc.what != "a request that is none" && tc.what != "no request" {
				config.Enrolment = nil
			}
		}
		reply, err := s.ask(config)
		if err == nil {
			err = errors.New(reply.Error)
		}
		if reply.GetAdmitted() || len(reply.GetCertificate()) != 0 || len(reply.GetMembers()) != 0 || !strings.Contains(err.Error(), tc.says) {
			t.Errorf("%s: %+v, %v", tc.what, reply, err)
		}
	}
	if index() != before {
		t.Errorf("the catalog has gone from %d to %d\n%s\n%s", before, index(), rows, n.View())
	}
}

// requests is an Enrolment that asks for a certificate in its own way.
type requests struct{ request []byte }

func (r requests) Request() ([]byte, error)    { return r.request, nil }
func (r requests) Accept([]byte, []byte) error { return nil }

// Of several that come with one token at once, one is let in.
func TestTokenUsedAtOnce(t *testing.T) {
	t.Parallel()
	s := mustSecured(t, "n1", "n2")
	token, _ := mustToken(t, s.all["n1"], time.Hour, "")
	var wait sync.WaitGroup
	replies := make([]*peerpb.IntroduceReply, 8)
	for k := range replies {
		config := s.newcomer("m"+strings.Repeat("x", k), []string{"n1", "n2"}[k%2], token)
		wait.Go(func() {
			for {
				r, err := s.ask(config)
				if err == nil && (r.Admitted || r.Error == used) {
					replies[k] = r
					return
				}
			}
		})
	}
	wait.Wait()
	admitted := 0
	for _, r := range replies {
		if r.Admitted {
			admitted++
		}
	}
	until(t, "n1 knows a third node", func() bool { return len(s.all["n1"].View().Nodes()) >= 3 })
	if admitted != 1 || len(s.all["n1"].View().Nodes()) != 3 {
		t.Errorf("%d are let in:\n%s", admitted, s.all["n1"].View())
	}
}

// A node that signs nothing refuses guests before they are heard.
func TestJoinersNeedSigner(t *testing.T) {
	t.Parallel()
	s := mustSecured(t, "n1")
	token, _ := mustToken(t, s.all["n1"], time.Hour, "")
	s.stop("n1")
	arm := s.change
	s.change = func(c *Config) { arm(c); c.Signer = nil }
	s.mustOpen("n1")
	if _, err := s.ask(s.newcomer("n4", "n1", token)); err == nil || !strings.Contains(err.Error(), "this node does not sign certificates") {
		t.Errorf("%v", err)
	}
}
