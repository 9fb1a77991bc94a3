package mgmt

import (
	"context"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/quorate/quorate/cluster/mgmt/api"
	"github.com/quorate/quorate/cluster/stats"
	"github.com/quorate/quorate/cluster/traffic"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/proto/peerpb"
)

// Traffic reports what clients do, as all nodes that are up have counted it.
type Traffic interface {
	// Traffic answers a query. It sets the query's slot.
	Traffic(ctx context.Context, q traffic.Query) *traffic.Report
	// ForgetSamples drops the samples of a node, or of all that are up; false: the node did not
	// answer.
	ForgetSamples(ctx context.Context, node string) bool
}

// counterNames are the names of counters in message_stats.
var counterNames = [...]string{
	traffic.Publish: "publish", traffic.Confirm: "confirm", traffic.ReturnUnroutable: "return_unroutable", traffic.DropUnroutable: "drop_unroutable",
	traffic.Deliver: "deliver", traffic.DeliverNoAck: "deliver_no_ack", traffic.Get: "get", traffic.GetNoAck: "get_no_ack", traffic.GetEmpty: "get_empty",
	traffic.Redeliver: "redeliver", traffic.Ack: "ack", traffic.PublishOut: "publish_out",
	traffic.Expired: "expired", traffic.DeadLettered: "dead_lettered",
}

// What message_stats contains, by object.
var (
	consumeCounters  = []traffic.Counter{traffic.Deliver, traffic.DeliverNoAck, traffic.Get, traffic.GetNoAck, traffic.GetEmpty, traffic.Redeliver, traffic.Ack}
	deathCounters    = []traffic.Counter{traffic.Expired, traffic.DeadLettered}
	queueCounters    = slices.Concat([]traffic.Counter{traffic.Publish}, consumeCounters, deathCounters)
	clusterCounters  = slices.Concat(channelCounters, deathCounters) // of the overview and vhosts
	channelCounters  = append([]traffic.Counter{traffic.Publish, traffic.Confirm, traffic.ReturnUnroutable, traffic.DropUnroutable}, consumeCounters...)
	exchangeCounters = []traffic.Counter{traffic.Publish, traffic.PublishOut}
	handedOut        = []traffic.Counter{traffic.Deliver, traffic.DeliverNoAck, traffic.Get, traffic.GetNoAck}
)

// samplesOf reads which samples a request asks for: KIND_age and KIND_incr, in seconds. Without
// them there are none.
func samplesOf(q url.Values, kind string) traffic.Range {
	step := int(traffic.Interval / time.Second)
	age, err := strconv.Atoi(q.Get(kind + "_age"))
	incr, incrErr := strconv.Atoi(q.Get(kind + "_incr"))
	if err != nil || incrErr != nil || age < 0 || incr < 1 {
		return traffic.Range{}
	}
	age = min(age, traffic.Kept*step)
	r := traffic.Range{Step: min((incr+step-1)/step, traffic.Kept)}
	r.Count = age/(r.Step*step) + 1
	return r
}

// trafficFor adds what a request asks for to a query.
func trafficFor(r *request, q traffic.Query) traffic.Query {
	values := r.URL.Query()
	q.Lengths, q.Counts = samplesOf(values, "lengths"), samplesOf(values, "msg_rates")
	return q
}

// sums asks for the traffic of nodes and vhosts.
func sums(r *request) traffic.Query {
	return trafficFor(r, traffic.Query{Of: peerpb.TrafficRequest_SUMS})
}

// details describes how the sum of some counters of an object changes.
func details(a *traffic.Activity, q *traffic.Query, of ...traffic.Counter) *api.Details {
	d := &api.Details{}
	var sum []uint64
	step := q.Counts.Step
	if of[0] == traffic.Ready || of[0] == traffic.Unacknowledged {
		step = q.Lengths.Step
	}
	for _, c := range of {
		d.Rate += a.Rate[c]
		if sum == nil {
			sum = make([]uint64, len(a.Samples[c]))
		}
		for i, n := range a.Samples[c] {
			sum[i] += n
		}
	}
	if len(sum) == 0 {
		return d
	}
	mean := 0.0
	for i, n := range sum {
		d.Samples = append(d.Samples, api.Sample{Value: n, At: traffic.TimeOf(q.Slot - int64(i*step))})
		mean += float64(n) / float64(len(sum))
	}
	rate := 0.0
	if n := len(sum) - 1; n > 0 {
		rate = (float64(sum[0]) - float64(sum[n])) / (float64(n*step) * traffic.Interval.Seconds())
	}
	d.Mean, d.AvgRate = &mean, &rate
	return d
}

// messageStats describes what has been done with the messages of an object; empty: nothing yet.
func messageStats(a *traffic.Activity, q *traffic.Query, counters []traffic.Counter) api.MessageStats {
	stats, some := api.MessageStats{}, false
	if a == nil {
		return stats
	}
	add := func(name string, of ...traffic.Counter) {
		n := uint64(0)
		for _, c := range of {
			n += a.Total[c]
		}
		some = some || n > 0
		stats[name], stats[name+"_details"] = n, details(a, q, of...)
	}
	for _, c := range counters {
		add(counterNames[c], c)
	}
	if len(counters) > len(exchangeCounters) {
		add("deliver_get", handedOut...)
	}
	if !some {
		return api.MessageStats{}
	}
	return stats
}

// exchangeStats is messageStats of an exchange, where a publish is what comes in.
func exchangeStats(a *traffic.Activity, q *traffic.Query) api.MessageStats {
	stats := messageStats(a, q, exchangeCounters)
	for _, suffix := range []string{"", "_details"} {
		if v, ok := stats["publish"+suffix]; ok {
			stats["publish_in"+suffix] = v
			delete(stats, "publish"+suffix)
		}
	}
	return stats
}

// lengthDetails describes how the lengths of an object change.
func lengthDetails(a *traffic.Activity, q *traffic.Query) api.LengthDetails {
	if a == nil { // no node has ever seen a message of it
		a = &traffic.Activity{}
		for _, c := range []traffic.Counter{traffic.Ready, traffic.Unacknowledged} {
			a.Samples[c] = make([]uint64, q.RangeOf(c).Count)
		}
	}
	return api.LengthDetails{
		MessagesDetails: details(a, q, traffic.Ready, traffic.Unacknowledged),
		ReadyDetails:    details(a, q, traffic.Ready), UnacknowledgedDetails: details(a, q, traffic.Unacknowledged),
	}
}

// published are the counters of pairs with an exchange.
var published = []traffic.Counter{traffic.Publish}

// pairs lists the pairs of an object in which something was counted, and whose other object is of the kind of T.
func pairs[T any](report *traffic.Report, counters []traffic.Counter, of func(p *traffic.Pair, s api.MessageStats) (row T, ok bool)) []T {
	list := []T{}
	for _, p := range report.Pairs {
		s := messageStats(&p.Activity, report.Query, counters)
		if row, ok := of(p, s); ok && len(s) > 0 {
			list = append(list, row)
		}
	}
	return list
}

// withChannels lists the pairs of an object with channels.
func withChannels(report *traffic.Report, counters []traffic.Counter) []api.WithChannel {
	return pairs(report, counters, func(p *traffic.Pair, s api.MessageStats) (x api.WithChannel, ok bool) {
		if p.Channel == nil {
			return x, false
		}
		return api.WithChannel{Channel: stats.ChannelFrom(p.Node, p.Channel), Stats: s}, true
	})
}

// withExchanges lists the pairs of a queue or a channel with exchanges.
func withExchanges(report *traffic.Report) []api.WithExchange {
	return pairs(report, published, func(p *traffic.Pair, s api.MessageStats) (x api.WithExchange, ok bool) {
		if p.Exchange == nil {
			return x, false
		}
		return api.WithExchange{Exchange: api.QueueName{Name: p.Exchange.Name, VHost: p.Exchange.VHost}, Stats: s}, true
	})
}

// withQueues lists the pairs of an exchange or a channel with queues that still exist.
func withQueues(v *catalog.View, report *traffic.Report, counters []traffic.Counter) []api.WithQueue {
	return pairs(report, counters, func(p *traffic.Pair, s api.MessageStats) (x api.WithQueue, ok bool) {
		q, ok := v.QueueByID(p.Queue)
		if !ok {
			return x, false
		}
		return api.WithQueue{Queue: api.QueueName{Name: q.Name, VHost: q.VHost}, Stats: s}, true
	})
}
