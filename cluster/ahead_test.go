package cluster

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/quorate/quorate/cluster/mgmt/api"
	"github.com/quorate/quorate/fsm"
)

// TestAhead: every node counts what comes next in queues that each of three nodes leads, exactly.
func TestAhead(t *testing.T) {
	t.Parallel()
	c := mustCluster(t)
	cl := c.mustClient("n1")
	urls := map[string]string{}
	for _, name := range names {
		urls[name] = mustServe(t, c.all[name])
	}
	for i, name := range names {
		queue := "on-" + name
		cl.mustDeclare(queue, integer("x-expires", 7_200_000), text("x-delayed-retry-type", "all"), integer("x-delayed-retry-min", 1_800_000), integer("x-consumer-timeout", 30_000), integer("x-delivery-limit", -1))
		c.mustTransfer(queue, name)
		publish := func(n int, ttl, delay fsm.Millis) {
			for range n {
				cl.publishOf(queue, &fsm.Publish{TTL: ttl, Payload: fsm.AppendPayloadHead(nil, "", queue, nil), Schedule: &fsm.Schedule{Delay: delay}})
			}
			cl.confirmed()
		}
		publish(2, -1, -1)
		cl.mustConsume(queue, uint64(i+1), 2)
		cl.await("both are held", func() bool { return len(cl.inbox) == 2*(i+1) })
		cl.session.Settle(uint64(i+1), []uint64{1}, fsm.RequeueFailed)
		soon(t, "one waits for a retry", func() string {
			a := send(t, http.MethodGet, urls["n1"]+"/api/queues/%2F/"+queue, "", "guest", "guest")
			if !strings.Contains(string(a.raw), `"messages_delayed_retry":1`) {
				return string(a.raw)
			}
			return ""
		})
		if err := cl.session.Cancel(deadline(t), uint64(i+1)); err != nil {
			t.Fatal(err)
		}
		publish(i+1, 40_000, -1)
		publish(2, 3_000_000, -1)
		publish(1, 7_000_000, -1)
		publish(1, 172_800_000, -1)
		publish(1, -1, 3_700_000)
		publish(i, -1, 50_000)
	}
	cl.mustDeclare("unused", integer("x-expires", 50_000))
	want := api.Next{
		Minute: api.TimeCounts{Expire: 6, Fire: 3, TimeOut: 3, Delete: 1},
		Hour:   api.TimeCounts{Expire: 12, Fire: 3, TimeOut: 3, Retry: 3, Delete: 1},
		Day:    api.TimeCounts{Expire: 15, Fire: 6, TimeOut: 3, Retry: 3, Delete: 1},
	}
	for _, name := range names {
		soon(t, name+" counts all", func() string {
			var got api.Time
			if a := send(t, http.MethodGet, urls[name]+"/api/quorate/time", "", "guest", "guest"); json.Unmarshal(a.raw, &got) != nil {
				return string(a.raw)
			}
			if got.Next != want || got.AtLeast || got.Queues != 4 || got.Unknown != 0 {
				return fmt.Sprintf("%+v", got)
			}
			return ""
		})
	}
	var rows []api.QueueTime
	if a := send(t, http.MethodGet, urls["n3"]+"/api/quorate/time/queues?sort=name", "", "guest", "guest"); json.Unmarshal(a.raw, &rows) != nil || len(rows) != 4 {
		t.Fatalf("%s", a.raw)
	}
	for i := range names {
		if x := rows[i]; x.Minute != (api.TimeCounts{Expire: uint64(i + 1), Fire: uint64(i), TimeOut: 1}) || x.Day.Expire != uint64(i+4) || x.NextAt == 0 {
			t.Errorf("%+v", x)
		}
	}

	cl.close()
	c.crash("n3")
	soon(t, "what n3 led is counted by another node", func() string {
		var got api.Time
		a := send(t, http.MethodGet, urls["n1"]+"/api/quorate/time", "", "guest", "guest")
		if json.Unmarshal(a.raw, &got) != nil || got.Unknown != 0 || got.Day.Expire < 15 {
			return string(a.raw)
		}
		return ""
	})
}
