package manage

import (
	"encoding/json"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/quorate/quorate/amqp/servicebus/entity"
	"github.com/quorate/quorate/fsm/catalog"
)

const queuesFile = `{
  // as in the emulator's samples
  "UserConfig": {
    "Namespaces": [
      {
        "Name": "sbemulatorns",
        "Queues": [
          { "Name": "from", "Properties": { "ForwardTo": "queue.1" } },
          {
            "Name": "queue.1", /* the text is "no // comment" */
            "Properties": {
              "DefaultMessageTimeToLive": "PT1H", "ForwardTo": "", "LockDuration": "PT1M", "MaxDeliveryCount": 3,
              "RequiresSession": false, "UserMetadata": "a // b, }",
            },
          },
        ],
        "Topics": [],
      },
    ],
    "Logging": { "Type": "File" },
  },
}`

func TestFile(t *testing.T) {
	f, err := ParseFile([]byte(queuesFile), false)
	if err != nil {
		t.Fatal(err)
	}
	if len(f.Entities) != 2 || f.Entities[0].Path.Name != "queue.1" || f.Entities[0].Queue.UserMetadata != "a // b, }" || f.Entities[1].Queue.MaxDeliveryCount != 10 {
		t.Errorf("%+v", f.Entities)
	}
	c, h := mustCluster(t)
	mustImport(t, f, c, true, "from created", "queue.1 created")
	mustImport(t, f, c, false, "from created", "queue.1 created")
	change := entry("Queue", "<ForwardTo>sb://h/queue.1</ForwardTo>") // which names the same
	if status, text := root(t, h, "PUT", "from", change, "If-Match", "*"); status != 200 {
		t.Fatal(status, text)
	}
	index := c.Catalog.View().Index()
	for _, dry := range []bool{false, true} {
		if mustImport(t, f, c, dry, "from same", "queue.1 same"); c.Catalog.View().Index() != index {
			t.Error("the same import changes something")
		}
	}
	q, _ := c.Catalog.View().Queue("/", "from")
	if s := c.Catalog.View().Settings(q, catalog.Defaults{}); s.GetForwardRoutingKey() != "queue.1" {
		t.Error(s)
	}
	f, err = ParseFile([]byte(strings.Replace(queuesFile, `"PT1M"`, `"PT2M"`, 1)), true)
	if q := f.Entities[1].Queue; err != nil || q.MaxDeliveryCount != 3 || q.DefaultMessageTimeToLive.String() != "PT1H" || q.DuplicateDetectionHistoryTimeWindow.String() != "PT20S" {
		t.Fatalf("%+v, %v", q, err)
	}
	const differs = `queue.1 changed LockDuration: PT2M, was PT1M; DuplicateDetectionHistoryTimeWindow: PT20S, was PT10M`
	const others = `from changed MaxDeliveryCount: 3, was 10; DuplicateDetectionHistoryTimeWindow: PT20S, was PT10M; DefaultMessageTimeToLive: PT1H, was P10675199DT2H48M5.4775807S`
	mustImport(t, f, c, true, others, differs)
	mustImport(t, f, c, false, others, differs)
	mustImport(t, f, c, false, "from same", "queue.1 same")
	q, _ = c.Catalog.View().Queue("/", "queue.1")
	if s := c.Catalog.View().Settings(q, catalog.Defaults{}); s.GetLock() != 120_000 {
		t.Error(s)
	}
}

// mustImport imports a file, and wants to be told what has become of the entities, in any order.
func mustImport(t *testing.T, f *File, b Broker, dry bool, want ...string) {
	t.Helper()
	done, err := f.Import(t.Context(), b, "/", entity.Limits{MessageKilobytes: 16384}, dry)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, x := range done {
		got = append(got, strings.TrimSpace(x.Entity+" "+x.Outcome+" "+strings.Join(x.Differs, "; ")))
	}
	if slices.Sort(got); !slices.Equal(got, want) {
		t.Errorf("dry %t: %q, want %q", dry, got, want)
	}
}

// Who has a namespace's key imports a file with it over HTTP, and is told what differs.
func TestImportOverHTTP(t *testing.T) {
	c, h := mustCluster(t)
	ask := func(file, key string, more string) (int, string) {
		body, _ := json.Marshal(file)
		r := httptest.NewRequest("POST", "http://h:5300/$import", strings.NewReader(`{"file":`+string(body)+more+`}`))
		r.SetBasicAuth("root", key)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w.Code, w.Body.String()
	}
	const file = `{"UserConfig":{"Namespaces":[{"Name":"n","Topics":[{"Name":"t","Subscriptions":[{"Name":"s","Rules":[{"Name":"a","Properties":{"FilterType":"Sql","SqlFilter":{"SqlExpression":"a = 1"}}}]}]}]}]}}`
	for _, x := range []struct {
		file, key, more string
		status          int
		want            string
	}{
		{file, "wrong", "", 401, "Invalid authorization token signature"},
		{file, "", "", 401, "InvalidToken"},
		{"{", "key", "", 400, "no JSON"},
		{strings.Replace(file, "Topics", "Topic", 1), "key", "", 400, "UserConfig.Namespaces[0].Topic: this key is not known"},
		{file, "key", `,"what":1`, 400, "what"},
		{file, "key", `,"dry_run":true`, 200, `{"entity":"t/Subscriptions/s","outcome":"created","differs":[]}`},
		{file, "key", "", 200, `{"entity":"t","outcome":"created","differs":[]}`},
		{file, "key", "", 200, `{"entity":"t/Subscriptions/s","outcome":"same","differs":[]}`},
		{strings.Replace(file, `"a = 1"`, `"a = 2"`, 1), "key", "", 200, `"differs":["rule a goes","rule a comes"]`},
		{strings.Replace(file, `"Name":"t",`, `"Name":"t","Properties":{"RequiresDuplicateDetection":true},`, 1), "key", "", 400, "t: The value for the RequiresDuplicateDetection property of an existing Topic cannot be changed."},
	} {
		if status, text := ask(x.file, x.key, x.more); status != x.status || !strings.Contains(text, x.want) {
			t.Errorf("%s %s: %d %s, want %s", x.more, x.key, status, text, x.want)
		}
	}
	if _, there := c.Catalog.View().Described("/", "t/subscriptions/s"); !there {
		t.Error("nothing was imported")
	}
}

func TestRulesOfFiles(t *testing.T) {
	f, err := ParseFile([]byte(`{"UserConfig":{"Namespaces":[{"Name":"n","Topics":[{"Name":"t","Properties":{"RequiresDuplicateDetection":true},"Subscriptions":[{"Name":"s","Properties":{"MaxDeliveryCount":3},"Rules":[
		{"Name":"a","Properties":{"FilterType":"Correlation","CorrelationFilter":{"Label":"l","Properties":{"p":1,"q":true,"r":"x","s":1.5}}}},
		{"Name":"b","Properties":{"FilterType":"Sql","SqlFilter":{"SqlExpression":"a = 1"},"Action":{"SqlExpression":"SET b = 1"}}}]},{"Name":"d"}]}]}]}}`), false)
	if err != nil {
		t.Fatal(err)
	}
	rules := f.Rules["t/subscriptions/s"]
	if len(f.Entities) != 3 || len(rules) != 2 || rules[0].Correlation.Label != "l" || rules[1].Action.Text != "SET b = 1" || f.Rules["t/subscriptions/d"][0].Name != entity.DefaultRule {
		t.Errorf("%+v", f)
	}
	kinds := ""
	for _, p := range rules[0].Correlation.Properties {
		kinds += string(p.Value.Kind) + " "
	}
	if kinds != "long boolean string double " {
		t.Error(kinds)
	}
}

func TestWrongFiles(t *testing.T) {
	for text, want := range map[string]string{
		`{`:                                "no JSON",
		`{"UserConfig":{"Namespaces":[]}}`: "one namespace",
		`{"UserConfig":{"Namespaces":[{"Queues":[{"Name":"q","Propertys":{}}]}]}}`:                                                        "UserConfig.Namespaces[0].Queues[0].Propertys: this key is not known",
		`{"UserConfig":{"Namespaces":[{"Queues":[{"Name":"q","Properties":{"LockDuration":"1"}}]}]}}`:                                     "UserConfig.Namespaces[0].Queues[0].Properties.LockDuration",
		`{"UserConfig":{"Namespaces":[{"Queues":[{"Name":"q","Properties":{"Lock":"1"}}]}]}}`:                                             "Properties.Lock: this key is not known",
		`{"UserConfig":{"Namespaces":[{"Queues":[{"Name":"/"}]}]}}`:                                                                       "Queues[0].Name",
		`{"UserConfig":{"Namespaces":[{"Topics":[{"Name":"t","Subscriptions":[{"Name":"s","Rules":[{"Name":"r","Properties":{}}]}]}]}]}}`: "FilterType",
		`{"UserConfig":{"Namespaces":{}}}`: "not a list",
	} {
		if _, err := ParseFile([]byte(text), false); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", text, err)
		}
	}
}
