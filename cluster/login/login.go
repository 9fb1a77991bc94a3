// Package login compares passwords with their hashes, and keeps password guessing
// from slowing down other clients.
//
// It promises: a login that is checked and refused costs one slow hash, whatever
// the user, so neither the answer nor its time reveals whether the user exists; no
// more hashes are computed at a time than the settings allow, and addresses take
// turns; after too many failures logins are refused unchecked for a while, see
// backoff; the memory that it uses is bounded. It does not know which users exist.
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
	// ErrBusy is returned when too many logins wait to be checked.
	ErrBusy = errors.New("too many logins are waiting")
)

// Config limits the cost of logins.
type Config struct {
	AtOnce       int           // hashes that are computed at a time, at least 1
	FreeFailures int           // of a user at an address, without a delay
	MaxDelay     time.Duration // the longest time of refusing logins unchecked; 0: none
}

// Attempt is a login. The password is compared with Hash. An attempt without a valid
// hash, or from where the user may not log in, fails like one with a wrong password.
type Attempt struct {
	Protocol       Protocol
	User, Password string
	Remote         netip.Addr
	Hash           []byte
	Algorithm      string
	Barred         bool // the user may not log in from there
}

// Protocol is how a client logs in.
type Protocol int

const (
	AMQP Protocol = iota
	AMQP10
	HTTP
	protocols
)

// String is the name that RabbitMQ gives the protocol where it counts logins.
func (p Protocol) String() string { return [protocols]string{"amqp091", "amqp10", "http"}[p] }

// Counts are the numbers of logins by outcome.
type Counts struct{ Accepted, Refused, HeldBack, Busy uint64 }

// Failed is the number of logins that were not accepted, checked or not.
func (c Counts) Failed() uint64 { return c.Refused + c.HeldBack + c.Busy }

// All is the number of logins.
func (c Counts) All() uint64 { return c.Accepted + c.Failed() }

// Tally has the counts of each protocol.
type Tally [protocols]Counts

// Sum returns the counts of all protocols together.
func (t Tally) Sum() (sum Counts) {
	for _, c := range t {
		sum.Accepted += c.Accepted
		sum.Refused += c.Refused
		sum.HeldBack += c.HeldBack
		sum.Busy += c.Busy
	}
	return sum
}

// Gate checks passwords.
type Gate struct {
	queue   *fairQueue
	backoff *backoff
	counts  [protocols][4]atomic.Uint64 // as in Counts

	key  [32]byte
	mu   sync.Mutex
	good map[[32]byte]struct{}
}

const (
	// maxGood bounds how many passwords are remembered as good.
	maxGood = 16_384
	// waitTime bounds how long a login waits for its turn.
	waitTime = 10 * time.Second
	// maxName is how many bytes of a user's name are compared here. No user has a
	// longer name.
	maxName = 256
)

// New returns a gate.
func New(c Config) *Gate {
	g := &Gate{queue: newFairQueue(max(c.AtOnce, 1)), backoff: newBackoff(c.FreeFailures, c.MaxDelay), good: map[[32]byte]struct{}{}}
	rand.Read(g.key[:]) // never fails
	return g
}

// Counts returns the numbers of logins since the node started.
func (g *Gate) Counts() (t Tally) {
	for p := range g.counts {
		c := &g.counts[p]
		t[p] = Counts{Accepted: c[0].Load(), Refused: c[1].Load(), HeldBack: c[2].Load(), Busy: c[3].Load()}
	}
	return t
}

// Check reports whether an attempt is good. renewed, if not nil, is the hash that
// can replace an imported one. An error means that the password was not checked.
func (g *Gate) Check(ctx context.Context, a *Attempt) (good bool, renewed []byte, err error) {
	good, renewed, err = g.check(ctx, a)
	g.count(a.Protocol, good, err)
	return good, renewed, err
}

// count counts a login by its outcome.
func (g *Gate) count(p Protocol, good bool, err error) {
	outcome := 1
	switch {
	case good:
		outcome = 0
	case errors.Is(err, ErrHeldBack):
		outcome = 2
	case err != nil:
		outcome = 3
	}
	g.counts[p][outcome].Add(1)
}

// check asks backoff before it looks for a remembered password: otherwise a fast
// answer would reveal the right one of many guesses.
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
	if refuse, _ = g.backoff.holds(from, user); refuse { // others have failed in the meantime
		return false, nil, ErrHeldBack
	}
	good = g.isGood(a) // another login may have checked this password in the meantime
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

// Compare is Check for a key that is no password: same compares it, in no time worth mentioning. The names of keys are none of users.
func (g *Gate) Compare(ctx context.Context, p Protocol, name string, remote netip.Addr, same func() bool) (good bool, err error) {
	good, err = g.compare(ctx, sourceOf(remote), keyName+name[:min(len(name), maxName)], same)
	g.count(p, good, err)
	return good, err
}

func (g *Gate) compare(ctx context.Context, from netip.Prefix, name string, same func() bool) (good bool, err error) {
	refuse, wait := g.backoff.holds(from, name)
	if refuse {
		return false, ErrHeldBack
	}
	if err := pause(ctx, wait); err != nil {
		return false, err
	}
	if good = same(); good {
		g.backoff.succeeded(from, name)
	} else {
		g.backoff.failed(from, name)
	}
	return good, nil
}

// keyName begins the names of keys where users have theirs.
const keyName = "key\x00"

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

// Hash waits for its turn and returns the hash of a new password.
func (g *Gate) Hash(ctx context.Context, password string) ([]byte, error) {
	if err := g.queue.take(ctx, netip.Prefix{}); err != nil {
		return nil, err
	}
	defer g.queue.give()
	return HashPassword(password), nil
}

// Remember records that a password matches a hash, so that a reconnecting client
// does not cost a slow hash. It does not keep the password but a keyed digest that
// only this process can compute.
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

// isGood reports whether an attempt's password is remembered as good. It is false
// for a barred attempt.
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
