package v10

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/quorate/quorate/amqp/v10/wire"
)

// mustRender returns the dispositions that o makes, as text.
func (o *outcomes) mustRender(t *testing.T) string {
	t.Helper()
	r := wire.NewReader(bytes.NewReader(o.AppendFrames(nil)), 1<<20)
	r.Expect(wire.FrameAMQP, 1<<20)
	var all []string
	for {
		f, err := r.ReadFrame()
		if err != nil {
			return strings.Join(all, " ")
		}
		var d wire.Disposition
		if _, err := wire.Decode(f.Body, &d); err != nil || !d.Settled || !d.Role || f.Channel != 5 {
			t.Fatalf("%+v, %v", d, err)
		}
		all = append(all, fmt.Sprintf("%d-%d:%d", d.First, d.Last.Or(d.First), d.State.Kind))
	}
}

func TestOutcomesAreRanges(t *testing.T) {
	o := &outcomes{channel: 5}
	ids := []uint32{math.MaxUint32 - 1, math.MaxUint32, 0, 1, 2, 9, 10}
	for _, id := range ids {
		o.add(nil, id, 100, id == 1)
	}
	var bytes int
	count := func(p *publishing) { bytes += int(p.size) }
	if !o.resolve(1, 3, wire.StateAccepted, nil, count) || o.resolve(4, 5, wire.StateAccepted, nil, count) {
		t.Error("it is not queued once")
	}
	o.resolve(6, 6, wire.StateAccepted, nil, count)
	o.resolve(7, 7, wire.StateReleased, nil, count)
	o.resolve(1, 7, wire.StateRejected, nil, count) // they have their outcome
	if bytes != 700 {
		t.Errorf("%d bytes have an outcome", bytes)
	}
	if s, want := o.mustRender(t), "4294967294-0:2 2-2:2 9-9:2 10-10:4"; s != want {
		t.Errorf("%s, want %s", s, want)
	}
	if len(o.list) != 0 || o.live != 0 {
		t.Errorf("%d are left", len(o.list))
	}
}

func TestRejectionsWithDifferentReasons(t *testing.T) {
	o := &outcomes{channel: 5}
	a, b := wire.Errorf("a", ""), wire.Errorf("b", "")
	for i := range 3 {
		o.add(nil, uint32(i), 1, false)
	}
	none := func(*publishing) {}
	o.resolve(1, 2, wire.StateRejected, a, none)
	o.resolve(3, 3, wire.StateRejected, b, none)
	if s, want := o.mustRender(t), "0-1:3 2-2:3"; s != want {
		t.Errorf("%s, want %s", s, want)
	}
}

// Each publish gets its outcome once, whatever the order; one that waits costs its own record.
func TestEachOutcomeOnce(t *testing.T) {
	o := &outcomes{channel: 5}
	r := rand.New(rand.NewPCG(1, 2))
	told := map[uint32]bool{}
	var waiting []uint64
	for n := range uint32(10_000) {
		number := o.add(nil, n, 1, false)
		if n == 0 {
			continue // it waits for ever
		}
		waiting = append(waiting, number)
		if len(waiting) < 50 {
			continue
		}
		r.Shuffle(len(waiting), func(i, j int) { waiting[i], waiting[j] = waiting[j], waiting[i] })
		for _, w := range waiting[:40] {
			o.resolve(w, w, wire.StateAccepted, nil, func(*publishing) {})
		}
		waiting = waiting[40:]
		for part := range strings.SplitSeq(o.mustRender(t), " ") {
			var first, last uint32
			var kind int
			if _, err := fmt.Sscanf(part, "%d-%d:%d", &first, &last, &kind); err != nil {
				t.Fatal(err)
			}
			for id := first; id <= last; id++ {
				if told[id] {
					t.Fatalf("%d is told twice", id)
				}
				told[id] = true
			}
		}
	}
	if len(told)+len(waiting) != 9999 {
		t.Errorf("%d told, %d waiting", len(told), len(waiting))
	}
	if cap(o.list) > 400 {
		t.Errorf("room for %d", cap(o.list))
	}
	if count, bytes := o.close(); count != int64(len(waiting))+1 || bytes != count {
		t.Errorf("%d waiting, %d bytes", count, bytes)
	}
}

func TestOutcomesDoNotAllocate(t *testing.T) {
	o := &outcomes{channel: 5}
	dst := make([]byte, 0, 4096)
	none := func(*publishing) {}
	if n := testing.AllocsPerRun(1000, func() {
		for i := range 100 {
			o.add(nil, uint32(i), 1, false)
		}
		o.resolve(o.last-99, o.last, wire.StateAccepted, nil, none)
		o.AppendFrames(dst)
	}); n > 0.1 {
		t.Errorf("%v allocations", n)
	}
}

// A client that is told early hears nothing of the outcome, and its messages are counted until they have one.
func TestOverdue(t *testing.T) {
	var released int64
	o := &outcomes{channel: 5, release: func(n, _ int64) { released += n }}
	l := &incomingLink{}
	for id := range uint32(6) {
		o.add(l, id, 100, id == 4)
	}
	o.resolve(2, 2, wire.StateAccepted, nil, func(*publishing) {})
	certain := func(number uint64) bool { return number == 3 }
	late, none := o.overdue(5, certain), o.overdue(5, certain)
	if !slices.Equal(late, []uint32{0, 3}) || len(none) > 0 || released != 1 {
		t.Errorf("late are %d, then %d; %d released", late, none, released)
	}
	o.resolve(1, 6, wire.StateAccepted, nil, func(*publishing) {})
	if have := o.mustRender(t); have != "1-2:2 5-5:2" || released != 6 {
		t.Errorf("then told of %s, %d released", have, released)
	}
	if _, some := o.waiting(); some {
		t.Error("something waits")
	}
}

// Whoever closes may count on what has an outcome being released: nobody else is about to release it.
func TestOutcomesAreReleasedAtOnce(t *testing.T) {
	var count, bytes int64
	o := &outcomes{release: func(n, size int64) { count, bytes = count+n, bytes+size }}
	l := &incomingLink{}
	for id := range uint32(3) {
		o.add(l, id, 100, false)
	}
	o.add(nil, 3, 0, false) // it was never counted
	o.resolve(1, 2, wire.StateAccepted, nil, func(*publishing) {})
	o.resolve(4, 4, wire.StateRejected, nil, func(*publishing) {})
	if count != 2 || bytes != 200 {
		t.Errorf("%d publishes of %d bytes are released", count, bytes)
	}
	if n, size := o.close(); n != 1 || size != 100 {
		t.Errorf("%d publishes of %d bytes have no outcome", n, size)
	}
}
