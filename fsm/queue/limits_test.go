package queue

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"testing"
	"unsafe"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

func (d *driver) stats() Stats { return d.m.Stats() }

// finish ticks until nothing is due.
func (d *driver) finish(t testing.TB) {
	for next := d.m.NextDeadline(); next != 0 && next <= d.meta.Now; next = d.m.NextDeadline() {
		d.tick(t)
	}
}

func (d *driver) mustReady(t *testing.T, n uint64) {
	t.Helper()
	mustCheck(t, d.m)
	if got := d.stats().Ready.Messages; got != n {
		t.Fatalf("%d ready, want %d", got, n)
	}
}

// TestExpiryIsBounded: one entry expires so many and no more; what is left is
// due at once and is never handed out.
func TestExpiryIsBounded(t *testing.T) {
	d := newDriver(&logpb.QueueConfig{DeliveryLimit: 20})
	const n = dueInTick + 1000
	for range n {
		d.enqueue(t, 1001)
	}
	d.meta.Now += 1000
	d.enqueue(t, 0)
	d.mustReady(t, n-dueBefore+1)
	if next := d.m.NextDeadline(); next > d.meta.Now || next == 0 {
		t.Fatalf("the next tick is due at %d, now is %d", next, d.meta.Now)
	}

	// Before the get, and once more for what is in its way. The one that
	// lives is behind more than that.
	d.cmd = logpb.Command{Kind: logpb.Command_GET, Get: &logpb.Get{}}
	d.seq[taker]++
	d.cmd.Seq = d.seq[taker]
	d.meta.Index++
	d.meta.Session = taker
	d.eff.Reset()
	if r := d.m.Apply(d.meta, &d.cmd, &d.eff); r.Code != fsm.NotYet || len(d.eff.Deliveries) != 0 {
		t.Fatalf("got %+v, %v", r, d.eff.Deliveries)
	}
	d.mustReady(t, n-3*dueBefore+1)

	d.tick(t)
	d.mustReady(t, n-3*dueBefore-dueInTick+1)
	d.consume(t, 10)
	d.mustReady(t, n-5*dueBefore-dueInTick+1)
	if len(d.eff.Deliveries) != 0 {
		t.Fatalf("delivered %v", d.eff.Deliveries)
	}
	d.tick(t)
	d.mustReady(t, 0)
	if len(d.eff.Deliveries) != 1 || d.m.NextDeadline() != 0 {
		t.Fatalf("delivered %v, next is %d", d.eff.Deliveries, d.m.NextDeadline())
	}
	if got := d.stats().Counters.Expired; got != n {
		t.Fatalf("%d expired, want %d", got, n)
	}
}

// TestPurgeIsBounded: what was purged is gone at once, and forgotten piece by
// piece; a copy made meanwhile goes on with that.
func TestPurgeIsBounded(t *testing.T) {
	d := newDriver(&logpb.QueueConfig{DeliveryLimit: 20, DeadLetter: true})
	const n = 2*sweepInTick + 1000
	for i := range n {
		d.enqueue(t, uint64(i%2)*1001)
	}
	d.cmd = logpb.Command{Kind: logpb.Command_PURGE}
	d.do(t, publisher)
	d.mustReady(t, 0)
	released := len(d.eff.Released)
	if released != sweepInTick {
		t.Fatalf("%d were forgotten at once", released)
	}
	if st := d.stats(); st.Counters.Purged != n || st.Ready != (Count{}) || st.Outbox != (Count{}) {
		t.Fatalf("%+v", st)
	}
	d.m = mustCopy(t, d.m)
	d.meta.Now += 5000 // nothing expires that is gone
	d.enqueue(t, 1001)
	if released += len(d.eff.Released); released != sweepInTick+dueBefore {
		t.Fatalf("%d were forgotten", released)
	}
	for ; released < n; released += len(d.eff.Released) {
		if next := d.m.NextDeadline(); next == 0 || next > d.meta.Now {
			t.Fatalf("%d are left, and the next tick is due at %d", n-released, next)
		}
		d.tick(t)
		d.mustReady(t, 1)
	}
	if next := d.m.NextDeadline(); next != d.meta.Now+1000 {
		t.Fatalf("the next tick is due at %d", next)
	}
}

// TestTrimIsBounded: a new limit drops so many at once, and ticks drop the rest.
func TestTrimIsBounded(t *testing.T) {
	d := newDriver(&logpb.QueueConfig{DeliveryLimit: 20})
	const n = 2*dropsAtOnce + 100
	for range n {
		d.enqueue(t, 0)
	}
	d.cmd = logpb.Command{Kind: logpb.Command_CONFIGURE, Configure: &logpb.Configure{Config: &logpb.QueueConfig{
		DeadLetter: true, MaxLengthPlusOne: 11,
	}}}
	d.do(t, fsm.SessionID{})
	for want := n - dropsAtOnce; ; want = max(want-dropsAtOnce, 10) {
		d.mustReady(t, uint64(want))
		if want == 10 {
			break
		}
		if next := d.m.NextDeadline(); next == 0 || next > d.meta.Now || len(d.eff.DeadLetters) != dropsAtOnce {
			t.Fatalf("%d sent, the next tick is due at %d", len(d.eff.DeadLetters), next)
		}
		d.tick(t)
	}
	if c := d.stats().Counters; d.m.NextDeadline() != 0 || c.Died(logpb.Death_MAXLEN) != n-10 {
		t.Fatalf("next is %d, %+v", d.m.NextDeadline(), c)
	}
}

// TestRefusedRunsAreBounded: in doubt what is repeated is refused, not
// confirmed; what is recent is answered as it was.
func TestRefusedRunsAreBounded(t *testing.T) {
	s := &session{}
	const n = 2*refusedRuns + 10
	for i := range uint64(n) {
		s.refuse(10+2*i, refusedRuns)
	}
	if len(s.refused) != refusedRuns {
		t.Fatalf("%d runs", len(s.refused))
	}
	for seq := uint64(0); seq < 10+2*n+5; seq++ {
		refused := seq >= 10 && seq < 10+2*n && seq%2 == 0
		merged := seq > 10 && seq < 10+2*(n-refusedRuns)
		if got := s.wasRefused(seq); got != (refused || merged) {
			t.Fatalf("command %d: refused %v", seq, got)
		}
	}
	s = &session{}
	for seq := uint64(5); seq < 5000; seq++ {
		s.refuse(seq, refusedRuns)
	}
	if len(s.refused) != 1 || s.wasRefused(4) || !s.wasRefused(5) || !s.wasRefused(4999) || s.wasRefused(5000) {
		t.Fatalf("%v", s.refused)
	}
	s = &session{}
	for i := range uint64(fsm.MaxUnanswered) {
		s.refuse(1+2*i, refusedRuns)
	}
	for seq := uint64(1); seq < 2*fsm.MaxUnanswered; seq++ { // each may be repeated
		if s.wasRefused(seq) != (seq%2 == 1) {
			t.Fatalf("unanswered command %d: refused %v", seq, s.wasRefused(seq))
		}
	}
}

// TestTimeoutsAreBounded: a tick takes back so many deliveries and no more.
func TestTimeoutsAreBounded(t *testing.T) {
	d := newDriver(&logpb.QueueConfig{DeliveryLimit: 20, ConsumerTimeoutPlusOne: 1001})
	const n = dueInTick + 10
	d.consume(t, 0)
	for range n {
		d.enqueue(t, 0)
	}
	d.meta.Now += 1000
	d.tick(t)
	d.mustReady(t, dueInTick)
	if ids := d.eff.Timeouts[0].Deliveries; len(ids) != dueInTick || ids[0] != 1 || !slices.IsSorted(ids) {
		t.Fatalf("%d deliveries, from %d", len(ids), ids[0])
	}
	if next := d.m.NextDeadline(); next > d.meta.Now || next == 0 {
		t.Fatalf("the next tick is due at %d", next)
	}
	d.tick(t)
	d.mustReady(t, n)
	d.ack(t, 1, n)
	d.mustReady(t, n-handOutsAtOnce)
	d.finish(t)
	d.mustReady(t, 0)
	if got := d.stats().Counters; got.LateAcks != n || got.TimedOut != n {
		t.Fatalf("%+v", got)
	}
}

// TestMaxCredit: no limit asked for is not no limit.
func TestMaxCredit(t *testing.T) {
	d := newDriver(&logpb.QueueConfig{DeliveryLimit: 20})
	for range maxCredit + 10 {
		d.enqueue(t, 0)
	}
	for _, prefetch := range []uint32{0, 1 << 31} {
		d.consume(t, prefetch)
		d.finish(t)
		d.mustReady(t, 10)
	}
}

// TestEndedSessionsAreForgotten: those that ended long ago go with those that
// end now, some at a time.
func TestEndedSessionsAreForgotten(t *testing.T) {
	d := newDriver(&logpb.QueueConfig{})
	session := func(n int) fsm.SessionID { return fsm.SessionID{Node: 1, Boot: 1, Num: uint64(n)} }
	end := func(n int) {
		t.Helper()
		d.cmd = logpb.Command{Kind: logpb.Command_SESSION_DOWN}
		d.do(t, session(n))
	}
	const many = 3 * forgetAtOnce
	for n := range many {
		end(n)
	}
	d.meta.Now += fsm.Time(endedFor)
	end(many)
	mustCheck(t, d.m)
	if n := d.m.sessions.ended.Len(); n != many+1 {
		t.Fatalf("%d sessions are remembered after %d ms", n, endedFor)
	}
	d.meta.Now++
	for n := range 3 {
		end(many + 1 + n)
		if have, want := d.m.sessions.ended.Len(), many+1-(n+1)*(forgetAtOnce-1); have != want {
			t.Fatalf("%d sessions are remembered, not %d", have, want)
		}
	}
	mustCheck(t, d.m)
}

// TestMessageSize: the arena's records are small and have no pointers, so that
// the garbage collector does not look at them.
func TestMessageSize(t *testing.T) {
	if n := unsafe.Sizeof(message{}); n > 56 {
		t.Errorf("a message takes %d bytes", n)
	}
}

// TestSnapshotInTheBackground: a snapshot is written by another goroutine while
// the machine goes on; under -race this shows what they share.
func TestSnapshotInTheBackground(t *testing.T) {
	d := newDriver(&logpb.QueueConfig{DeliveryLimit: 20, DeadLetter: true, ConsumerTimeoutPlusOne: 1_001})
	d.consume(t, 300)
	for i := range 3000 {
		d.enqueue(t, uint64(i%50+1)*(uint64(i)%2))
	}
	acked := uint64(1)
	for round := range 20 {
		want := d.m.Hash()
		live := slices.Collect(d.m.LiveIndexes())
		s := d.m.Snapshot()
		type written struct {
			b   bytes.Buffer
			err error
		}
		done := make(chan *written)
		go func() {
			var w written
			_, w.err = s.WriteTo(&w.b)
			done <- &w
		}()
		for range 200 {
			d.enqueue(t, uint64(round%3)*20)
			d.ack(t, acked, 1)
			acked++
			d.meta.Now++
		}
		d.tick(t)
		w := <-done
		if w.err != nil {
			t.Fatal(w.err)
		}
		m := New("q", 1)
		if err := m.Restore(&w.b); err != nil {
			t.Fatal(err)
		}
		if m.Hash() != want || !slices.Equal(slices.Collect(s.LiveIndexes()), live) || !slices.Equal(slices.Collect(m.LiveIndexes()), live) {
			t.Fatalf("round %d: not the state of the snapshot", round)
		}
		mustCheck(t, d.m)
	}
}

func TestRestoreRefuses(t *testing.T) {
	d := newDriver(&logpb.QueueConfig{DeliveryLimit: 20})
	d.enqueue(t, 0)
	d.consume(t, 1)
	d.enqueue(t, 0)
	var b bytes.Buffer
	if _, err := d.m.Snapshot().WriteTo(&b); err != nil {
		t.Fatal(err)
	}
	whole := b.Bytes()
	if err := New("other", 1).Restore(bytes.NewReader(whole)); err == nil {
		t.Error("another name")
	}
	if err := New("q", 2).Restore(bytes.NewReader(whole)); err == nil {
		t.Error("another id")
	}
	if err := New("q", 1).Restore(bytes.NewReader(append(slices.Clone(whole), 0))); err == nil {
		t.Error("something behind")
	}
	for n := range whole {
		if err := New("q", 1).Restore(bytes.NewReader(whole[:n])); err == nil {
			t.Errorf("%d of %d bytes", n, len(whole))
		}
	}
	later := New("q", 1)
	later.Apply(fsm.Meta{Index: 1, Version: fsm.NewestVersion + 1}, &logpb.Command{Kind: logpb.Command_TICK}, &fsm.Effects{})
	later.Apply(fsm.Meta{Index: 2, Version: fsm.NewestVersion}, &logpb.Command{Kind: logpb.Command_TICK}, &fsm.Effects{}) // the version never falls
	var newer bytes.Buffer
	if _, err := later.Snapshot().WriteTo(&newer); err != nil {
		t.Fatal(err)
	}
	if err := New("q", 1).Restore(bytes.NewReader(newer.Bytes())); !errors.Is(err, ErrVersion) {
		t.Errorf("a snapshot of a later version: %v", err)
	}
	if _, err := Restored("q", 1, fsm.NewestVersion, bytes.NewReader(newer.Bytes())); !errors.Is(err, ErrVersion) {
		t.Errorf("a new machine with a snapshot of a later version: %v", err)
	}
	if m, err := Restored("q", 1, fsm.NewestVersion+1, bytes.NewReader(newer.Bytes())); err != nil || m.Hash() != later.Hash() {
		t.Errorf("a machine that supports the version: %v", err)
	}
	if m, err := Restored("q", 1, fsm.NewestVersion, bytes.NewReader(whole)); err != nil || m.Hash() != d.m.Hash() {
		t.Errorf("a new machine: %v", err)
	}
	if err := d.m.Restore(bytes.NewReader(whole)); err != nil {
		t.Error(err)
	}
}

type brokenWriter struct{ left int }

func (w *brokenWriter) Write(p []byte) (int, error) {
	if len(p) > w.left {
		return 0, fmt.Errorf("full")
	}
	w.left -= len(p)
	return len(p), nil
}

func TestSnapshotReportsErrors(t *testing.T) {
	d := newDriver(&logpb.QueueConfig{})
	for range 10_000 {
		d.enqueue(t, 0)
	}
	n, err := d.m.Snapshot().WriteTo(&brokenWriter{left: 100_000})
	if err == nil || n > 100_000 || n == 0 {
		t.Errorf("wrote %d: %v", n, err)
	}
}

func TestViews(t *testing.T) {
	d := newDriver(&logpb.QueueConfig{DeliveryLimit: 3})
	d.enqueue(t, 0)
	d.enqueue(t, 0)
	d.consume(t, 1)
	d.do(t, fsm.SessionID{Boot: 5, Num: 1}) // a forwarding queue's consumer, of all things
	if got := d.m.SessionNodes(); !slices.Equal(got, []Boot{{1, 1}, {2, 1}}) {
		t.Errorf("session nodes %v", got)
	}
	if d.m.Name() != "q" || d.m.ID() != 1 || d.m.Clock() != d.meta.Now || d.m.Config().DeliveryLimit != 3 {
		t.Errorf("%s", d.m)
	}
	if !d.m.Live(1) || !d.m.Live(2) || d.m.Live(3) || d.m.Live(0) {
		t.Errorf("live %v", slices.Collect(d.m.LiveIndexes()))
	}
	for m := range d.m.Messages() {
		if m.Seq != 1 || m.Place != CheckedOut || m.Holder.Session != taker {
			t.Errorf("%+v", m)
		}
		break
	}
	for c := range d.m.Consumers() {
		if c.ID.Session != taker || c.Held != 1 || c.Timeout != -1 || c.Status != Up {
			t.Errorf("%+v", c)
		}
		break
	}
}

// TestHeldInPieces: a consumer that settles in odd order costs no more memory
// than what it holds, and no walk is repeated.
func TestHeldInPieces(t *testing.T) {
	d := newDriver(&logpb.QueueConfig{DeliveryLimit: 20})
	d.consume(t, 0)
	const n = 20_000
	for range n {
		d.enqueue(t, 0)
	}
	d.finish(t)
	for id := uint64(2); id < n; id += 2 {
		d.ack(t, id, 1)
	}
	mustCheck(t, d.m)
	ranges := make([]uint64, 0, 200_000)
	for range 50_000 {
		ranges = append(ranges, 2, 1, 2, n/2)
	}
	d.set.Ranges = ranges
	d.cmd = logpb.Command{Kind: logpb.Command_SETTLE, Settle: &d.set}
	d.do(t, taker)
	d.finish(t)
	mustCheck(t, d.m)
	if got := d.stats().Unacknowledged.Messages; got != n/4+1 {
		t.Errorf("%d held, want %d", got, n/4+1)
	}
}
