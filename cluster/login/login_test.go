package login

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

var here = netip.MustParseAddr("192.0.2.1")

// hashing is how long a hash pauses in total.
const hashing = (hashIterations - 1) / pauseEvery * pauseFor

// mustRefuse fails the test unless a gate checks an attempt and refuses it.
func mustRefuse(t *testing.T, g *Gate, a *Attempt) {
	t.Helper()
	if good, renewed, err := g.Check(t.Context(), a); good || renewed != nil || err != nil {
		t.Fatalf("%q with %q: %v, %x, %v", a.User, a.Password, good, renewed, err)
	}
}

func mustAccept(t *testing.T, g *Gate, a *Attempt) {
	t.Helper()
	if good, _, err := g.Check(t.Context(), a); !good || err != nil {
		t.Fatalf("%q with %q from %v: %v, %v", a.User, a.Password, a.Remote, good, err)
	}
}

func mustHoldBack(t *testing.T, g *Gate, a *Attempt) {
	t.Helper()
	if n := cost(func() {
		if good, _, err := g.Check(t.Context(), a); good || !errors.Is(err, ErrHeldBack) {
			t.Fatalf("%q with %q from %v: %v, %v", a.User, a.Password, a.Remote, good, err)
		}
	}); n != 0 {
		t.Fatalf("%d iterations for one who is held back", n)
	}
}

// All refusals cost the same, also when repeated.
func TestRefusalsCostTheSame(t *testing.T) {
	g := New(Config{})
	sha256Hash, _, _ := imported(t)
	own := HashPassword("right")
	mustAccept(t, g, &Attempt{User: "bob", Password: "right", Remote: here, Hash: own, Algorithm: HashAlgorithm})
	for name, a := range map[string]Attempt{
		"wrong password":          {User: "bob", Password: "wrong", Hash: own, Algorithm: HashAlgorithm},
		"empty password":          {User: "bob", Hash: own, Algorithm: HashAlgorithm},
		"unknown user":            {User: "nobody", Password: "wrong"},
		"unknown, empty password": {User: "nobody"},
		"nobody":                  {},
		"imported hash":           {User: "ann", Password: "wrong", Hash: sha256Hash, Algorithm: ImportedSHA256},
		"user without a password": {User: "cert", Algorithm: HashAlgorithm},
		"NUL in the name":         {User: "bob\x00", Password: "wrong"},
		"huge name":               {User: strings.Repeat("b", 1<<20), Password: "wrong"},
		"not from there":          {User: "bob", Password: "right", Hash: own, Algorithm: HashAlgorithm, Barred: true},
	} {
		a.Remote = here
		for range 2 {
			if n := cost(func() { mustRefuse(t, g, &a) }); n != hashIterations {
				t.Errorf("%s: %d iterations, want %d", name, n, hashIterations)
			}
		}
	}
	if n := cost(func() {
		mustAccept(t, g, &Attempt{User: "bob", Password: "right", Remote: here, Hash: own, Algorithm: HashAlgorithm})
	}); n != 0 {
		t.Errorf("%d iterations for a login that was good before", n)
	}
	if got, want := g.Counts().Sum(), (Counts{Accepted: 2, Refused: 20}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}

// bobs are logins of a user whose password is "right".
type bobs []byte

func (hash bobs) with(password, from string) *Attempt {
	return &Attempt{User: "bob", Password: password, Remote: netip.MustParseAddr(from), Hash: hash, Algorithm: HashAlgorithm}
}

// Repeated failures are checked less and less often, even with the right password.
// The user can log in from elsewhere, and other users from the same address.
func TestBackoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := New(Config{AtOnce: 1, FreeFailures: 10, MaxDelay: 8 * time.Second})
		bob := bobs(HashPassword("right"))
		for range 10 {
			mustRefuse(t, g, bob.with("wrong", "192.0.2.1"))
		}
		for _, delay := range []time.Duration{500 * time.Millisecond, time.Second, 2 * time.Second, 4 * time.Second, 8 * time.Second, 8 * time.Second} {
			mustRefuse(t, g, bob.with("wrong", "192.0.2.1"))
			refused := time.Now()
			mustHoldBack(t, g, bob.with("right", "192.0.2.1"))
			mustAccept(t, g, bob.with("right", "192.0.2.2"))
			mustAccept(t, g, &Attempt{User: "ann", Password: "right", Remote: here, Hash: bob, Algorithm: HashAlgorithm})
			time.Sleep(delay - time.Millisecond - time.Since(refused))
			mustHoldBack(t, g, bob.with("right", "192.0.2.1"))
			time.Sleep(time.Millisecond)
		}
		mustAccept(t, g, bob.with("right", "192.0.2.1"))
		time.Sleep(forgiveEvery * (10 + maxExcess))
		for range 10 {
			mustRefuse(t, g, bob.with("wrong", "192.0.2.1"))
		}
		mustAccept(t, g, bob.with("right", "192.0.2.1"))
	})
}

// An address that tries many users is delayed as a whole, except for users who have
// logged in there; one that repeats a single user's wrong password is not.
func TestBackoffOfAddress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := New(Config{AtOnce: 1, FreeFailures: 2, MaxDelay: time.Second})
		bob := bobs(HashPassword("right"))
		mustAccept(t, g, bob.with("right", "2001:db8::1"))
		for range 30 { // one mistake, repeated
			mustRefuse(t, g, &Attempt{User: "eve", Remote: netip.MustParseAddr("2001:db8::1")})
			time.Sleep(time.Second)
		}
		mustRefuse(t, g, &Attempt{User: "ann", Remote: netip.MustParseAddr("2001:db8::1")})
		for i := range 9 {
			mustRefuse(t, g, &Attempt{User: fmt.Sprint("u", i), Remote: netip.MustParseAddr("2001:db8::2")})
		}
		mustHoldBack(t, g, &Attempt{User: "new", Remote: netip.MustParseAddr("2001:db8::3")}) // the same host, most likely
		mustAccept(t, g, bob.with("right", "2001:db8::4"))
		mustRefuse(t, g, &Attempt{User: "new", Remote: netip.MustParseAddr("2001:db8:0:1::1")})
		time.Sleep(time.Second)
		mustRefuse(t, g, &Attempt{User: "new", Remote: netip.MustParseAddr("2001:db8::3")})
	})
}

// Logins of a user whose password is guessed from many addresses wait for a moment,
// and are not refused.
func TestBackoffOfUser(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := New(Config{AtOnce: 1, FreeFailures: 10, MaxDelay: time.Minute})
		bob := bobs(HashPassword("right"))
		mustAccept(t, g, bob.with("right", "198.51.100.1"))
		for i := range 80 {
			mustRefuse(t, g, bob.with("wrong", fmt.Sprint("192.0.2.", i)))
		}
		took := func(from string) time.Duration {
			began := time.Now()
			mustAccept(t, g, bob.with("right", from))
			return time.Since(began)
		}
		g.mu.Lock()
		clear(g.good)
		g.mu.Unlock()
		if d := took("198.51.100.2"); d != maxWait+hashing {
			t.Errorf("from a new address: waited for %v, want %v", d, maxWait+hashing)
		}
		if d := took("198.51.100.1"); d != 0 {
			t.Errorf("from a known address: waited for %v", d)
		}
	})
}

// The records of failures are bounded.
func TestBackoffIsBounded(t *testing.T) {
	b := newBackoff(1_000_000, time.Second)
	for i := range maxRecords + 1000 {
		b.failed(sourceOf(here), fmt.Sprint(i))
	}
	if n := len(b.records); n > maxRecords {
		t.Errorf("%d records, at most %d are allowed", n, maxRecords)
	}
}

// Addresses take turns, however many come from one of them.
func TestAddressesAreServedInTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		queue := newFairQueue(1)
		from := func(n byte) netip.Prefix { return sourceOf(netip.AddrFrom4([4]byte{192, 0, 2, n})) }
		if err := queue.take(t.Context(), from(1)); err != nil {
			t.Fatal(err)
		}
		order := make(chan byte, 5)
		for _, n := range []byte{1, 1, 1, 2, 3} {
			go func() {
				if err := queue.take(t.Context(), from(n)); err != nil {
					t.Error(err)
				}
				order <- n
			}()
			synctest.Wait()
		}
		for _, want := range []byte{1, 2, 3, 1, 1} {
			queue.give()
			if got := <-order; got != want {
				t.Errorf("address %d, want %d", got, want)
			}
		}
		queue.give()
		if queue.free != 1 || queue.waiting != 0 || len(queue.lines) != 0 || len(queue.order) != 0 {
			t.Errorf("%+v, though nobody waits", queue)
		}
	})
}

// Above the bound, the address with the most waiting callers loses one; callers that
// wait for too long give up.
func TestQueueIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		queue := newFairQueue(1)
		many, few := sourceOf(here), sourceOf(netip.MustParseAddr("192.0.2.2"))
		if err := queue.take(t.Context(), many); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		refused := make(chan netip.Prefix, 2*maxWaiting)
		wait := func(from netip.Prefix) {
			go func() {
				if err := queue.take(ctx, from); errors.Is(err, ErrBusy) {
					refused <- from
				}
			}()
		}
		for range maxWaiting {
			wait(many)
		}
		synctest.Wait()
		if len(refused) != 0 || queue.waiting != maxWaiting {
			t.Fatalf("%d refused, %d wait", len(refused), queue.waiting)
		}
		wait(few)
		wait(many)
		synctest.Wait()
		if len(refused) != 2 || <-refused != many || <-refused != many {
			t.Fatal("others were refused than the two last of many")
		}
		queue.give() // to the first of many
		queue.give() // to the one of few
		synctest.Wait()
		if len(queue.lines[few]) != 0 {
			t.Error("the one has to wait for all")
		}
		cancel()
		synctest.Wait()
		if len(refused) != maxWaiting-2 || queue.waiting != 0 || len(queue.order) != 0 {
			t.Errorf("%d refused, %d wait", len(refused), queue.waiting)
		}
	})
}
