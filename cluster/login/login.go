// Package login compares passwords with their hashes, and keeps those who guess
// from costing others anything.
//
// It promises: a login that is looked at and refused has cost one slow hash,
// whoever it was for, so that neither the answer nor its time says whether the
// user exists; no more hashes are computed at a time than the settings allow,
// and addresses take turns; who fails too often is not looked at for a while,
// see backoff; what is remembered is bounded. It does not know which users
// there are.
package login

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"
)

var (
	// ErrHeldBack is returned when there were too many failures before.
	ErrHeldBack = errors.New("too many failed logins")
	// ErrBusy is returned when too many logins wait for theirs to be looked at.
	ErrBusy = errors.New("too many logins wait")
)

// Config says what logins may cost.
type Config struct {
	AtOnce       int           // hashes that are computed at a time, at least 1
	FreeFailures int           // of a user at an address, that slow nobody down
	MaxDelay     time.Duration // for which one who fails is not looked at; 0: none
}

// Attempt is a login. The password is held against the hash; without a valid
// one, and where the user may not come from, it fails like any other.
type Attempt struct {
	User, Password string
	Remote         netip.Addr
	Hash           []byte
	Algorithm      string
	Barred         bool // the user may not log in from there
}

// Counts says how logins have ended.
type Counts struct{ Accepted, Refused, HeldBack, Busy uint64 }

// Gate is where passwords are looked at.
type Gate struct {
	queue   *fairQueue
	backoff *backoff
	counts  [4]atomic.Uint64 // as in Counts

	key  [32]byte
	mu   sync.Mutex
	good map[[32]byte]struct{}
}

const (
	// maxGood bounds how many passwords are remembered as good.
	maxGood = 16_384
	// waitTime bounds how long a login waits for its turn.
	waitTime = 10 * time.Second
	// maxName is how much of a user's name tells users apart here. No user has a
	// longer one.
	maxName = 256
)

// New returns a gate.
func New(c Config) *Gate {
	g := &Gate{queue: newFairQueue(max(c.AtOnce, 1)), backoff: newBackoff(c.FreeFailures, c.MaxDelay), good: map[[32]byte]struct{}{}}
	rand.Read(g.key[:]) // never fails
	return g
}

// Counts says how logins have ended since the node started.
func (g *Gate) Counts() Counts {
	return Counts{Accepted: g.counts[0].Load(), Refused: g.counts[1].Load(), HeldBack: g.counts[2].Load(), Busy: g.counts[3].Load()}
}

// Check reports whether an attempt is good. renewed, if not nil, is the hash
// that may replace an imported one. An error says that the password was not
// looked at.
func (g *Gate) Check(ctx context.Context, a *Attempt) (good bool, renewed []byte, err error) {
	good, renewed, err = g.check(ctx, a)
	outcome := 1
	switch {
	case good:
		outcome = 0
	case errors.Is(err, ErrHeldBack):
		outcome = 2
	case err != nil:
		outcome = 3
	}
	g.counts[outcome].Add(1)
	return good, renewed, err
}

// check holds back first, and only then looks whether the password is known as
// good: it would tell at once which of many guesses is right.
func (g *Gate) check(ctx context.Context, a *Attempt) (good bool, renewed []byte, err error) {
	from, user := sourceOf(a.Remote), a.User[:min(len(a.User), maxName)]
	refuse, wait := g.backoff.holds(from, user)
	if refuse {
		return false, nil, ErrHeldBack
	}
	if g.isGood(a) {
		g.backoff.succeeded(from, user)
		return true, nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, waitTime)
	defer cancel()
	if err := pause(ctx, wait); err != nil {
		return false, nil, err
	}
	if err := g.queue.take(ctx, from); err != nil {
		return false, nil, err
	}
	defer g.queue.give()
	if refuse, _ = g.backoff.holds(from, user); refuse { // others have failed meanwhile
		return false, nil, ErrHeldBack
	}
	good = g.isGood(a) // another one with this password was looked at meanwhile
	if !good {
		good, renewed = examine(a.Hash, a.Algorithm, a.Password)
	}
	if !good || a.Barred {
		g.backoff.failed(from, user)
		return false, nil, nil
	}
	g.backoff.succeeded(from, user)
	g.Remember(a.Hash, a.Password)
	return true, renewed, nil
}

func pause(ctx context.Context, d time.Duration) error {
	if d == 0 {
		return nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ErrBusy
	}
}

// Hash makes the hash of a new password, in its turn.
func (g *Gate) Hash(ctx context.Context, password string) ([]byte, error) {
	if err := g.queue.take(ctx, netip.Prefix{}); err != nil {
		return nil, err
	}
	defer g.queue.give()
	return HashPassword(password), nil
}

// Remember takes note that a password matches a hash, so that a client that
// reconnects costs no slow hash. The password is not kept: what is kept is a
// keyed digest that only this process can make.
func (g *Gate) Remember(hash []byte, password string) {
	digest := g.digest(hash, password)
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.good) >= maxGood {
		for other := range g.good { // any
			delete(g.good, other)
			break
		}
	}
	g.good[digest] = struct{}{}
}

// isGood reports whether that is remembered. Of who is barred nothing is said.
func (g *Gate) isGood(a *Attempt) bool {
	if a.Barred || len(a.Hash) == 0 {
		return false
	}
	digest := g.digest(a.Hash, a.Password)
	g.mu.Lock()
	defer g.mu.Unlock()
	_, good := g.good[digest]
	return good
}

func (g *Gate) digest(hash []byte, password string) [32]byte {
	mac := hmac.New(sha256.New, g.key[:])
	mac.Write(hash)
	mac.Write([]byte(password))
	return [32]byte(mac.Sum(nil))
}
