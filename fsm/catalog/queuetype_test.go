package catalog

import (
	"testing"

	"github.com/quorate/quorate/proto/logpb"
)

// mustTyped returns a catalog of a version with a vhost for each default type:
// none is from a version before there was one.
func mustTyped(t *testing.T, version string) *Catalog {
	t.Helper()
	c := &Catalog{}
	mustApply(t, c, "node n1 a versions=1-3", "initialize none guest", "vhost classic default-queue-type=classic", "vhost quorum default-queue-type=quorum")
	if version != "1" {
		mustApply(t, c, "setting fsm_version "+version)
	}
	return c
}

// The proposer decides what kind of queue a declare means: by the type that it
// names, or else by its vhost's.
func TestDecideType(t *testing.T) {
	for version, rows := range map[string]map[string]bool{
		"3": {
			"queue classic q durable":                                        true,
			"queue classic q durable x-queue-type=S:":                        true,
			"queue classic q durable x-queue-type=S:undefined":               true,
			"queue classic q durable x-queue-type=S:quorum":                  false,
			"queue classic q durable x-queue-mode=S:lazy":                    true,
			"queue classic q durable x-max-priority=I:10":                    true,
			"queue quorum q durable x-queue-type=S:classic":                  true,
			"queue quorum q durable x-queue-type=S:classic x-max-length=I:1": true,
			"queue quorum q durable":                                         false,
			"queue quorum q durable x-queue-type=S:undefined":                false,
			"queue none q durable":                                           false,
			"queue none q durable x-queue-type=S:classic":                    true,
			"queue quorum q local":                                           true,
			"queue classic q local x-queue-type=S:quorum":                    false,
		},
		"2": {
			"queue classic q durable":                       false,
			"queue quorum q durable x-queue-type=S:classic": false,
		},
	} {
		v := mustTyped(t, version).View()
		for declare, classic := range rows {
			d := parseQueue(t, splitWords(declare))
			if v.DecideType(d, ""); d.Classic != classic {
				t.Errorf("version %s, %s: classic is %v", version, declare, d.Classic)
			}
		}
	}
}

// What was decided elsewhere stays, whatever the arguments and the vhost say.
func TestDecidedType(t *testing.T) {
	v := mustTyped(t, "3").View()
	for _, d := range []*logpb.DeclareQueue{parseQueue(t, splitWords("queue quorum q durable")), parseQueue(t, splitWords("queue classic q durable x-queue-type=S:quorum"))} {
		if v.DecideType(d, ClassicType); !d.Classic {
			t.Errorf("%v is not classic", d)
		}
		d.Vhost = ClassicType
		if v.DecideType(d, QuorumType); d.Classic {
			t.Errorf("%v is classic", d)
		}
	}
}

// A vhost has the type that it is given, or the one of new vhosts; what says
// nothing changes nothing.
func TestDefaultQueueType(t *testing.T) {
	c := mustTyped(t, "3")
	for _, row := range []struct{ vhost, given, want string }{
		{"new", "", "classic"}, {"new", "quorum", "quorum"}, {"new", "undefined", "classic"},
		{"none", "", "quorum"}, {"none", "classic", "classic"}, {"quorum", "undefined", "quorum"}, {"classic", "", "classic"},
	} {
		m := &logpb.PutVhost{Name: row.vhost, DefaultQueueType: row.given}
		if c.View().PutVhostOfType(m, ClassicType); DefaultTypeOf(m) != row.want {
			t.Errorf("%v: %q", row, m.DefaultQueueType)
		}
	}
	for vhost, want := range map[string]string{"none": "quorum", "classic": "classic", "quorum": "quorum", "nowhere": "quorum"} {
		if have := c.View().DefaultQueueType(vhost); have != want {
			t.Errorf("vhost %s: %s", vhost, have)
		}
	}
	m := &logpb.PutVhost{Name: "new", DefaultQueueType: "classic"}
	if mustTyped(t, "2").View().PutVhostOfType(m, ClassicType); m.DefaultQueueType != "" {
		t.Errorf("version 2: %q", m.DefaultQueueType)
	}
}
