package catalog

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/quorate/quorate/proto/peerpb"
)

// A lease that nobody uses is renewed half as often, and lasts all the same, even if a renewal fails;
// one that is used is renewed as often as before, from its first use on.
func TestUnusedLease(t *testing.T) {
	for name, c := range map[string]struct {
		used, fails bool
		least       time.Duration // of the lease
		renewals    int           // a minute, at most
	}{
		"used":          {true, false, LeaseTime - leaseEvery - 10*time.Millisecond, 241},
		"unused":        {false, false, LeaseTime - leaseRest - 10*time.Millisecond, 124},
		"unused, fails": {false, true, LeaseTime - leaseRest - leaseEvery - 10*time.Millisecond, 241},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				var running sync.WaitGroup
				var asked atomic.Int64
				l := newRouteLease("n1", slog.New(slog.DiscardHandler))
				l.voters = func() []string { return []string{"n1"} }
				l.spawn = func(f func()) { running.Go(f) }
				l.renewed = func(*peerpb.CatalogReply) {}
				l.apply = func(context.Context, *peerpb.CatalogReply) error { return nil }
				l.ask = func(context.Context, string, *peerpb.Lease) (*peerpb.CatalogReply, error) {
					n := asked.Add(1)
					if time.Sleep(time.Millisecond); c.fails && n%5 == 0 {
						return nil, errors.New("no answer")
					}
					return &peerpb.CatalogReply{Ok: true, GrantedIn: 1, Term: 1}, nil
				}
				time.Sleep(123 * time.Millisecond)
				running.Go(func() { l.keep(ctx) })
				time.Sleep(10 * time.Second)
				before := asked.Load()
				for range 6000 {
					if l.used.Store(c.used); l.left() < c.least {
						t.Fatalf("%v are left of the lease", l.left())
					}
					time.Sleep(10 * time.Millisecond)
				}
				if n := int(asked.Load() - before); n > c.renewals {
					t.Errorf("%d renewals", n)
				}
				l.used.Store(true)
				time.Sleep(leaseRest)
				before = asked.Load()
				time.Sleep(leaseUnused * leaseEvery / 2)
				if n := asked.Load() - before; n < leaseUnused/2-1 {
					t.Errorf("%d renewals after it was used again", n)
				}
				cancel()
				running.Wait()
			})
		})
	}
}
