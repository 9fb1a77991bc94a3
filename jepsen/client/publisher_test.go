package client

import (
	"testing"
	"testing/synctest"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// A rate is kept while nothing stands in its way. After a pause it goes on from there, or makes up for it.
func TestRate(t *testing.T) {
	for _, steady := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			p := newPacer(100, steady)
			defer p.timer.Stop()
			began := time.Now()
			publish := func(n int) time.Duration {
				for range n {
					<-p.turn()
					p.took()
				}
				return time.Since(began)
			}
			if at := publish(100); at != time.Second {
				t.Errorf("steady %t: 100 messages after %v", steady, at)
			}
			time.Sleep(time.Second)
			want := 3490 * time.Millisecond // the first one at once, the others at the rate
			if steady {
				want = 2500 * time.Millisecond
			}
			if at := publish(150); at != want {
				t.Errorf("steady %t: 150 more after %v, want %v", steady, at, want)
			}
		})
	}
	unlimited := newPacer(0, true)
	defer unlimited.timer.Stop()
	if !unlimited.due() {
		t.Error("without a rate a message is not due")
	}
	unlimited.took()
	<-unlimited.turn()
}

// What is known of a lost connection is its reason, whoever reads it first.
func TestWhy(t *testing.T) {
	errGone := &amqp.Error{Code: 320}
	closed := make(chan *amqp.Error, 1)
	if err := why(nil, closed); err != nil {
		t.Errorf("no reason: %v", err)
	}
	closed <- errGone
	if err := why(nil, closed); err != error(errGone) {
		t.Errorf("a reason that waits: %v", err)
	}
	if err := why(errGone, closed); err != error(errGone) {
		t.Errorf("a reason that was read: %v", err)
	}
	close(closed)
	if err := why(nil, closed); err != nil {
		t.Errorf("closed in order: %v", err)
	}
}
