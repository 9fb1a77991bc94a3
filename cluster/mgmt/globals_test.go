package mgmt

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"slices"
	"testing"

	"github.com/quorate/quorate/cluster/mgmt/api"
)

// Global parameters are kept as they are given; the one with the cluster's name must be one.
func TestGlobalParameters(t *testing.T) {
	w := newWorld(t)
	w.check(
		want{"polly", "GET", "/api/global-parameters", "", 200, `[]`},
		want{"root", "PUT", "/api/global-parameters/x", `{}`, 400, failure("bad_request", "[{key_missing,value}]")},
		want{"polly", "PUT", "/api/global-parameters/x", `{"value":1}`, 401, notAdmin},
		want{"root", "PUT", "/api/global-parameters/x%2Fy", `{"name":"x/y","value":{"b":[1,12345678901234567890],"a":"<"}}`, 201, ""},
		want{"root", "PUT", "/api/global-parameters/x%2Fy", `{"value":7}`, 204, ""},
		want{"root", "PUT", "/api/global-parameters/a", `{"value":"1"}`, 201, ""},
		want{"polly", "GET", "/api/global-parameters", "", 200, `[{"name":"a","value":"1"},{"name":"x/y","value":7}]`},
		want{"polly", "GET", "/api/global-parameters/a", "", 200, `{"name":"a","value":"1"}`},
		want{"root", "GET", "/api/definitions", "", 200, `…"global_parameters":[{"name":"a","value":"1"},{"name":"x/y","value":7}]`},
		want{"root", "DELETE", "/api/global-parameters/a", "", 204, ""},
		want{"root", "DELETE", "/api/global-parameters/a", "", 404, notThere},
		want{"root", "GET", "/api/global-parameters/a", "", 404, notThere},
		want{"root", "POST", "/api/definitions", `{"global_parameters":[{"name":"b","value":{"c":1}},{"name":"cluster_name","value":"east"}]}`, 204, ""},
		want{"root", "GET", "/api/global-parameters/b", "", 200, `{"name":"b","value":{"c":1}}`},
		want{"root", "GET", "/api/global-parameters/cluster_name", "", 200, `{"name":"cluster_name","value":"east"}`},
		want{"root", "GET", "/api/global-parameters?columns=value.c", "", 200, `[{"value":{"c":1}},{},{}]`},
		want{"root", "PUT", "/api/cluster-name", `{"name":"west"}`, 204, ""},
		want{"root", "GET", "/api/global-parameters/cluster_name", "", 200, `{"name":"cluster_name","value":"west"}`},
		want{"root", "PUT", "/api/cluster-name", `{"name":""}`, 400, invalid("the name of a cluster should be a non-empty string")},
		want{"root", "PUT", "/api/global-parameters/cluster_name", `{"value":1}`, 400, invalid("the name of a cluster should be a non-empty string")},
		want{"maggie", "PUT", "/api/cluster-name", `{"name":"x"}`, 401, notAdmin},
	)
	if name, ok := w.catalog.View().ShownName(); !ok || name != "west" {
		t.Errorf("the cluster is called %q", name)
	}
}

// A protected vhost is not deleted, however it is asked for, until the protection ends.
func TestDeletionProtection(t *testing.T) {
	w := newWorld(t)
	refused := failure("precondition_failed", "vhost 'v' is protected from deletion")
	w.check(
		want{"root", "POST", "/api/vhosts/v/deletion/protection", "", 404, notThere},
		want{"root", "PUT", "/api/vhosts/v", `{"description":"d"}`, 201, ""},
		want{"root", "POST", "/api/vhosts/v/deletion/protection", "", 204, ""},
		want{"root", "GET", "/api/vhosts/v", "", 200, `…"protected_from_deletion":true`},
		want{"root", "GET", "/api/vhosts/v", "", 200, `…"description":"d"`},
		want{"root", "DELETE", "/api/vhosts/v", "", 412, refused},
		want{"root", "PUT", "/api/vhosts/v", `{"tags":"a"}`, 204, ""},
		want{"root", "DELETE", "/api/vhosts/v", "", 412, refused},
		want{"root", "DELETE", "/api/vhosts/v/deletion/protection", "", 204, ""},
		want{"root", "DELETE", "/api/vhosts/v", "", 204, ""},
		want{"root", "PUT", "/api/vhosts/v", `{"protected_from_deletion":true}`, 201, ""},
		want{"root", "DELETE", "/api/vhosts/v", "", 412, refused},
		want{"root", "PUT", "/api/vhosts/v", `{"protected_from_deletion":"maybe"}`, 400, "…not_boolean"},
	)
}

// What the peer's tools ask of nodes, flags and passwords.
func TestSmallQuestions(t *testing.T) {
	w := newWorld(t)
	w.check(
		want{"root", "POST", "/api/vhosts/%2F/start/n1", "", 204, ""},
		want{"root", "POST", "/api/vhosts/%2F/start/n9", "", 404, notThere},
		want{"root", "POST", "/api/vhosts/nope/start/n1", "", 404, notThere},
		want{"root", "PUT", "/api/feature-flags/fsm_version_1/enable", `{"name":"fsm_version_1"}`, 204, ""},
		want{"root", "PUT", "/api/feature-flags/all/enable", "", 204, ""},
		want{"root", "PUT", "/api/feature-flags/khepri_db/enable", "", 404, notThere},
		want{"root", "PUT", "/api/feature-flags/fsm_version_01/enable", "", 404, notThere},
		want{"root", "PUT", "/api/feature-flags/fsm_version_77/enable", "", 400, failure("bad_request", "unsupported: not all nodes support fsm_version_77")},
		want{"maggie", "GET", "/api/health/checks/reached-target-cluster-size", "", 200, `{"status":"ok","running_nodes":3,"target_cluster_size":3}`},
	)
	w.offline["n2"] = true
	w.check(
		want{"root", "POST", "/api/vhosts/%2F/start/n2", "", 503, failure("unavailable", "node 'n2' is down")},
		want{"maggie", "GET", "/api/health/checks/reached-target-cluster-size", "", 503, `{"status":"failed","reason":"cluster has fewer running nodes than its target size","running_nodes":2,"target_cluster_size":3}`},
	)
	var hash struct{ OK string }
	if err := json.Unmarshal(w.request("root", "GET", "/api/auth/hash_password/s%20e", "").Body.Bytes(), &hash); err != nil {
		t.Fatal(err)
	}
	raw, err := base64.StdEncoding.DecodeString(hash.OK)
	if err != nil || len(raw) != 36 {
		t.Fatalf("%q: %v", hash.OK, err)
	}
	if sum := sha256.Sum256(append(slices.Clone(raw[:4]), "s e"...)); !slices.Equal(sum[:], raw[4:]) {
		t.Errorf("%q is no hash of the password", hash.OK)
	}
}

// The memory of a node is a sum of what it is used for, and another node's is known as a whole.
func TestMemory(t *testing.T) {
	use := ownMemory(1 << 30)
	if use.Total.RSS != 1<<30 || use.Binary == 0 || use.OtherProc == 0 || use.Total.Runtime != use.Binary+use.OtherProc || use.Total.Allocated < use.Total.Runtime {
		t.Errorf("%+v", use)
	}
	raw, err := json.Marshal(api.Memory{Memory: use})
	var named map[string]map[string]any
	if err != nil || json.Unmarshal(raw, &named) != nil || len(named["memory"]) != 27 {
		t.Errorf("%d names, %v", len(named["memory"]), err)
	}
}
