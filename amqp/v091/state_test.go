package v091

import (
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/quorate/quorate/amqp"
	"github.com/quorate/quorate/amqp/v091/wire"
	"github.com/quorate/quorate/fsm"
)

// TestUnacked compares unacked with a plain map over a random history.
func TestUnacked(t *testing.T) {
	for seed := range uint64(50) {
		r := rand.New(rand.NewPCG(seed, 0))
		var u unacked
		model := map[uint64]held{}
		tag := uint64(0)
		for step := range 5000 {
			switch n := r.IntN(100); {
			case n < 60:
				tag += 1 + uint64(r.IntN(3)/2) // no_ack deliveries leave gaps
				u.add(tag, 7, tag+100)
				model[tag] = held{tag, 7, tag + 100}
			case n < 90:
				pick := 1 + r.Uint64N(tag+2)
				got, ok := u.take(pick)
				want, known := model[pick]
				if ok != known || got != want {
					t.Fatalf("seed %d step %d: take %d: %v %v, want %v %v", seed, step, pick, got, ok, want, known)
				}
				delete(model, pick)
			case n < 93:
				pick := 1 + r.Uint64N(tag+2)
				got, ok := u.takeUpTo(pick, nil)
				if _, known := model[pick]; ok != known {
					t.Fatalf("seed %d step %d: takeUpTo %d is %v", seed, step, pick, ok)
				}
				if ok {
					expectHeld(t, got, removeUpTo(model, pick))
				}
			case n == 99 && step%7 == 0:
				expectHeld(t, u.takeAll(nil), removeUpTo(model, tag))
			}
			if u.live != len(model) {
				t.Fatalf("seed %d step %d: %d live, want %d", seed, step, u.live, len(model))
			}
			if cap(u.list) > 4*max(len(model), 2000) {
				t.Fatalf("seed %d step %d: room for %d, %d held", seed, step, cap(u.list), len(model))
			}
		}
	}
}

func removeUpTo(model map[uint64]held, last uint64) []held {
	var out []held
	for tag, h := range model {
		if tag <= last {
			out = append(out, h)
			delete(model, tag)
		}
	}
	slices.SortFunc(out, func(a, b held) int { return int(a.tag) - int(b.tag) })
	return out
}

func expectHeld(t *testing.T, got, want []held) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Fatalf("got  %v\nwant %v", got, want)
	}
}

// TestUnackedOldest holds one delivery while many others come and go.
func TestUnackedOldest(t *testing.T) {
	var u unacked
	u.add(1, 1, 1)
	for tag := uint64(2); tag < 1_000_000; tag++ {
		u.add(tag, 1, tag)
		u.take(tag)
	}
	if cap(u.list) > 1000 {
		t.Errorf("room for %d", cap(u.list))
	}
	if h, ok := u.take(1); !ok || h.id != 1 {
		t.Errorf("the oldest is lost: %v %v", h, ok)
	}
}

// A publish has one outcome: the first one, also while the client has not been told.
func TestConfirmKeepsItsOutcome(t *testing.T) {
	c := confirms{channel: 1}
	c.begin()
	c.add(10)
	c.resolve(1, 1, true)
	var count, bytes int64
	c.release = func(n, size int64) { count, bytes = count+n, bytes+size }
	if c.resolve(1, 1, false); count != 0 || bytes != 0 {
		t.Errorf("%d publishes of %d octets have another outcome", count, bytes)
	}
	if got, want := c.AppendFrames(nil), wire.AppendAck(nil, 1, 1, false); string(got) != string(want) {
		t.Errorf("the client is told %x, want %x", got, want)
	}
}

// nowhere is a session without any queue.
type nowhere struct{ amqp.Session }

func (nowhere) Publish(*fsm.Publish) (routed bool, err error) { return false, nil }

// A mandatory message without a route is on its way back before it is confirmed.
func TestReturnedBeforeConfirmed(t *testing.T) {
	out := outbox{amqp.NewOutbox(&amqp.Account{}, func() {})}
	p := publisher{session: nowhere{}}
	p.init(1, out, amqp.NewFlow(10, 1000, &amqp.Account{}), nil)
	p.confirms.begin()
	k, err := p.commits.begin(1)
	must(t, err)
	k.mu.Lock() // a commit keeps the confirm from being written
	done := make(chan error)
	go func() {
		done <- p.publish(&message{mandatory: true, publish: fsm.Publish{Payload: fsm.AppendPayloadHead(nil, "", "q", nil)}})
	}()
	for confirmed := false; !confirmed; runtime.Gosched() {
		p.confirms.mu.Lock()
		confirmed = len(p.confirms.fresh) > 0
		p.confirms.mu.Unlock()
	}
	var b amqp.Batch
	if out.Take(&b); len(b.Items) != 1 || b.Items[0].Kind != outReturn {
		t.Errorf("confirmed, with %d items before", len(b.Items))
	}
	k.mu.Unlock()
	must(t, <-done)
}

// TestConfirms compares confirms with what a client may conclude from the
// frames, over a random history: every publish is confirmed once, with its own
// outcome, and what can be confirmed is.
func TestConfirms(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 1))
		c := confirms{channel: 1}
		early := uint64(r.IntN(3))
		for range early {
			c.add(1)
		}
		c.begin()
		outcomes := map[uint64]bool{}  // by number, once settled
		confirmed := map[uint64]bool{} // by number, once the client knows
		waiting, last, weight := []uint64{}, early, int64(0)
		var count, bytes int64 // of the last outcome
		c.release = func(n, size int64) { count, bytes = n, size }
		for range 400 {
			for range r.IntN(4) {
				last = c.add(uint32(last))
				weight += int64(last - 1)
				waiting = append(waiting, last)
			}
			for range r.IntN(4) {
				if len(waiting) == 0 {
					break
				}
				i := r.IntN(min(len(waiting), 5))
				j := min(i+1+r.IntN(3), len(waiting))
				for j > i+1 && waiting[j-1] != waiting[i]+uint64(j-1-i) {
					j-- // a range the broker settles has no holes
				}
				ok := r.IntN(5) > 0
				if c.resolve(waiting[i], waiting[j-1], ok); count != int64(j-i) {
					t.Fatalf("seed %d: %d settled, want %d", seed, count, j-i)
				}
				weight -= bytes
				for _, n := range waiting[i:j] {
					outcomes[n] = ok
				}
				waiting = slices.Delete(waiting, i, j)
			}
			if r.IntN(3) == 0 {
				readConfirms(t, c.AppendFrames(nil), early, outcomes, confirmed)
				for n := range outcomes {
					if !confirmed[n] {
						t.Fatalf("seed %d: %d is settled and not confirmed", seed, n)
					}
				}
			}
		}
		if count, bytes := c.close(); count != int64(len(waiting))+int64(early) || bytes != weight+int64(early) {
			t.Fatalf("seed %d: %d of %d octets left, want %d of %d", seed, count, bytes, len(waiting), weight)
		}
	}
}

// readConfirms takes frames as a client does that trusts each of them alone.
func readConfirms(t *testing.T, b []byte, early uint64, outcomes, confirmed map[uint64]bool) {
	t.Helper()
	r := wire.NewReader(strings.NewReader(string(b)), 4096)
	for r.Buffered() > 0 || len(b) > 0 {
		f, err := r.ReadFrame()
		if err != nil {
			return
		}
		m, err := wire.DecodeMethod(f.Payload)
		if err != nil {
			t.Fatal(err)
		}
		tag, multiple, ack := uint64(0), false, false
		switch m := m.(type) {
		case *wire.BasicAck:
			tag, multiple, ack = m.DeliveryTag, m.Multiple, true
		case *wire.BasicNack:
			tag, multiple = m.DeliveryTag, m.Multiple
		}
		first := tag
		if multiple {
			first = 1
		}
		for n := first + early; n <= tag+early; n++ {
			if confirmed[n] && n < tag+early {
				continue
			}
			if ok, settled := outcomes[n]; !settled || ok != ack || confirmed[n] {
				t.Fatalf("%d confirmed: ack %v, settled %v, outcome %v, before %v", n, ack, settled, ok, confirmed[n])
			}
			confirmed[n] = true
		}
	}
}

// TestConfirmsOldest has one publish wait while many others come and go.
func TestConfirmsOldest(t *testing.T) {
	c := confirms{channel: 1}
	c.begin()
	c.add(1)
	var buf []byte
	for range 1_000_000 {
		n := c.add(1)
		c.resolve(n, n, true)
		buf = c.AppendFrames(buf[:0])
	}
	if cap(c.list) > 1000 {
		t.Errorf("room for %d", cap(c.list))
	}
	c.resolve(1, 1, false)
	if got := c.AppendFrames(nil); string(got) != string(wire.AppendNack(nil, 1, 1, false)) {
		t.Errorf("%x", got)
	}
}

// Whoever closes may count on what has an outcome being released: nobody else is about to release it.
func TestConfirmsAreReleasedAtOnce(t *testing.T) {
	var count, bytes int64
	c := &confirms{release: func(n, size int64) { count, bytes = count+n, bytes+size }}
	for range 3 {
		c.add(100)
	}
	c.resolve(1, 2, true)
	if count != 2 || bytes != 200 {
		t.Errorf("%d publishes of %d bytes are released", count, bytes)
	}
	if n, size := c.close(); n != 1 || size != 100 {
		t.Errorf("%d publishes of %d bytes have no outcome", n, size)
	}
}
