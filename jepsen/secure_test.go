package jepsen

import (
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/quorate/quorate/jepsen/checker"
	"github.com/quorate/quorate/jepsen/cluster"
	"github.com/quorate/quorate/jepsen/internal/await"
	"github.com/quorate/quorate/jepsen/internal/stall"
	"github.com/quorate/quorate/jepsen/workload"
)

// preface is what plain HTTP/2 begins with, and a frame without settings.
const preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"

// takesPlain reports whether a node answers somebody who speaks no TLS to where
// other nodes reach it.
func (r *run) takesPlain(number int) bool {
	r.Helper()
	conn, err := net.DialTimeout("tcp", r.LinkAddress(number), 10*time.Second)
	r.must(err)
	defer conn.Close()
	r.must(conn.SetDeadline(time.Now().Add(10 * time.Second)))
	_, err = io.WriteString(conn, preface)
	r.must(err)
	head := make([]byte, 9)
	_, err = io.ReadFull(conn, head)
	return err == nil && head[3] == 4 // a frame of settings
}

// A cluster with plain links changes over to TLS in two rounds of restarts while
// messages flow: nothing is lost, and in the end plain links are refused.
func TestChangeToTLS(t *testing.T) {
	t.Parallel()
	r := mustStart(t, 6*time.Minute, "--set=cluster.ssl=none")
	names := r.declareSome("secured", 12)
	stopped := r.publishInTurn(names, 300, 128)
	for round, mode := range []string{"prefer", "on"} {
		for _, n := range r.Nodes {
			r.must(r.AwaitQuorumPlusOne(r.ctx))
			n.Command += " --set=cluster.ssl=" + mode
			r.must(n.Cycle(r.ctx, false))
			r.must(r.awaitConfirms(r.ctx, 300))
			if plain := r.takesPlain(n.Number); plain != (round == 0) {
				t.Errorf("with cluster.ssl = %s node %d takes plain links: %v", mode, n.Number, plain)
			}
		}
	}
	r.must(stopped())
	r.drainAll(names)
	h := r.History
	t.Logf("%d confirmed, %d attempts, longest time without a confirm %v", h.Confirmed(), len(h.Attempts), h.LongestGap().Round(time.Millisecond))
	r.check(checker.Lost(h), checker.Unanswered(h), checker.Ghosts(h), checker.Doubled(h))
	r.mustConverge()
	for words, least := range map[string]int{"cluster.ssl = none": 3, "cluster.ssl = prefer": 3, "refused a connection": 1} {
		if n := r.Logged("level=WARN", words); n < least {
			t.Errorf("%d warnings of %q", n, words)
		}
	}
}

// All nodes' certificates are replaced, then the authority and all certificates,
// while messages flow and every link is opened anew: nothing stands still.
func TestRotateCertificates(t *testing.T) {
	t.Parallel()
	r := mustStartWith(t, 6*time.Minute, cluster.Options{Links: true})
	names := r.declareSome("rotated", 12)
	stopped := r.publishInTurn(names, 500, 128)
	r.must(r.awaitConfirms(r.ctx, 500))
	first, err := r.Authority()
	r.must(err)
	last := map[int]string{}
	// relink breaks all links, and waits until each node shows what it should.
	relink := func(by *cluster.Authority) {
		t.Helper()
		for k := range r.Nodes {
			r.Links.RefuseNode(k + 1)
		}
		r.must(r.Links.Heal())
		r.must(r.awaitConfirms(r.ctx, 250))
		for _, n := range r.Nodes {
			serial := r.certificateShown(n.Number, by)
			if serial == last[n.Number] {
				t.Errorf("node %d shows the certificate that it had", n.Number)
			}
			last[n.Number] = serial
		}
	}
	certify := func(by *cluster.Authority) {
		t.Helper()
		for _, n := range r.Nodes {
			r.must(by.CertifyNode(fmt.Sprint("n", n.Number)))
		}
	}
	relink(first)
	certify(first)
	relink(first)
	second, err := first.Rotate()
	r.must(err)
	certify(second)
	relink(second)
	r.must(second.Retire())
	certify(second)
	relink(second)
	r.must(stopped())
	r.drainAll(names)
	h := r.History
	longest, allowed := h.LongestGap(), stall.Tolerance(machine.Longest(r.began))
	t.Logf("%d confirmed, %d attempts, longest time without a confirm %v", h.Confirmed(), len(h.Attempts), longest.Round(time.Millisecond))
	if longest > allowed {
		t.Errorf("no confirm for %v, allowed are %v", longest, allowed)
	}
	r.check(checker.Lost(h), checker.Unanswered(h), checker.Ghosts(h), checker.Doubled(h))
	r.mustConverge()
	old, err := first.Certify("n2", nil)
	r.must(err)
	conn, err := r.DialLink(1, old)
	if err == nil {
		_, err = conn.Read(make([]byte, 1))
		_ = conn.Close()
	}
	if err == nil || !strings.Contains(err.Error(), "unknown certificate authority") {
		t.Errorf("a certificate of the authority that was retired: %v", err)
	}
}

// certificateShown is the serial number of the certificate that a node shows to
// another one, once that is one of the authority's.
func (r *run) certificateShown(number int, by *cluster.Authority) (serial string) {
	r.Helper()
	mine, err := by.Certify("n1", nil)
	r.must(err)
	r.must(await.Until(r.ctx, 50*time.Millisecond, fmt.Sprintf("node %d to show a certificate of the authority", number), func() (bool, error) {
		conn, err := r.DialLink(number, mine)
		if err != nil {
			return false, err
		}
		defer conn.Close()
		shown := conn.ConnectionState().PeerCertificates[0]
		serial = shown.SerialNumber.String()
		return by.Signed(shown), nil
	}))
	return serial
}

// declareSome declares queues with leaders on all nodes.
func (r *run) declareSome(prefix string, n int) []string {
	r.Helper()
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprint(prefix, i+1)
		r.must(workload.Declare(r.ctx, r.Nodes[i%len(r.Nodes)].URI(), workload.Queue{Name: names[i]}))
	}
	return names
}

func (r *run) drainAll(names []string) {
	r.Helper()
	for _, name := range names {
		r.must(workload.Drain(r.ctx, r.Nodes[0].URI(), name, "drain "+name, r.History))
	}
}
