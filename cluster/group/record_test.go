package group

import (
	"reflect"
	"slices"
	"testing"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/fsmtest/golden"
	"github.com/quorate/quorate/fsm/invariants"
	"github.com/quorate/quorate/fsm/queue"
	"github.com/quorate/quorate/proto/logpb"
)

// A machine that has slept after any entry of a history is the one that never slept: it answers the same from there on, and
// ends in the same state.
func TestSleepChangesNoState(t *testing.T) {
	t.Parallel()
	node, spec := &Node{config: Config{Newest: fsm.NewestVersion}}, &Spec{Name: "q", Queue: 1}
	encoded, kept, each := 0, 0, 1
	if invariants.Enabled {
		each = 5 // the machine looks at all of itself after each command
	}
	golden.Each(t, "../../fsm/fsmtest/testdata/golden", func(t *testing.T, of *golden.Record) {
		all := slices.Concat(of.Before, of.After)
		never := node.newMachine(*spec)
		type seen struct {
			results []fsm.Result
			hash    [32]byte
		}
		want := make([]seen, len(all))
		for n, e := range all {
			want[n] = seen{applied(t, never, e), never.Hash()}
		}
		for k := 0; k < len(all); k += each {
			m := node.newMachine(*spec)
			for n, e := range all {
				if got := applied(t, m, e); !reflect.DeepEqual(got, want[n].results) {
					t.Fatalf("having slept after entry %d, entry %d answers %v, not %v", all[k].Index, e.Index, got, want[n].results)
				}
				if n != k {
					continue
				}
				before := m
				r := &Record{}
				r.keep(m)
				if r.state != nil {
					encoded++
				} else {
					kept++
				}
				if k%2 == 0 {
					r = r.in(7, "n1")
				}
				if !r.view(node, spec, func(m *queue.Machine) {
					if m.Hash() != want[k].hash || !reflect.DeepEqual(StatsOf(m), r.stats) || !reflect.DeepEqual(StatsOf(before), r.stats) {
						t.Fatalf("asleep after entry %d, it is\n%s", e.Index, m)
					}
				}) {
					t.Fatal("a record cannot be read")
				}
				if m = r.take(node, spec); m.Hash() != want[k].hash || m.Index() != before.Index() || m.NextDeadline() != before.NextDeadline() {
					t.Fatalf("having slept after entry %d, it is\n%s", e.Index, m)
				}
			}
			if m.Hash() != want[len(all)-1].hash {
				t.Fatalf("having slept after entry %d, it ends as\n%s\nnot\n%s", all[k].Index, m, never)
			}
		}
	})
	if encoded == 0 || kept == 0 {
		t.Errorf("%d records have had an encoded state, %d a machine", encoded, kept)
	}
}

// applied applies an entry, and returns what its commands answer.
func applied(t *testing.T, m *queue.Machine, x golden.Entry) (results []fsm.Result) {
	t.Helper()
	e := &logpb.Entry{}
	if err := e.UnmarshalVT(x.Data); err != nil {
		t.Fatal(err)
	}
	var effects fsm.Effects
	for meta, c := range queue.Commands(x.Index, x.Term, e) {
		results = append(results, m.Apply(meta, c, &effects))
	}
	return results
}
