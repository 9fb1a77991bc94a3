package mgmt

import (
	"context"
	"encoding/json"
	"log/slog"
	"strings"
	"testing"

	"github.com/quorate/quorate/cluster/origin"
	"github.com/quorate/quorate/proto/logpb"
)

// sown is a world in which new vhosts are seeded.
func sown(t *testing.T, seeds *Seeds) *world {
	w := newWorld(t)
	guard, err := origin.New(nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	b := backendOf(w)
	b.Seeds = seeds
	w.server = New(b, slog.New(slog.DiscardHandler), guard)
	w.handler = w.server.Handler()
	return w
}

func someSeeds() *Seeds {
	return &Seeds{
		Limits: []LimitSeed{
			{VHosts: "^dev", Limits: map[string]int64{"max-queues": 5, "max-connections": 7}},
			{Limits: map[string]int64{"max-queues": 50}},
		},
		Policies: []PolicySeed{
			{VHosts: "^dev", Policy: &logpb.PutPolicy{Name: "short", Pattern: "^t", ApplyTo: "queues"}, Definition: map[string]any{"max-length": json.Number("9")}},
		},
		Users: []UserSeed{
			{VHosts: "^dev", Password: "secret", Tags: []string{"monitoring"}, Permission: &logpb.PutPermission{User: "qa", Configure: "^$", Write: ".*", Read: ".*"}},
			{Password: "other", Permission: &logpb.PutPermission{User: "maggie", Read: ".*"}},
			{Permission: &logpb.PutPermission{User: "root"}},
		},
	}
}

// A new vhost gets what matches it; those that are there already, and what others have said, stay.
func TestSeeds(t *testing.T) {
	seeds := someSeeds()
	if err := seeds.Check(); err != nil {
		t.Fatal(err)
	}
	w := sown(t, seeds)
	const limits = `{"max-connections":7,"max-queues":5}`
	w.check(
		want{"root", "PUT", "/api/vhosts/hidden", "", 204, ""},
		want{"root", "GET", "/api/vhost-limits/hidden", "", 200, "[]"},
		want{"root", "PUT", "/api/vhosts/dev1", "", 201, ""},
		want{"root", "GET", "/api/vhost-limits/dev1", "", 200, `[{"vhost":"dev1","value":` + limits + `}]`},
		want{"root", "GET", "/api/operator-policies/dev1/short", "", 200, `{"vhost":"dev1","name":"short","pattern":"^t","apply-to":"queues","definition":{"max-length":9},"priority":0}`},
		want{"root", "GET", "/api/permissions/dev1/qa", "", 200, `{"user":"qa","vhost":"dev1","configure":"^$","write":".*","read":".*"}`},
		want{"root", "GET", "/api/permissions/dev1/maggie", "", 200, `{"user":"maggie","vhost":"dev1","configure":"","write":"","read":".*"}`},
		want{"root", "GET", "/api/permissions/dev1/root", "", 200, `{"user":"root","vhost":"dev1","configure":".*","write":".*","read":".*"}`},
		want{"root", "PUT", "/api/vhosts/prod", "", 201, ""},
		want{"root", "GET", "/api/vhost-limits/prod", "", 200, `[{"vhost":"prod","value":{"max-queues":50}}]`},
		want{"root", "GET", "/api/operator-policies/prod", "", 200, "[]"},
	)
	if u, _ := w.View().User("maggie"); len(u.GetPasswordHash()) > 0 || u.GetTags()[0] != "management" {
		t.Errorf("a user that was there has become %v", u)
	}
	before, _ := w.View().User("qa")
	const definitions = `{"users":[],"vhosts":[{"name":"dev2"},{"name":"dev1"}],
		"parameters":[{"value":{"max-queues":1000},"vhost":"dev2","component":"vhost-limits","name":"limits"},
			{"value":{"max-queues":1},"vhost":"dev1","component":"vhost-limits","name":"limits"}],
		"permissions":[{"user":"qa","vhost":"dev2","configure":"^mine","write":"","read":""}]}`
	w.check(
		want{"root", "POST", "/api/definitions", definitions, 204, ""},
		want{"root", "GET", "/api/vhost-limits/dev2", "", 200, `[{"vhost":"dev2","value":{"max-connections":7,"max-queues":1000}}]`},
		want{"root", "GET", "/api/vhost-limits/dev1", "", 200, `[{"vhost":"dev1","value":{"max-connections":7,"max-queues":1}}]`},
		want{"root", "GET", "/api/permissions/dev2/qa", "", 200, `{"user":"qa","vhost":"dev2","configure":"^mine","write":"","read":""}`},
		want{"root", "GET", "/api/operator-policies/dev2/short", "", 200, `…"max-length":9`},
	)
	if after, _ := w.View().User("qa"); string(after.GetPasswordHash()) != string(before.GetPasswordHash()) || len(before.GetPasswordHash()) == 0 {
		t.Error("a user of an earlier vhost has another password")
	}
	w.do(&logpb.CatalogCommand{Body: &logpb.CatalogCommand_DeleteVhost{DeleteVhost: &logpb.DeleteVhost{Name: "dev2"}}})
	b := backendOf(w)
	b.Seeds = seeds
	if _, err := b.LoadDefinitions(context.Background(), []byte(`{"vhosts":[{"name":"dev2"}]}`), false); err != nil {
		t.Fatal(err)
	}
	w.check(want{"root", "GET", "/api/vhost-limits/dev2", "", 200, `[{"vhost":"dev2","value":` + limits + `}]`})
}

// What no vhost could be seeded with is found before there is one.
func TestSeedsAreChecked(t *testing.T) {
	for want, s := range map[string]*Seeds{
		"missing ) at offset 0": {Limits: []LimitSeed{{VHosts: "("}}},
		"valid maximum length":  {Policies: []PolicySeed{{VHosts: "^x", Policy: &logpb.PutPolicy{Name: "p", Pattern: ".*", ApplyTo: "all"}, Definition: map[string]any{"max-length": json.Number("-1")}}}},
		"apply-to":              {Policies: []PolicySeed{{Policy: &logpb.PutPolicy{Name: "p", Pattern: ".*", ApplyTo: "some"}, Definition: map[string]any{"max-length": json.Number("1")}}}},
		"a quantifier follows":  {Policies: []PolicySeed{{Policy: &logpb.PutPolicy{Name: "p", Pattern: "*", ApplyTo: "all"}, Definition: map[string]any{"max-length": json.Number("1")}}}},
		"missing ] at offset 0": {Users: []UserSeed{{VHosts: "^x", Permission: &logpb.PutPermission{User: "u", Configure: "["}}}},
		"missing ) at offset 1": {Users: []UserSeed{{VHosts: "a(", Permission: &logpb.PutPermission{User: "u"}}}},
	} {
		if err := s.Check(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
	var none *Seeds
	if err := none.Check(); err != nil {
		t.Error(err)
	}
}
