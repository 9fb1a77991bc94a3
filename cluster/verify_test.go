package cluster

import (
	"encoding/json"
	"fmt"
	"net/http"
	"sync"
	"testing"

	"github.com/quorate/quorate/cluster/mgmt/api"
)

// around are definitions with look-around wherever a pattern may be.
const around = `{
"vhosts":[{"name":"shop"}],
"users":[{"name":"app","password":"secret","tags":"management"}],
"permissions":[{"user":"app","vhost":"shop","configure":"^(?!amq\\.|.*\\.dead$).*","write":"^(?!.*\\.dead$)","read":".*"}],
"topic_permissions":[{"user":"app","vhost":"shop","exchange":"amq.topic","write":"(?<!\\.dead)$","read":"^(?=eu\\.).*"}],
"exchanges":[{"name":"dlx","vhost":"shop","type":"topic","durable":true}],
"queues":[{"name":"orders","vhost":"shop","durable":true,"arguments":{"x-queue-type":"quorum"}},{"name":"orders.dead","vhost":"shop","durable":true},{"name":"eu.eu","vhost":"shop","durable":true}],
"bindings":[{"vhost":"shop","source":"dlx","destination":"orders.dead","destination_type":"queue","routing_key":"#"}],
"policies":[{"vhost":"shop","name":"dlx","pattern":"^(?!(amq\\.|.*\\.dead$))","apply-to":"queues","definition":{"dead-letter-exchange":"dlx","delivery-limit":3},"priority":0},
 {"vhost":"shop","name":"twice","pattern":"^(eu)\\.\\1$","apply-to":"queues","definition":{"max-length":9},"priority":1}]}`

// verification is what a node says of the catalog's replicas.
func verification(t *testing.T, url string) (v api.Verification) {
	t.Helper()
	a := send(t, "GET", url+"/api/quorate/catalog/verify?timeout=10000", "", "guest", "guest")
	if err := json.Unmarshal(a.raw, &v); err != nil || a.status != http.StatusOK || len(v.Replicas) != len(names) {
		t.Fatalf("%d %s, %v", a.status, a.raw, err)
	}
	return v
}

// mustVerify compares the catalog's replicas as every node does it.
func mustVerify(t *testing.T, urls map[string]string) {
	t.Helper()
	for name, url := range urls {
		v := verification(t, url)
		for _, r := range v.Replicas {
			if v.Verdict != "equal" || r.StateHash == "" || r.StateHash != v.Replicas[0].StateHash || r.Error != "" {
				t.Fatalf("by %s: %+v", name, v)
			}
		}
	}
}

// mustMatch holds what every node says of the queues' policies, and of what a user may do, against what is wanted.
func mustMatch(t *testing.T, urls map[string]string, policies map[string]string) {
	t.Helper()
	for name, url := range urls {
		for queue, want := range policies {
			row := mustSend(t, "GET", url+"/api/queues/shop/"+queue+"?disable_stats=true", "", 200)
			if row["policy"] != want {
				t.Errorf("at %s %s has the policy %v, not %q", name, queue, row["policy"], want)
			}
		}
		for exchange, may := range map[string]bool{"mine": true, "mine.dead": false} {
			a := send(t, "PUT", url+"/api/exchanges/shop/"+exchange, "{}", "app", "secret")
			if is := a.status == http.StatusCreated || a.status == http.StatusNoContent; is != may || !may && a.status != http.StatusUnauthorized {
				t.Errorf("at %s app is answered %d %s for %s", name, a.status, a.raw, exchange)
			}
		}
	}
}

// The replicas of the catalog are equal at one entry after definitions with look-around are imported, while they are
// changed and queues come, and after a node was away meanwhile; each node acts on the same matches.
func TestCatalogVerified(t *testing.T) {
	t.Parallel()
	c := mustCluster(t)
	urls := map[string]string{}
	for _, name := range names {
		urls[name] = mustServe(t, c.all[name])
	}
	mustVerify(t, urls)
	mustSend(t, "POST", urls["n2"]+"/api/definitions", around, 200)
	mustVerify(t, urls)
	mustMatch(t, urls, map[string]string{"orders": "dlx", "orders.dead": "", "eu.eu": "twice"})
	for _, url := range urls {
		row := mustSend(t, "GET", url+"/api/policies/shop/dlx", "", 200)
		if row["pattern"] != `^(?!(amq\.|.*\.dead$))` {
			t.Errorf("the pattern is %q", row["pattern"])
		}
	}

	// A policy changes to and fro while queues come that it may match; replicas meet at an entry to come.
	stop := make(chan struct{})
	var busy sync.WaitGroup
	rest := sync.OnceFunc(func() { close(stop); busy.Wait() })
	defer rest()
	work := func(f func(i int)) {
		busy.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
					f(i)
				}
			}
		})
	}
	work(func(i int) {
		send(t, "PUT", urls["n1"]+"/api/policies/shop/dlx", fmt.Sprintf(`{"pattern":"^(?!(amq\\.|.*%d$))","apply-to":"queues","definition":{"delivery-limit":%d}}`, i%10, i%7+1), "guest", "guest")
	})
	work(func(i int) {
		send(t, "PUT", fmt.Sprintf("%s/api/exchanges/shop/x%d", urls["n3"], i%50), `{"type":"topic"}`, "guest", "guest")
		send(t, "DELETE", fmt.Sprintf("%s/api/exchanges/shop/x%d", urls["n3"], (i+25)%50), "", "guest", "guest")
	})
	var met uint64
	for range 5 {
		for _, name := range names {
			until(t, "the catalog changes", func() bool { return c.all[name].View().Index() > met })
			v := verification(t, urls[name])
			if v.Verdict != "equal" || v.Index <= met {
				t.Errorf("by %s, after entry %d: %+v", name, met, v)
			}
			met = v.Index
		}
	}
	rest()
	mustVerify(t, urls)

	// A node that is away is not compared, and it has the same catalog when it is back.
	c.stop("n3")
	mustSend(t, "PUT", urls["n1"]+"/api/policies/shop/dlx", `{"pattern":"^(?!orders$)(?=.*s)","apply-to":"queues","definition":{"delivery-limit":5}}`, 204)
	a := send(t, "GET", urls["n1"]+"/api/quorate/catalog/verify?timeout=1000", "", "guest", "guest")
	var v api.Verification
	if err := json.Unmarshal(a.raw, &v); err != nil || v.Verdict != "unknown" || len(v.Replicas) != 3 || v.Replicas[2].Node != "n3" || v.Replicas[2].Error == "" {
		t.Errorf("without n3: %s, %v", a.raw, err)
	}
	c.mustOpen("n3")
	urls["n3"] = mustServe(t, c.all["n3"])
	mustVerify(t, urls)
	mustMatch(t, urls, map[string]string{"orders": "", "orders.dead": "dlx", "eu.eu": "twice"})
}
