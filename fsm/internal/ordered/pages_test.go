package ordered

import (
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
)

// TestArena hands out and takes back, and keeps frozen copies, which must not
// change.
func TestArena(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	var a Arena[uint64]
	model := map[uint32]uint64{}
	type frozen struct {
		p     Pages[uint64]
		model map[uint32]uint64
	}
	var copies []frozen
	grow := true
	for step := range 60_000 {
		switch n := len(model); {
		case n > 3000:
			grow = false
		case n == 0:
			grow = true
		}
		if h := uint32(r.IntN(4000)); model[h] != 0 && (!grow || r.IntN(3) == 0) {
			a.Release(h)
			delete(model, h)
		} else if model[h] != 0 {
			*a.Mut(h)++
			model[h]++
		} else if grow {
			h := a.Alloc()
			if h == 0 || model[h] != 0 || *a.Get(h) != 0 {
				t.Fatalf("step %d: handle %d is not free", step, h)
			}
			*a.Mut(h) = uint64(step + 1)
			model[h] = uint64(step + 1)
		}
		if a.Live() != len(model) {
			t.Fatalf("step %d: %d live, want %d", step, a.Live(), len(model))
		}
		if r.IntN(5000) == 0 {
			copies = append(copies, frozen{a.Freeze(), maps.Clone(model)})
		}
	}
	copies = append(copies, frozen{a.Freeze(), model})
	for i, c := range copies {
		for h, v := range c.model {
			if *c.p.At(int(h)) != v {
				t.Fatalf("copy %d: %d is %d, want %d", i, h, *c.p.At(int(h)), v)
			}
		}
	}
}

// record is an item of several words.
type record struct{ a, b, c uint64 }

// TestArenaShrinks: what a backlog has taken comes back with it.
func TestArenaShrinks(t *testing.T) {
	var a Arena[record]
	for range 10 * chunkLen {
		a.Alloc()
	}
	for h := range uint32(10 * chunkLen) {
		a.Release(h + 1)
	}
	if a.Capacity() > chunkLen || cap(a.free) > chunkLen {
		t.Errorf("an empty arena keeps %d items and %d handles", a.Capacity(), cap(a.free))
	}
	if h := a.Alloc(); h != 1 || *a.Get(h) != (record{}) {
		t.Errorf("begins again with %d: %+v", h, *a.Get(h))
	}
}

func TestDeque(t *testing.T) {
	r := rand.New(rand.NewPCG(2, 2))
	var d Deque[int]
	var model []int
	type frozen struct {
		d     Deque[int]
		model []int
	}
	var copies []frozen
	for step := range 50_000 {
		// Swing between empty and some thousand.
		if target := (step / 5000 % 4) * 1500; len(model) > target && r.IntN(3) > 0 || len(model) > 0 && r.IntN(3) == 0 {
			if *d.Item(0) != model[0] {
				t.Fatalf("step %d: front is %d, want %d", step, *d.Item(0), model[0])
			}
			d.Pop()
			model = model[1:]
		} else {
			d.Push(step)
			model = append(model, step)
		}
		if len(model) > 0 {
			i := r.IntN(len(model))
			*d.Edit(i) += 1_000_000
			model = slices.Clone(model)
			model[i] += 1_000_000
			if *d.Item(i) != model[i] || *d.Item(len(model) - 1) != model[len(model)-1] {
				t.Fatalf("step %d: item %d differs", step, i)
			}
		}
		if d.Len() != len(model) {
			t.Fatalf("step %d: %d items, want %d", step, d.Len(), len(model))
		}
		if r.IntN(4000) == 0 {
			copies = append(copies, frozen{d.Capture(true), slices.Clone(model)})
		}
	}
	d.Clear()
	for i, c := range copies {
		for j, v := range c.model {
			if *c.d.Item(j) != v {
				t.Fatalf("copy %d: item %d is %d, want %d", i, j, *c.d.Item(j), v)
			}
		}
	}
}
