package login

import (
	"hash/maphash"
	"net/netip"
	"sync"
	"time"
)

// backoff slows down password guessing. It counts failures of a user at an address,
// of the address, and of the user; one is forgiven every forgiveEvery. Beyond the
// free failures:
//
//   - logins of the user at that address are refused unchecked for a time that
//     doubles with each failure;
//   - at shareFactor times as many failures of the address, so are the logins of all
//     users there, except those who have logged in from it before;
//   - at shareFactor times as many failures of the user, the user's logins wait for
//     a moment, except from addresses where the user has logged in before. They are
//     never refused, so nobody can lock a user out from another address.
//
// Failures of a user at an address beyond the free ones count for this pair only,
// so a client that repeats one mistake forever does not affect others.
type backoff struct {
	free     float64
	maxDelay time.Duration // 0: no delays
	seed     maphash.Seed

	mu      sync.Mutex
	records map[uint64]record // by key; at most maxRecords
}

// record holds the failures of a user, an address, or a user at an address.
type record struct {
	failures float64 // at the time of the last one
	last     time.Time
	until    time.Time // logins before it are refused unchecked
	good     time.Time // last successful login, of a user at an address
}

// key identifies a record. That of a user has no address, that of an address no user.
type key struct {
	from netip.Prefix
	user string
}

const (
	maxRecords   = 16_384
	sampled      = 16 // records of which the oldest is removed when there are too many
	forgiveEvery = 30 * time.Second
	maxExcess    = 16 // failures beyond the free ones that are remembered
	shareFactor  = 5
	firstDelay   = 500 * time.Millisecond
	firstWait    = 25 * time.Millisecond // of a user who logs in from elsewhere
	maxWait      = time.Second
	goodFor      = 24 * time.Hour // how long a successful login is remembered
)

func newBackoff(free int, maxDelay time.Duration) *backoff {
	return &backoff{free: float64(free), maxDelay: maxDelay, seed: maphash.MakeSeed(), records: map[uint64]record{}}
}

// sourceOf returns the prefix that counts as one address: hosts have at least a /64
// of IPv6.
func sourceOf(a netip.Addr) netip.Prefix {
	a = a.Unmap().WithZone("")
	bits := a.BitLen()
	if a.Is6() {
		bits = 64
	}
	p, _ := a.Prefix(bits)
	return p
}

// find returns a record with its failures as of now. The lock is held.
func (b *backoff) find(k key, now time.Time) (id uint64, r record) {
	id = maphash.Comparable(b.seed, k)
	r = b.records[id]
	r.failures = max(0, r.failures-float64(now.Sub(r.last))/float64(forgiveEvery))
	return id, r
}

// put stores a record. The lock is held.
func (b *backoff) put(id uint64, r record) {
	if _, known := b.records[id]; !known && len(b.records) >= maxRecords {
		var oldest uint64
		n := 0
		for other, o := range b.records {
			if n == 0 || o.last.Before(b.records[oldest].last) {
				oldest = other
			}
			if n++; n == sampled {
				break
			}
		}
		delete(b.records, oldest)
	}
	b.records[id] = r
}

// holds reports whether a login is refused unchecked, or how long it must wait.
func (b *backoff) holds(from netip.Prefix, user string) (refuse bool, wait time.Duration) {
	if b.maxDelay == 0 {
		return false, 0
	}
	now := time.Now()
	b.mu.Lock()
	defer b.mu.Unlock()
	_, both := b.find(key{from, user}, now)
	_, address := b.find(key{from: from}, now)
	_, name := b.find(key{user: user}, now)
	trusted := !both.good.IsZero() && now.Sub(both.good) < goodFor
	if now.Before(both.until) || !trusted && now.Before(address.until) {
		return true, 0
	}
	if excess := name.failures - b.free*shareFactor; excess > 0 && !trusted {
		wait = doubled(firstWait, excess, min(maxWait, b.maxDelay))
	}
	return false, wait
}

// failed counts a login that was checked and refused.
func (b *backoff) failed(from netip.Prefix, user string) {
	if b.maxDelay == 0 {
		return
	}
	now := time.Now()
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.count(key{from, user}, b.free, now) {
		b.count(key{from: from}, b.free*shareFactor, now)
		b.count(key{user: user}, b.free*shareFactor, now)
	}
}

// count adds a failure and reports whether it exceeds the free ones.
func (b *backoff) count(k key, free float64, now time.Time) bool {
	id, r := b.find(k, now)
	r.failures, r.last = min(r.failures+1, free+maxExcess), now
	excess := r.failures - free
	if excess > 0 {
		r.until = now.Add(doubled(firstDelay, excess, b.maxDelay))
	}
	b.put(id, r)
	return excess > 0
}

// succeeded records that a user has logged in from an address. Failures stay: a
// client that knows one password may be guessing others.
func (b *backoff) succeeded(from netip.Prefix, user string) {
	if b.maxDelay == 0 {
		return
	}
	now := time.Now()
	b.mu.Lock()
	defer b.mu.Unlock()
	id, r := b.find(key{from, user}, now)
	r.good, r.last = now, now
	b.put(id, r)
}

// doubled returns a time that doubles with each failure beyond the free ones.
func doubled(first time.Duration, excess float64, limit time.Duration) time.Duration {
	for ; excess > 1 && first < limit; excess-- {
		first *= 2
	}
	return min(first, limit)
}
