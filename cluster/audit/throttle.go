package audit

import (
	"cmp"
	"net/netip"
	"slices"
	"time"
)

// Bounds of a Throttle.
const (
	window   = 10 * time.Second
	perKey   = 10   // in a window
	maxKeys  = 1024 // further keys count as one
	otherKey = "others"
)

// Throttle bounds how often an event of each key is allowed, and counts the omitted
// ones. It must not be used by several goroutines at a time.
type Throttle struct {
	clock func() time.Time
	keys  map[string]*tally
	swept time.Time // by Expired
}

type tally struct {
	since time.Time
	said  int
	left  uint64
}

// Left is how many events of a key were omitted.
type Left struct {
	Key   string
	Count uint64
}

// NewThrottle returns a throttle without keys.
func NewThrottle(clock func() time.Time) *Throttle {
	return &Throttle{clock: clock, keys: map[string]*tally{}}
}

// Allow reports whether an event of a key is allowed, and how many were omitted
// before it. as is the key under which it counts.
func (t *Throttle) Allow(key string) (as string, ok bool, before uint64) {
	now := t.clock()
	k := t.keys[key]
	if k == nil {
		if len(t.keys) >= maxKeys {
			key = otherKey
			k = t.keys[key]
		}
		if k == nil {
			k = &tally{since: now}
			t.keys[key] = k
		}
	}
	if now.Sub(k.since) >= window {
		k.since, k.said = now, 0
	}
	if k.said >= perKey {
		k.left++
		return key, false, 0
	}
	k.said++
	before, k.left = k.left, 0
	return key, true, before
}

// Expired removes the keys whose window is over, and lists those with omitted
// events, sorted by key. It checks at most once a second.
func (t *Throttle) Expired() []Left {
	now := t.clock()
	if now.Sub(t.swept) < time.Second {
		return nil
	}
	t.swept = now
	return t.forget(func(k *tally) bool { return now.Sub(k.since) >= window })
}

// All is like Expired, for all keys.
func (t *Throttle) All() []Left { return t.forget(func(*tally) bool { return true }) }

func (t *Throttle) forget(over func(*tally) bool) (left []Left) {
	for key, k := range t.keys {
		if !over(k) {
			continue
		}
		if k.left > 0 {
			left = append(left, Left{key, k.left})
		}
		delete(t.keys, key)
	}
	slices.SortFunc(left, func(a, b Left) int { return cmp.Compare(a.Key, b.Key) })
	return left
}

// place returns an address without its port.
func place(address string) string {
	if a, err := netip.ParseAddrPort(address); err == nil {
		return a.Addr().Unmap().String()
	}
	return address
}
