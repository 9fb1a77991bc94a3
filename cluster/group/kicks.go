package group

import "time"

// kicks wake a goroutine that looks after something. However many come before it
// looks, it looks once.
type kicks chan struct{}

func newKicks() kicks { return make(kicks, 1) }

func (k kicks) wake() {
	select {
	case k <- struct{}{}:
	default:
	}
}

// serve looks once, and whenever it is woken, and again after each period as
// long as there is something to look after, until stop is closed. pause is the
// least time from one look to the next.
func (k kicks) serve(stop <-chan struct{}, period, pause time.Duration, look func(now time.Time) bool) {
	t := time.NewTimer(0)
	defer t.Stop()
	for {
		select {
		case <-stop:
			return
		case <-k:
		case <-t.C:
		}
		if look(time.Now()) {
			t.Reset(period)
		}
		select {
		case <-stop:
			return
		case <-time.After(pause):
		}
	}
}
