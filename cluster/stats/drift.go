package stats

import (
	"cmp"
	"context"
	"encoding/json"
	"maps"
	"slices"

	"github.com/quorate/quorate/cluster/mgmt/api"
	"github.com/quorate/quorate/cluster/tables"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/proto/logpb"
	"github.com/quorate/quorate/proto/peerpb"
)

// Drifts lists with what arguments clients have declared otherwise what exists, as far as the nodes
// remember it, the last first.
func (q *Queues) Drifts(ctx context.Context) []api.Drift {
	return driftsFrom(q.c.Catalog.View(), Everywhere(ctx, q.nodes, "list drifted declares", answerWait, q.c.DriftsKind, &peerpb.DriftsRequest{}, q.answerDrifts).Of)
}

func (q *Queues) answerDrifts(*peerpb.DriftsRequest) *peerpb.DriftsReply { return q.c.Drifts() }

// driftsFrom adds up what nodes have counted of the same, and leaves out what is gone by now.
func driftsFrom(v *catalog.View, answers map[string]*peerpb.DriftsReply) (all []api.Drift) {
	type same struct {
		queue                                     uint64
		vhost, exchange, argument, received, user string
	}
	at := map[same]int{}
	for _, node := range slices.Sorted(maps.Keys(answers)) {
		for _, d := range answers[node].Drifts {
			row, there := driftFrom(v, d)
			if !there {
				continue
			}
			row.Node = node
			key := same{d.Queue, d.Vhost, d.Exchange, d.Argument, string(row.Received), d.User}
			i, known := at[key]
			if !known {
				at[key] = len(all)
				all = append(all, row)
				continue
			}
			if all[i].LastAt > row.LastAt {
				row.Client, row.Connection, row.Node, row.LastAt = all[i].Client, all[i].Connection, all[i].Node, all[i].LastAt
			}
			row.Times, row.FirstAt = row.Times+all[i].Times, min(row.FirstAt, all[i].FirstAt)
			all[i] = row
		}
	}
	slices.SortFunc(all, func(a, b api.Drift) int {
		return cmp.Or(cmp.Compare(b.LastAt, a.LastAt), cmp.Compare(a.VHost, b.VHost), cmp.Compare(a.Name, b.Name),
			cmp.Compare(a.Argument, b.Argument), cmp.Compare(string(a.Received), string(b.Received)), cmp.Compare(a.User, b.User))
	})
	return all
}

// driftFrom describes what one node has counted; false: it is about something that is gone.
func driftFrom(v *catalog.View, d *peerpb.Drift) (row api.Drift, there bool) {
	row = api.Drift{
		VHost: d.Vhost, Name: d.Exchange, Kind: "exchange", Argument: d.Argument, Received: shownValue(nil),
		User: d.User, Client: d.Client, Connection: d.Connection, Times: d.Times, FirstAt: d.First, LastAt: d.Last,
	}
	var has *fsm.Table
	if q, ok := v.QueueByID(fsm.QueueID(d.Queue)); ok {
		has, row.Name, row.Kind, row.Adoptions = v.Arguments(q), q.Name, "queue", v.Adoptions(q)
	} else if x, ok := v.Exchange(d.Vhost, d.Exchange); ok && d.Queue == 0 {
		has = x.Arguments
	} else {
		return row, false
	}
	row.Declared = shownValue(nil)
	if i := slices.IndexFunc(has.GetFields(), func(f *logpb.Field) bool { return f.GetName() == d.Argument }); i >= 0 {
		row.Declared = shownValue(has.Fields[i].GetValue())
	}
	var received logpb.Value
	if len(d.Received) > 0 && logpb.Unmarshal(d.Received, &received) == nil {
		row.Received = shownValue(&received)
	}
	row.Adopted = string(row.Declared) == string(row.Received)
	return row, true
}

// shownValue is a value of an argument as JSON; of nil, null.
func shownValue(v *logpb.Value) json.RawMessage {
	if v == nil {
		return json.RawMessage("null")
	}
	b, _ := json.Marshal(tables.JSONValue(v)) // which is of JSON
	return b
}
