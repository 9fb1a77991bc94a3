package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/quorate/quorate/jepsen/cluster"
)

// wrongRate is how many wrong logins a second are tried, and wrongPending how many of them may wait
// for their answers.
const (
	wrongRate    = 40
	wrongPending = 400
)

// wrongLogins measures how long confirms take while others try passwords over HTTP, each from an
// address of its own, so that none is throttled, compared with a time without.
func (l *lab) wrongLogins(ctx context.Context, duration time.Duration) (result, error) {
	name := fmt.Sprintf("wrong logins, %d/s", wrongRate)
	before, err := latency(ctx, l.target, during(duration), 1024)
	if err != nil {
		return before, fmt.Errorf("%s: %w", name, err)
	}
	guessing, stop := context.WithCancel(ctx)
	var answers guesses
	var all sync.WaitGroup
	all.Go(func() { answers.try(guessing, l.cluster.Nodes[0]) })
	r, err := latency(ctx, l.target, during(duration), 1024)
	stop()
	all.Wait()
	r.Name = name
	if err == nil && answers.refused == 0 {
		err = fmt.Errorf("no login was refused, %d failed otherwise: %w", answers.failed, answers.last)
	}
	if err != nil {
		return r, fmt.Errorf("%s: %w", name, err)
	}
	r.note("confirm p50 before", before.Times.P50, "ms")
	r.note("confirm p99 before", before.Times.P99, "ms")
	r.note("p99 against before", r.Times.P99/before.Times.P99, "x")
	r.note("logins refused", float64(answers.refused)/duration.Seconds(), "1/s")
	r.note("logins not answered or busy", float64(answers.failed), "")
	return r, nil
}

// guesses counts the outcomes of logins.
type guesses struct {
	mu              sync.Mutex
	refused, failed int
	last            error
}

// try tries passwords until ctx ends.
func (g *guesses) try(ctx context.Context, n *cluster.Node) {
	interval := time.NewTicker(time.Second / wrongRate)
	defer interval.Stop()
	var all errgroup.Group
	all.SetLimit(wrongPending)
	defer func() { _ = all.Wait() }() // each counts its own outcome
	for i := 0; ; i++ {
		select {
		case <-ctx.Done():
			return
		case <-interval.C:
		}
		all.TryGo(func() error { // unless too many wait
			status, err := guess(ctx, n, i)
			g.mu.Lock()
			defer g.mu.Unlock()
			switch {
			case status == http.StatusUnauthorized:
				g.refused++
			case ctx.Err() == nil:
				g.failed++
				g.last = err
			}
			return nil
		})
	}
}

// guess tries one password of guest's, from an address that the number stands for.
func guess(ctx context.Context, n *cluster.Node, number int) (status int, err error) {
	from := net.IPv4(127, 78, byte(number>>8), byte(number))
	transport := &http.Transport{DialContext: (&net.Dialer{LocalAddr: &net.TCPAddr{IP: from}}).DialContext, DisableKeepAlives: true}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+n.HTTP+"/api/whoami", nil)
	if err != nil {
		return 0, err
	}
	r.SetBasicAuth("guest", fmt.Sprint("wrong", number))
	answer, err := transport.RoundTrip(r)
	if err != nil {
		return 0, err
	}
	answer.Body.Close()
	return answer.StatusCode, nil
}
