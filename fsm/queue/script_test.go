package queue

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// TestScripts runs testdata/*.txt. Each line is one command for the machine;
// sessions are written as node/boot/number, and number their commands by
// themselves unless seq is given. Each command is an entry of its own unless it
// says same-entry; effects are shown of the whole entry. After each command the
// state is checked, and a second machine, restored from a snapshot taken before
// the entry, must have come to the same state, answer and effects.
func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		if strings.Contains(path, "fuzz") {
			return
		}
		s := newScript()
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			if d.Cmd == "reset" {
				s = newScript()
				return ""
			}
			return s.run(t, d)
		})
	})
}

type script struct {
	m     *Machine
	now   fsm.Time
	index uint64
	term  uint64
	next  map[fsm.SessionID]uint64

	eff     fsm.Effects // of the entry
	twin    *Machine    // restored before the entry
	twinEff fsm.Effects
}

func newScript() *script {
	return &script{m: New("q", 7), term: 1, next: map[fsm.SessionID]uint64{}}
}

// arguments are the key=value pairs of a script line.
type arguments struct {
	t *testing.T
	d *datadriven.TestData
}

func (a arguments) has(key string) bool { return a.d.HasArg(key) }

func (a arguments) text(key string) string {
	for _, arg := range a.d.CmdArgs {
		if arg.Key == key {
			return strings.Join(arg.Vals, ",")
		}
	}
	return ""
}

func (a arguments) number(key string, without uint64) uint64 {
	if !a.has(key) {
		return without
	}
	n, err := strconv.ParseUint(a.text(key), 10, 64)
	if err != nil {
		a.d.Fatalf(a.t, "%s: %v", key, err)
	}
	return n
}

// annotations are what receivers add: key:value.key:value.
func (a arguments) annotations() (all []*logpb.Annotation) {
	for _, pair := range strings.FieldsFunc(a.text("annotate"), func(r rune) bool { return r == '.' }) {
		key, value, _ := strings.Cut(pair, ":")
		all = append(all, &logpb.Annotation{Key: []byte(key), Value: []byte(value)})
	}
	return all
}

// pairs are messages that are held, by number and by how often they were handed out
// before: 5:0.7:2.
func (a arguments) pairs() (all []uint64) { return a.numbers("numbers") }

// unit is publishes of some sizes, and to other queues, as queue:size, and one settlement.
func (a arguments) unit() *logpb.Unit {
	u := &logpb.Unit{}
	add := func(size, to uint64) {
		u.Size += uint32(size)
		e := &logpb.Enqueue{Size: uint32(size), SendTo: to, TtlPlusOne: a.stored("ttl"), DelayPlusOne: a.stored("delay"), MessageId: a.text("mid"), GroupId: a.text("group")}
		u.Commands = append(u.Commands, &logpb.Command{Kind: logpb.Command_ENQUEUE, Enqueue: e})
	}
	for _, size := range a.numbers("send") {
		add(size, 0)
	}
	for on := a.numbers("on"); len(on) > 0; on = on[2:] {
		add(on[1], on[0])
	}
	if n := a.pairs(); n != nil {
		u.Commands = append(u.Commands, &logpb.Command{Kind: logpb.Command_SETTLE, Settle: &logpb.Settle{
			Outcome: logpb.Settle_Outcome(logpb.Settle_Outcome_value[strings.ToUpper(a.text("outcome"))]), Numbers: n, Deferral: a.text("token"),
		}})
	}
	u.Size += uint32(a.number("more", 0))
	return u
}

// stored is the log form of an optional number.
func (a arguments) stored(key string) uint64 {
	if !a.has(key) {
		return 0
	}
	return a.number(key, 0) + 1
}

func (a arguments) session() fsm.SessionID { return a.sessionIn("s") }

func (a arguments) sessionIn(key string) (id fsm.SessionID) {
	if a.has(key) {
		if _, err := fmt.Sscanf(a.text(key), "%d/%d/%d", &id.Node, &id.Boot, &id.Num); err != nil {
			a.d.Fatalf(a.t, "%s: %v", key, err)
		}
	}
	return id
}

// holder is the session that a command says holds the deliveries, if it does.
func (a arguments) holder() *logpb.Session {
	if !a.has("holder") {
		return nil
	}
	return a.sessionIn("holder").Proto()
}

// run performs one line of a script.
func (s *script) run(t *testing.T, d *datadriven.TestData) string {
	a := arguments{t, d}
	switch d.Cmd {
	case "state": // the version is the newest unless the script says otherwise
		return strings.Replace(s.m.String(), fmt.Sprint(" version=", fsm.NewestVersion), "", 1)
	case "bounds": // before the first command
		b := defaultBounds
		b.Tick, b.Before = int(a.number("tick", uint64(b.Tick))), int(a.number("before", uint64(b.Before)))
		b.HandOuts, b.Sweep = int(a.number("hand-outs", uint64(b.HandOuts))), int(a.number("sweep", uint64(b.Sweep)))
		b.Tallies = int(a.number("tallies", uint64(b.Tallies)))
		s.m.SetBounds(b)
		return ""
	case "held":
		var eff fsm.Effects
		s.m.Held(fsm.ConsumerID{Session: a.session(), Number: a.number("consumer", 0)}, a.number("after", 0), int(a.number("limit", 100)), &eff)
		return effectsText(&eff)
	case "ages":
		return agesText(s.m)
	case "resume":
		var eff fsm.Effects
		s.m.Resume(&eff)
		return effectsText(&eff)
	case "letters":
		return lettersText(s.m.UnroutedLetters(int(a.number("max", 100))))
	case "waiting":
		return lettersText(s.m.WaitingLetters(uint64(a.number("after", 0)), int(a.number("max", 100))))
	case "deaths":
		return s.deathCounts()
	case "transfers":
		var b strings.Builder
		for _, o := range s.m.PendingTransfers(fsm.QueueID(a.number("target", 0)), a.number("from", 0), int(a.number("max", 100))) {
			fmt.Fprintf(&b, "%d: %s", o.Number, lettersText([]Letter{o.Letter}))
		}
		return b.String()
	}
	return s.apply(a, s.command(a))
}

// apply performs one command on the machine and on a restored copy of it.
func (s *script) apply(a arguments, cmd *logpb.Command) string {
	s.now = fsm.Time(a.number("at", uint64(s.now)))
	s.term = a.number("term", s.term)
	if !a.has("same-entry") {
		s.index++
		s.twin = mustCopy(a.t, s.m)
		s.eff.Reset()
		s.twinEff.Reset()
	}
	meta := fsm.Meta{Index: s.index, Term: s.term, Now: s.now, Session: a.session(), Offset: uint32(a.number("offset", 0)), Version: uint32(a.number("version", fsm.NewestVersion))}
	if meta.Session != (fsm.SessionID{}) {
		cmd.OpenedAt = int64(a.number("opened", 0))
		next := s.next[meta.Session] + 1
		if cmd.Seq = a.number("seq", next); cmd.Seq == next {
			s.next[meta.Session] = next
		}
	}
	r, twinR := s.m.Apply(meta, cmd, &s.eff), s.twin.Apply(meta, cmd, &s.twinEff)
	if r != twinR || effectsText(&s.eff) != effectsText(&s.twinEff) {
		a.d.Fatalf(a.t, "restored before: %v\n%s\nlived: %v\n%s", twinR, effectsText(&s.twinEff), r, effectsText(&s.eff))
	}
	for _, m := range []*Machine{s.m, s.twin, mustCopy(a.t, s.m)} {
		mustCheck(a.t, m)
		if m.Hash() != s.m.Hash() || m.String() != s.m.String() {
			a.d.Fatalf(a.t, "a copy differs:\n%s\nfrom\n%s", m, s.m)
		}
	}
	st := s.m.Stats()
	return fmt.Sprintf("%s\n%sready=%d held=%d outbox=%d deadline=%d\n", resultText(r), effectsText(&s.eff),
		st.Ready.Messages, st.Unacknowledged.Messages, st.Outbox.Messages, s.m.NextDeadline())
}

func agesText(m *Machine) string {
	o := TimesOf(m).Oldest()
	text := fmt.Sprintf("ready=%d unacked=%d scheduled=%d\n", o.Ready, o.Unacked, o.Scheduled)
	for _, x := range TimesOf(m).Tallies() {
		text += fmt.Sprintf("%q other=%v ready=%d since %d unacked=%d scheduled=%d\n", x.Value, x.Other, x.Ready, x.OldestReady, x.Unacked, x.Scheduled)
	}
	return text
}

func mustCheck(t testing.TB, m *Machine) {
	t.Helper()
	if err := m.Check(); err != nil {
		t.Fatalf("%v\n%s", err, m)
	}
}

// mustCopy returns m through a snapshot.
func mustCopy(t testing.TB, m *Machine) *Machine {
	t.Helper()
	var b bytes.Buffer
	if n, err := m.Snapshot().WriteTo(&b); err != nil || n != int64(b.Len()) {
		t.Fatalf("wrote %d of %d bytes: %v", n, b.Len(), err)
	}
	c := New(m.Name(), m.ID())
	c.SetBounds(m.bounds)
	if err := c.Restore(&b); err != nil {
		t.Fatalf("%v\n%s", err, m)
	}
	return c
}

// command builds the command of a line.
func (s *script) command(a arguments) *logpb.Command {
	cmd := &logpb.Command{}
	switch a.d.Cmd {
	case "enqueue":
		cmd.Kind = logpb.Command_ENQUEUE
		cmd.Enqueue = &logpb.Enqueue{
			Size: uint32(a.number("size", 10)), TtlPlusOne: a.stored("ttl"),
			PriorityPlusOne: uint32(a.stored("priority")), HasExpiration: a.has("expiration"), Deaths: s.deaths(a),
			Head: uint32(a.number("head", 0)), Routed: a.has("routed"), TtlCeilingPlusOne: a.stored("ceiling"),
			DueAt: int64(a.number("due", 0)), DelayPlusOne: a.stored("delay"), ScheduleId: a.text("id"), GroupId: a.text("group"),
			MessageId: a.text("mid"), Tally: a.text("tally"), Hops: uint32(a.number("hops", 0)), Annotations: a.annotations(),
			Conflict: logpb.Enqueue_Conflict(logpb.Enqueue_Conflict_value[strings.ToUpper(a.text("conflict"))]),
		}
		if a.has("key") {
			cmd.Enqueue.UniqueKey = fmt.Appendf(nil, "%-16s", a.text("key"))
		}
		if a.has("restored") {
			cmd.Enqueue.Restored = &logpb.Restored{
				ExpireAt: int64(a.number("expires", 0)), Acquired: uint32(a.number("acquired", 0)), Failed: uint32(a.number("failed", 0)),
				Reason: logpb.Death_Reason(a.number("reason", 0)), Scheduled: a.has("scheduled"),
			}
		}
	case "consume":
		cmd.Kind = logpb.Command_CONSUME
		cmd.Consume = &logpb.Consume{
			Consumer: a.number("consumer", 1), Tag: a.text("tag"), Prefetch: uint32(a.number("prefetch", 0)),
			NoAck: a.has("no-ack"), Exclusive: a.has("exclusive"), TimeoutPlusOne: a.stored("timeout"),
			Lock: a.number("lock", 0), MaxLock: a.number("max-lock", 0), LockAutoRenew: a.number("auto-renew", 0),
			LockHead: a.has("head"), LockDetachGrace: a.number("grace", 0), MinTtl: a.number("min-ttl", 0), Shared: a.has("shared"), Credit: a.has("credit"),
			MaxGroups: uint32(a.number("max-groups", 0)), GroupId: a.text("group"), Numbered: a.has("numbered"),
			GroupHold: a.has("hold"),
		}
		if p, err := strconv.Atoi(a.text("priority")); err == nil {
			cmd.Consume.Priority = int32(p)
		}
	case "cancel":
		cmd.Kind = logpb.Command_CANCEL
		cmd.Cancel = &logpb.Cancel{Consumer: a.number("consumer", 1)}
	case "get":
		cmd.Kind = logpb.Command_GET
		cmd.Get = &logpb.Get{NoAck: a.has("no-ack")}
	case "ack", "requeue", "reject", "discard", "defer":
		cmd.Kind = logpb.Command_SETTLE
		cmd.Settle = &logpb.Settle{
			Consumer: a.number("consumer", 1), Ranges: s.ranges(a), Deferral: a.text("token"),
			DueAt: int64(a.number("due", 0)), DelayPlusOne: a.stored("delay"), Strict: a.has("strict"), Holder: a.holder(),
			Reason: a.text("reason"), Description: a.text("description"),
		}
		cmd.Settle.Annotations, cmd.Settle.Numbers = a.annotations(), a.pairs()
		cmd.Settle.Outcome = map[string]logpb.Settle_Outcome{
			"ack": fsm.Ack, "requeue": fsm.Requeue, "reject": fsm.RequeueFailed, "discard": fsm.Discard, "defer": fsm.Defer,
		}[a.d.Cmd]
	case "receive":
		cmd.Kind = logpb.Command_RECEIVE_DEFERRED
		cmd.ReceiveDeferred = &logpb.ReceiveDeferred{
			Consumer: a.number("consumer", 1), Tokens: strings.FieldsFunc(a.text("tokens"), func(r rune) bool { return r == '.' }),
			NoAck: a.has("no-ack"), Lock: a.number("lock", 0),
		}
	case "kick":
		cmd.Kind = logpb.Command_KICK
		cmd.Kick = &logpb.Kick{Count: a.number("count", 0)}
	case "unpark":
		cmd.Kind = logpb.Command_UNPARK
		cmd.Unpark = &logpb.Unpark{Count: a.number("count", 0)}
	case "pause", "unpause":
		cmd.Kind = logpb.Command_PAUSE
		cmd.Pause = &logpb.Pause{By: a.text("by"), Reason: a.text("reason"), Until: int64(a.number("until", 0)), Resume: a.d.Cmd == "unpause"}
	case "redrive", "end-redrive":
		cmd.Kind = logpb.Command_REDRIVE
		cmd.Redrive = &logpb.Redrive{
			By: a.text("by"), Rate: a.number("rate", 0), Limit: a.number("limit", 0), Target: a.number("to", 0), Conditions: []byte(a.text("for")),
			To: a.text("name"), Ends: a.number("number", 0), Cancels: a.has("any"), Why: a.text("why"),
		}
	case "redrive-step":
		cmd.Kind = logpb.Command_REDRIVE_STEP
		cmd.RedriveStep = &logpb.RedriveStep{
			Number: a.number("number", 0), After: a.number("after", 0), Next: a.number("next", 0),
			SourceGone: a.number("source-gone", 0), NoSource: a.number("no-source", 0), Refused: a.number("refused", 0),
		}
		for i, list := range [][]uint64{a.numbers("messages"), a.numbers("more")} {
			if len(list) > 0 {
				as := cmp.Or(a.text("as"), "redrive")
				cmd.RedriveStep.Takes = append(cmd.RedriveStep.Takes, &logpb.Take{Action: logpb.Take_Action(logpb.Take_Action_value[strings.ToUpper(as)]), Messages: list, Target: a.number("to", 0) + uint64(i)})
			}
		}
	case "take":
		cmd.Kind = logpb.Command_TAKE
		cmd.Take = &logpb.Take{
			Action: logpb.Take_Action(logpb.Take_Action_value[strings.ToUpper(a.text("as"))]), Messages: a.numbers("messages"), Target: a.number("to", 0),
		}
	case "credit":
		cmd.Kind = logpb.Command_CREDIT
		cmd.Credit = &logpb.Credit{
			Consumer: a.number("consumer", 1), DeliveryCount: uint32(a.number("count", 0)), Credit: uint32(a.number("credit", 0)), Drain: a.has("drain"),
		}
	case "renew":
		cmd.Kind = logpb.Command_RENEW
		cmd.Renew = &logpb.Renew{Consumer: a.number("consumer", 1), Ranges: s.ranges(a), Holder: a.holder(), Duration: a.number("for", 0), Numbers: a.pairs()}
	case "configure":
		cmd.Kind = logpb.Command_CONFIGURE
		cmd.Configure = &logpb.Configure{Config: a.config()}
	case "session-down":
		cmd.Kind = logpb.Command_SESSION_DOWN
	case "node-down":
		cmd.Kind = logpb.Command_NODE_DOWN
		cmd.NodeDown = &logpb.NodeDown{Node: uint32(a.number("node", 1)), Boot: a.number("boot", 1)}
	case "silent", "heard":
		cmd.Kind = logpb.Command_NODE_SUSPECTED
		cmd.NodeSuspected = &logpb.NodeSuspected{Node: uint32(a.number("node", 1)), Boot: a.number("boot", 1), Back: a.d.Cmd == "heard"}
	case "purge":
		cmd.Kind = logpb.Command_PURGE
	case "tick":
		cmd.Kind = logpb.Command_TICK
	case "touch":
		cmd.Kind = logpb.Command_TOUCH
		cmd.Touch = &logpb.Touch{IdleOnly: a.has("idle-only")}
	case "unschedule", "move", "fire":
		cmd.Kind = logpb.Command_SCHEDULE
		cmd.Schedule = &logpb.Schedule{
			Action: map[string]logpb.Schedule_Action{"move": logpb.Schedule_MOVE, "fire": logpb.Schedule_FIRE}[a.d.Cmd],
			Id:     a.text("id"), Message: a.number("message", 0), Count: a.number("count", 0),
			DueAt: int64(a.number("due", 0)), DelayPlusOne: a.stored("delay"), Messages: a.numbers("messages"),
		}
	case "unit": // send=10.20 on=9:5 outcome=ack numbers=1:0.2:1
		cmd.Kind = logpb.Command_UNIT
		cmd.Unit = a.unit()
	case "delete":
		cmd.Kind = logpb.Command_DELETE
		cmd.Delete = &logpb.Delete{IfUnused: a.has("if-unused"), IfEmpty: a.has("if-empty")}
	case "route-dead":
		cmd.Kind = logpb.Command_ROUTE_DEAD
		cmd.RouteDead = &logpb.RouteDead{First: a.number("first", 0), Routes: s.routes(a), Retry: a.has("retry")}
	case "settle-dead":
		cmd.Kind = logpb.Command_SETTLE_DEAD
		cmd.SettleDead = &logpb.SettleDead{Target: a.number("target", 0), Last: a.number("upto", 0), Gone: a.has("gone")}
		if a.has("refused") {
			cmd.SettleDead.Refused = []uint64{a.number("refused", 0)}
		}
	case "nonsense":
		cmd.Kind = logpb.Command_Kind(a.number("kind", 99))
	case "group":
		cmd.Kind = logpb.Command_GROUP
		cmd.Group = &logpb.Group{
			Action: logpb.Group_Action(logpb.Group_Action_value[strings.ToUpper(strings.ReplaceAll(a.text("action"), "-", "_"))]),
			Id:     a.text("id"), Consumer: a.number("consumer", 1), State: []byte(a.text("state")),
		}
	default:
		a.d.Fatalf(a.t, "unknown verb %s", a.d.Cmd)
	}
	return cmd
}

// config reads the settings of a configure line.
func (a arguments) config() *logpb.QueueConfig {
	c := &logpb.QueueConfig{
		TtlPlusOne: a.stored("ttl"), Expires: a.number("expires", 0), ConsumerTimeoutPlusOne: a.stored("timeout"),
		DeadLetter: a.has("dead-letter"), DeliveryLimit: -1, AutoDelete: a.has("auto-delete"), LockCredit: a.number("credit", 0),
		MaxLengthPlusOne: a.stored("max-length"), MaxLengthBytesPlusOne: a.stored("max-bytes"),
		MessageTtlFirst: a.has("message-ttl-first"), AutoDeleteOnIdle: a.number("idle", 0),
		DeadlineOrder: a.has("by-deadline"), DedupWindow: a.number("dedup", 0),
		IdleCountsRouted: a.has("idle-counts-routed"), ExpiresKeepPending: a.has("keep-pending"), DeliveryDelay: a.number("delay", 0),
		DeadLetterMaxPlusOne: a.stored("max-pending"), Forward: a.has("forward"), ForwardCopies: a.has("copies"), ForwardRefusedDies: a.has("refused-dies"), IdleDeadLetters: a.has("idle-dead-letters"), RefusePublishes: a.has("refuse"),
		Lock: a.number("lock", 0), MaxLock: a.number("max-lock", 0), CountLockExpiry: a.has("count-locks"),
		SingleActive: a.has("single"), RetryMin: a.number("retry-min", 0), RetryMax: a.number("retry-max", 0),
		DelayedStore: a.has("store"), Classic: a.has("classic"), Paused: a.has("paused"), DeadLetterOnDelete: a.has("will"), DropExpired: a.has("drop-expired"),
		Unique: a.has("unique"), MaxPrefetch: uint32(a.number("max-prefetch", 0)), ReturnInOrder: a.has("return-in-order"),
		MaxPriorityPlusOne:         uint32(a.stored("max-priority")),
		DisconnectedTimeoutPlusOne: a.stored("disconnected"), Revision: a.number("revision", 0),
	}
	c.RetryMultiplier, c.RetryJitter, c.RetryCountsAcquired = uint32(a.number("multiplier", 0)), uint32(a.number("jitter", 0)), a.has("count-acquired")
	for _, text := range strings.FieldsFunc(a.text("steps"), func(r rune) bool { return r == '.' }) {
		n, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			a.d.Fatalf(a.t, "steps: %v", err)
		}
		c.RetrySteps = append(c.RetrySteps, n)
	}
	if a.has("groups") {
		c.Groups = logpb.QueueConfig_BY_HEADER
		c.GroupRequired, c.GroupExpiry = a.has("group-required"), a.has("group-expiry")
		c.GroupLinger, c.GroupStateTtl, c.Lock = a.number("linger", 0), a.number("state-ttl", 0), a.number("lock", 0)
	}
	enum := func(key string, of map[string]int32) int32 {
		return of[strings.ToUpper(strings.ReplaceAll(a.text(key), "-", "_"))]
	}
	c.Overflow = logpb.QueueConfig_Overflow(enum("overflow", logpb.QueueConfig_Overflow_value))
	c.Dispatch = logpb.QueueConfig_Dispatch(enum("dispatch", logpb.QueueConfig_Dispatch_value))
	c.Retry = logpb.QueueConfig_Retry(enum("retry", logpb.QueueConfig_Retry_value))
	c.RetryStrategy = logpb.QueueConfig_RetryStrategy(enum("backoff", logpb.QueueConfig_RetryStrategy_value))
	c.DeadLetterStrategy = logpb.QueueConfig_DeadLetterStrategy(enum("strategy", logpb.QueueConfig_DeadLetterStrategy_value))
	if a.has("limit") {
		c.DeliveryLimit, c.DeliveryLimitSet = int64(a.number("limit", 0)), true
	}
	if a.has("default-limit") {
		c.DeliveryLimit = int64(a.number("default-limit", 0))
	}
	return c
}

// deathCounts shows the counters of deaths that are not 0.
func (s *script) deathCounts() string {
	var b strings.Builder
	fates := [...]string{Dropped: "dropped", SentOnce: "sent-once", Transactional: "transactional", AtLeastOnce: "at-least-once"}
	c := s.m.Stats().Counters
	for reason, d := range c.Deaths {
		for fate, n := range d {
			if n > 0 {
				fmt.Fprintf(&b, "%s %s %d\n", strings.ToLower(logpb.Death_Reason(reason+1).String()), fates[fate], n)
			}
		}
	}
	fmt.Fprintf(&b, "refused=%d dropped=%d confirmed=%d refusals=%d settled-expired=%d\n",
		c.Refused, c.DeadDropped, c.DeadConfirmed, c.DeadRefused, c.AckedExpired)
	if c.SameID > 0 {
		fmt.Fprintf(&b, "same=%d\n", c.SameID)
	}
	if c.Forwarded > 0 {
		fmt.Fprintf(&b, "forwarded=%d\n", c.Forwarded)
	}
	if c.Deleted+c.Redriven+c.Copied > 0 {
		fmt.Fprintf(&b, "deleted=%d redriven=%d copied=%d\n", c.Deleted, c.Redriven, c.Copied)
	}
	return b.String()
}

// ranges reads ids=1-3.5 into (first, length) pairs; raw=1.3.5.1 gives them.
func (s *script) ranges(a arguments) []uint64 {
	var out []uint64
	for _, r := range strings.FieldsFunc(a.text("ids"), func(r rune) bool { return r == '.' }) {
		var first, last uint64
		if n, _ := fmt.Sscanf(r, "%d-%d", &first, &last); n == 1 {
			last = first
		}
		out = append(out, first, last-first+1)
	}
	return append(out, a.numbers("raw")...)
}

// numbers reads key=1.3.5 or key=1:3.5:7.
func (a arguments) numbers(key string) (out []uint64) {
	for _, r := range strings.FieldsFunc(a.text(key), func(r rune) bool { return r == '.' || r == ':' }) {
		n, err := strconv.ParseUint(r, 10, 64)
		if err != nil {
			a.d.Fatalf(a.t, "%s: %v", key, err)
		}
		out = append(out, n)
	}
	return out
}

// routes reads to=5.6/-/5: a route per letter, - for nowhere.
func (s *script) routes(a arguments) []*logpb.DeadRoute {
	var routes []*logpb.DeadRoute
	for _, text := range strings.Split(a.text("to"), "/") {
		route := &logpb.DeadRoute{}
		if a.has("ceiling") { // of the first target
			route.TtlCeilingsPlusOne = []uint64{a.stored("ceiling")}
		}
		if letter, targets, ok := strings.Cut(text, ":"); ok { // 3:5.6 is letter 3
			n, err := strconv.ParseUint(letter, 10, 64)
			if err != nil {
				a.d.Fatalf(a.t, "to: %v", err)
			}
			route.Letter, text = n, targets
		}
		for _, id := range strings.FieldsFunc(text, func(r rune) bool { return r == '.' || r == '-' }) {
			id, edit, edited := strings.Cut(id, "~") // 5~x is a copy for queue 5 with an edit
			n, err := strconv.ParseUint(id, 10, 64)
			if err != nil {
				a.d.Fatalf(a.t, "to: %v", err)
			}
			route.Targets = append(route.Targets, n)
			if edited {
				route.Edits = append(route.Edits, make([][]byte, len(route.Targets)-1-len(route.Edits))...)
				route.Edits = append(route.Edits, []byte(edit))
			}
		}
		routes = append(routes, route)
	}
	return routes
}

// deaths reads deaths=p:expired:2.q:rejected:1, newest first. A fourth part says when the pair has died last.
func (s *script) deaths(a arguments) []*logpb.Death {
	var deaths []*logpb.Death
	for _, text := range strings.FieldsFunc(a.text("deaths"), func(r rune) bool { return r == '.' }) {
		parts := strings.Split(text, ":")
		count, err := strconv.ParseUint(parts[2], 10, 64)
		if err != nil {
			a.d.Fatalf(a.t, "deaths: %v", err)
		}
		deaths = append(deaths, &logpb.Death{
			Queue: parts[0], Reason: logpb.Death_Reason(logpb.Death_Reason_value[strings.ToUpper(parts[1])]), Count: count,
			Time: 1, Exchange: "x", RoutingKeys: []string{"k"},
		})
		if len(parts) > 3 {
			deaths[len(deaths)-1].LastTime, _ = strconv.ParseInt(parts[3], 10, 64)
		}
	}
	return deaths
}

var codeTexts = map[fsm.Code]string{
	fsm.OK: "ok", fsm.Empty: "empty", fsm.Gap: "gap", fsm.Gone: "gone", fsm.InUse: "in-use", fsm.NotEmpty: "not-empty",
	fsm.NoSession: "no-session", fsm.Rejected: "rejected", fsm.NotFound: "not-found", fsm.Invalid: "invalid",
	fsm.Reserved: "reserved", fsm.Late: "late", fsm.NotYet: "not-yet", fsm.Crowded: "crowded", fsm.Forwards: "forwards", fsm.TooMany: "too-many",
}

func resultText(r fsm.Result) string {
	text := codeTexts[r.Code]
	if r.Count != 0 {
		text += fmt.Sprintf(" count=%d", r.Count)
	}
	if r.Consumers != 0 {
		text += fmt.Sprintf(" consumers=%d", r.Consumers)
	}
	if r.Next != 0 {
		text += fmt.Sprintf(" next=%d", r.Next)
	}
	if r.Until != 0 {
		text += fmt.Sprintf(" until=%d", r.Until)
	}
	if r.State != "" {
		text += fmt.Sprintf(" state=%s", r.State)
	}
	if r.DeliveryCount != 0 || r.Credit != 0 {
		text += fmt.Sprintf(" delivery-count=%d credit=%d", r.DeliveryCount, r.Credit)
	}
	return text
}

func effectsText(eff *fsm.Effects) string {
	var b strings.Builder
	for _, d := range eff.Deliveries {
		fmt.Fprintf(&b, "deliver %s:%d id=%d @%d+%d", sessionText(d.To.Session), d.To.Number, d.ID, d.Ref.Index, d.Ref.Offset)
		if d.Acquired > 0 || d.Failed > 0 {
			fmt.Fprintf(&b, " acquired=%d failed=%d", d.Acquired, d.Failed)
		}
		if d.To.Number == 0 {
			fmt.Fprintf(&b, " ready=%d", d.Ready)
		}
		if d.LockedUntil != 0 {
			fmt.Fprintf(&b, " locked=%d for=%d", d.LockedUntil, d.LockRemaining)
		}
		b.WriteString(deathsText(d.Deaths) + "\n")
	}
	for _, l := range eff.DeadLetters {
		fmt.Fprintf(&b, "dead-letter @%d+%d %s%s", l.Ref.Index, l.Ref.Offset, strings.ToLower(l.Reason.String()), deathsText(l.Deaths)+annotationsText(l.Annotations))
		if l.Remark != (fsm.Remark{}) {
			fmt.Fprintf(&b, " remark=%q", l.Remark)
		}
		b.WriteString("\n")
	}
	for _, o := range eff.Timeouts {
		fmt.Fprintf(&b, "timeout %s:%d ids=%v limit=%d held=%d", sessionText(o.To.Session), o.To.Number, o.Deliveries, o.Limit, o.Held)
		if o.Tag != "" {
			fmt.Fprintf(&b, " tag=%s", o.Tag)
		}
		if o.First {
			b.WriteString(" first")
		}
		b.WriteString("\n")
	}
	for _, l := range eff.LateAcks {
		fmt.Fprintf(&b, "late %s:%d ids=%v limit=%d held=%d first=%t\n", sessionText(l.Of.Session), l.Of.Number, l.Deliveries, l.Limit, l.Held, l.First)
	}
	for _, o := range eff.Tellings {
		fmt.Fprintf(&b, "told %s:%d %s %v %v\n", sessionText(o.To.Session), o.To.Number, newsNames[o.News.Kind], o.News.Deliveries, o.News.Groups)
	}
	for _, c := range eff.Short {
		fmt.Fprintf(&b, "short %s:%d\n", sessionText(c.Session), c.Number)
	}
	for _, c := range eff.Cancelled {
		fmt.Fprintf(&b, "cancelled %s:%d\n", sessionText(c.Session), c.Number)
	}
	released := eff.Released
	if eff.Rest != nil {
		released = slices.AppendSeq(released, eff.Rest)
	}
	if len(released) > 0 {
		fmt.Fprintf(&b, "released %v\n", released)
	}
	if eff.Outbox {
		b.WriteString("outbox\n")
	}
	if eff.Redrive {
		b.WriteString("redrive\n")
	}
	if eff.Gone {
		b.WriteString("queue gone\n")
	}
	if eff.SuspicionChanged {
		b.WriteString("silence\n")
	}
	return b.String()
}

var newsNames = [...]string{
	fsm.LocksLost: "locks-lost", fsm.Serving: "serving", fsm.Waiting: "waiting",
	fsm.GroupsTaken: "groups-taken", fsm.GroupsLeft: "groups-left", fsm.GroupsHeld: "groups-held",
}

func lettersText(letters []Letter) string {
	var b strings.Builder
	for _, l := range letters {
		fmt.Fprintf(&b, "letter %d @%d+%d %s died=%d", l.Number, l.Ref.Index, l.Ref.Offset, strings.ToLower(l.Reason.String()), l.DiedAt)
		if l.HasExpiration {
			b.WriteString(" expiration")
		}
		if l.Fresh {
			b.WriteString(" fresh")
		}
		if l.Forwarded {
			fmt.Fprintf(&b, " hops=%d", l.Hops)
		}
		if l.ExpireAt != 0 {
			fmt.Fprintf(&b, " m%d expires=%d", l.Sequence, l.ExpireAt)
		}
		if l.TakenTo != 0 {
			fmt.Fprintf(&b, " to=%d redriven=%t", l.TakenTo, l.Redriven)
		}
		if l.Remark != (fsm.Remark{}) {
			fmt.Fprintf(&b, " remark=%q", l.Remark)
		}
		b.WriteString(deathsText(l.Deaths))
		b.WriteString(annotationsText(l.Annotations))
		if len(l.Transfers) > 0 {
			b.WriteString(transfersText(l.Transfers))
		}
		b.WriteString("\n")
	}
	return b.String()
}

func transfersText(transfers []Transfer) string {
	all := make([]string, len(transfers))
	for i, t := range transfers {
		all[i] = fmt.Sprintf("{%d %d %v}", t.To, t.Number, t.Ceiling)
		if len(t.Edit) > 0 {
			all[i] += fmt.Sprintf("~%s", t.Edit)
		}
	}
	return " transfers=[" + strings.Join(all, " ") + "]"
}
