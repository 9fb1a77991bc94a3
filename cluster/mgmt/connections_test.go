package mgmt

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"

	"github.com/quorate/quorate/cluster/mgmt/api"
)

// Connections, management.md §2 and test 33.
func TestConnections(t *testing.T) {
	w := newWorld(t)
	hers := api.Connection{Name: "127.0.0.1:1 -> 127.0.0.1:2", Node: "n2", User: "maggie", VHost: "/", ClientProperties: map[string]any{}}
	other := api.Connection{Name: "127.0.0.1:3 -> 127.0.0.1:2", Node: "n1", User: "root", VHost: "hidden", ClientProperties: map[string]any{}}
	w.clients = []api.Connection{hers, other}
	show := func(all ...api.Connection) string {
		raw, err := json.Marshal(orEmpty(all))
		if err != nil {
			t.Fatal(err)
		}
		return string(raw)
	}
	one, err := json.Marshal(hers)
	if err != nil {
		t.Fatal(err)
	}
	const first, second = "/api/connections/127.0.0.1%3A1%20-%3E%20127.0.0.1%3A2", "/api/connections/127.0.0.1%3A3%20-%3E%20127.0.0.1%3A2"
	w.check(
		want{"mona", "GET", "/api/connections", "", 200, show(hers, other)},
		want{"mona", "GET", "/api/connections/", "", 200, show(hers, other)},
		want{"maggie", "GET", "/api/connections", "", 200, show(hers)},
		want{"mona", "GET", "/api/vhosts/hidden/connections", "", 200, show(other)},
		want{"maggie", "GET", "/api/vhosts/hidden/connections", "", 404, notThere},
		want{"mona", "GET", "/api/connections/username/maggie", "", 200, show(hers)},
		want{"maggie", "GET", first, "", 200, string(one)},
		want{"maggie", "GET", second, "", 404, notThere},
		want{"maggie", "DELETE", second, "", 404, notThere},
		want{"maggie", "DELETE", first, "", 204, ""},
		want{"maggie", "DELETE", first, "", 404, notThere},
		want{"root", "DELETE", "/api/connections/username/root", "", 204, ""},
		want{"root", "DELETE", "/api/connections/username/root", "", 204, ""},
		want{"nobody", "GET", "/api/connections", "", 401, failure("not_authorised", "Not management user")},
	)
	reasons := []string{hers.Name + ": Closed via management plugin", other.Name + ": Closed via management plugin"}
	if !slices.Equal(w.closed, reasons) {
		t.Error(fmt.Sprint(w.closed), "want", reasons)
	}
}
