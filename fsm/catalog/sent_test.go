package catalog

import (
	"testing"

	"github.com/quorate/quorate/fsm"
)

// TestSentRefused: the queue for what is not taken is one that there is, and not the same; versions before 3 have none.
func TestSentRefused(t *testing.T) {
	c := &Catalog{}
	mustApply(t, c, "node n1 a versions=1-3", "vhost /",
		"queue / refused members=1", "queue / source members=1 x-sent-refused-queue=S:refused",
		"queue / own members=1 x-sent-refused-queue=S:own", "queue / lost members=1 x-sent-refused-queue=S:nowhere")
	find := func(name string) string {
		q, _ := c.View().Queue("/", name)
		to, ok := q.SentRefused(c.View())
		if !ok {
			return ""
		}
		return to.Name
	}
	if to := find("source"); to != "" {
		t.Errorf("version 1 has %q", to)
	}
	mustApply(t, c, "setting fsm_version 3")
	for name, want := range map[string]string{"source": "refused", "own": "", "lost": "", "refused": ""} {
		if to := find(name); to != want {
			t.Errorf("%s has %q", name, to)
		}
	}
}

// TestSentRefusedNeedsRights: who declares such a queue may read it, and write to the exchange by which the other one is reached.
func TestSentRefusedNeedsRights(t *testing.T) {
	args := longstrTable(sentRefusedArgument, "refused")
	for _, missing := range []Verb{Read, Write} {
		asked := 0
		err := checkExits(func(verb Verb, kind, name string) error {
			if asked++; verb == missing {
				return refuse(fsm.AccessRefused, "no")
			}
			return nil
		}, "/", "source", args)
		if err == nil || asked == 0 {
			t.Errorf("%v: %v after %d questions", missing, err, asked)
		}
	}
	if err := checkExits(func(Verb, string, string) error { return refuse(fsm.AccessRefused, "no") }, "/", "source", nil); err != nil {
		t.Error(err)
	}
}
