package peer

import (
	"testing"
	"time"
)

var timing = Timing{RefusedAfter: 300 * time.Millisecond, SuspectAfter: 2 * time.Second}

func TestLivenessByRefusals(t *testing.T) {
	now := time.Unix(1000, 0)
	var l liveness
	var all addresses
	all.set([]string{"a"})
	l.linked([16]byte{1})
	all.reached(all.next())
	l.lostAt = now
	all.lost()
	if reason := l.evidence(now, all.refusedFor(), 0, &timing); !l.alive || reason != "" {
		t.Fatalf("dead, as %q, when its link has just broken", reason)
	}
	fail := func(refused bool) {
		all.failed(all.next(), refused, true, 0, now, func(time.Duration) time.Duration { return 0 })
	}
	refuse := func(times int, pause time.Duration) {
		for range times {
			now = now.Add(pause)
			fail(true)
		}
	}
	refuse(3, 100*time.Millisecond)
	if reason := l.evidence(now, all.refusedFor(), 0, &timing); all.refusedFor() != 200*time.Millisecond || reason != "" {
		t.Errorf("refused for %v: %q", all.refusedFor(), reason)
	}
	fail(false) // somebody has taken the connection
	if all.refusedFor() != 0 {
		t.Errorf("refused for %v after an attempt that was not", all.refusedFor())
	}
	refuse(4, 100*time.Millisecond)
	if reason := l.evidence(now, all.refusedFor(), 0, &timing); reason != Refused {
		t.Errorf("refused for %v: %q", all.refusedFor(), reason)
	}
	before := all.refusedFor()
	refuse(1, time.Hour) // this process was stopped
	if d := all.refusedFor() - before; d > 2*redialMax {
		t.Errorf("a pause of an hour counts %v", d)
	}
	if all.reached(all.next()); all.refusedFor() != 0 {
		t.Errorf("refused for %v with a link", all.refusedFor())
	}
}

func TestLivenessByTime(t *testing.T) {
	now := time.Unix(1000, 0)
	var l liveness
	l.linked([16]byte{1})
	l.lostAt = now
	for _, slack := range []time.Duration{0, time.Second} {
		for after, want := range map[time.Duration]string{timing.SuspectAfter + slack - 1: "", timing.SuspectAfter + slack: Suspected} {
			if reason := l.evidence(now.Add(after), 0, slack, &timing); reason != want {
				t.Errorf("%v after its link broke, with a slack of %v: %q, not %q", after, slack, reason, want)
			}
		}
	}
}

func TestLivenessOfAnotherProcess(t *testing.T) {
	var l liveness
	if l.replaced([16]byte{1}) {
		t.Error("nothing was alive that could be replaced")
	}
	l.linked([16]byte{1})
	if l.replaced([16]byte{1}) || !l.replaced([16]byte{2}) {
		t.Error("another process counts as the same")
	}
	if l.linked([16]byte{2}); l.incarnation != [16]byte{2} {
		t.Error("the last link counts")
	}
}

// mustFail has the address that is due first fail.
func mustFail(t *testing.T, a *addresses, name string, now time.Time, refused, alive bool, took time.Duration) *address {
	t.Helper()
	x := a.next()
	if x.name != name {
		t.Fatalf("%s is tried, not %s", x.name, name)
	}
	a.failed(x, refused, alive, took, now, func(d time.Duration) time.Duration { return d })
	return x
}

func TestAddressesRotate(t *testing.T) {
	var a addresses
	if a.next() != nil {
		t.Error("there is none")
	}
	now := time.Unix(1000, 0)
	a.set([]string{"a", "b"})
	mustFail(t, &a, "a", now, true, false, 0)
	a.reached(a.next())
	if b := a.next(); b.name != "b" || !a.counts(b) || a.counts(a.all[0]) {
		t.Errorf("%q is tried where b was reached; count: a %v, b %v", b.name, a.counts(a.all[0]), a.counts(b))
	}
	if a.set([]string{"a", "b"}); a.next().name != "b" {
		t.Error("nothing has changed")
	}
	mustFail(t, &a, "b", now, true, false, 0)
	mustFail(t, &a, "a", now, true, false, 0)
	if a.set([]string{"c", "b"}); a.next().name != "c" || a.counts(a.next()) {
		t.Errorf("%q is tried first, counts: %v", a.next().name, a.counts(a.next()))
	}
	if a.set([]string{"d"}); !a.counts(a.next()) {
		t.Error("it has been at none of these")
	}
}

// What is known of one address says nothing about another: neither how long attempts take, nor for how
// long they are refused, nor when the next one is due.
func TestAddressesBackOffAlone(t *testing.T) {
	var a addresses
	a.set([]string{"slow", "refuses"})
	slow, refuses := a.all[0], a.all[1]
	now := time.Unix(1000, 0)
	for i := range 5 {
		mustFail(t, &a, "slow", now, false, false, time.Second)
		mustFail(t, &a, "refuses", now, true, false, 0)
		if slow.slow != min(i+1, maxSlow) || refuses.slow != 0 || refuses.refusedFor != now.Sub(time.Unix(1000, 0)) || a.refusedFor() != 0 {
			t.Fatalf("after %d rounds: %+v, %+v", i+1, slow, refuses)
		}
		now = now.Add(redialMax)
	}
	a.reached(slow)
	if slow.slow != 0 || slow.delay != 0 {
		t.Errorf("it was reached: %+v", slow)
	}
	mustFail(t, &a, "slow", now, false, true, time.Second)
	if slow.slow != 0 || slow.due != now.Add(redialMin) {
		t.Errorf("as long as the node is alive, it is tried soon and not for long: %+v", slow)
	}
	mustFail(t, &a, "refuses", now, false, false, 5*time.Second)
	if refuses.due != now.Add(20*time.Second) {
		t.Errorf("where the node has not been an attempt of 5 s was in vain; the next is due after %v", refuses.due.Sub(now))
	}
}

func TestEarlyRequests(t *testing.T) {
	var e earlyRequests
	due := make(chan struct{}, 10)
	e.init(time.Minute, func() { due <- struct{}{} })
	defer e.clear()
	check := func(count, bytes int) {
		t.Helper()
		n, b := 0, 0
		for _, kept := range e.byGroup {
			for _, r := range kept {
				n, b = n+1, b+r.size
			}
		}
		if n != e.count || b != e.bytes || n != count || b != bytes || (n > 0) != e.timing && n > 0 {
			t.Fatalf("%d of %d bytes are kept, %d of %d counted, expected %d of %d", n, b, e.count, e.bytes, count, bytes)
		}
	}
	for i := range 3 {
		if !e.add(1, request{number: uint64(i), size: 10}) {
			t.Fatal("refused")
		}
	}
	e.add(2, request{size: 5})
	check(4, 35)
	if e.add(2, request{size: maxEarlyBytes}) {
		t.Error("more bytes are kept than may be")
	}
	for i, r := range e.take(1) {
		if r.number != uint64(i) {
			t.Errorf("request %d is the %dth", r.number, i)
		}
	}
	check(1, 5)
	if late := e.expire(time.Now()); len(late) != 0 {
		t.Errorf("%d are late at once", len(late))
	}
	if late := e.expire(time.Now().Add(2 * time.Minute)); len(late) != 1 {
		t.Errorf("%d are late", len(late))
	}
	check(0, 0)
	for range maxEarly {
		e.add(3, request{})
	}
	if e.add(3, request{}) {
		t.Error("more are kept than may be")
	}
	e.clear()
	e.wait = -1
	if e.add(1, request{}) {
		t.Error("none is to be kept")
	}
}
