package queue

import (
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
	"google.golang.org/protobuf/proto"
)

func TestLiveIndexes(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 3))
	var l liveIndexes
	model := map[uint64]int{}
	var order []uint64 // of all messages, some entries more than once
	index := uint64(1)
	for step := range 60_000 {
		switch {
		case len(order) < 200 || r.IntN(2) == 0 && step < 40_000:
			index += uint64(r.IntN(3))
			l.add(index, fsm.Time(index/3))
			model[index]++
			order = append(order, index)
		default:
			// Mostly from the front, sometimes from anywhere.
			i := 0
			if r.IntN(2) == 0 {
				i = r.IntN(len(order))
			}
			x := order[i]
			order = slices.Delete(order, i, i+1)
			model[x]--
			if last := l.drop(x); last != (model[x] == 0) {
				t.Fatalf("step %d: entry %d: last is %v", step, x, last)
			}
			if model[x] == 0 {
				delete(model, x)
			}
			if at := l.time(x); model[x] > 0 && at != fsm.Time(x/3) || model[x] == 0 && at != 0 {
				t.Fatalf("step %d: entry %d came at %d", step, x, at)
			}
			if l.has(x) != (model[x] > 0) {
				t.Fatalf("step %d: entry %d: live is %v", step, x, l.has(x))
			}
		}
		if l.Len() != len(model) {
			t.Fatalf("step %d: %d entries for %d live", step, l.Len(), len(model))
		}
	}
	if got, want := slices.Collect(l.indexes()), slices.Sorted(maps.Keys(model)); !slices.Equal(got, want) {
		t.Errorf("live are %v, want %v", got, want)
	}
	if l.has(index + 1) {
		t.Error("an entry that never was is live")
	}
}

func TestHeld(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 5))
	var h held
	model := map[uint64]uint32{}
	id := uint64(0)
	type view struct {
		all  sorted[grip]
		want []uint64
	}
	var views []view
	for step := range 12_000 {
		switch r.IntN(4) {
		case 0, 1:
			if len(model) < 400 {
				id++
				h.push(checkout{id: id, grip: grip{handle: uint32(id%1000 + 1)}})
				model[id] = uint32(id%1000 + 1)
			}
		case 2:
			first := id - min(id, uint64(r.IntN(500)))
			last := first + uint64(r.IntN(6))
			if r.IntN(200) == 0 {
				last = ^uint64(0)
			}
			want := idsBetween(model, first, last)
			var got []uint64
			for _, c := range h.take(first, last, nil) {
				got = append(got, c.id)
				delete(model, c.id)
			}
			if !slices.Equal(got, want) {
				t.Fatalf("step %d: took %v, want %v", step, got, want)
			}
		case 3:
			probe := uint64(r.IntN(int(id) + 2))
			if c, ok := h.find(probe); ok != (model[probe] != 0) || ok && c.handle != model[probe] {
				t.Fatalf("step %d: %d found is %v", step, probe, ok)
			}
		}
		if h.Len() != len(model) {
			t.Fatalf("step %d: %d held, want %d", step, h.Len(), len(model))
		}
		if r.IntN(1000) == 0 {
			views = append(views, view{h.Freeze(), idsBetween(model, 0, id)})
		}
	}
	for i, v := range views {
		var got []uint64
		for k := range v.all.All() {
			got = append(got, k.Seq)
		}
		if !slices.Equal(got, v.want) {
			t.Fatalf("view %d has changed: %v, want %v", i, got, v.want)
		}
	}
}

func idsBetween(model map[uint64]uint32, first, last uint64) []uint64 {
	var ids []uint64
	for id := range model {
		if id >= first && id <= last {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

// TestCountersAreStored: every counter is in a snapshot, at a place of its own.
func TestCountersAreStored(t *testing.T) {
	var c, again Counters
	n := uint64(0)
	number := func(v reflect.Value) {
		n++
		v.SetUint(n)
	}
	for v := reflect.ValueOf(&c).Elem(); v.NumField() > int(n); {
		if f := v.Field(int(n)); f.Kind() == reflect.Uint64 {
			number(f)
		} else {
			n++ // the array of deaths
		}
	}
	for reason := range c.Deaths {
		for disposition := range c.Deaths[reason] {
			number(reflect.ValueOf(&c.Deaths[reason][disposition]).Elem())
		}
	}
	st := c.proto()
	fields := st.ProtoReflect().Descriptor().Fields()
	for i := range fields.Len() {
		if !st.ProtoReflect().Has(fields.Get(i)) {
			t.Errorf("no counter is stored as %s", fields.Get(i).Name())
		}
	}
	if err := again.restore(st); err != nil || again != c {
		t.Errorf("%v: stored %+v, restored %+v", err, c, again)
	}
}

// TestSettingsAreCopied: the settings of a queue are a copy of what the log says, but
// for fields of later versions: a snapshot would have them.
func TestSettingsAreCopied(t *testing.T) {
	c := &logpb.QueueConfig{DeliveryLimit: 3, RetrySteps: []uint64{1, 2}}
	c.ProtoReflect().SetUnknown([]byte{0xf8, 0x7f, 1})
	s := newSettings(c)
	c.RetrySteps[0], c.DeliveryLimit = 9, 9
	if !proto.Equal(s.QueueConfig, &logpb.QueueConfig{DeliveryLimit: 3, RetrySteps: []uint64{1, 2}}) {
		t.Errorf("the settings are %v", s.QueueConfig)
	}
}
