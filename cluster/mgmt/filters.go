package mgmt

import (
	"net/url"
	"slices"
	"time"

	"github.com/quorate/quorate/cluster/mgmt/api"
	"github.com/quorate/quorate/cluster/stats"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
)

// leaseNear is how soon a queue is deleted that the filter lease-ending lets through.
const leaseNear = time.Hour

// What GET /api/queues?filter= lets through.
const (
	withoutLeader   = "leaderless"   // no leader answers
	withoutMajority = "minority"     // half of the replicas or fewer are on nodes that are up
	withLate        = "late"         // consumers have not settled what was taken back from them
	withLeaseEnding = "lease-ending" // the queue is deleted within leaseNear unless it is used
)

// narrow keeps the queues that the request's filter lets through. all are the stats of all queues,
// and not asked for unless it takes a leader to know.
func (qs queues) narrow(q url.Values, v *catalog.View, l *listing[*catalog.Queue], all func() map[fsm.QueueID]stats.Queue) *api.Failure {
	var keep func(x *catalog.Queue) bool
	switch q.Get("filter") {
	case "":
		return nil
	case withoutMajority:
		keep = func(x *catalog.Queue) bool { return qs.describe(v, x, nil).State != "running" }
	case withoutLeader:
		keep = func(x *catalog.Queue) bool { _, led := all()[x.ID]; return !led }
	case withLate:
		keep = func(x *catalog.Queue) bool { return all()[x.ID].ConsumersTimedOut > 0 }
	case withLeaseEnding:
		end := int64(qs.node.Now()) + leaseNear.Milliseconds()
		keep = func(x *catalog.Queue) bool {
			at := all()[x.ID].LeaseExpiresAt
			return at != nil && *at <= end
		}
	default:
		return &api.Failure{Error: "bad_request", Reason: "filter must be one of leaderless, minority, late and lease-ending"}
	}
	l.items = slices.DeleteFunc(slices.Clone(l.items), func(x *catalog.Queue) bool { return !keep(x) })
	l.filtered = len(l.items)
	return nil
}
