package mgmt

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"testing"
	"time"

	"github.com/quorate/quorate/cluster/audit"
)

// What requests change is noted with who and what, and no secret; what only asks
// is not, unless it is refused.
func TestRequestsAreAudited(t *testing.T) {
	w := newWorld(t)
	w.queue("/", "q", false)
	var text bytes.Buffer
	w.server.SetAudit(audit.New("n1", &text, time.Now, func(err error) { t.Error(err) }))
	hash := `"password_hash":"kI3GCqW5JLMJa4iX1lo7X4D6XbYqlLgxIs30+P6tENUV2POR","hashing_algorithm":"rabbit_password_hashing_sha256"`
	for _, r := range [][4]string{
		{"root", "GET", "/api/users", ""},
		{"root", "PUT", "/api/users/ann", `{"tags":"management",` + hash + `}`},
		{"root", "PUT", "/api/permissions/%2F/ann", `{"configure":"","write":"^a","read":".*"}`},
		{"root", "PUT", "/api/policies/%2F/p%0A", `{"pattern":"^q","definition":{"max-length":1}}`},
		{"root", "POST", "/api/policies/%2F/p%0A/try", `{"pattern":"^q","definition":{"max-length":1}}`},
		{"maggie", "POST", "/api/policies/%2F/p%0A/try", `{"pattern":"^q","definition":{"max-length":1}}`},
		{"root", "PUT", "/api/users/bob", `{}`},
		{"root", "DELETE", "/api/users/ann", ""},
		{"root", "DELETE", "/api/reset", ""},
		{"maggie", "GET", "/api/users", ""},
		{"maggie", "GET", "/api/exchanges/%2F/amq.direct/delayed", ""},
		{"", "PUT", "/api/users/eve", `{"tags":""}`},
	} {
		w.request(r[0], r[1], r[2], r[3])
	}
	if bytes.Contains(text.Bytes(), []byte("kI3GCqW5")) {
		t.Errorf("a hash: %s", text.Bytes())
	}
	var got []string
	for d := json.NewDecoder(&text); d.More(); {
		var e audit.Event
		if err := d.Decode(&e); err != nil {
			t.Fatal(err)
		}
		if e.Protocol != "http" || e.Address == "" {
			t.Errorf("%+v", e)
		}
		got = append(got, fmt.Sprint(e.Kind, " ", e.User, " ", e.Action, " ", e.Target, " ", e.Detail, " ", e.Outcome, " ", e.Reason))
	}
	want := []string{
		"definition root PUT /api/users/{user} map[user:ann] map[tags:management] ok ",
		"definition root PUT /api/permissions/{vhost}/{user} map[user:ann vhost:/] map[configure: read:.* write:^a] ok ",
		"definition root PUT /api/policies/{vhost}/{name} map[name:p\n vhost:/] map[definition:map[max-length:1] pattern:^q] ok ",
		"access maggie POST /api/policies/{vhost}/{name}/try map[name:p\n vhost:/] map[] refused Not policymaker user",
		"definition root PUT /api/users/{user} map[user:bob] map[] failed Bad Request",
		"definition root DELETE /api/users/{user} map[user:ann] map[] ok ",
		"operation root DELETE /api/reset map[] map[] ok ",
		"access maggie GET /api/users map[] map[] refused Not administrator user",
		"access maggie GET /api/exchanges/{vhost}/{name}/delayed map[name:amq.direct vhost:/] map[] refused no right",
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%q\nwant %q", got, want)
	}
}
