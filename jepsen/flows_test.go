package jepsen

import (
	"context"
	"time"

	"github.com/quorate/quorate/jepsen/checker"
	"github.com/quorate/quorate/jepsen/client"
	"github.com/quorate/quorate/jepsen/history"
	"github.com/quorate/quorate/jepsen/workload"
)

// mustFlowWhile publishes to a plain queue, orders, so many messages of a size in a
// second, and beside it to one whose messages expire, consumes what arrives, and breaks
// things meanwhile. Whatever breaks, nothing confirmed is lost, nothing comes twice
// without a mark, nothing expires early, and in the end all replicas are equal. The
// history of orders is r.History.
func (r *run) mustFlowWhile(rate, size int, breaks func(context.Context) error) {
	r.Helper()
	r.mustPlayWhile([]*play{r.plainPlay(rate, size), r.expiryPlay(200, 0)}, breaks)
	r.Logf("%d faults; longest time without a confirm %v", len(r.Faults), r.LongestGap().Round(time.Millisecond))
	if len(r.Faults) == 0 {
		r.Error("nothing was broken")
	}
}

// plainPlay is a plain queue, orders. Its history is the run's.
func (r *run) plainPlay(rate, size int) *play {
	p := &play{History: r.History, name: "orders", queues: []workload.Queue{{Name: "orders"}}, serves: []string{"orders"}}
	p.publisher(r, "publisher", 0, rate, plain("orders", size))
	p.consumer(r, client.Consumer{Name: "consumer", First: 1, Queue: "orders"})
	p.drains(r, "orders")
	p.checks = []check{checker.Lost, checker.Unanswered, checker.Ghosts, checker.Doubled, checker.Disorder}
	return p
}

// expiryPlay is a queue, waiting, whose messages expire and go to another, dead. If
// recovery is not 0, they must not be later than it after a fault.
func (r *run) expiryPlay(rate int, recovery time.Duration) *play {
	p := &play{History: r.beside("expiring"), name: "expiring", queues: expiring, serves: []string{"dead"}}
	p.publisher(r, "publisher", 1, rate, shortLived)
	p.consumer(r, client.Consumer{Name: "consumer", First: 2, Queue: "dead"})
	p.drains(r, "dead")
	p.checks = []check{
		checker.Lost, checker.Unanswered, checker.Ghosts, checker.Doubled, checker.Early,
		func(h *history.History) checker.Verdict { return checker.Deaths(h, checker.Expired("waiting")) },
	}
	if recovery != 0 {
		p.checks = append(p.checks, lateBy(recovery))
	}
	return p
}

// lateBy finds what is late by more than a recovery from a fault.
func lateBy(recovery time.Duration) check {
	return func(h *history.History) checker.Verdict { return checker.Late(h, recovery) }
}
