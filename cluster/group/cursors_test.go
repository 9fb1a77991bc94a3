package group

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/cluster/replica"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/queue"
	"github.com/quorate/quorate/proto/logpb"
)

// ordered is a proposer with a machine. Entries are applied when the test says so.
type ordered struct {
	*free
	machine *queue.Machine
	applied int // entries
	answers []Outcome
	again   []uint64 // numbers of commands that were to be answered again
}

func newOrdered(t *testing.T) *ordered {
	x := &ordered{free: newFree(t), machine: queue.New("q", 1)}
	x.queued.back = backpressure{demand: &demand{}, floor: &floor{}, crowded: x.admission.crowded, check: x.checkHeld}
	x.positions = func(runs []run) {
		for i := range runs {
			runs[i].position = queue.PositionOf(x.machine, runs[i].session)
		}
		x.tidy(x.machine)
	}
	x.proposer.again = func(commands []byte, of map[fsm.SessionID]bool) {
		for _, c := range heads(commands) {
			if of[c.session] && c.seq < queue.PositionOf(x.machine, c.session).Next {
				x.again = append(x.again, c.seq)
			}
		}
	}
	x.answer = func(o []Outcome) { x.answers = append(x.answers, o...) }
	return x
}

func sessionOf(n uint64) fsm.SessionID { return fsm.SessionID{Node: 1, Boot: 5, Num: n} }

// publishes returns a batch of commands of a session, each with a payload that has its number.
func publishes(session, first, last uint64) Batch {
	b := Batch{From: "n2"}
	for seq := first; seq <= last; seq++ {
		payload := fmt.Appendf(nil, "%d/%d", session, seq)
		b.Commands = AppendCommand(b.Commands, &logpb.Command{
			Kind: logpb.Command_ENQUEUE, Session: sessionOf(session).Proto(), Seq: seq, Enqueue: &logpb.Enqueue{Size: uint32(len(payload))},
		})
		b.Payloads = append(b.Payloads, payload)
		b.Bytes += len(payload)
		b.Count++
	}
	return b
}

// give submits a batch, as one from another node: its payloads are joined.
func (x *ordered) give(t *testing.T, b Batch) {
	t.Helper()
	if len(b.Payloads) > 0 {
		b.Payloads = [][]byte{slices.Concat(b.Payloads...)}
	}
	if err := x.submit(b); err != nil {
		t.Fatal(err)
	}
	synctest.Wait()
}

// apply applies the entries there are, and ends them.
func (x *ordered) apply() {
	for ; x.applied < len(x.entries); synctest.Wait() {
		n := x.applied
		x.applied++
		var eff fsm.Effects
		for _, c := range x.entries[n].Commands {
			s := fsm.SessionFrom(c.Session)
			r := x.machine.Apply(fsm.Meta{Index: uint64(n + 1), Term: 1, Now: 1000, Session: s}, c, &eff)
			if r.Code != fsm.OK {
				x.answers = append(x.answers, Outcome{s, c.Seq, 1, r})
			}
			if c.Kind == logpb.Command_SESSION_DOWN || r.Code != fsm.OK {
				x.doubt(s)
			}
		}
		x.futures[n].err <- nil
	}
}

// entered lists the commands in entries, of one session.
func (x *ordered) numbers(session uint64) (all []uint64) {
	for _, e := range x.entries {
		for _, c := range e.Commands {
			if fsm.SessionFrom(c.Session) == sessionOf(session) {
				all = append(all, c.Seq)
			}
		}
	}
	return all
}

func numbersTo(n uint64) (all []uint64) {
	for seq := uint64(1); seq <= n; seq++ {
		all = append(all, seq)
	}
	return all
}

// inOrder runs a test with such a proposer, in which every command of session 1 up to a number enters the log
// once.
func inOrder(t *testing.T, last uint64, f func(x *ordered)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		x := newOrdered(t)
		f(x)
		x.apply()
		if got := x.numbers(1); !slices.Equal(got, numbersTo(last)) {
			t.Errorf("in the log: %v, want 1 to %d", got, last)
		}
		if x.admission.all != 0 || x.queued.any() {
			t.Errorf("left over: %d bytes", x.admission.all)
		}
	})
}

// What has been taken does not enter the log again: what is under way gets its answer, what is applied is
// answered again, and of a batch that has something new only that is taken, with its payload.
func TestCopiesStayOut(t *testing.T) {
	inOrder(t, 7, func(x *ordered) {
		var payloads []byte
		enter := x.commit
		x.commit = func(l *raft.Log) raft.ApplyFuture {
			payloads = append(payloads, l.Extensions...)
			return enter(l)
		}
		x.give(t, publishes(1, 1, 3))
		x.give(t, publishes(1, 1, 3))
		if len(x.again) != 0 || x.meters.copies.Load() != 3 {
			t.Errorf("answered before they are applied: %v, %d copies", x.again, x.meters.copies.Load())
		}
		x.apply()
		x.give(t, publishes(1, 2, 5))
		mixed := publishes(1, 4, 7)
		other := publishes(2, 1, 2)
		mixed.Commands, mixed.Count, mixed.Bytes = append(mixed.Commands, other.Commands...), mixed.Count+2, mixed.Bytes+other.Bytes
		mixed.Payloads = append(mixed.Payloads, other.Payloads...)
		x.give(t, mixed)
		if !slices.Equal(x.again, []uint64{2, 3}) || len(x.answers) != 0 {
			t.Errorf("answered again: %v, and %v", x.again, x.answers)
		}
		if got, want := string(payloads), "1/11/21/31/41/51/61/72/12/2"; got != want {
			t.Errorf("payloads %q, want %q", got, want)
		}
		if got := x.numbers(2); !slices.Equal(got, numbersTo(2)) {
			t.Errorf("of another session in the same batch: %v", got)
		}
	})
}

// What comes too early is answered at once with what is expected, and does not enter the log.
func TestGapsStayOut(t *testing.T) {
	inOrder(t, 9, func(x *ordered) {
		x.give(t, publishes(1, 1, 2))
		x.give(t, publishes(1, 5, 6))
		x.give(t, publishes(1, 7, 9))
		gap := fsm.Result{Code: fsm.Gap, Next: 3}
		if want := []Outcome{{sessionOf(1), 5, 1, gap}, {sessionOf(1), 7, 1, gap}}; !slices.Equal(x.answers, want) {
			t.Errorf("answers %v, want %v", x.answers, want)
		}
		if n := x.meters.early.Load(); n != 5 {
			t.Errorf("%d commands were early", n)
		}
		x.give(t, publishes(1, 3, 9))
		x.answers = nil
		x.give(t, publishes(2, 4, 5)) // nobody knows that session
		if want := []Outcome{{sessionOf(2), 4, 1, fsm.Result{Code: fsm.NoSession}}}; !slices.Equal(x.answers, want) {
			t.Errorf("answers %v, want %v", x.answers, want)
		}
	})
}

// A leader goes on where the machine stands: at the beginning of its term, and after an entry that may be
// lost.
func TestCursorsOfNewLeader(t *testing.T) {
	inOrder(t, 6, func(x *ordered) {
		x.give(t, publishes(1, 1, 4))
		x.apply()
		x.proposer.mu.Lock()
		x.queued.cursors = cursors{of: map[fsm.SessionID]cursor{sessionOf(1): {next: 9}}} // of a term in which more was taken
		x.proposer.mu.Unlock()
		x.begin(x.clock, 0)
		x.give(t, publishes(1, 6, 6))
		if want := []Outcome{{sessionOf(1), 6, 1, fsm.Result{Code: fsm.Gap, Next: 5}}}; !slices.Equal(x.answers, want) {
			t.Errorf("answers %v, want %v", x.answers, want)
		}
		x.give(t, publishes(1, 3, 6))
	})
}

// What is queued behind an entry that may be lost is given back once, and what is sent again then is taken.
func TestCursorsAfterLostEntry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newOrdered(t)
		for seq := uint64(1); seq <= maxPending+2; seq++ {
			x.give(t, publishes(1, seq, seq))
		}
		x.futures[0].err <- raft.ErrLeadershipTransferInProgress
		synctest.Wait()
		if x.queued.any() || x.admission.all != 0 || len(x.queued.cursors.of) != 0 || len(x.undecided) != 2 {
			t.Errorf("queued %v, %d bytes, %d cursors, undecided %v", x.queued.any(), x.admission.all, len(x.queued.cursors.of), x.undecided)
		}
		for _, f := range x.futures[1:] {
			f.err <- nil
		}
		synctest.Wait()
		x.applied = len(x.entries)
		x.give(t, publishes(1, 1, maxPending+2))
		x.apply()
		if got := x.numbers(1)[maxPending:]; !slices.Equal(got, numbersTo(maxPending+2)) {
			t.Errorf("in the log then: %v", got)
		}
	})
}

// A session that has ended is not known any more, and its cursor is gone; so are those of sessions whose
// nodes are down, once there are many.
func TestCursorsOfEndedSessions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newOrdered(t)
		down := BatchOf(&logpb.Command{Kind: logpb.Command_SESSION_DOWN, Session: sessionOf(1).Proto(), Seq: 2})
		x.give(t, publishes(1, 1, 1))
		x.give(t, down)
		x.apply()
		if len(x.queued.cursors.of) != 0 {
			t.Errorf("%d cursors are left", len(x.queued.cursors.of))
		}
		x.give(t, down)
		if want := []Outcome{{sessionOf(1), 2, 1, fsm.Result{Code: fsm.NoSession}}}; !slices.Equal(x.answers, want) {
			t.Errorf("answers %v, want %v", x.answers, want)
		}
		const many = 4 * cursorSlack
		for n := uint64(2); n < many; n++ {
			x.give(t, publishes(n, 1, 1))
			x.apply()
		}
		if n := len(x.queued.cursors.of); n != many-2 {
			t.Errorf("%d cursors of %d sessions", n, many-2)
		}
		x.give(t, BatchOf(&logpb.Command{Kind: logpb.Command_NODE_DOWN, NodeDown: &logpb.NodeDown{Node: 1, Boot: 5}}))
		x.apply()
		for n := uint64(1); n <= many; n++ {
			b := BatchOf(&logpb.Command{Kind: logpb.Command_TOUCH, Session: fsm.SessionID{Node: 2, Boot: 1, Num: n}.Proto(), Seq: 1})
			x.give(t, b)
			x.apply()
		}
		if n := len(x.queued.cursors.of); n > many+cursorSlack {
			t.Errorf("%d cursors of %d sessions", n, many)
		}
	})
}

// The commands of a session enter the log in order whatever overtakes what: light ones that wait in front of
// heavy ones for longer than an entry, and a publisher that becomes a consumer while it is held back.
func TestNothingOvertakesItsOwnSession(t *testing.T) {
	inOrder(t, 3*maxEntryLight+1, func(x *ordered) {
		for range maxPending { // nothing is taken for a while
			x.give(t, BatchOf(&logpb.Command{Kind: logpb.Command_TICK}))
		}
		for seq := uint64(1); seq <= 3*maxEntryLight; seq++ {
			b := BatchOf(&logpb.Command{Kind: logpb.Command_TOUCH, Session: sessionOf(1).Proto(), Seq: seq})
			b.Light = true
			x.give(t, b)
		}
		x.give(t, publishes(1, 3*maxEntryLight+1, 3*maxEntryLight+1))
		x.apply()
		if len(x.answers) != 0 {
			t.Errorf("answers %v", x.answers)
		}
	})
	inOrder(t, 3, func(x *ordered) {
		now, b := time.Now(), &x.queued.back
		b.demand.sated.Store(true)
		b.demand.ready.Store(maxSurplus + 1)
		b.demand.acked.Store(1 << 20)
		b.first.at, b.second.at, b.counted = now.Add(-firstRate), now.Add(-firstRate), now
		for seq := uint64(1); seq <= 2; seq++ {
			b := publishes(1, seq, seq)
			b.Patient = true
			x.give(t, b)
		}
		if len(b.batches) != 2 {
			t.Errorf("%d batches are held back", len(b.batches))
		}
		x.give(t, publishes(1, 3, 3))
		if len(x.answers) != 0 {
			t.Errorf("answers %v", x.answers)
		}
	})
}

// A panic leaves nothing behind that would keep later ticks from being proposed.
func TestTickAfterPanic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newOrdered(t)
		version := x.version
		x.version = func() uint32 { panic("injected") }
		if !x.proposeTick() {
			t.Fatal("no tick")
		}
		if synctest.Wait(); x.guard.quarantined.Load() == nil || len(x.entries) != 0 {
			t.Fatal("there was no panic")
		}
		x.version = version
		x.guard.quarantined.Store(nil)
		if x.proposeTick(); true {
			synctest.Wait()
		}
		if len(x.entries) != 1 || len(x.entries[0].Commands) != 1 {
			t.Errorf("%d entries after the quarantine", len(x.entries))
		}
		x.apply()
	})
}

// While its leadership is being transferred a leader takes nothing and makes no entries; what is queued goes
// on if that fails, in order, and is given back once if it succeeds.
func TestTransferKeepsWhatIsQueued(t *testing.T) {
	for _, succeeds := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			x := newOrdered(t)
			for seq := uint64(1); seq <= maxPending+3; seq++ {
				x.give(t, publishes(1, seq, seq))
			}
			x.transfer(true)
			if err := x.submit(publishes(1, 9, 9)); err != replica.ErrTransferring {
				t.Errorf("a submission: %v", err)
			}
			drained := make(chan bool)
			go func() { drained <- x.drained(patience) }()
			synctest.Wait()
			x.apply()
			if !<-drained || len(x.entries) != maxPending {
				t.Fatalf("%d entries are made", len(x.entries))
			}
			if succeeds {
				x.lead.term.Store(0)
				x.leadershipEnded()
			}
			x.transfer(false)
			synctest.Wait()
			x.apply()
			want := uint64(maxPending + 3)
			if succeeds {
				want = maxPending
			}
			if got := x.numbers(1); !slices.Equal(got, numbersTo(want)) || len(x.undecided) != map[bool]int{false: 0, true: 1}[succeeds] || len(x.answers) != 0 {
				t.Errorf("it succeeds: %v. In the log: %v, undecided %v, answers %v", succeeds, got, x.undecided, x.answers)
			}
		})
	}
}

// Where no decoder runs, commands are read as it reads them.
func TestHeads(t *testing.T) {
	var commands []byte
	want := []commandHead{{sessionOf(7), 300, true, 70_000}, {fsm.SessionID{}, 0, false, 0}, {fsm.SessionID{Boot: 9}, 1, false, 0}, {sessionOf(8), 2, true, 900}}
	for _, c := range want {
		cmd := &logpb.Command{Kind: logpb.Command_SETTLE, Session: c.session.Proto(), Seq: c.seq, OpenedAt: 12345, Settle: &logpb.Settle{Ranges: []uint64{1, 2}}}
		if c.size == 900 {
			cmd = &logpb.Command{Kind: logpb.Command_UNIT, Session: c.session.Proto(), Seq: c.seq, Unit: &logpb.Unit{
				Commands: []*logpb.Command{{Kind: logpb.Command_ENQUEUE, Seq: 5, Enqueue: &logpb.Enqueue{Size: 7}}}, Size: 900,
			}}
		} else if c.payload {
			cmd = &logpb.Command{Kind: logpb.Command_ENQUEUE, Session: c.session.Proto(), Seq: c.seq, Enqueue: &logpb.Enqueue{Size: uint32(c.size), Head: 3, ScheduleId: "x"}}
		}
		commands = AppendCommand(commands, cmd)
	}
	var got []commandHead
	var raw []byte
	for b, c := range heads(commands) {
		raw, got = append(raw, b...), append(got, c)
	}
	if !slices.Equal(got, want) || !slices.Equal(raw, commands) {
		t.Errorf("read %+v, want %+v", got, want)
	}
	for n := range commands { // cut short
		for range heads(commands[:n]) {
		}
	}
}

// The payload of a unit is that of its publishes, and it holds nothing else that has one.
func TestMeasureUnit(t *testing.T) {
	publish := func(size uint32) *logpb.Command {
		return &logpb.Command{Kind: logpb.Command_ENQUEUE, Enqueue: &logpb.Enqueue{Size: size}}
	}
	settle := &logpb.Command{Kind: logpb.Command_SETTLE, Settle: &logpb.Settle{Numbers: []uint64{1, 0}}}
	message := fsm.AppendPayloadHead(nil, "", "k", nil)
	n := uint32(len(message))
	for name, c := range map[string]struct {
		unit *logpb.Unit
		ok   bool
	}{
		"of two messages":  {&logpb.Unit{Commands: []*logpb.Command{publish(n), settle, publish(n)}, Size: 2 * n}, true},
		"too small":        {&logpb.Unit{Commands: []*logpb.Command{publish(n), publish(n)}, Size: n}, false},
		"not cut as it is": {&logpb.Unit{Commands: []*logpb.Command{publish(n - 1), publish(n + 1)}, Size: 2 * n}, false},
		"with a purge":     {&logpb.Unit{Commands: []*logpb.Command{publish(n), publish(n), {Kind: logpb.Command_PURGE}}, Size: 2 * n}, false},
	} {
		commands := AppendCommand(nil, &logpb.Command{Kind: logpb.Command_UNIT, Unit: c.unit})
		if count, err := Measure(commands, slices.Concat(message, message)); (err == nil) != c.ok || c.ok && count != 1 {
			t.Errorf("%s: %d, %v", name, count, err)
		}
	}
}
