package mgmt

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"

	"github.com/quorate/quorate/cluster/mgmt/api"
	"github.com/quorate/quorate/cluster/stats"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/proto/logpb"
)

// TestPartOfAnOrder: a part of a list is what a sorted list has there, whatever it is sorted by.
func TestPartOfAnOrder(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 500 {
		o := ordered{vhosts: map[string]int{"b": 0, "a": 1}, byValue: random.IntN(4) > 0, reverse: random.IntN(2) > 0}
		for i := range random.IntN(60) {
			row := orderedQueue{of: &catalog.Queue{VHost: "ab"[i%2 : i%2+1], Name: fmt.Sprintf("q%02d", i/2)}}
			if n := random.IntN(5); o.byValue && n > 0 {
				row.value = float64(n)
			}
			o.rows = append(o.rows, row)
		}
		random.Shuffle(len(o.rows), func(i, j int) { o.rows[i], o.rows[j] = o.rows[j], o.rows[i] })
		var want []*catalog.Queue
		for _, row := range slices.SortedFunc(slices.Values(o.rows), o.compare) {
			want = append(want, row.of)
		}
		from := random.IntN(len(o.rows) + 1)
		to := from + random.IntN(len(o.rows)-from+1)
		if got := o.part(from, to); !slices.Equal(got, want[from:to]) {
			t.Fatalf("from %d to %d of %d, by value: %v, reverse: %v", from, to, len(want), o.byValue, o.reverse)
		}
	}
}

// TestOrderOfQueues: without a key the order is that of vhosts and names, and with one it is the value, missing ones
// first, the name and the vhost.
func TestOrderOfQueues(t *testing.T) {
	w := newWorld(t)
	for _, q := range []struct {
		vhost, name string
		messages    uint64
	}{{"hidden", "a", 1}, {"/", "c", 2}, {"/", "b", 2}, {"hidden", "b", 2}} {
		w.queue(q.vhost, q.name, false)
		w.stats[q.name] = stats.Queue{Leader: "n1", QueueStats: api.QueueStats{Messages: q.messages}}
	}
	for query, want := range map[string]string{
		"":                                "[/b /c hiddena hiddenb]",
		"sort=name":                       "[hiddena /b hiddenb /c]",
		"sort=messages":                   "[hiddena /b hiddenb /c]",
		"sort=messages&sort_reverse=true": "[/b hiddenb /c hiddena]",
		"sort=vhost&sort_reverse=true":    "[hiddena hiddenb /b /c]",
		"sort_reverse=true":               "[/b /c hiddena hiddenb]",
	} {
		var rows []struct{ VHost, Name string }
		if err := json.Unmarshal(w.request("root", "GET", "/api/queues?columns=vhost,name&"+query, "").Body.Bytes(), &rows); err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, x := range rows {
			got = append(got, x.VHost+x.Name)
		}
		if fmt.Sprint(got) != want {
			t.Errorf("%s: %v, want %s", query, got, want)
		}
	}
}

// declareMany declares queues q000000, q000001, ….
func (w *world) declareMany(count int) {
	w.t.Helper()
	for first := 0; first < count; first += 1000 {
		var all []*logpb.CatalogCommand
		for i := first; i < min(first+1000, count); i++ {
			all = append(all, &logpb.CatalogCommand{Body: &logpb.CatalogCommand_DeclareQueue{DeclareQueue: &logpb.DeclareQueue{
				Vhost: "/", Name: fmt.Sprintf("q%06d", i), Durable: true, Members: []uint32{1, 2, 3}, Arguments: &fsm.Table{},
			}}})
		}
		results, err := w.Propose(w.t.Context(), all...)
		for _, r := range results {
			if refused := catalog.Refused(r); err != nil || refused != nil {
				w.t.Fatal(err, refused)
			}
		}
	}
}

// TestLongLists: a list of more queues than a page may have is whole and in order, and leaders are asked about
// no more at a time than about a page.
func TestLongLists(t *testing.T) {
	w := newWorld(t)
	const count = 2*largestPage + 7
	w.declareMany(count)
	for i := range count {
		w.stats[fmt.Sprintf("q%06d", i)] = stats.Queue{Leader: "n1", QueueStats: api.QueueStats{Messages: uint64(i)}}
	}
	for query, last := range map[string]float64{"": count - 1, "?columns=name,messages": count - 1, "?sort=messages&sort_reverse=true": 0} {
		w.questions = nil
		var rows []map[string]any
		if err := json.Unmarshal(w.request("root", "GET", "/api/queues"+query, "").Body.Bytes(), &rows); err != nil {
			t.Fatal(err)
		}
		if len(rows) != count || rows[count-1]["messages"] != last || rows[0]["messages"] != count-1-last || len(rows[0]) == 2 != (query == "?columns=name,messages") {
			t.Errorf("%s: %d rows, %v … %v", query, len(rows), rows[0], rows[len(rows)-1])
		}
		if asked := w.questions[len(w.questions)-3:]; !slices.Equal(asked, []int{largestPage, largestPage, 7}) {
			t.Errorf("%s: leaders were asked about %d", query, w.questions)
		}
	}
}

// TestValuesHaveAnOrder: the order of values is one, also if some of them are numbers and others texts. Else a queue
// could be on two pages, and another one on none.
func TestValuesHaveAnOrder(t *testing.T) {
	all := []any{nil, "", "1z", "95", "true", -1.0, 9.0, 10.0}
	for _, a := range all {
		for _, b := range all {
			for _, c := range all {
				if compareValues(a, b) < 0 && compareValues(b, c) < 0 && compareValues(a, c) >= 0 {
					t.Errorf("%v < %v < %v", a, b, c)
				}
			}
			if a == nil && compareValues(a, b) > 0 {
				t.Errorf("%v comes before what is missing", b)
			}
		}
	}
}

// TestCutOff: a client that hangs up while a long list is written costs no more questions, and sees that the list is
// not whole.
func TestCutOff(t *testing.T) {
	w := newWorld(t)
	w.declareMany(4 * largestPage)
	ctx, hangUp := context.WithCancel(t.Context())
	r := httptest.NewRequest("GET", "/api/queues", http.NoBody).WithContext(ctx)
	r.SetBasicAuth("root", "root")
	d := &hangingUp{ResponseRecorder: httptest.NewRecorder(), after: 2, hangUp: hangUp}
	defer func() {
		if p := recover(); p != http.ErrAbortHandler || len(w.questions) != 2 || json.Valid(d.Body.Bytes()) {
			t.Errorf("%v, questions %d", p, w.questions)
		}
	}()
	w.handler.ServeHTTP(d, r)
}

// hangingUp is an answer to a client that hangs up after some parts.
type hangingUp struct {
	*httptest.ResponseRecorder
	after  int
	hangUp func()
}

func (d *hangingUp) Write(b []byte) (int, error) {
	if d.after--; d.after == 0 {
		d.hangUp()
	}
	return d.ResponseRecorder.Write(b)
}
