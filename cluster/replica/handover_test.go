package replica

import (
	"testing"
	"testing/synctest"
	"time"
)

// A move that has failed is not tried again at once, and each time later; one that succeeds makes up for all
// of them.
func TestMovesRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var h handover
		if h.rests() > 0 {
			t.Error("a first attempt is refused")
		}
		for _, pause := range []time.Duration{1, 2, 4, 8, 16, 30, 30} {
			h.ended(errUnderWay)
			if got := h.rests(); got != pause*time.Second {
				t.Errorf("the next attempt is refused for %v, want %v s", got, pause)
			}
			time.Sleep(pause * time.Second)
			if h.rests() > 0 {
				t.Errorf("it is still refused after %v s", pause)
			}
		}
		h.ended(nil)
		h.ended(errUnderWay)
		if got := h.rests(); got != firstMovePause {
			t.Errorf("after a success it begins with %v", got)
		}
	})
}
