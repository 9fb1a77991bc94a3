package attack

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/status"

	"github.com/quorate/quorate/jepsen/cluster"
	"github.com/quorate/quorate/jepsen/internal/await"
	"github.com/quorate/quorate/jepsen/internal/long"
)

// guest is a TLS configuration of who has no certificate and wants one.
func guest() *tls.Config {
	return &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"quorate-join"}}
}

// tokenRow is a token as the API shows it.
type tokenRow struct {
	ID, Token, Node string
	UsedBy          string `json:"used_by"`
}

func mustToken(t *testing.T, c *cluster.Cluster, ttl time.Duration, node string) (made tokenRow) {
	t.Helper()
	if err := c.Nodes[0].Call(t.Context(), "POST", "/api/quorate/tokens", map[string]any{"ttl": ttl.Milliseconds(), "node": node}, &made); err != nil {
		t.Fatal(err)
	}
	return made
}

func mustTokens(t *testing.T, c *cluster.Cluster) (all []tokenRow) {
	t.Helper()
	if err := c.Nodes[0].Call(context.WithoutCancel(t.Context()), "GET", "/api/quorate/tokens", nil, &all); err != nil {
		t.Fatal(err)
	}
	return all
}

func mustRevoke(t *testing.T, c *cluster.Cluster, made tokenRow) {
	t.Helper()
	if err := c.Nodes[0].Call(context.WithoutCancel(t.Context()), "DELETE", "/api/quorate/tokens/"+made.ID, nil, nil); err != nil {
		t.Fatal(err)
	}
}

// secretOf is the secret in a token's text.
func secretOf(t *testing.T, text string) []byte {
	t.Helper()
	secret, err := base64.RawURLEncoding.DecodeString(text[strings.LastIndex(text, ".")+1:])
	if err != nil || len(secret) != 32 {
		t.Fatal(text, err)
	}
	return secret
}

// mustRequest asks for a certificate.
func mustRequest(t *testing.T) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	request, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{DNSNames: []string{"n1"}}, key)
	if err != nil {
		t.Fatal(err)
	}
	return request
}

// with adds fields to the question of a node that wants to be a member.
func with(ask []byte, fields ...[]byte) []byte {
	body := ask[17:]
	for _, f := range fields {
		body = append(body, f...)
	}
	return linkFrame(1, 0, 0, body)
}

// answerTo is what a node says to a question: the code and text of its refusal,
// or its answer, of which every text can be read.
func answerTo(t *testing.T, c *cluster.Cluster, number int, config *tls.Config, message []byte) string {
	t.Helper()
	stream, err := mustSpeakTo(t, c, number, config, methodIntroduce)
	if err != nil {
		return err.Error()
	}
	_ = stream.SendMsg(&message) // receiving says why it fails
	var answer []byte
	if err := stream.RecvMsg(&answer); err != nil {
		return status.Convert(err).Code().String() + " " + status.Convert(err).Message()
	}
	return string(answer)
}

const (
	noSuchToken   = "unknown, revoked or expired join token"
	strangersJoin = "without a certificate a node can only request to join"
	needsToken    = "a new node needs a token to join"
)

// Without a token that is good for it nobody becomes a member, with a
// certificate or without, and nothing of the cluster is told.
func TestJoinsNeedTokens(t *testing.T) {
	c, own := shared.mustGet(t), mustAuthority(t)
	good, revoked := mustToken(t, c, time.Hour, "nobody"), mustToken(t, c, time.Hour, "")
	member := mustToken(t, c, time.Hour, "n2")
	unnamed := mustToken(t, c, time.Hour, "")
	mustRevoke(t, c, revoked)
	over := mustToken(t, c, time.Second, "")
	if err := await.Until(t.Context(), 20*time.Millisecond, "a token to be over", func() (bool, error) { return len(mustTokens(t, c)) == 3, nil }); err != nil {
		t.Fatal(err)
	}
	random := make([]byte, 32)
	_, _ = rand.Read(random)
	stolen := sha256.Sum256(secretOf(t, good.Token))
	request := protoField(111, mustRequest(t))
	token := func(secret []byte) []byte { return protoField(110, secret) }
	named := secured(mustCertify(t, own, "mallory", nil))
	both := guest()
	both.NextProtos = append(both.NextProtos, "h2")
	who := linkFrame(1, 0, 0, append(append(protoField(1, []byte("quorate")), protoField(2, []byte("mallory"))...), protoField(3, random[:16])...))
	for name, tc := range map[string]struct {
		as      *tls.Config
		message []byte
		says    string
	}{
		"certificate, no token":            {named, askToJoin("mallory"), needsToken},
		"certificate, wrong token":         {named, with(askToJoin("mallory"), token(random)), noSuchToken},
		"certificate, revoked":             {named, with(askToJoin("mallory"), token(secretOf(t, revoked.Token))), noSuchToken},
		"certificate, over":                {named, with(askToJoin("mallory"), token(secretOf(t, over.Token))), noSuchToken},
		"certificate, for another name":    {named, with(askToJoin("mallory"), token(secretOf(t, good.Token))), "the token is for another node name"},
		"certificate, token in text":       {named, with(askToJoin("mallory"), token([]byte(good.Token))), noSuchToken},
		"certificate, stolen hash":         {named, with(askToJoin("mallory"), protoField(112, stolen[:])), needsToken},
		"certificate, hash as the secret":  {named, with(askToJoin("mallory"), token(stolen[:])), noSuchToken},
		"no certificate, no token":         {guest(), with(askToJoin("mallory"), request), strangersJoin},
		"no certificate, wrong token":      {guest(), with(askToJoin("mallory"), token(random), request), noSuchToken},
		"no certificate, revoked":          {guest(), with(askToJoin("mallory"), token(secretOf(t, revoked.Token)), request), noSuchToken},
		"no certificate, over":             {guest(), with(askToJoin("mallory"), token(secretOf(t, over.Token)), request), noSuchToken},
		"no certificate, for another name": {guest(), with(askToJoin("mallory"), token(secretOf(t, good.Token)), request), "the token is for another node name"},
		"no certificate, half a token":     {guest(), with(askToJoin("mallory"), token(random[:16]), request), strangersJoin},
		"no certificate, stolen hash":      {guest(), with(askToJoin("mallory"), protoField(112, stolen[:]), request), strangersJoin},
		"no certificate, says it has one":  {guest(), with(askToJoin("n3"), token(random), request, protoNumber(113, 0)), noSuchToken},
		"no certificate, a running member": {guest(), with(askToJoin("n2"), token(secretOf(t, member.Token)), request), "a node named n2 is running"},
		"no certificate, a known name":     {guest(), with(askToJoin("n3"), token(secretOf(t, unnamed.Token)), request), "a node with this name already exists"},
		"no certificate, no request":       {guest(), with(askToJoin("nobody"), token(secretOf(t, good.Token))), strangersJoin},
		"no certificate, half a request":   {guest(), with(askToJoin("nobody"), token(secretOf(t, good.Token)), protoField(111, mustRequest(t)[:40])), "request for a certificate"},
		"no certificate, name of a folder": {guest(), with(askToJoin("../n1"), token(secretOf(t, unnamed.Token)), request), "letters, digits"},
		"no certificate, wild card":        {guest(), with(askToJoin("*"), token(secretOf(t, unnamed.Token)), request), "letters, digits"},
		"no certificate, only a question":  {guest(), who, strangersJoin},
		"no certificate, seeks its place":  {guest(), with(askToJoin("n2"), token(random), request, protoNumber(7, 1)), strangersJoin},
		"both protocols":                   {both, with(askToJoin("mallory"), token(random), request), "certificate required"},
	} {
		attack(t, "tokens", name, func(t *testing.T) {
			came := answerTo(t, c, 1, tc.as, tc.message)
			ends := []string{tc.says}
			if tc.says == "certificate required" { // who is still writing may find the connection closed first
				ends = append(ends, "broken pipe", "connection reset")
			}
			mustHold(t, came, ends...)
			for _, not := range []string{"CERTIFICATE", "127.0.0.1:"} {
				if strings.Contains(came, not) && !strings.Contains(came, strangersJoin) && !strings.Contains(came, "Unavailable") {
					t.Errorf("the answer tells more: %q", came)
				}
			}
		})
	}
	for name, method := range map[string]string{"no certificate, link": methodLink, "no certificate, snapshot": methodSnapshot, "no certificate, other service": "/grpc.health.v1.Health/Check"} {
		attack(t, "tokens", name, func(t *testing.T) {
			mustHold(t, say(t, 2, guest(), method, helloOf("n2").frame()), "PermissionDenied peer: unknown node")
		})
	}
	attack(t, "tokens", "dozens that say nothing", func(t *testing.T) {
		closed := make(chan error, 24)
		for range cap(closed) {
			conn, err := dialLink(t, 2, guest())
			if err != nil {
				continue // refused in its handshake
			}
			go func() {
				_, err := io.Copy(io.Discard, conn)
				closed <- err
			}()
		}
		for range cap(closed) - 4 { // those that are heard may stay for a while
			if err := <-closed; isTimeout(err) {
				t.Fatal("a connection stays open")
			}
		}
	})
	attack(t, "tokens", "list holds no secret", func(t *testing.T) {
		for _, row := range mustTokens(t, c) {
			if row.Token != "" || row.UsedBy != "" {
				t.Errorf("%+v", row)
			}
		}
	})
	attack(t, "tokens", "log", func(t *testing.T) {
		minutes := int(time.Since(began)/time.Minute) + 1
		if n := c.Logged("level=WARN", "refused to join"); n == 0 || n > 2*minutes*len(c.Nodes) {
			t.Errorf("%d log lines after %d minutes", n, minutes)
		}
		for _, secret := range []string{good.Token, revoked.Token, over.Token, unnamed.Token} {
			if c.Logged(secret) > 0 || c.Logged(secret[strings.LastIndex(secret, ".")+1:]) > 0 {
				t.Error("a log holds a token")
			}
		}
	})
	for _, row := range []tokenRow{good, member, unnamed} {
		mustRevoke(t, c, row)
	}
	if left := mustTokens(t, c); len(left) != 0 {
		t.Errorf("tokens are left: %+v", left)
	}
	mustStandAsBefore(t)
}

// A real node joins without a certificate; then its token is worth nothing. A
// node whose token pins another authority says nothing to the cluster.
func TestTokensAreSpent(t *testing.T) {
	long.Test(t)
	t.Parallel()
	dir := t.TempDir()
	if _, err := cluster.NewAuthority(filepath.Join(dir, "data", "certs")); err != nil {
		t.Fatal(err)
	}
	c := mustStartIn(t, dir, cluster.Options{Nodes: 1, More: 2, Args: []string{"--set=cluster.ssl_options.cakeyfile=" + filepath.Join(dir, "data", "certs", "ca.key")}})
	made := mustToken(t, c, time.Hour, "")
	attack(t, "tokens", "wrong authority pinned", func(t *testing.T) {
		foreign := make([]byte, 32)
		text := strings.Split(made.Token, ".")
		text[1] = base64.RawURLEncoding.EncodeToString(foreign)
		n, err := c.Join("n2", strings.Join(text, "."))
		if err != nil {
			t.Fatal(err)
		}
		if err := await.Until(t.Context(), 50*time.Millisecond, "the node to say why", func() (bool, error) { return n.Said("belongs to another one"), nil }); err != nil {
			t.Error(err)
		}
		if err := n.Kill(t.Context()); err != nil {
			t.Fatal(err)
		}
		if row := mustTokens(t, c)[0]; row.UsedBy != "" {
			t.Errorf("used: %+v", row)
		}
	})
	attack(t, "tokens", "two at once", func(t *testing.T) {
		answers := make([]string, 4)
		var wait sync.WaitGroup
		for k := range answers {
			message := with(askToJoin(fmt.Sprint("m", k)), protoField(110, secretOf(t, made.Token)), protoField(111, mustRequest(t)))
			wait.Go(func() { answers[k] = answerTo(t, c, 1, guest(), message) })
		}
		wait.Wait()
		got := map[bool]int{}
		for _, a := range answers {
			if strings.Contains(a, "the token has already been used") {
				got[false]++
			} else if strings.Contains(a, "BEGIN CERTIFICATE") {
				got[true]++
			} else {
				t.Errorf("%q", a)
			}
		}
		if got[true] != 1 {
			t.Errorf("%d are let in", got[true])
		}
	})
	attack(t, "tokens", "replayed", func(t *testing.T) {
		for _, name := range []string{"m0", "m1", "late"} {
			mustHold(t, answerTo(t, c, 1, guest(), with(askToJoin(name), protoField(110, secretOf(t, made.Token)), protoField(111, mustRequest(t)))), "the token has already been used", "a node named")
		}
	})
	used := mustTokens(t, c)[0].UsedBy
	if err := c.Nodes[0].Call(t.Context(), "DELETE", "/api/nodes/"+used, nil, nil); err != nil {
		t.Fatal(err)
	}
	attack(t, "tokens", "replayed by who was forgotten", func(t *testing.T) {
		mustHold(t, answerTo(t, c, 1, guest(), with(askToJoin(used), protoField(110, secretOf(t, made.Token)), protoField(111, mustRequest(t)))), "the token has already been used")
	})
	n, err := c.Join("n3", mustToken(t, c, time.Hour, "n3").Token)
	if err != nil {
		t.Fatal(err)
	}
	c.Nodes = append(c.Nodes, n)
	if err := n.AwaitReady(t.Context()); err != nil {
		t.Fatal(err)
	}
}
