package group

import (
	"sync/atomic"
	"time"
)

// latency is how long entries take until they are committed: a mean in which the latest weigh most.
type latency struct{ ns atomic.Int64 }

// weight is the number of entries after which an older one counts for about a third.
const weight = 16

// observe adds an entry. Concurrent ones may be left out.
func (l *latency) observe(took time.Duration) {
	was := l.ns.Load()
	if was == 0 {
		l.ns.CompareAndSwap(0, max(int64(took), 1))
		return
	}
	l.ns.CompareAndSwap(was, max(was+(int64(took)-was)/weight, 1))
}

// mean is 0 before the first entry.
func (l *latency) mean() time.Duration { return time.Duration(l.ns.Load()) }
