package manage

import (
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
	c, _ := mustCluster(t)
	limits := entity.Limits{MessageKilobytes: 16384}
	for range 2 {
		if err := f.Import(t.Context(), c, "/", limits); err != nil {
			t.Fatal(err)
		}
	}
	index := c.Catalog.View().Index()
	if err := f.Import(t.Context(), c, "/", limits); err != nil || c.Catalog.View().Index() != index {
		t.Error("the same import changes something", err)
	}
	q, _ := c.Catalog.View().Queue("/", "from")
	if s := c.Catalog.View().Settings(q, catalog.Defaults{}); s.GetForwardRoutingKey() != "queue.1" {
		t.Error(s)
	}
	f, err = ParseFile([]byte(strings.Replace(queuesFile, `"PT1M"`, `"PT2M"`, 1)), true)
	if q := f.Entities[1].Queue; err != nil || q.MaxDeliveryCount != 3 || q.DefaultMessageTimeToLive.String() != "PT1H" || q.DuplicateDetectionHistoryTimeWindow.String() != "PT20S" {
		t.Fatalf("%+v, %v", q, err)
	}
	if err := f.Import(t.Context(), c, "/", limits); err != nil {
		t.Fatal(err)
	}
	q, _ = c.Catalog.View().Queue("/", "queue.1")
	if s := c.Catalog.View().Settings(q, catalog.Defaults{}); s.GetLock() != 120_000 {
		t.Error(s)
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
