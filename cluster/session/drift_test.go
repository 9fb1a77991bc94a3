package session

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/quorate/quorate/cluster/audit"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/proto/logpb"
	"github.com/quorate/quorate/proto/peerpb"
)

// titledClient is a channel of a client that calls its connection something.
type titledClient struct {
	place
	given string
}

func (w *titledClient) Where() (connection, given string, channel uint16, client netip.AddrPort) {
	connection, _, channel, client = w.place.Where()
	return connection, w.given, channel, client
}

// redeclare makes the vhost one of a mode, in the newest version.
func (w *world) redeclare(mode logpb.PutVhost_Redeclare) {
	w.t.Helper()
	for _, c := range []*logpb.CatalogCommand{
		{Body: &logpb.CatalogCommand_RegisterNode{RegisterNode: &logpb.RegisterNode{Name: "n1", PeerAddress: "n1", Incarnation: []byte("0123456789abcdeF"), OldestVersion: 1, NewestVersion: fsm.NewestVersion}}},
		{Body: &logpb.CatalogCommand_PutSetting{PutSetting: &logpb.PutSetting{Name: catalog.FSMVersion, Value: fsm.NewestVersion}}},
		{Body: &logpb.CatalogCommand_PutVhost{PutVhost: &logpb.PutVhost{Name: "/", Redeclare: mode}}},
	} {
		w.Commit(c)
	}
}

func (w *world) mustWorker(given string) *Session {
	w.t.Helper()
	s, err := w.mustConnect("guest").OpenSession(&titledClient{given: given})
	if err != nil {
		w.t.Fatalf("open session: %v", err)
	}
	return s
}

func limited(n int64) fsm.QueueSpec {
	s := fsm.QueueSpec{Name: "q", Durable: true}
	if n >= 0 {
		s.Arguments = &fsm.Table{Fields: []*logpb.Field{{Name: "x-max-length", Value: &logpb.Value{Tag: 'l', Int: n}}}}
	}
	return s
}

// received is the value of a row as text.
func received(d *peerpb.Drift) string {
	if len(d.Received) == 0 {
		return ""
	}
	var v logpb.Value
	if err := logpb.Unmarshal(d.Received, &v); err != nil {
		return err.Error()
	}
	return catalog.Term(&v)
}

// remembered are the rows of a node, in order.
func (w *world) remembered() string {
	var rows []string
	for _, d := range w.sessions.Drifts.List().Drifts {
		rows = append(rows, fmt.Sprint(d.Vhost, " ", d.Queue != 0, " ", d.Exchange, " ", d.Argument, " ", received(d), " ", d.User, " ", d.Client, " ", d.Connection, " ", d.Times, " ", d.First, " ", d.Last))
	}
	slices.Sort(rows)
	return strings.Join(rows, "\n")
}

// mustDeclare declares a queue, and says whether the log has grown.
func (w *world) mustDeclare(s *Session, spec fsm.QueueSpec) (grown bool) {
	w.t.Helper()
	index := w.Catalog.View().Index()
	if _, created, err := s.declare(context.Background(), spec, false); err != nil || created {
		w.t.Fatalf("declare %v: created %v, %v", spec, created, err)
	}
	return w.Catalog.View().Index() != index
}

// TestRelaxedDeclares: what differs is remembered, by whom and how often, and costs no entry.
func TestRelaxedDeclares(t *testing.T) {
	w := newWorld(t)
	w.redeclare(logpb.PutVhost_RELAXED)
	a, b := w.mustWorker("billing"), w.mustWorker("")
	if _, created, err := a.declare(context.Background(), limited(10), false); err != nil || !created {
		t.Fatalf("created %v, %v", created, err)
	}
	x := fsm.ExchangeSpec{Name: "x", Type: "direct"}
	alternate := x
	alternate.Arguments = &fsm.Table{Fields: []*logpb.Field{{Name: "alternate-exchange", Value: &logpb.Value{Tag: 'S', Str: []byte("other")}}}}
	if err := a.DeclareExchange(context.Background(), x); err != nil {
		t.Fatal(err)
	}
	for _, step := range []func() bool{
		func() bool { return w.mustDeclare(a, limited(10)) }, func() bool { return w.mustDeclare(a, limited(20)) },
		func() bool { w.Clock.Add(5); return w.mustDeclare(b, limited(20)) }, func() bool { return w.mustDeclare(b, limited(-1)) },
		func() bool {
			index := w.Catalog.View().Index()
			if err := b.DeclareExchange(context.Background(), alternate); err != nil {
				t.Error(err)
			}
			return w.Catalog.View().Index() != index
		},
	} {
		if step() {
			t.Error("the log has grown")
		}
	}
	want := "/ false x alternate-exchange <<\"other\">> guest  a -> b 1 1000005 1000005\n" +
		"/ true  x-max-length  guest  a -> b 1 1000005 1000005\n" +
		"/ true  x-max-length 20 guest  a -> b 2 1000000 1000005"
	if got := w.remembered(); got != want {
		t.Errorf("remembers\n%s\nwant\n%s", got, want)
	}
	if tolerated, adopted := w.sessions.Drifts.Counts(); tolerated != 4 || adopted != 0 {
		t.Errorf("%d tolerated, %d adopted", tolerated, adopted)
	}
	w.mustDeclare(a, limited(20))
	if got := w.remembered(); !strings.Contains(got, "20 guest billing a -> b 3") {
		t.Errorf("the last one is not billing:\n%s", got)
	}
}

// TestAdoptedDeclares: an entry for each change, and none for what the queue has already, or changes too often.
func TestAdoptedDeclares(t *testing.T) {
	w := newWorld(t)
	lines := w.audited()
	w.redeclare(logpb.PutVhost_ADOPT)
	s := w.mustWorker("billing")
	if _, created, err := s.declare(context.Background(), limited(0), false); err != nil || !created {
		t.Fatalf("created %v, %v", created, err)
	}
	for n := int64(1); n <= 16; n++ {
		if !w.mustDeclare(s, limited(n)) || w.mustDeclare(s, limited(n)) {
			t.Fatalf("%d: not one entry for two declares", n)
		}
	}
	w.Clock.Add(9_999)
	if w.mustDeclare(s, limited(17)) {
		t.Error("it has changed once more at once")
	}
	w.Clock.Add(1)
	if !w.mustDeclare(s, limited(17)) {
		t.Error("it does not change any more")
	}
	if tolerated, adopted := w.sessions.Drifts.Counts(); tolerated != 1 || adopted != 17 {
		t.Errorf("%d tolerated, %d adopted", tolerated, adopted)
	}
	q, _ := w.Catalog.View().Queue("/", "q")
	if n := w.Catalog.View().Arguments(q).Fields[0].Value.Int; n != 17 || w.Catalog.View().Adoptions(q) != 17 {
		t.Errorf("x-max-length is %d after %d changes", n, w.Catalog.View().Adoptions(q))
	}
	if all := lines(); len(all) != 18 || all[17].Action != "queue.declare" || all[17].Outcome != audit.OK {
		t.Errorf("%d lines in the audit log, the last is %+v", len(all), all[len(all)-1])
	}
}

// A view that is behind knows nothing of the queue, or of what it has adopted.
func TestDriftBehind(t *testing.T) {
	for mode, want := range map[logpb.PutVhost_Redeclare][2]uint64{logpb.PutVhost_RELAXED: {1, 0}, logpb.PutVhost_ADOPT: {0, 1}} {
		w := newWorld(t)
		w.redeclare(mode)
		s, before := w.mustWorker("billing"), w.Catalog.View()
		w.MustQueue("q")
		w.stale.Store(true)
		w.behind.Store(before)
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		if _, created, err := s.declare(ctx, limited(5), false); err != nil || created {
			t.Fatalf("%v: created %v, %v", mode, created, err)
		}
		if tolerated, adopted := w.sessions.Drifts.Counts(); [2]uint64{tolerated, adopted} != want {
			t.Errorf("%v: %d tolerated, %d adopted", mode, tolerated, adopted)
		}
	}
}

// TestManyDrifts: a node remembers as many as it may, and drops what it has not seen for longest. Of a
// long value it keeps the beginning.
func TestManyDrifts(t *testing.T) {
	w := newWorld(t)
	w.redeclare(logpb.PutVhost_RELAXED)
	s := w.mustWorker(strings.Repeat("c", 300))
	w.MustQueue("q")
	for n := range int64(maxDrifts) {
		w.Clock.Add(1)
		w.mustDeclare(s, limited(n))
	}
	w.mustDeclare(s, limited(0))
	w.Clock.Add(1)
	w.mustDeclare(s, limited(maxDrifts))
	all := w.sessions.Drifts.List().Drifts
	has := func(value string) bool {
		for _, d := range all {
			if received(d) == value {
				return len(d.Client) == 255
			}
		}
		return false
	}
	if len(all) != maxDrifts || !has("0") || has("1") || !has(fmt.Sprint(maxDrifts)) {
		t.Errorf("remembers %d", len(all))
	}
	long := received(&peerpb.Drift{Received: []byte(encodedValue(&logpb.Value{Tag: 'S', Str: []byte(strings.Repeat("x", 100_000))}))})
	if len(long) > maxDriftValue || !strings.Contains(long, "xxx...") {
		t.Errorf("%d bytes: %s", len(long), long)
	}
}
