package queue

import (
	"bytes"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// stream turns bytes into a log. It keeps just enough books to make most
// commands meaningful; the rest are duplicates, holes and nonsense.
type stream struct {
	data []byte
	meta fsm.Meta
	next map[fsm.SessionID]uint64
}

func (s *stream) byte() byte {
	if len(s.data) == 0 {
		return 0
	}
	b := s.data[0]
	s.data = s.data[1:]
	return b
}

// below returns a number below n, mostly a small one.
func (s *stream) below(n int) uint64 { return uint64(s.byte()) % uint64(n) }

// wild returns a small number, or one of those that overflow.
func (s *stream) wild() uint64 {
	switch b := s.byte(); {
	case b >= 250:
		return ^uint64(0) - uint64(b-250)
	case b >= 245:
		return 1 << (b - 245 + 59)
	default:
		return uint64(b % 16)
	}
}

// session picks one of a few sessions, of three boots and a forwarding queue.
func (s *stream) session() fsm.SessionID {
	b := s.below(16)
	switch {
	case b == 0:
		return fsm.SessionID{}
	case b == 1:
		return fsm.SessionID{Boot: 9, Num: 1}
	}
	return fsm.SessionID{Node: fsm.NodeID(1 + b%2), Boot: 1 + b/2%2, Num: 1 + b/4}
}

// step builds the next command.
func (s *stream) step() *logpb.Command {
	switch b := s.byte(); {
	case b < 200:
		s.meta.Index++
		s.meta.Now += fsm.Time(b % 32)
	case b < 240:
	case b < 250:
		s.meta.Index++
		s.meta.Now -= fsm.Time(b)
	case b < 252:
		s.meta.Index++
		s.meta.Term++
	default:
		s.meta.Index += 2
		s.meta.Now += 100_000
	}
	s.meta.Offset += 7
	s.meta.Session = s.session()
	cmd := s.body()
	if s.meta.Session != (fsm.SessionID{}) {
		switch b := s.byte(); {
		case b < 230:
			s.next[s.meta.Session]++
			cmd.Seq = s.next[s.meta.Session]
		case b < 240:
			cmd.Seq = s.next[s.meta.Session]
		case b < 250:
			cmd.Seq = s.wild()
		}
	}
	return cmd
}

func (s *stream) body() *logpb.Command {
	cmd := &logpb.Command{}
	switch kind := s.byte(); {
	case kind < 90:
		cmd.Kind = logpb.Command_ENQUEUE
		cmd.Enqueue = &logpb.Enqueue{Size: uint32(1 + s.below(100)), Head: uint32(s.below(8))}
		switch s.below(7) {
		case 3:
			cmd.Enqueue.DelayPlusOne = s.wild()
		case 4:
			cmd.Enqueue.DueAt, cmd.Enqueue.ScheduleId = int64(s.wild()), "x"
			cmd.Enqueue.Conflict = logpb.Enqueue_Conflict(s.below(4))
		case 0:
			cmd.Enqueue.TtlPlusOne = s.wild()
		case 1:
			cmd.Enqueue.PriorityPlusOne = uint32(s.wild())
		case 2:
			cmd.Enqueue.Deaths = []*logpb.Death{{Queue: "q", Reason: logpb.Death_EXPIRED, Count: 1, RoutingKeys: []string{"k"}}}
		}
	case kind < 150:
		cmd.Kind = logpb.Command_SETTLE
		cmd.Settle = &logpb.Settle{Outcome: logpb.Settle_Outcome(s.below(6)), Consumer: s.below(3)}
		if cmd.Settle.Outcome == logpb.Settle_DEFER {
			cmd.Settle.Deferral, cmd.Settle.Ranges = "abc"[:s.below(4)], []uint64{s.below(8), 1}
			cmd.Settle.DelayPlusOne = s.below(2) * s.wild()
			break
		}
		for range s.below(4) {
			cmd.Settle.Ranges = append(cmd.Settle.Ranges, s.wild(), s.wild())
		}
		if s.below(50) == 0 {
			cmd.Settle.Ranges = append(cmd.Settle.Ranges, 1)
		}
		if cmd.Settle.Strict = s.below(4) == 0; s.below(6) == 0 {
			cmd.Settle.Holder = s.session().Proto()
		}
	case kind < 170:
		cmd.Kind = logpb.Command_CONSUME
		cmd.Consume = &logpb.Consume{
			Consumer: s.below(3), Prefetch: uint32(s.below(5)), Priority: int32(s.below(3)) - 1,
			NoAck: s.below(8) == 1, Exclusive: s.below(20) == 1,
		}
		if s.below(2) == 1 {
			cmd.Consume.TimeoutPlusOne = s.wild()
		}
		if s.below(4) == 1 {
			cmd.Consume.Lock, cmd.Consume.MaxLock, cmd.Consume.LockAutoRenew = s.wild(), s.below(2)*s.wild(), s.below(3)*s.wild()
			cmd.Consume.LockHead, cmd.Consume.LockDetachGrace = s.below(3) == 0, s.below(2)*s.wild()
		}
	case kind < 177:
		cmd.Kind = logpb.Command_CANCEL
		cmd.Cancel = &logpb.Cancel{Consumer: s.below(3)}
	case kind < 195:
		cmd.Kind = logpb.Command_GET
		cmd.Get = &logpb.Get{NoAck: s.below(4) == 0}
	case kind < 217:
		cmd.Kind = logpb.Command_TICK
	default:
		s.uncommon(cmd, kind)
	}
	return cmd
}

func (s *stream) uncommon(cmd *logpb.Command, kind byte) {
	switch {
	case kind < 220:
		cmd.Kind = logpb.Command_RENEW
		cmd.Renew = &logpb.Renew{Consumer: s.below(3), Duration: s.below(2) * s.wild()}
		for range s.below(3) {
			cmd.Renew.Ranges = append(cmd.Renew.Ranges, s.wild(), s.wild())
		}
		if s.below(3) == 0 {
			cmd.Renew.Holder = s.session().Proto()
		}
	case kind < 226:
		cmd.Kind = logpb.Command_CONFIGURE
		cmd.Configure = &logpb.Configure{Config: &logpb.QueueConfig{
			TtlPlusOne: s.below(3) * s.wild(), Expires: s.below(3) * s.wild(), ConsumerTimeoutPlusOne: s.below(2) * s.wild(),
			DeadLetter: s.below(4) != 0, DeliveryLimit: int64(s.below(12)) - 1, AutoDelete: s.below(10) == 1, LockCredit: s.below(2) * s.wild(),
			MaxLengthPlusOne: s.below(3) * s.wild(), MaxLengthBytesPlusOne: s.below(2) * s.wild() * 32,
			Overflow:           logpb.QueueConfig_Overflow(s.below(4)),
			DeadLetterStrategy: logpb.QueueConfig_DeadLetterStrategy(s.below(4)),
			AutoDeleteOnIdle:   s.below(2) * s.wild(), ExpiresKeepPending: s.below(2) == 1,
			Retry: logpb.QueueConfig_Retry(s.below(5)), RetryStrategy: logpb.QueueConfig_RetryStrategy(s.below(4)), RetryMin: s.wild(), RetryMax: s.below(3) * s.wild(),
			RetryMultiplier: uint32(s.wild()), RetryJitter: uint32(s.wild()), RetrySteps: []uint64{s.wild(), s.wild()}[:s.below(3)],
			Lock: s.below(8) / 7 * s.wild(), MaxLock: s.below(3) * s.wild(), CountLockExpiry: s.below(2) == 1,
		}}
		cmd.Configure.Config.DeadLetterOnDelete = cmd.Configure.Config.ExpiresKeepPending
		if c := cmd.Configure.Config; c.DeliveryLimit > 4 { // every other limit is one that somebody has set
			c.DeliveryLimit, c.DeliveryLimitSet = c.DeliveryLimit-6, true
		}
	case kind < 234:
		cmd.Kind = logpb.Command_ROUTE_DEAD
		cmd.RouteDead = &logpb.RouteDead{First: s.wild()}
		for range s.below(4) {
			cmd.RouteDead.Routes = append(cmd.RouteDead.Routes, &logpb.DeadRoute{Targets: []uint64{s.below(4), s.below(4)}[:s.below(3)]})
		}
	case kind < 242:
		cmd.Kind = logpb.Command_SETTLE_DEAD
		cmd.SettleDead = &logpb.SettleDead{Target: s.below(4), Last: s.wild(), Gone: s.below(5) == 1}
	case kind < 245:
		cmd.Kind = logpb.Command_SESSION_DOWN
	case kind < 247:
		cmd.Kind = logpb.Command_NODE_DOWN
		cmd.NodeDown = &logpb.NodeDown{Node: uint32(s.below(3)), Boot: s.below(3)}
	case kind < 249:
		cmd.Kind = logpb.Command_PURGE
	case kind < 250:
		cmd.Kind = logpb.Command_DELETE
		cmd.Delete = &logpb.Delete{IfEmpty: s.below(2) == 1, IfUnused: s.below(2) == 1}
	case kind < 251:
		cmd.Kind = logpb.Command_TOUCH
	case kind < 252:
		cmd.Kind = logpb.Command_RECEIVE_DEFERRED
		cmd.ReceiveDeferred = &logpb.ReceiveDeferred{Consumer: s.below(3), Tokens: []string{"abc"[:s.below(4)]}}
	default:
		cmd.Kind = logpb.Command_Kind(s.below(22)) // without its body
	}
}

// play applies the log in data to two machines. The second one is replaced
// every now and then by a copy of itself out of a snapshot. It returns the
// first machine.
func play(t testing.TB, data []byte, restoreEvery int) *Machine {
	s := &stream{data: data, next: map[fsm.SessionID]uint64{}, meta: fsm.Meta{Term: 1, Now: 1000, Version: fsm.NewestVersion}}
	a, b := New("q", 7), New("q", 7)
	var old *Snapshot
	var oldHash [32]byte
	for n := 1; len(s.data) > 0; n++ {
		cmd := s.step()
		var effA, effB fsm.Effects
		rA, rB := a.Apply(s.meta, cmd, &effA), b.Apply(s.meta, cmd, &effB)
		for _, eff := range []*fsm.Effects{&effA, &effB} {
			if eff.Rest != nil {
				eff.Released, eff.Rest = slices.AppendSeq(eff.Released, eff.Rest), nil
			}
		}
		if rA != rB || !reflect.DeepEqual(effA, effB) {
			t.Fatalf("step %d: %v\n%v %+v\n%v %+v\n%s", n, cmd, rA, effA, rB, effB, a)
		}
		mustCheck(t, a)
		if n%restoreEvery != 0 {
			continue
		}
		mustCheck(t, b)
		if a.Hash() != b.Hash() {
			t.Fatalf("step %d: %v\n%s\n%s", n, cmd, a, b)
		}
		if old != nil && snapshotHash(t, old) != oldHash {
			t.Fatalf("step %d: an older snapshot has changed", n)
		}
		old, oldHash = a.Snapshot(), a.Hash()
		b = mustCopy(t, b)
	}
	if a.Hash() != b.Hash() || a.String() != b.String() {
		t.Fatalf("%s\n%s", a, b)
	}
	return a
}

func snapshotHash(t testing.TB, s *Snapshot) [32]byte {
	var b bytes.Buffer
	if _, err := s.WriteTo(&b); err != nil {
		t.Fatal(err)
	}
	m := New("q", 7)
	if err := m.Restore(&b); err != nil {
		t.Fatal(err)
	}
	return m.Hash()
}

func randomBytes(seed uint64, n int) []byte {
	r := rand.New(rand.NewPCG(seed, 1))
	data := make([]byte, n)
	for i := range data {
		data[i] = byte(r.Uint32())
	}
	return data
}

// FuzzApply: any bytes are a log, and two machines agree about it although one
// of them goes through snapshots.
func FuzzApply(f *testing.F) {
	for seed := range uint64(10) {
		f.Add(randomBytes(seed, 2000))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) > 20_000 {
			return
		}
		play(t, data, 5)
	})
}

// FuzzRestore: any bytes are refused or give a machine whose snapshot is
// stable.
func FuzzRestore(f *testing.F) {
	for seed := range uint64(10) {
		var b bytes.Buffer
		if _, err := play(f, randomBytes(seed, 600), 50).Snapshot().WriteTo(&b); err != nil {
			f.Fatal(err)
		}
		f.Add(b.Bytes())
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		m := New("q", 7)
		if m.Restore(bytes.NewReader(data)) != nil {
			if m.Hash() != New("q", 7).Hash() {
				t.Fatal("a refused snapshot has left traces")
			}
			return
		}
		if c := mustCopy(t, m); c.Hash() != m.Hash() {
			t.Fatalf("%s\n%s", m, c)
		}
	})
}

// TestRandomLogs plays longer logs than the fuzzer's seeds, in which queues
// live long enough to have something in every place.
func TestRandomLogs(t *testing.T) {
	var total Counters
	for seed := range uint64(30) {
		c := play(t, randomBytes(1000+seed, 6000), 7).Stats().Counters
		total.Enqueued += c.Enqueued
		total.Expired += c.Expired
		total.DeadLettered += c.DeadLettered
		total.TimedOut += c.TimedOut
		total.LateAcks += c.LateAcks
		total.Requeued += c.Requeued
		total.Duplicates += c.Duplicates
		total.LocksLost += c.LocksLost
		total.LocksRenewed += c.LocksRenewed
	}
	t.Logf("%+v", total)
	if total.Enqueued < 1000 || min(total.Expired, total.DeadLettered, total.TimedOut, total.LateAcks, total.Requeued, total.Duplicates, total.LocksLost, 3*total.LocksRenewed) < 50 {
		t.Errorf("the logs are too tame: %+v", total)
	}
}
