package catalog

import (
	"strings"
	"testing"

	"github.com/quorate/quorate/proto/logpb"
)

// What a queue would adopt has the size that arguments may have; in a vhost that is strict, and if nothing differs,
// it does not matter, since nothing of it is kept.
func TestAdoptedSize(t *testing.T) {
	steps := "1," + strings.Repeat(" ", 5000) + "2"
	for mode, want := range map[string]string{
		"strict": "", "adopt": "arguments of queue 'q' have 5030 bytes, at most 4096 are allowed",
	} {
		c := &Catalog{}
		mustApply(t, c, "node n1 a versions=1-3", "initialize / guest", "setting fsm_version 3", "vhost / redeclare="+mode, "queue / q durable members=1")
		for args, want := range map[string]string{"x-delayed-retry-steps": want, "x-note": ""} {
			got := ""
			if err := c.View().Fits(declareQueueCommand("q", longstrTable(args, steps))); err != nil {
				got = err.Error()
			}
			if got != want {
				t.Errorf("%s, %s: %q, want %q", mode, args, got, want)
			}
		}
	}
}

// A mode that this program does not know is strict.
func TestUnknownMode(t *testing.T) {
	c := &Catalog{}
	mustApply(t, c, "node n1 a versions=1-3", "initialize / guest", "setting fsm_version 3", "queue / q durable members=1")
	row := &logpb.PutVhost{Name: "/", Redeclare: 7}
	c.Apply(c.View().Index()+1, &logpb.CatalogEntry{Version: 1, Commands: []*logpb.CatalogCommand{{Body: &logpb.CatalogCommand_PutVhost{PutVhost: row}}}})
	r := c.Apply(c.View().Index()+1, entryOf(t, "queue / q durable members=1 x-max-length=I:5"))[0]
	if RedeclareOf(row) != "strict" || r.Refusal == 0 {
		t.Errorf("%s, %v", RedeclareOf(row), r)
	}
}
