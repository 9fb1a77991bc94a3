package attack

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/quorate/quorate/jepsen/client"
	"github.com/quorate/quorate/jepsen/cluster"
	"github.com/quorate/quorate/jepsen/internal/await"
	"github.com/quorate/quorate/jepsen/internal/long"
)

const (
	mib = 1 << 20
	// maxHeld is what all that is sent here may make a node hold: 512 MiB of
	// pieces is the largest of the bounds in cluster/peer, and what is sent is
	// less.
	maxHeld = 768 * mib
	victim  = "attacked" // queue
)

// numbers joins 64-bit numbers.
func numbers(vs ...uint64) (b []byte) {
	for _, v := range vs {
		b = binary.BigEndian.AppendUint64(b, v)
	}
	return b
}

// entry is one of an append request.
type entry struct {
	index, term uint64
	kind        byte
	data        []byte
}

// Types of entries.
const (
	entryCommand       = 0
	entryConfiguration = 5
)

// appendRequest is an append of entries behind one.
func appendRequest(term, previous, previousTerm, commit uint64, entries ...entry) []byte {
	b := append([]byte{3, 0}, numbers(term, previous, previousTerm, commit)...)
	b = binary.BigEndian.AppendUint32(b, uint32(len(entries)))
	for _, e := range entries {
		b = append(append(b, numbers(e.index, e.term)...), e.kind)
		b = binary.BigEndian.AppendUint32(b, uint32(len(e.data)))
		b = append(binary.BigEndian.AppendUint32(b, 0), e.data...)
	}
	return b
}

func voteRequest(term, last, lastTerm uint64) []byte {
	return append([]byte{3, 0}, numbers(term, last, lastTerm)...)
}

func snapshotRequest(term, last, size uint64, configuration []byte) []byte {
	return append(append([]byte{3, 1}, numbers(term, last, 1, 1, size)...), configuration...)
}

// configuration is raft's encoding of members n1, n2 and n3.
func configuration() []byte {
	text := func(s string) []byte { return append([]byte{0xa0 | byte(len(s))}, s...) }
	b := append([]byte{0x81}, text("Servers")...)
	b = append(b, 0x93)
	for _, name := range []string{"n1", "n2", "n3"} {
		b = append(append(b, 0x83), text("Suffrage")...)
		b = append(append(b, 0), text("ID")...)
		b = append(append(b, text(name)...), text("Address")...)
		b = append(b, text(name)...)
	}
	return b
}

// piece is one of a message of a class.
func piece(class uint32, total uint64, body []byte) []byte {
	return frame(kindPiece, class, total, body)
}

// item is a line of an exchange of standings.
func item(kind byte, group uint32, term, logTerm, last uint64) []byte {
	return append(binary.BigEndian.AppendUint32([]byte{kind}, group), numbers(term, logTerm, last)...)
}

// submit is a message with commands, and the payloads behind it.
func submit(group uint32, queue uint64, count uint64, commands, payload []byte) []byte {
	head := message(map[protowire.Number]any{1: uint64(group), 2: queue, 3: string(commands), 4: count})
	return frame(kindSubmit, uint32(len(head)), 0, append(head, payload...))
}

// bytesCase is one attack over a link.
type bytesCase struct {
	name string
	send [][]byte
	want expected
}

// first are cases of what comes before a hello, or in its place.
func firstCases(x *thief) []bytesCase {
	other := func(field protowire.Number, v any) [][]byte {
		return [][]byte{x.hello(func(f map[protowire.Number]any) { f[field] = v })}
	}
	return []bytesCase{
		{"nothing but a ping", [][]byte{frame(kindPing, 0, 1, nil)}, ended},
		{"an empty message", [][]byte{{}}, ended},
		{"a hello of garbage", [][]byte{frame(kindHello, 0, 0, []byte("garbage"))}, ended},
		{"a long hello", other(2, strings.Repeat("n", 5<<10)), ended},
		{"a message of 2 MiB", [][]byte{make([]byte, 2*mib)}, ended},
		{"a message of 80 MiB", [][]byte{make([]byte, 80*mib)}, ended},
		{"another cluster", other(1, "other"), ended},
		{"another version", other(4, uint64(2)), ended},
		{"a short incarnation", other(3, "short"), ended},
		{"an unknown node", other(2, "n9"), ended},
		{"the name of a node that runs", other(2, "n2"), ended},
		{"another data folder", other(16, strings.Repeat("i", 16)), ended},
		{"something behind the hello", [][]byte{append(x.hello(), frame(kindPing, 0, 0, nil)...)}, ended},
	}
}

// frameCases are cases of frames and pieces.
func frameCases() []bytesCase {
	long := frame(kindPing, 0, 0, nil)
	binary.BigEndian.PutUint32(long, math.MaxUint32)
	nested := piece(0, 64*mib, []byte{1})
	for range 50 {
		nested = piece(0, uint64(len(nested)), nested)
	}
	all := []bytesCase{
		{"a second hello", [][]byte{frame(kindHello, 0, 0, nil)}, ended},
		{"a frame cut short", [][]byte{frame(kindPing, 0, 0, nil)[:10]}, ended},
		{"a frame of 4 GiB", [][]byte{long}, ended},
		{"a frame without a kind", [][]byte{frame(0, 0, 0, nil)}, ended},
		{"a kind that nobody has", [][]byte{frame(15, 0, 0, nil)}, ended},
		{"a ping of 1 KiB", [][]byte{frame(kindPing, 0, 0, make([]byte, 1<<10))}, ended},
		{"a message of 2 MiB", [][]byte{make([]byte, 2*mib)}, ended},
		{"a piece of no class", [][]byte{piece(99, 1<<20, []byte{1})}, ended},
		{"a piece of a ping", [][]byte{piece(2, 1<<20, []byte{1})}, ended},
		{"a piece of 65 MiB", [][]byte{piece(0, 65*mib, []byte{1})}, ended},
		{"an empty piece", [][]byte{piece(0, 1<<20, nil)}, ended},
		{"a piece of nothing", [][]byte{piece(0, 0, nil)}, ended},
		{"a piece longer than its message", [][]byte{piece(0, 1, []byte{1, 2})}, ended},
		{"pieces of two messages", [][]byte{piece(0, 100, []byte{1}), piece(0, 99, []byte{1})}, ended},
		{"a piece within a piece", [][]byte{piece(1, frameHead+1, piece(0, 1, []byte{1}))}, ended},
		{"fifty pieces in one another", [][]byte{nested}, ended},
		{"nonsense in pieces", [][]byte{piece(0, 20, make([]byte, 10)), piece(0, 20, make([]byte, 10))}, ended},
		{"pieces that are announced", [][]byte{piece(0, 64*mib, []byte{1}), piece(1, 64*mib, []byte{1})}, ignored},
	}
	for kind, what := range map[byte]string{kindPong: "a pong", kindReply: "an answer", kindFailure: "a refusal", kindSnapshot: "a snapshot", kindOffer: "an offer", kindSize: "a size"} {
		all = append(all, bytesCase{what + " that was not asked for", [][]byte{frame(kind, 0, 0, make([]byte, 42))}, ended})
	}
	return all
}

// raftCases are cases of what raft's groups are asked; term and last are about
// where the group is.
func raftCases(group uint32, term uint64) []bytesCase {
	ask := func(kind byte, body []byte) [][]byte { return [][]byte{frame(kind, group, 7, body)} }
	entries := func(es ...entry) [][]byte { return ask(kindAppend, appendRequest(term, 1, 1, 0, es...)) }
	count := appendRequest(term, 1, 1, 0)
	binary.BigEndian.PutUint32(count[34:], math.MaxUint32)
	far := term + 1<<40
	return []bytesCase{
		{"an append of nothing", ask(kindAppend, nil), ended},
		{"an append cut short", ask(kindAppend, appendRequest(term, 1, 1, 0)[:20]), ended},
		{"an append with a byte too many", ask(kindAppend, append(appendRequest(term, 1, 1, 0), 0)), ended},
		{"four billion entries", ask(kindAppend, count), ended},
		{"a thousand entries", entries(make([]entry, 1000)...), ended},
		{"an entry far behind the last", entries(entry{index: 1000, term: 1}), ended},
		{"entries with a gap", entries(entry{index: 2, term: 1}, entry{index: 4, term: 1}), ended},
		{"the last entry there is", ask(kindAppend, appendRequest(term, math.MaxUint64-1, 1, 0, entry{index: math.MaxUint64, term: 1})), ended},
		{"an entry behind the last there is", ask(kindAppend, appendRequest(term, math.MaxUint64, 1, 0, entry{term: 1})), ended},
		{"an entry of a later term", entries(entry{index: 2, term: term + 1}), ended},
		{"an endless commit", ask(kindAppend, appendRequest(term, 1, 1, math.MaxUint64)), ended},
		{"an entry of no type", entries(entry{index: 2, term: 1, kind: 77}), ended},
		{"an entry of a former type", entries(entry{index: 2, term: 1, kind: 2, data: []byte{0x90}}), ended},
		{"members that are garbage", entries(entry{index: 2, term: 1, kind: entryConfiguration, data: []byte("garbage")}), ended},
		{"members that are none", entries(entry{index: 2, term: 1, kind: entryConfiguration}), ended},
		{"members within members", entries(entry{index: 2, term: 1, kind: entryConfiguration, data: bytes.Repeat([]byte{0x91}, 400<<10)}), ended},
		{"a command of garbage", entries(entry{index: 2, term: 1, kind: entryCommand, data: []byte("garbage")}), refused("cannot be applied")},
		{"a command of a later version", entries(entry{index: 2, term: 1, data: []byte{1 << 3, 99}}), refused("cannot be applied")},
		{"a hundred thousand commands", entries(entry{index: 2, term: 1, data: bytes.Repeat([]byte{3<<3 | 2, 0, 4<<3 | 2, 0}, 100_000)}), refused("cannot be applied")},
		{"entries of the last term", ask(kindAppend, appendRequest(math.MaxUint64, 0, 0, 0)), ended},
		{"entries of a far term", ask(kindAppend, appendRequest(far, 1, 1, 0)), refused("too far")},
		{"a vote of the last term", ask(kindVote, voteRequest(math.MaxUint64, 1, 1)), ended},
		{"a vote of the last term but one", ask(kindVote, voteRequest(math.MaxUint64-1, 1, 1)), ended},
		{"a vote of a far term", ask(kindVote, voteRequest(far, 1, 1)), refused("too far")},
		{"a vote cut short", ask(kindVote, voteRequest(far, 1, 1)[:10]), ended},
		{"a vote for the longest log", ask(kindVote, voteRequest(term, math.MaxUint64, 1)), ended},
		{"a vote for a log of the last term", ask(kindVote, voteRequest(term, 1, math.MaxUint64)), ended},
		{"a question of the last term", ask(kindPreVote, voteRequest(math.MaxUint64, 1, 1)), ended},
		{"a question of a far term", ask(kindPreVote, voteRequest(far, 1, 1)), refused("too far")},
		{"an order to stand with a byte too many", ask(kindTimeoutNow, []byte{3, 0, 0}), ended},
		{"standings of the last term", [][]byte{frame(kindPosition, 29, 0, item(1, group, math.MaxUint64, math.MaxUint64, math.MaxUint64))}, ignored},
		{"standings of a far term", [][]byte{frame(kindPosition, 29, 0, item(1, group, far, far, 1))}, ignored},
		{"a lesson of the last term", [][]byte{frame(kindLesson, 29, 0, item(2, group, math.MaxUint64, math.MaxUint64, math.MaxUint64))}, ignored},
	}
}

// messageCases are cases of every kind of messages and calls.
func messageCases() []bytesCase {
	var all []bytesCase
	add := func(name string, want expected, send ...[]byte) { all = append(all, bytesCase{name, send, want}) }
	garbage := bytes.Repeat([]byte{0xff}, 29)
	// long is a message of a class of its own, in pieces: it is longer than a link
	// takes at once.
	long := func(kind byte, arg uint32, size int) (sent [][]byte) {
		body := make([]byte, size)
		whole := frame(kind, arg, 7, body)
		for rest := whole; len(rest) > 0; {
			n := min(len(rest), 256<<10)
			sent, rest = append(sent, piece(1, uint64(len(whole)), rest[:n])), rest[n:]
		}
		return sent
	}
	for kind, what := range map[byte]string{
		kindPosition: "standings", kindSubmit: "commands", kindOutcomes: "outcomes", kindDeliveries: "deliveries", kindNotice: "a notice",
		kindResync: "a resync", kindDirectReply: "a reply", kindAlarm: "a shortage", kindApplied: "what is applied", kindLesson: "a lesson",
	} {
		head := len(garbage)
		if kind == kindDirectReply {
			head = 0 // it is all payload
		}
		add(what+" of garbage", ignored, frame(kind, uint32(head), 0, garbage))
		add(what+" with a head longer than all", ended, frame(kind, 100, 0, garbage))
		add(what+" with a head of 20 MiB", ended, long(kind, 20*mib, 20*mib)...)
	}
	for kind, what := range map[uint32]string{
		kindCatalog: "a proposal", kindStats: "stats", kindQueueStats: "figures", kindReplicas: "replicas", kindTransfer: "a transfer", kindAdmit: "an admission",
		kindPeek: "a peek", kindConsumers: "consumers", kindCloseConnection: "an end of a connection", kindScheduled: "scheduled messages",
		kindCounts: "counts", kindHears: "who is heard",
	} {
		add(what+": a question of garbage", expected{refused: " "}, frame(kindCall, kind, 7, garbage))
		add(what+": a question of 20 MiB", refused("too much"), long(kindCall, kind, 20*mib)...)
	}
	add("a question that nobody answers", refused("no handler"), frame(kindCall, 200, 7, nil))
	add("a question of a kind above all", refused("no handler"), frame(kindCall, math.MaxUint32, 7, nil))
	add("a message that nobody takes", ignored, frame(200, 0, 0, nil))
	add("an unknown group", refused("unknown group"), frame(kindVote, 4_000_000_000, 7, voteRequest(1, 0, 0)))
	return all
}

// commandCases are cases of what is to enter a log.
func commandCases(group uint32, queue uint64) []bytesCase {
	propose := func(entry []byte) [][]byte {
		return [][]byte{frame(kindCall, kindCatalog, 7, message(map[protowire.Number]any{1: string(entry)}))}
	}
	command := []byte{4<<3 | 2, 0}
	return []bytesCase{
		{"a proposal of garbage", propose([]byte("garbage")), expected{refused: "catalog"}},
		{"a proposal of a later version", propose([]byte{1 << 3, 99}), expected{refused: "catalog"}},
		{"a proposal of no version", propose([]byte{3<<3 | 2, 0}), expected{refused: "catalog"}},
		{"a proposal of many commands", propose(bytes.Repeat([]byte{3<<3 | 2, 0}, 200_000)), expected{refused: "catalog"}},
		{"commands of garbage", [][]byte{submit(group, queue, 1, []byte("garbage"), nil)}, ignored},
		{"commands with a stamp", [][]byte{submit(group, queue, 1, append([]byte{1 << 3, 1}, command...), nil)}, ignored},
		{"more commands than announced", [][]byte{submit(group, queue, 1, bytes.Repeat(command, 2), nil)}, ignored},
		{"a hundred thousand commands", [][]byte{submit(group, queue, 100_000, bytes.Repeat(command, 100_000), nil)}, ignored},
		{"a payload of nobody", [][]byte{submit(group, queue, 1, command, make([]byte, 100))}, ignored},
		{"commands for another queue", [][]byte{submit(group, queue+1, 1, command, nil)}, ignored},
		{"commands for no group", [][]byte{submit(4_000_000_000, queue, 1, command, nil)}, ignored},
		{"deliveries cut short", [][]byte{func() []byte {
			d := message(map[protowire.Number]any{1: queue, 2: uint64(1), 4: string(message(map[protowire.Number]any{1: uint64(1), 2: uint64(1), 3: uint64(math.MaxUint32)}))})
			return frame(kindDeliveries, uint32(len(d)), 0, d)
		}()}, ignored},
		{"a hundred thousand deliveries", [][]byte{func() []byte {
			d := bytes.Repeat([]byte{4<<3 | 2, 0}, 100_000)
			return frame(kindDeliveries, uint32(len(d)), 0, d)
		}()}, ignored},
		{"a lease for a node that there is not", [][]byte{frame(kindCall, kindCatalog, 7, message(map[protowire.Number]any{
			4: string(message(map[protowire.Number]any{1: "nobody", 2: "x", 3: uint64(math.MaxUint64)})),
		}))}, empty},
	}
}

// snapshotCases are cases of what is said first on the stream of a snapshot.
func snapshotCases(group uint32, term uint64) []bytesCase {
	begin := func(body []byte) [][]byte { return [][]byte{frame(kindSnapshot, group, 0, body)} }
	return []bytesCase{
		{"nothing but bytes", [][]byte{make([]byte, 1000)}, ended},
		{"another frame", [][]byte{frame(kindPing, 0, 0, nil)}, ended},
		{"a request of garbage", begin([]byte("garbage")), ended},
		{"the last term", begin(snapshotRequest(math.MaxUint64, 10, 10, configuration())), ended},
		{"a far term", begin(snapshotRequest(term+1<<40, 10, 10, configuration())), ended},
		{"no end", begin(snapshotRequest(term, math.MaxUint64, 10, configuration())), ended},
		{"members that are garbage", begin(snapshotRequest(term, 10, 10, []byte("garbage"))), ended},
		{"no members", begin(snapshotRequest(term, 10, 10, nil)), ended},
		{"eight exbibytes", begin(snapshotRequest(term, 10, 1<<62, configuration())), ended},
		{"an unknown group", [][]byte{frame(kindSnapshot, 4_000_000_000, 0, snapshotRequest(term, 10, 10, configuration()))}, ended},
	}
}

// A node of the cluster that has gone over to the enemy, with its certificate and
// its disk, sends what it likes. Nothing of it enters a log, ends a process, moves
// a group to a term from which it cannot come back, or takes memory without a
// bound; queues serve on.
func TestBytesBetweenNodes(t *testing.T) {
	long.Test(t)
	t.Parallel()
	c := mustStart(t, cluster.Options{})
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	one := c.Nodes[0]
	mustDeclare(t, one)
	if err := c.Nodes[2].Shutdown(ctx); err != nil {
		t.Fatal(err)
	}
	x := mustRob(t, c.Nodes[2])
	before := mustServe(t, ctx, c)
	held, err := one.RSSBytes()
	if err != nil {
		t.Fatal(err)
	}
	links := func(what string, cases []bytesCase, hello bool) {
		for _, k := range cases {
			attack(t, "bytes", what+k.name, func(t *testing.T) {
				l := (*talk)(nil)
				if hello {
					l = x.link(t, one)
				} else {
					l = x.open(t, one, "Link")
				}
				l.send(k.send...)
				k.want.check(t, l)
			})
		}
	}
	group, term := uint32(before.Group), before.Term
	links("at first: ", firstCases(x), false)
	links("", frameCases(), true)
	links("the catalog: ", raftCases(0, 3), true)
	links("a queue: ", raftCases(group, term), true)
	links("", messageCases(), true)
	links("", commandCases(group, before.QueueID), true)
	attack(t, "bytes", "introductions that are none", func(t *testing.T) {
		for _, m := range [][]byte{nil, []byte("garbage"), frame(kindHello, 0, 0, []byte("garbage")), make([]byte, 2*mib), frame(kindPing, 0, 0, nil)} {
			l := x.open(t, one, "Introduce")
			l.send(m)
			ended.check(t, l)
		}
	})
	attack(t, "bytes", "snapshots without a link", func(t *testing.T) {
		l := x.open(t, one, "Snapshot", "quorate-node", x.name, "quorate-incarnation-bin", "no-such-process-")
		ended.check(t, l)
	})
	for _, k := range snapshotCases(group, term) {
		attack(t, "bytes", "a snapshot: "+k.name, func(t *testing.T) {
			x.link(t, one)
			l := x.open(t, one, "Snapshot", "quorate-node", x.name, "quorate-incarnation-bin", incarnation)
			l.send(k.send...)
			ended.check(t, l)
		})
	}
	floods(t, x, one)
	attack(t, "bytes", "after all that queues serve, in the terms they were in", func(t *testing.T) {
		after := mustServe(t, ctx, c)
		if after.Term > term+100 {
			t.Errorf("the queue is in term %d after %d", after.Term, term)
		}
		for _, n := range c.Nodes[:2] {
			if panics, err := n.Metric(ctx, "quorate_panics_total"); err != nil || panics != 0 {
				t.Errorf("node %d: %v panics, %v", n.Number, panics, err)
			}
		}
		now, err := one.RSSBytes()
		if err != nil || now > held+maxHeld {
			t.Errorf("%d MiB held, %d at first, %v", now/mib, held/mib, err)
		}
		t.Logf("%d MiB held, %d at first; %d lines about streams", now/mib, held/mib, c.Logged("sent malformed data"))
		if n := c.Logged("closed the stream of a node that sent malformed data"); n == 0 || n > 40 {
			t.Errorf("%d lines about streams", n)
		}
	})
	attack(t, "bytes", "the node that was played comes back", func(t *testing.T) {
		if err := c.Nodes[2].Restart(); err != nil {
			t.Fatal(err)
		}
		if err := c.Nodes[2].AwaitReady(ctx); err != nil {
			t.Fatal(err)
		}
		mustServe(t, ctx, c)
	})
}

// floods sends much of what there is a bound for.
func floods(t *testing.T, x *thief, n *cluster.Node) {
	for name, next := range map[string]func(i int) []byte{
		"pieces of 64 MiB": func(i int) []byte { return piece(uint32(i%2), 64*mib, make([]byte, 256<<10)) },
		"pings":            func(int) []byte { return bytes.Repeat(frame(kindPing, 0, 0, nil), 10_000) },
		"questions":        func(i int) []byte { return bytes.Repeat(frame(kindCall, kindNodes, uint64(i), nil), 1000) },
		"votes of unknown groups": func(i int) []byte {
			return frame(kindVote, uint32(1_000_000+i), uint64(i), voteRequest(1, 0, 0))
		},
	} {
		attack(t, "bytes", "a flood of "+name, func(t *testing.T) {
			l := x.link(t, n)
			defer time.AfterFunc(2*time.Second, l.cancel).Stop() // the node does not read on while nobody reads its answers
			for i, sent := 0, 0; sent < 40*mib && i < 20_000; i++ {
				m := next(i)
				if sent += len(m); l.stream.SendMsg(&m) != nil {
					break // it has been ended
				}
			}
			l.cancel()
			again := x.link(t, n)
			if s := again.hear(false); !s.pong {
				t.Errorf("the node does not answer afterwards: %v", s)
			}
			again.cancel()
		})
	}
	attack(t, "bytes", "a flood of streams that say nothing", func(t *testing.T) {
		for range 4 {
			cc := x.connect(t, n)
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			for range 20 {
				go func() { _, _ = cc.NewStream(ctx, &bothWays, "/quorate.peer.v1.Peer/Link") }()
			}
		}
		if err := await.Until(t.Context(), 50*time.Millisecond, "a node that answers", func() (bool, error) {
			l := x.open(t, n, "Link")
			defer l.cancel()
			l.send(x.hello())
			var answer []byte
			err := l.stream.RecvMsg(&answer)
			return err == nil, err
		}); err != nil {
			t.Error(err)
		}
	})
}

// mustDeclare declares the queue under attack.
func mustDeclare(t *testing.T, n *cluster.Node) {
	t.Helper()
	ch, end := mustChannel(t, n, "")
	defer end()
	if _, err := ch.QueueDeclare(victim, true, false, false, false, amqp.Table{"x-queue-type": "quorum"}); err != nil {
		t.Fatal(err)
	}
}

// mustServe has a message go through the queue, by either node, and returns what
// its leader says about it.
func mustServe(t *testing.T, ctx context.Context, c *cluster.Cluster) (leader cluster.Replica) {
	t.Helper()
	for _, n := range c.Nodes[:2] {
		serve := func() error {
			conn, err := client.Connect(ctx, n.URI())
			if err != nil {
				return err
			}
			defer conn.Close()
			ch, err := conn.Channel()
			if err != nil {
				return err
			}
			if err := ch.Confirm(false); err != nil {
				return err
			}
			confirm, err := ch.PublishWithDeferredConfirmWithContext(ctx, "", victim, false, false, amqp.Publishing{Body: []byte("x")})
			if err != nil {
				return err
			}
			if ok, err := confirm.WaitContext(ctx); err != nil || !ok {
				return fmt.Errorf("confirmed %v, %w", ok, err)
			}
			if _, ok, err := ch.Get(victim, true); err != nil || !ok {
				return fmt.Errorf("got a message %v, %w", ok, err)
			}
			return nil
		}
		if err := await.Until(ctx, 100*time.Millisecond, "a queue that serves", func() (bool, error) { err := serve(); return err == nil, err }); err != nil {
			t.Fatal(err)
		}
	}
	if err := await.Until(ctx, 100*time.Millisecond, "a leader", func() (bool, error) {
		for _, n := range c.Nodes[:2] {
			all, err := n.ReplicasOf(ctx, victim)
			if err != nil {
				return false, err
			}
			for _, r := range all {
				if r.Leader {
					leader = r
					return true, nil
				}
			}
		}
		return false, nil
	}); err != nil {
		t.Fatal(err)
	}
	return leader
}
