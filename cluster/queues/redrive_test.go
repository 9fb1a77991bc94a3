package queues

import (
	"testing"

	"github.com/quorate/quorate/proto/logpb"
)

// A step takes a tenth of a second's messages, at least one and at most 1000, and no more than the limit leaves.
func TestStepOfRedrive(t *testing.T) {
	for want, r := range map[uint32]*logpb.RedriveState{
		1000: {Redrive: &logpb.Redrive{}},
		999:  {Redrive: &logpb.Redrive{Limit: 5000}, Taken: 4001},
		1:    {Redrive: &logpb.Redrive{Rate: 3}},
		12:   {Redrive: &logpb.Redrive{Rate: 127, Limit: 100}, Taken: 5},
		7:    {Redrive: &logpb.Redrive{Rate: 10_000, Limit: 7}},
	} {
		if got := stepOf(r); got != want {
			t.Errorf("%v: %d, not %d", r, got, want)
		}
	}
}
