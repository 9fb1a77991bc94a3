package peer

import (
	"errors"
	"testing"
	"time"
)

// runOutbox sends what o takes to the returned channel as frames per batch.
func runOutbox(t *testing.T, o *outbox) <-chan []frame {
	sent := make(chan []frame, 1000)
	stop, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		_ = o.run(stop, func(b *batch) error {
			parts := b.seal()
			msg := parts.Materialize()
			parts.Free()
			var all []frame
			for len(msg) > 0 {
				f, rest, err := nextFrame(msg)
				if err != nil {
					return err
				}
				all, msg = append(all, f), rest
			}
			sent <- all
			return nil
		})
	}()
	t.Cleanup(func() { close(stop); <-ended })
	return sent
}

func (o *outbox) mustPush(t *testing.T, number uint64, size int, c class, u urgency) {
	t.Helper()
	if err := o.push(header{kind: kindCall, number: number}, rawBody(make([]byte, size)), c, u); err != nil {
		t.Fatal(err)
	}
}

func TestLazyFramesWaitForCompany(t *testing.T) {
	o := newOutbox(time.Hour)
	sent := runOutbox(t, o)
	o.mustPush(t, 1, 10, classRaft, idle)
	o.mustPush(t, 2, 10, classRaft, idle)
	o.mustPush(t, 3, 10, classApp, urgent)
	if all := mustReceive(t, sent, "batch"); len(all) != 3 || all[0].number != 1 || all[2].number != 3 {
		t.Fatalf("%+v", all)
	}
	mustWait(t, func() bool { return o.backlog.Load() == 0 }, "backlog stays")
}

func TestLazyFramesDoNotWaitForEver(t *testing.T) {
	o := newOutbox(5 * time.Millisecond)
	sent := runOutbox(t, o)
	for i := range uint64(3) {
		o.mustPush(t, i, 10, classRaft, idle)
		if all := mustReceive(t, sent, "batch"); len(all) != 1 || all[0].number != i {
			t.Fatalf("%+v", all)
		}
	}
}

func TestBatchesAreBounded(t *testing.T) {
	o := newOutbox(time.Hour)
	const frames, size = 100, 20 << 10
	for i := range uint64(frames) {
		o.mustPush(t, i, size, classRaft, urgent)
	}
	sent := runOutbox(t, o)
	next := uint64(0)
	for next < frames {
		all := mustReceive(t, sent, "batch")
		if n := len(all) * size; n > batchSize+size {
			t.Errorf("batch of %d bytes", n)
		}
		for _, f := range all {
			if f.number != next {
				t.Fatalf("frame %d instead of %d", f.number, next)
			}
			next++
		}
	}
}

func TestBacklogClasses(t *testing.T) {
	o := newOutbox(time.Hour)
	for range 64 {
		o.mustPush(t, 0, 1<<20-headerSize, classApp, urgent)
	}
	if err := o.push(header{kind: kindCall}, noBody{}, classApp, urgent); !errors.Is(err, ErrBacklog) {
		t.Fatalf("full: %v", err)
	}
	// The others have limits of their own.
	o.mustPush(t, 1, 1<<20, classRaft, urgent)
	o.mustPush(t, 2, 0, classOwn, urgent)
}

func TestRaftWaitsForTheBacklog(t *testing.T) {
	o := newOutbox(time.Hour)
	o.mustPush(t, 1, maxBacklog-headerSize, classRaft, urgent)
	stop, result := make(chan struct{}), make(chan error, 1)
	wait := func() {
		result <- o.pushWait(stop, header{kind: kindCall, number: 2}, rawBody("x"), urgent)
	}
	waiting := func() bool {
		o.mu.Lock()
		defer o.mu.Unlock()
		return o.freed != nil
	}
	go wait()
	mustWait(t, waiting, "nobody waits")
	close(stop)
	if err := mustReceive(t, result, "abandoned"); !errors.Is(err, errAbandoned) {
		t.Fatal(err)
	}
	stop = make(chan struct{})
	go wait()
	sent := runOutbox(t, o)
	if err := mustReceive(t, result, "room"); err != nil {
		t.Fatal(err)
	}
	for n := 0; n < 2; {
		n += len(mustReceive(t, sent, "frames"))
	}
}

func TestClosedOutbox(t *testing.T) {
	o := newOutbox(time.Hour)
	o.mustPush(t, 1, maxBacklog-headerSize, classRaft, idle)
	result := make(chan error, 1)
	go func() { result <- o.pushWait(nil, header{kind: kindCall}, rawBody("x"), urgent) }()
	mustWait(t, func() bool {
		o.mu.Lock()
		defer o.mu.Unlock()
		return o.freed != nil
	}, "nobody waits")
	o.close()
	o.close()
	if err := mustReceive(t, result, "end"); !errors.Is(err, ErrDown) {
		t.Fatal(err)
	}
	if err := o.push(header{}, noBody{}, classOwn, urgent); !errors.Is(err, ErrDown) {
		t.Fatal(err)
	}
}

func TestSendErrorEndsOutbox(t *testing.T) {
	o := newOutbox(time.Hour)
	o.mustPush(t, 1, 1, classRaft, urgent)
	failure := errors.New("broken")
	if err := o.run(nil, func(*batch) error { return failure }); err != failure {
		t.Fatal(err)
	}
}

func TestRate(t *testing.T) {
	var r rate
	now := time.Unix(0, 0)
	r.since = now
	step := func(d time.Duration, frames int) bool {
		now = now.Add(d)
		r.add(frames, now)
		return r.busy
	}
	for i, tc := range []struct {
		d      time.Duration
		frames int
		want   bool
	}{
		{time.Second, 1, false},           // idle
		{time.Microsecond, 100, false},    // a burst alone says nothing
		{2 * time.Millisecond, 10, true},  // 55 per ms
		{100 * time.Microsecond, 0, true}, // too short to tell
		{time.Millisecond, 3, false},
		{10 * time.Millisecond, 40, true},
		{10 * time.Millisecond, 39, false},
	} {
		if got := step(tc.d, tc.frames); got != tc.want {
			t.Errorf("step %d: busy is %v", i, got)
		}
	}
}

// Company that was found stops the wait: what is lazy later waits in full.
func TestLazyFramesWaitAnew(t *testing.T) {
	o := newOutbox(time.Hour)
	sent := runOutbox(t, o)
	for i := range uint64(3) {
		o.mustPush(t, 2*i, 10, classRaft, idle)
		o.mustPush(t, 2*i+1, 10, classOwn, urgent)
		for got := 0; got < 2; {
			got += len(mustReceive(t, sent, "batch"))
		}
		o.mu.Lock()
		timing := o.timing
		o.mu.Unlock()
		if timing {
			t.Errorf("round %d: the timer runs, with nothing to wait for", i)
		}
	}
}
