package manage

import (
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/quorate/quorate/amqp/servicebus/entity"
	"github.com/quorate/quorate/amqp/servicebus/sas"
)

// authority is a rule of an entity that may manage it.
func authority(name, key string) string {
	return `<AuthorizationRules><AuthorizationRule><Rights><AccessRights>Manage</AccessRights></Rights><KeyName>` + name + `</KeyName><PrimaryKey>` + key + `</PrimaryKey></AuthorizationRule></AuthorizationRules>`
}

// mustPut creates entities as root: path, kind and what is said of it, three a time.
func mustPut(t *testing.T, h *Handler, entities ...string) {
	t.Helper()
	for i := 0; i < len(entities); i += 3 {
		if status, text := root(t, h, "PUT", entities[i], entry(entities[i+1], entities[i+2])); status != 201 {
			t.Fatal(entities[i], status, text)
		}
	}
}

// HT-6: who may manage one entity has it forward to another one with a token for that.
func TestForwardingNeedsBothEntities(t *testing.T) {
	_, h := mustCluster(t)
	mustPut(t, h, "from", "Queue", authority("own", "k1"), "to", "Queue", authority("own", "k2"), "other", "Queue", "")
	sign := func(path, key string) string {
		return sas.Sign("http://h:5300/"+path, "own", key, now.Add(time.Minute))
	}
	const forward, dead = "ServiceBusSupplementaryAuthorization", "ServiceBusDlqSupplementaryAuthorization"
	for _, x := range []struct {
		inner   string
		headers []string
		status  int
	}{
		{"<ForwardTo>to</ForwardTo>", nil, 401},
		{"<ForwardTo>to</ForwardTo>", []string{forward, sign("from", "k1")}, 401},
		{"<ForwardTo>to</ForwardTo>", []string{forward, sign("to", "k1")}, 401},
		{"<ForwardTo>to</ForwardTo>", []string{dead, sign("to", "k2")}, 401},
		{"<ForwardTo>other</ForwardTo>", []string{forward, sign("to", "k2")}, 401},
		{"<ForwardTo>to</ForwardTo>", []string{forward, sas.Sign("http://h/to", "low", "low", now.Add(time.Minute))}, 401},
		{"<ForwardTo>to</ForwardTo>", []string{forward, sign("to", "k2")}, 200},
		{"<ForwardTo>to</ForwardTo>", []string{forward, sas.Sign("http://h/", "root", "key", now.Add(time.Minute))}, 200},
		{"<ForwardDeadLetteredMessagesTo>sb://h/to</ForwardDeadLetteredMessagesTo>", []string{forward, sign("to", "k2")}, 401},
		{"<ForwardDeadLetteredMessagesTo>sb://h/to</ForwardDeadLetteredMessagesTo>", []string{dead, sign("to", "k2")}, 200},
		{"", nil, 200},
	} {
		if status, text := ask(t, h, "PUT", "from", entry("Queue", x.inner), "own", "k1", append(x.headers, "If-Match", "*")...); status != x.status {
			t.Errorf("%s with %s: %d %s", x.inner, x.headers, status, text)
		}
	}
	if status, text := root(t, h, "PUT", "from", entry("Queue", "<ForwardTo>to</ForwardTo>"), "If-Match", "*"); status != 200 {
		t.Error("a rule of the namespace needs nothing else", status, text)
	}
}

// A rule of a topic is good for its subscriptions and their rules, and for no others.
func TestRulesOfTopics(t *testing.T) {
	_, h := mustCluster(t)
	mustPut(t, h, "t", "Topic", authority("own", "k1"), "t/Subscriptions/s", "Subscription", "", "u", "Topic", "", "u/Subscriptions/s", "Subscription", "")
	for path, want := range map[string]int{
		"t": 200, "T/subscriptions": 200, "t/Subscriptions/": 200, "t/Subscriptions/s": 200, "t/Subscriptions/s/Rules/": 200, "t/Subscriptions/s/Rules/$Default": 200,
		"u": 401, "u/Subscriptions": 401, "u/Subscriptions/s": 401, "u/Subscriptions/s/Rules": 401, "$Resources/Topics": 401, "$namespaceinfo": 401,
	} {
		if status, text := ask(t, h, "GET", path, "", "own", "k1"); status != want {
			t.Errorf("%s: %d %s", path, status, text)
		}
	}
}

// HT-1: pages are as long as was asked for, as a shorter one is the last one to clients.
func TestPages(t *testing.T) {
	_, h := mustCluster(t)
	mustPut(t, h, "t", "Topic", "", "t/Subscriptions/s", "Subscription", "")
	for i := range 130 {
		mustPut(t, h, fmt.Sprintf("q%03d", i), "Queue", "")
		rule := `<Filter i:type="SqlFilter"><SqlExpression>a = 1</SqlExpression></Filter>`
		if status, text := root(t, h, "PUT", fmt.Sprintf("t/Subscriptions/s/Rules/r%d", i), entry("Rule", rule)); i < 4 && status != 201 {
			t.Fatal(status, text)
		}
	}
	for _, x := range []struct {
		path          string
		status, count int
		last          bool
	}{
		{"$Resources/Queues", 200, 100, false},
		{"$Resources/queues?$skip=100", 200, 30, true},
		{"queues?$top=120", 200, 120, false},
		{"queues?$skip=120&$top=120", 200, 10, true},
		{"queues?$skip=500", 200, 0, true},
		{"$Resources/Queues?$top=0", 400, 0, true},
		{"$Resources/Queues?$top=1001", 400, 0, true},
		{"$Resources/Queues?$skip=-1", 400, 0, true},
		{"t/Subscriptions/s/Rules?$top=100&$skip=100&api-version=2017-04", 200, 31, true},
		{"t/Subscriptions/?$top=1", 200, 1, true},
		{"gone/Subscriptions", 404, 0, true},
		{"q000/Subscriptions", 404, 0, true},
		{"t/Subscriptions/gone/Rules", 404, 0, true},
		{"t/Subscriptions/s/Rules/gone", 404, 0, true},
	} {
		status, text := root(t, h, "GET", x.path, "")
		if status != x.status || strings.Count(text, "<entry>") != x.count || strings.Contains(text, `rel="next"`) == x.last {
			t.Errorf("%s: %d, %d entries", x.path, status, strings.Count(text, "<entry>"))
		}
	}
}

// HT-3: what is created, changed and refused, and how it is said.
func TestAnswersOfPut(t *testing.T) {
	_, h := mustCluster(t)
	mustPut(t, h, "t", "Topic", "", "q", "Queue", "", "t/Subscriptions/s", "Subscription", "<RequiresSession>true</RequiresSession>")
	filter := `<Filter i:type="TrueFilter"/>`
	for _, x := range []struct {
		path, kind, inner, match string
		status                   int
		want                     string
	}{
		{"q", "Queue", "", "", 409, "<Error><Code>409</Code><Detail>SubCode=40900. Conflict."},
		{"Q", "Topic", "", "", 409, "SubCode=40900"},
		{"t/subscriptions/S", "Subscription", "", "", 409, "SubCode=40900"},
		{"t/Subscriptions/s/Rules/$default", "Rule", filter, "", 409, "SubCode=40900"},
		{"q", "Topic", "", "*", 400, "SubCode=40000"},
		{"q", "Queue", "", `"1"`, 412, "SubCode=41200"},
		{"q", "Queue", "<RequiresDuplicateDetection>true</RequiresDuplicateDetection>", "*", 400, "The value for the RequiresDuplicateDetection property of an existing Queue cannot be changed"},
		{"t/Subscriptions/s", "Subscription", "", "*", 400, "The value for the RequiresSession property of an existing Subscription cannot be changed"},
		{"t", "Topic", "<EnablePartitioning>true</EnablePartitioning>", "*", 400, "Partitioning cannot be changed for Topic."},
		{"gone", "Topic", "", "*", 404, "SubCode=40400"},
		{"t/Subscriptions/gone", "Subscription", "", "*", 404, "SubCode=40400"},
		{"t/Subscriptions/s/Rules/gone", "Rule", filter, "*", 404, "SubCode=40400"},
		{"gone/Subscriptions/s", "Subscription", "", "", 404, "SubCode=40400"},
		{"q/Subscriptions/s", "Subscription", "", "", 404, "SubCode=40400"},
		{"t/Subscriptions/gone/Rules/r", "Rule", filter, "", 404, "SubCode=40400"},
		{"t/Subscriptions/s/Rules/r", "Rule", `<Filter i:type="OtherFilter"/>`, "", 400, "OtherFilter"},
		{"n", "Queue", "<RequiresSession>true</RequiresSession><ForwardTo>q</ForwardTo>", "", 400, "ForwardTo"},
		{"n", "Queue", "<LockDuration>PT6M</LockDuration>", "", 400, "LockDuration"},
		{"n/", "Queue", "", "", 201, "<title type=\"text\">n<"},
	} {
		var headers []string
		if x.match != "" {
			headers = []string{"If-Match", x.match}
		}
		if status, text := root(t, h, "PUT", x.path, entry(x.kind, x.inner), headers...); status != x.status || !strings.Contains(text, x.want) {
			t.Errorf("%s %s: %d %s", x.kind, x.path, status, text)
		}
	}
}

// Counts of subscriptions and filters, what is on its way, and when an entity was last used. Queues and topics were not
// before their first message.
func TestCountsThatAreShown(t *testing.T) {
	c, h := mustCluster(t)
	mustPut(t, h, "t", "Topic", "", "t/Subscriptions/s", "Subscription", "", "t/Subscriptions/u", "Subscription", "", "q", "Queue", "")
	filter := `<Filter i:type="CorrelationFilter"><Label>l</Label></Filter>`
	if status, text := root(t, h, "PUT", "t/Subscriptions/s/Rules/r", entry("Rule", filter)); status != 201 {
		t.Fatal(text)
	}
	_, text := root(t, h, "GET", "t", "")
	contains(t, text, "<SubscriptionCount>2<", "<SqlFilterCount>2<", "<CorrelationFilterCount>1<", "<AccessedAt>0001-01-01T00:00:00Z<")
	_, text = root(t, h, "GET", "t/Subscriptions/s", "")
	contains(t, text, "<AccessedAt>"+timeText(now)+"<")
	later := now.Add(time.Hour)
	c.counts = map[string]Counts{"q": {Accessed: later}}
	_, text = root(t, h, "GET", "q", "")
	contains(t, text, "<AccessedAt>0001-01-01T00:00:00Z<")
	c.counts = map[string]Counts{"q": {Forwarding: 7, Accessed: later, Used: true}}
	_, text = root(t, h, "GET", "q", "")
	contains(t, text, "<AccessedAt>"+timeText(later)+"<", "TransferMessageCount>7<", "<UpdatedAt>"+timeText(now)+"<")
	c.counts["q"] = Counts{Accessed: now.Add(-time.Hour), Used: true}
	_, text = root(t, h, "GET", "q", "")
	contains(t, text, "<AccessedAt>"+timeText(now)+"<")
}

// A dead letter is counted from the start, and once: while it is on its way both queues may have it, so that is waited for.
func TestDeadLettersThatAreShown(t *testing.T) {
	c, h := mustCluster(t)
	mustPut(t, h, "q", "Queue", "")
	dead := entity.Address{Path: entity.Path{Name: "q"}, Part: entity.DeadLetters}.Object()
	c.counts = map[string]Counts{"q": {Active: 1, Letters: 2}, dead: {Active: 2}}
	c.later = map[string]Counts{"q": {Active: 1}, dead: {Active: 2}}
	_, text := root(t, h, "GET", "q", "")
	contains(t, text, "DeadLetterMessageCount>2<", "<MessageCount>3<")
	c.counts, c.later = map[string]Counts{"q": {Active: 1, Letters: 2}, dead: {Active: 4}}, nil
	_, text = root(t, h, "GET", "q", "")
	contains(t, text, "DeadLetterMessageCount>6<", "<MessageCount>7<")
}

// Rules of the namespace are made, shown with their keys one by one, changed and deleted (CB-14).
func TestRulesOfTheNamespace(t *testing.T) {
	_, h := mustCluster(t)
	rule := func(name, key string, rights ...string) string {
		inner := "<Rights>"
		for _, right := range rights {
			inner += "<AccessRights>" + right + "</AccessRights>"
		}
		if inner += "</Rights>"; name != "" {
			inner += "<KeyName>" + name + "</KeyName>"
		}
		if key != "" {
			inner += "<PrimaryKey>" + key + "</PrimaryKey>"
		}
		return `<entry xmlns="` + atomSpace + `"><content type="application/xml"><AuthorizationRule xmlns="` + connectSpace + `">` + inner + `</AuthorizationRule></content></entry>`
	}
	const sends, top = "$AuthorizationRules/sends", "$AuthorizationRules/" + RootRule
	for _, x := range []struct {
		method, path, body string
		status             int
		want               string
	}{
		{"GET", sends, "", 404, "could not be found"},
		{"PUT", sends, rule("", "k1", "Send"), 201, "<KeyName>sends</KeyName><PrimaryKey>k1</PrimaryKey>"},
		{"PUT", "$authorizationrules/sends", rule("sends", "", "Send", "Manage"), 200, "<AccessRights>Manage</AccessRights><AccessRights>Send</AccessRights></Rights><KeyName>sends</KeyName><PrimaryKey>k1</PrimaryKey>"},
		{"PUT", sends, rule("other", "k1", "Send"), 400, "KeyName"},
		{"PUT", sends, rule("sends", "k1", "Read"), 400, "the right Read is not known"},
		{"PUT", top, rule("", "k2", "Send"), 400, "has the right Manage"},
		{"PUT", top, rule("", "k2", "Manage"), 201, "<PrimaryKey>k2<"},
		{"DELETE", top, "", 400, "cannot be deleted"},
		{"PUT", "$AuthorizationRules", rule("x", "", "Send"), 400, ""},
	} {
		status, text := root(t, h, x.method, x.path, x.body)
		if status != x.status || !strings.Contains(text, x.want) {
			t.Errorf("%s %s: %d %s", x.method, x.path, status, text)
		}
	}
	_, text := root(t, h, "GET", "$AuthorizationRules", "")
	contains(t, text, "<KeyName>sends<", "<KeyName>low<", "<AccessRights>Listen<")
	if strings.Contains(text, "PrimaryKey") {
		t.Error("a list shows keys")
	}
	if status, text := ask(t, h, "PUT", "made", entry("Queue", ""), "sends", "k1"); status != 201 {
		t.Error("the rule does not count", status, text)
	}
	if status, _ := ask(t, h, "GET", sends, "", "low", "low"); status != 401 {
		t.Error("who may not manage sees keys", status)
	}
	if status, _ := root(t, h, "DELETE", sends, ""); status != 200 {
		t.Error(status)
	}
	if status, _ := root(t, h, "DELETE", sends, ""); status != 404 {
		t.Error(status)
	}
	if status, _ := ask(t, h, "GET", "made", "", "sends", "k1"); status != 401 {
		t.Error("the rule counts that was deleted", status)
	}
}

// What is not said of the size of messages is the broker's to say, within its own limit.
func TestSizesThatAreNotSaid(t *testing.T) {
	c, h := mustCluster(t)
	of := func(path string) (size string) {
		_, text := root(t, h, "GET", path, "")
		_, size, _ = strings.Cut(text, "<MaxMessageSizeInKilobytes>")
		size, _, _ = strings.Cut(size, "<")
		return size
	}
	for _, x := range []struct {
		limits entity.Limits
		want   string
	}{
		{entity.Limits{MessageKilobytes: 16384}, "1024"},
		{entity.Limits{MessageKilobytes: 16384, UsualKilobytes: 256}, "256"},
		{entity.Limits{MessageKilobytes: 512}, "512"},
	} {
		h.Limits = x.limits
		mustPut(t, h, "q"+x.want, "Queue", "", "t"+x.want, "Topic", "", "said"+x.want, "Queue", "<MaxMessageSizeInKilobytes>7</MaxMessageSizeInKilobytes>")
		f, err := ParseFile([]byte(`{"UserConfig":{"Namespaces":[{"Queues":[{"Name":"f`+x.want+`"}]}]}}`), false)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.Import(t.Context(), c, "/", x.limits, false); err != nil {
			t.Fatal(err)
		}
		for name, want := range map[string]string{"q": x.want, "t": x.want, "f": x.want, "said": "7"} {
			if got := of(name + x.want); got != want {
				t.Errorf("%s: %s, want %s", name+x.want, got, want)
			}
		}
	}
}

// The namespace is the same at all times.
func TestNamespace(t *testing.T) {
	_, h := mustCluster(t)
	_, first := root(t, h, "GET", "$namespaceinfo", "")
	contains(t, first, "<CreatedTime>1970-01-01T00:00:00Z<", "<NamespaceType>Messaging<")
	h.Namespaces = map[string]string{"h": "other"}
	if status, _ := root(t, h, "GET", "$namespaceinfo", ""); status != 401 {
		t.Error("a rule of one namespace is none of another one", status)
	}
}

// A body that is too long is not read.
func TestLongBody(t *testing.T) {
	_, h := mustCluster(t)
	if status, _ := root(t, h, "PUT", "q", entry("Queue", strings.Repeat(" ", maxBody))); status != 400 {
		t.Error(status)
	}
}

// Every answer is counted by its operation and status.
func TestAnswersAreCounted(t *testing.T) {
	_, h := mustCluster(t)
	var counted []string
	h.Count = func(operation string, status int) { counted = append(counted, fmt.Sprint(operation, status)) }
	root(t, h, "PUT", "q", entry("Queue", ""))
	root(t, h, "GET", "gone", "")
	ask(t, h, "GET", "queues", "", "", "")
	root(t, h, "PATCH", "q", "")
	h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/health", nil))
	if got := strings.Join(counted, " "); got != "CreateOrUpdateEntity201 GetEntity404 EnumerateQueues401 Unknown405" {
		t.Error(got)
	}
}
