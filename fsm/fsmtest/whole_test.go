package fsmtest

import (
	"bytes"
	"math/rand/v2"
	"strings"
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/fsm/queue"
	"github.com/quorate/quorate/proto/logpb"
)

// source turns bytes into commands. It knows the fields of the messages, so a
// command of a new kind is drawn without anything being added here; where names
// must meet, it draws from few.
type source struct{ data []byte }

func (s *source) byte() byte {
	if len(s.data) == 0 {
		return 0
	}
	b := s.data[0]
	s.data = s.data[1:]
	return b
}

func (s *source) below(n int) int { return int(s.byte()) % n }

func oneOf[T any](s *source, list []T) T { return list[s.below(len(list))] }

// number returns a small number, or one of those that overflow.
func (s *source) number() uint64 {
	switch b := s.byte(); {
	case b >= 250:
		return ^uint64(0) - uint64(b-250)
	case b >= 240:
		return 1 << (b - 240 + 54)
	case b >= 230:
		return 1 << (b - 230 + 28)
	default:
		return uint64(b % 12)
	}
}

var (
	longText = strings.Repeat("é", 150)
	vhosts   = []string{"/", "/", "/", "/", "v", ""}
	queues   = []string{"q0", "q1", "q2", "amq.gen-1", "amq.delayed-x0", longText, ""}
	places   = []string{"x0", "x1", "x2", "amq.fanout", "amq.topic", "amq.headers", "", longText}
	words    = []string{
		"", "a", "a.b", "#", "*.#", "1", "q0", "x0", "x1", "amq.fanout", longText, "\xff", "fanout", "direct", "topic", "headers", "x-consistent-hash",
		"x-modulus-hash", "x-random", "x-delayed-message", "all", "any", "quorum", "classic", "drop-head", "reject-publish", "reject-publish-dlx",
		"at-least-once", "at-most-once", "message", "lowest", "none", "bindings", "message_id", "disabled", "failed", "returned", "queues", "exchanges", "quorum_queues", "^q", ".*", "(",
		"linear", "list", "1000,5000", "header", "app-id", "group", "deadline", "message-id", "header:h", "least-loaded",
	}
	argumentNames = []string{
		"x-dead-letter-exchange", "x-dead-letter-routing-key", "x-message-ttl", "x-expires", "x-max-length", "x-max-length-bytes", "x-overflow",
		"x-dead-letter-strategy", "x-max-priority", "x-single-active-consumer", "x-queue-type", "x-auto-delete-on-idle", "x-hold", "x-delivery-delay",
		"x-delayed-type", "x-delayed-exchange", "x-delayed-mandatory", "alternate-exchange", "hash-header", "hash-property", "x-match", "h",
		"x-delayed-retry-type", "x-delayed-retry-min", "x-delayed-retry-max", "x-quorum-target-group-size", "x-name-prefix", longText,
		"x-lock-duration", "x-max-lock-duration", "x-count-lock-expiry", "x-delayed-retry-strategy", "x-delayed-retry-steps", "x-message-groups", "x-group-source",
		"x-group-expiry", "x-queue-order", "x-dedup-window", "x-forward-to-exchange", "x-forward-to-routing-key", "x-audit-max",
		"x-unique", "x-message-deduplication", "x-max-prefetch", "x-dispatch",
	}
	policyNames = []string{
		"message-ttl", "expires", "max-length", "overflow", "dead-letter-exchange", "dead-letter-routing-key", "alternate-exchange", "delayed-message",
		"auto-delete-on-idle", "delivery-limit", "target-group-size", "delayed-max-length", "delayed-retry-type", "delayed-retry-min", "queue-mode", "max-age",
		"lock-duration", "max-lock-duration", "delayed-retry-strategy", "delayed-retry-steps", "dedup-window", "forward-to-exchange", "audit-max",
		"unique", "max-prefetch", "dispatch",
	}
	settingNames = []string{catalog.MaxClockSkew, catalog.AutoDeleteOnIdleMin, catalog.FSMVersion, catalog.ScheduleMaxDelay, catalog.MaxQueues, catalog.MaxConnections}
)

// text draws a string of a field of a message.
func (s *source) text(message, field protoreflect.Name) string {
	switch field {
	case "vhost":
		return oneOf(s, vhosts)
	case "source":
		return oneOf(s, places)
	case "destination":
		return oneOf(s, append(queues[:3:3], places[:3]...))
	case "user", "of":
		return oneOf(s, []string{"guest", "u", "/"})
	case "type":
		return oneOf(s, append([]string{catalog.Delayed}, catalog.ExchangeTypes()...))
	case "apply_to":
		return oneOf(s, []string{"all", "queues", "exchanges", "quorum_queues", "classic_queues", "streams"})
	case "pattern", "configure", "write", "read":
		return oneOf(s, []string{".*", "^q", "^x", "0$", "(", ""})
	case "name":
		switch message {
		case "DeclareQueue", "DeleteQueue":
			return oneOf(s, queues)
		case "DeclareExchange", "DeleteExchange", "TouchExchange", "ExpireExchange":
			return oneOf(s, places)
		case "Field":
			return oneOf(s, append(argumentNames, policyNames...))
		case "PutSetting", "PutLimit":
			return oneOf(s, settingNames)
		case "PutVhost", "DeleteVhost":
			return oneOf(s, vhosts)
		case "RegisterNode", "AdmitNode", "ForgetNode", "SetDraining", "RecoverCluster":
			return oneOf(s, []string{"n1", "n2", "n3", "n4", ""})
		}
	}
	return oneOf(s, words)
}

// fill draws the fields of a message, most of them.
func (s *source) fill(m protoreflect.Message, depth int) {
	fields, name := m.Descriptor().Fields(), m.Descriptor().Name()
	for i := range fields.Len() {
		f := fields.Get(i)
		if f.ContainingOneof() != nil || s.below(5) == 0 || depth == 0 && f.Kind() == protoreflect.MessageKind {
			continue
		}
		if f.IsList() {
			list := m.Mutable(f).List()
			for range s.below(4) {
				if f.Kind() != protoreflect.MessageKind {
					list.Append(s.value(name, f))
					continue
				}
				e := list.NewElement()
				s.fill(e.Message(), depth-1)
				list.Append(e)
			}
			continue
		}
		if f.Kind() == protoreflect.MessageKind {
			s.fill(m.Mutable(f).Message(), depth-1)
			continue
		}
		m.Set(f, s.value(name, f))
	}
	for i := range m.Descriptor().Oneofs().Len() {
		choices := m.Descriptor().Oneofs().Get(i).Fields()
		f := choices.Get(s.below(choices.Len()))
		if f.Kind() == protoreflect.MessageKind {
			s.fill(m.Mutable(f).Message(), depth)
		}
	}
}

func (s *source) value(message protoreflect.Name, f protoreflect.FieldDescriptor) protoreflect.Value {
	switch f.Kind() {
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(s.below(3) == 0)
	case protoreflect.EnumKind:
		return protoreflect.ValueOfEnum(protoreflect.EnumNumber(s.below(f.Enum().Values().Len() + 1)))
	case protoreflect.Uint32Kind:
		switch f.Name() {
		case "tag":
			return protoreflect.ValueOfUint32(uint32(oneOf(s, []byte("SSSSlItbdTVFAxDq"))))
		case "members", "node", "was", "store_members", "nodes":
			return protoreflect.ValueOfUint32(uint32(s.below(5)))
		case "oldest_version", "newest_version":
			return protoreflect.ValueOfUint32(uint32(s.below(3)))
		}
		return protoreflect.ValueOfUint32(uint32(s.number()))
	case protoreflect.Uint64Kind:
		return protoreflect.ValueOfUint64(s.number())
	case protoreflect.Int32Kind, protoreflect.Sint32Kind:
		return protoreflect.ValueOfInt32(int32(s.number()))
	case protoreflect.Int64Kind, protoreflect.Sint64Kind:
		return protoreflect.ValueOfInt64(int64(s.number()))
	case protoreflect.BytesKind:
		return protoreflect.ValueOfBytes([]byte(oneOf(s, words)))
	case protoreflect.StringKind:
		return protoreflect.ValueOfString(s.text(message, f.Name()))
	}
	panic("no value of kind " + f.Kind().String())
}

// twin is a machine, and a replica of it that goes through snapshots.
type twin struct {
	spec     *catalog.Queue
	machine  *queue.Machine
	replica  *queue.Machine
	meta     fsm.Meta
	revision uint64
	next     map[fsm.SessionID]uint64
}

// cluster is a catalog with its queues' machines, and a replica of everything.
type whole struct {
	t       *testing.T
	s       source
	now     fsm.Time
	index   uint64
	catalog *catalog.Catalog
	replica *catalog.Catalog
	queues  map[fsm.QueueID]*twin
	order   []fsm.QueueID
}

func newWhole(t *testing.T, data []byte) *whole {
	w := &whole{t: t, s: source{data}, now: start, catalog: &catalog.Catalog{}, replica: &catalog.Catalog{}, queues: map[fsm.QueueID]*twin{}}
	e := &logpb.CatalogEntry{Version: 1, Commands: []*logpb.CatalogCommand{
		{Body: &logpb.CatalogCommand_RegisterNode{RegisterNode: &logpb.RegisterNode{Name: "n1", Incarnation: []byte("a")}}},
		{Body: &logpb.CatalogCommand_RegisterNode{RegisterNode: &logpb.RegisterNode{Name: "n2", Incarnation: []byte("b")}}},
		{Body: &logpb.CatalogCommand_Initialize{Initialize: &logpb.Initialize{
			Vhost: &logpb.PutVhost{Name: "/"}, User: &logpb.PutUser{Name: "guest"},
			Permission: &logpb.PutPermission{User: "guest", Vhost: "/", Configure: ".*", Write: ".*", Read: ".*"},
		}}},
	}}
	w.define(e)
	return w
}

// define applies an entry to the catalog and follows it in the queues.
func (w *whole) define(e *logpb.CatalogEntry) {
	w.index++
	raw, err := logpb.Marshal(e)
	if err != nil {
		w.t.Fatal(err)
	}
	for _, c := range []*catalog.Catalog{w.catalog, w.replica} {
		own := &logpb.CatalogEntry{} // parts of an entry stay in the catalog
		if err := logpb.Unmarshal(raw, own); err != nil {
			w.t.Fatal(err)
		}
		c.Apply(w.index, own)
	}
	if err := w.catalog.Check(); err != nil {
		w.t.Fatalf("after %v: %v\n%s", e, err, w.catalog)
	}
	if w.s.below(4) == 0 {
		raw, err := logpb.Marshal(w.replica.Snapshot())
		if err != nil {
			w.t.Fatal(err)
		}
		own := &logpb.CatalogSnapshot{}
		if err := logpb.Unmarshal(raw, own); err != nil {
			w.t.Fatal(err)
		}
		if w.replica, err = catalog.Restore(own); err != nil {
			w.t.Fatalf("after %v: %v\n%s", e, err, w.catalog)
		}
	}
	if w.catalog.Hash() != w.replica.Hash() {
		w.t.Fatalf("after %v:\n%s\nthe replica:\n%s", e, w.catalog, w.replica)
	}
	w.follow()
}

// follow brings the queues in line with the catalog, as the broker does.
func (w *whole) follow() {
	v := w.catalog.View()
	w.order = w.order[:0]
	for _, q := range v.Queues() {
		w.order = append(w.order, q.ID)
		x := w.queues[q.ID]
		if x == nil {
			x = &twin{spec: q, machine: queue.New(q.Name, q.ID), replica: queue.New(q.Name, q.ID), next: map[fsm.SessionID]uint64{}}
			x.meta = fsm.Meta{Term: 1, Now: w.now, Version: 1}
			w.queues[q.ID] = x
		}
		c := v.Settings(q, catalog.Defaults{})
		if x.meta.Index == 0 || c.Revision != x.revision {
			x.revision = c.Revision
			w.perform(x, &logpb.Command{Kind: logpb.Command_CONFIGURE, Configure: &logpb.Configure{Config: c}}, fsm.SessionID{})
		}
	}
	keys := []string{oneOf(&w.s, words), oneOf(&w.s, words)}
	_, _, _ = v.Route(oneOf(&w.s, vhosts), oneOf(&w.s, places), &catalog.Message{
		Keys: keys, Chance: w.s.number(), Delayed: w.s.below(2) == 0,
	}, nil) // an unknown exchange is a refusal
}

// perform applies a command to a queue and its replica.
func (w *whole) perform(x *twin, c *logpb.Command, from fsm.SessionID) {
	x.meta.Now, x.meta.Session, x.meta.Offset = w.now, from, 0
	x.meta.Index++
	if from != (fsm.SessionID{}) && w.s.below(12) != 0 {
		x.next[from]++
		c.Seq = x.next[from]
	}
	var a, b fsm.Effects
	if ra, rb := x.machine.Apply(x.meta, c, &a), x.replica.Apply(x.meta, c, &b); ra != rb {
		w.t.Fatalf("%v: %v and %v", c, ra, rb)
	}
	if err := x.machine.Check(); err != nil {
		w.t.Fatalf("after %v: %v\n%s", c, err, x.machine)
	}
	x.machine.NextDeadline()
	if w.s.below(8) != 0 {
		return
	}
	var state bytes.Buffer
	if _, err := x.replica.Snapshot().WriteTo(&state); err != nil {
		w.t.Fatal(err)
	}
	x.replica = queue.New(x.spec.Name, x.spec.ID)
	if err := x.replica.Restore(&state); err != nil {
		w.t.Fatalf("after %v: %v\n%s", c, err, x.machine)
	}
	if x.machine.Hash() != x.replica.Hash() {
		w.t.Fatalf("after %v:\n%s\nthe replica:\n%s", c, x.machine, x.replica)
	}
}

// step draws an entry of the catalog or of one of the queues.
func (w *whole) step() {
	w.now += fsm.Time(w.s.number() % 1000)
	if len(w.order) == 0 || len(w.order) < 8 && w.s.below(3) == 0 {
		e := &logpb.CatalogEntry{Version: w.catalog.View().FSMVersion(), Now: int64(w.now)}
		for range 1 + w.s.below(3) {
			c := &logpb.CatalogCommand{}
			w.s.fill(c.ProtoReflect(), 4)
			e.Commands = append(e.Commands, c)
		}
		w.define(e)
		return
	}
	x := w.queues[oneOf(&w.s, w.order)]
	c := &logpb.Command{}
	w.s.fill(c.ProtoReflect(), 4)
	if w.s.below(3) == 0 { // so that there is something
		c.Kind = logpb.Command_ENQUEUE
	}
	if e := c.Enqueue; e != nil && w.s.below(4) != 0 {
		e.Size, e.Head = 10+uint32(w.s.byte()), 8
	}
	c.Session, c.Seq = nil, 0
	from := fsm.SessionID{Node: fsm.NodeID(w.s.below(4)), Boot: uint64(1 + w.s.below(2)), Num: uint64(w.s.below(3))}
	w.perform(x, c, from)
}

// FuzzWhole applies catalogs and the logs of their queues, of arbitrary commands
// that decode, what former versions let in included: nothing panics or breaks an
// invariant, and replicas that go through snapshots agree.
func FuzzWhole(f *testing.F) {
	for seed := range uint64(24) {
		r := rand.New(rand.NewPCG(seed, 7))
		data := make([]byte, 700) // the fuzzer likes short ones
		for i := range data {
			data[i] = byte(r.Uint32())
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		for w := newWhole(t, data[:min(len(data), 4000)]); len(w.s.data) > 0; {
			w.step()
		}
	})
}
