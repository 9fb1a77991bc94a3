package v091

import (
	"slices"
	"testing"

	"github.com/quorate/quorate/fsm"
)

// What a command takes is settled like what the client settles, and can be
// settled again once it is back, also if it belongs to a get.
func TestHoldings(t *testing.T) {
	c := consumers{byTag: map[string]*consumer{"c": {number: 1}}, deliveries: deliveries{gets: map[uint64]struct{}{}}}
	const get = 1 << 63
	for id := range uint64(3) {
		c.deliveries.tag(1, 10+id, false)
	}
	c.deliveries.tagGet(get, 7, false)
	list := []fsm.Held{{Tag: 1, Consumer: 1, ID: 10}, {Tag: 2, Consumer: 1, ID: 11}, {Tag: 3, Consumer: 1, ID: 12}, {Tag: 4, Consumer: get, ID: 7, Get: true}}
	if got := c.UpTo(1 << 63); !slices.Equal(got, list) {
		t.Fatalf("all: %v", got)
	}
	if got := c.UpTo(2); !slices.Equal(got, list[:2]) {
		t.Errorf("up to 2: %v", got)
	}
	if got := c.Of(1); !slices.Equal(got, list[:3]) {
		t.Errorf("of the consumer: %v", got)
	}
	if c.Consumer("c") != 1 || c.Consumer("d") != 0 {
		t.Error("a consumer is not found by its tag")
	}
	if h, ok := c.Take(2); !ok || h != list[1] {
		t.Errorf("taken: %v, %v", h, ok)
	}
	if _, ok := c.Find(2); ok {
		t.Error("what was taken is found")
	}
	if _, ok := c.Take(2); ok {
		t.Error("it is taken twice")
	}
	taken, ok := c.settle(&settlement{tag: 3, multiple: true}, false, nil)
	if !ok || len(taken) != 2 {
		t.Errorf("an ack of those before covers %v", taken)
	}
	c.Take(4)
	c.deliveries.tagGet(get|1, 8, false) // the first get is forgotten: nothing of it is left
	c.kept([]fsm.Held{list[3], list[1]})
	if got := c.UpTo(1 << 63); len(got) != 3 || got[0] != list[1] || got[1] != list[3] {
		t.Errorf("given back: %v", got)
	}
	if taken, ok = c.settle(&settlement{tag: 4, multiple: true}, false, nil); !ok || len(taken) != 2 {
		t.Errorf("settled again: %v", taken)
	}
}
