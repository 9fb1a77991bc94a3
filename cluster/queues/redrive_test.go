package queues

import (
	"testing"

	"github.com/quorate/quorate/proto/logpb"
)

// A step takes a hundredth of a second's messages, ten if those of a tenth of a second are so many, at least one and at most 1000, and no
// more than the limit leaves.
func TestStepOfRedrive(t *testing.T) {
	for want, r := range map[uint32]*logpb.RedriveState{
		1000: {Redrive: &logpb.Redrive{}},
		999:  {Redrive: &logpb.Redrive{Limit: 5000}, Taken: 4001},
		1:    {Redrive: &logpb.Redrive{Rate: 3}},
		6:    {Redrive: &logpb.Redrive{Rate: 67}},
		10:   {Redrive: &logpb.Redrive{Rate: 800, Limit: 100}, Taken: 5},
		50:   {Redrive: &logpb.Redrive{Rate: 5000}},
		7:    {Redrive: &logpb.Redrive{Rate: 10_000, Limit: 7}},
	} {
		if got := stepOf(r); got != want {
			t.Errorf("%v: %d, not %d", r, got, want)
		}
	}
}
