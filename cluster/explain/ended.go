package explain

import (
	"github.com/quorate/quorate/cluster/mgmt/api"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/queue"
)

// Ended describes the record of an end in the terms of the API.
func Ended(names Names, e *queue.End) api.Ended {
	x := api.Ended{
		Number: e.Number, Reason: queue.ReasonName(e.Reason), At: int64(e.At), Index: e.Index, Term: e.Term, Count: max(e.Count, 1),
		Message: e.Seq, MessageID: e.MessageID, CorrelationID: e.CorrelationID, EnqueuedAt: int64(e.EnqueuedAt), ExpiresAt: int64(e.ExpireAt),
		AcquiredCount: e.Acquired, DeliveryCount: e.Failed, ConsumerTag: e.Tag, Letter: e.Letter, SettledAt: e.Settled,
	}
	if e.ExpireAt != 0 && e.EnqueuedAt != 0 {
		x.TTL = int64(e.ExpireAt - e.EnqueuedAt)
	}
	if e.Holder != (fsm.ConsumerID{}) {
		x.Session = SessionName(names, e.Holder.Session)
	}
	if e.Seq != 0 || e.Disposition != queue.Dropped {
		x.Disposition = e.Disposition.String()
	}
	for _, a := range e.Arrivals {
		x.Arrivals = append(x.Arrivals, api.Arrival{Queue: QueueName(names, a.Queue), Index: a.Index})
	}
	switch {
	case e.Letter == 0:
	case e.Settled == 0:
		x.LetterState = "pending"
	case len(e.Arrivals) > 0:
		x.LetterState = "arrived"
	default:
		x.LetterState = "dropped"
	}
	return x
}
