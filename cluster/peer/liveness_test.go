package peer

import (
	"testing"
	"time"
)

var timing = Timing{RefusedAfter: 300 * time.Millisecond, SuspectAfter: 2 * time.Second}

func TestLivenessByRefusals(t *testing.T) {
	now := time.Unix(1000, 0)
	var l liveness
	l.linked([16]byte{1})
	l.lost(now)
	if reason := l.evidence(now, &timing); !l.alive || reason != "" {
		t.Fatalf("dead, as %q, when its link has just broken", reason)
	}
	refuse := func(times int, pause time.Duration) {
		for range times {
			now = now.Add(pause)
			l.refused(now)
		}
	}
	refuse(3, 100*time.Millisecond)
	if reason := l.evidence(now, &timing); l.refusedFor != 200*time.Millisecond || reason != "" {
		t.Errorf("refused for %v: %q", l.refusedFor, reason)
	}
	l.failed() // somebody has taken the connection
	if l.refusedFor != 0 {
		t.Errorf("refused for %v after an attempt that was not", l.refusedFor)
	}
	refuse(4, 100*time.Millisecond)
	if reason := l.evidence(now, &timing); reason != Refused {
		t.Errorf("refused for %v: %q", l.refusedFor, reason)
	}
	before := l.refusedFor
	refuse(1, time.Hour) // this process was stopped
	if d := l.refusedFor - before; d > 2*redialMax {
		t.Errorf("a pause of an hour counts %v", d)
	}
	if l.linked([16]byte{1}); l.refusedFor != 0 {
		t.Errorf("refused for %v with a link", l.refusedFor)
	}
}

func TestLivenessByTime(t *testing.T) {
	now := time.Unix(1000, 0)
	var l liveness
	l.linked([16]byte{1})
	l.lost(now)
	for after, want := range map[time.Duration]string{timing.SuspectAfter - 1: "", timing.SuspectAfter: Suspected} {
		if reason := l.evidence(now.Add(after), &timing); reason != want {
			t.Errorf("%v after its link broke: %q, not %q", after, reason, want)
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

func TestAddressesRotate(t *testing.T) {
	var a addresses
	if a.next() != "" {
		t.Error("there is none")
	}
	a.failed("") // nothing was tried
	a.set([]string{"a", "b"})
	a.failed("a")
	a.failed("a") // of an attempt that began before
	if a.next() != "b" {
		t.Errorf("%q is tried after a", a.next())
	}
	a.reached("b")
	if a.next() != "b" || a.isElsewhere("b") || !a.isElsewhere("a") {
		t.Errorf("%q is tried where b was reached; elsewhere: a %v, b %v", a.next(), a.isElsewhere("a"), a.isElsewhere("b"))
	}
	if a.set([]string{"a", "b"}); a.next() != "b" {
		t.Error("nothing has changed")
	}
	if a.set([]string{"c", "b"}); a.next() != "c" || !a.isElsewhere("c") {
		t.Errorf("%q is tried first, elsewhere: c %v", a.next(), a.isElsewhere("c"))
	}
	if a.set([]string{"d"}); a.isElsewhere("d") {
		t.Error("it has been at none of these")
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
