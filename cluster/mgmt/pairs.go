package mgmt

import (
	"github.com/quorate/quorate/cluster/mgmt/api"
	"github.com/quorate/quorate/cluster/stats"
	"github.com/quorate/quorate/cluster/traffic"
	"github.com/quorate/quorate/fsm/catalog"
)

// published are the counters of pairs with an exchange.
var published = []traffic.Counter{traffic.Publish}

// withChannels lists the pairs of an object with channels, in which something was counted.
func withChannels(report *traffic.Report, counters []traffic.Counter) []api.WithChannel {
	list := []api.WithChannel{}
	for _, p := range report.Pairs {
		if p.Channel == nil {
			continue
		}
		if s := messageStats(&p.Activity, report.Query, counters); len(s) > 0 {
			list = append(list, api.WithChannel{Channel: stats.ChannelFrom(p.Node, p.Channel), Stats: s})
		}
	}
	return list
}

// withExchanges lists the pairs of a queue or a channel with exchanges.
func withExchanges(report *traffic.Report) []api.WithExchange {
	list := []api.WithExchange{}
	for _, p := range report.Pairs {
		if p.Exchange == nil {
			continue
		}
		if s := messageStats(&p.Activity, report.Query, published); len(s) > 0 {
			list = append(list, api.WithExchange{Exchange: api.QueueName{Name: p.Exchange.Name, VHost: p.Exchange.VHost}, Stats: s})
		}
	}
	return list
}

// withQueues lists the pairs of an exchange or a channel with queues that still exist, in which something
// was counted.
func withQueues(v *catalog.View, report *traffic.Report, counters []traffic.Counter) []api.WithQueue {
	list := []api.WithQueue{}
	for _, p := range report.Pairs {
		q, ok := v.QueueByID(p.Queue)
		if !ok {
			continue
		}
		if s := messageStats(&p.Activity, report.Query, counters); len(s) > 0 {
			list = append(list, api.WithQueue{Queue: api.QueueName{Name: q.Name, VHost: q.VHost}, Stats: s})
		}
	}
	return list
}
