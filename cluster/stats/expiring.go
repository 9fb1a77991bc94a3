package stats

import (
	"time"

	"github.com/quorate/quorate/cluster/mgmt/api"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/fsm/queue"
)

// expiringWithin are the times from now on, in ms, ascending, for which is counted how many messages of
// a queue expire. Each is about twice the one before, so that a minute ahead is as fine as a month.
// No message lives longer than the last one.
var expiringWithin = func() (list []uint64) {
	const day = 24 * time.Hour
	for _, d := range []time.Duration{
		time.Second, 2 * time.Second, 5 * time.Second, 10 * time.Second, 20 * time.Second, 30 * time.Second,
		time.Minute, 2 * time.Minute, 5 * time.Minute, 10 * time.Minute, 20 * time.Minute, 30 * time.Minute,
		time.Hour, 2 * time.Hour, 4 * time.Hour, 8 * time.Hour, 16 * time.Hour, day, 2 * day, 4 * day, 7 * day, 14 * day, 30 * day, 60 * day,
	} {
		list = append(list, uint64(d.Milliseconds()))
	}
	return append(list, catalog.MaxTTL)
}()

// expiringSoon are the times that are counted for all queues, to be summed up.
var expiringSoon = []uint64{uint64(time.Minute.Milliseconds()), uint64(time.Hour.Milliseconds())}

// withinFor are the times that are asked about with the stats of these queues; without ids, of all.
func withinFor(ids []fsm.QueueID) []uint64 {
	switch len(ids) {
	case 0:
		return expiringSoon
	case 1:
		return expiringWithin
	}
	return nil
}

// expiring counts the messages of a queue that expire within times from now on. It returns at most as
// many counts as there can be.
func expiring(m *queue.Machine, now fsm.Time, within []uint64) []uint64 {
	return queue.ExpiringBy(m, instantsOf(now, within))
}

// instantsOf are times from now on as instants.
func instantsOf(now fsm.Time, within []uint64) (list []fsm.Time) {
	for _, ms := range within {
		list = append(list, now+fsm.Time(min(ms, catalog.MaxTTL)))
	}
	return list
}

// expiringFrom describes counts of a queue's leader; nil: nothing expires, or it has not been asked.
func expiringFrom(within, counts []uint64) (list []api.ExpiringWithin) {
	if len(counts) != len(within) || len(counts) == 0 || counts[len(counts)-1] == 0 {
		return nil
	}
	for i, n := range counts {
		list = append(list, api.ExpiringWithin{WithinMS: within[i], Messages: n})
		if n == counts[len(counts)-1] {
			break
		}
	}
	return list
}
