package cluster

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/quorate/quorate/cluster/mgmt/api"
)

// A node's list of its clients is read as it was written, and only up to a bound.
func TestConnectionsOfAnotherNode(t *testing.T) {
	two, err := json.Marshal([]api.Connection{{Name: "a"}, {Name: "b"}})
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		answer string
		want   int
		ok     bool
	}{
		"two":        {string(two), 2, true},
		"none":       {"[]", 0, true},
		"no clients": {"null", 0, true},
		"nothing":    {"", 0, false},
		"garbage":    {"garbage", 0, false},
		"an object":  {"{}", 0, false},
		"cut short":  {string(two[:len(two)-2]), 0, false},
		"too many":   {"[" + strings.Repeat("{},", maxListed) + "{}]", 0, false},
	} {
		if list, err := decodeClients[api.Connection]([]byte(c.answer)); (err == nil) != c.ok || len(list) != c.want {
			t.Errorf("%s: %d connections, %v", name, len(list), err)
		}
	}
}
