package queue

import (
	"math"
	"strings"
	"testing"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// longestEnd is a record of the greatest numbers, with so much text.
func longestEnd(text int) end {
	const most, instant = uint64(math.MaxUint64), fsm.Time(1 << 62)
	id := fsm.SessionID{Node: math.MaxUint32, Boot: most, Num: most}
	r := end{
		at: instant, index: most, term: most, count: most, seq: most, ref: fsm.Ref{Index: most, Offset: math.MaxUint32, Size: math.MaxUint32},
		enqueuedAt: instant, expireAt: instant, holder: fsm.ConsumerID{Session: id, Number: most}, letter: most, settled: most,
		acquired: math.MaxUint32, failed: math.MaxUint32, reason: uint8(logpb.EndState_FORWARDED), disposition: AtLeastOnce, posted: true,
	}
	s := strings.Repeat("x", text)
	tag := s[:min(text, maxTag)]
	messageID := s[:min(text-len(tag), fsm.MaxLabel)]
	r.setText(messageID, s[:text-len(tag)-len(messageID)], tag)
	return r
}

// TestEndSize: no record is longer than promised, whatever it says; one with little text has all
// its arrivals.
func TestEndSize(t *testing.T) {
	for _, text := range []int{0, smallText, smallText + 1, maxTag + 2*fsm.MaxLabel} {
		r := longestEnd(text)
		for range maxArrivals + 1 {
			r.arrive(math.MaxUint64)
		}
		if n := r.state().SizeVT(); n > endSize || text <= smallText && len(r.arrivals) != maxArrivals {
			t.Errorf("%d bytes with %d of text and %d arrivals", n, text, len(r.arrivals))
		}
	}
	if r := longestEnd(maxTag + 2*fsm.MaxLabel); r.state().SizeVT() > endSize {
		t.Error("a record without arrivals is too long")
	}
}
