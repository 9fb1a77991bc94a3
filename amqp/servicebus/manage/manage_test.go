package manage

import (
	"context"
	"encoding/xml"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/quorate/quorate/amqp/servicebus/entity"
	"github.com/quorate/quorate/amqp/servicebus/sas"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/proto/logpb"
)

// cluster is a Broker with a catalog of its own.
type cluster struct {
	*catalog.Catalog
	counts   map[string]Counts
	later    map[string]Counts // what is counted from the second time on; nil: the same
	notReady string
}

type view struct{ *catalog.View }

func (v view) HasQueue(vhost, name string) bool {
	_, ok := v.Queue(vhost, name)
	return ok
}

func (v view) Rules(vhost, queue string) []*logpb.Bind {
	return binds(vhost, v.BindingsTo(vhost, queue, false))
}

func (v view) RulesFrom(vhost, exchange string) []*logpb.Bind {
	return binds(vhost, v.BindingsFrom(vhost, exchange))
}

func binds(vhost string, all []*catalog.Binding) (list []*logpb.Bind) {
	for _, b := range all {
		list = append(list, &logpb.Bind{Vhost: vhost, Source: b.Source, Destination: b.Destination, RoutingKey: b.RoutingKey, Arguments: b.Arguments})
	}
	return list
}

var now = time.Unix(1_800_000_000, 0)

func (c *cluster) View(context.Context) View { return view{c.Catalog.View()} }
func (c *cluster) Now() time.Time            { return now }
func (c *cluster) NotReady() string          { return c.notReady }
func (c *cluster) Counts(context.Context, string, []string) map[string]Counts {
	counts := c.counts
	if c.later != nil {
		c.counts = c.later
	}
	return counts
}

func (c *cluster) Change(_ context.Context, _ string, commands ...*logpb.CatalogCommand) error {
	for _, x := range commands {
		if m := x.GetDeclareQueue(); m != nil {
			m.Members = []uint32{1}
			c.Catalog.View().DecideType(m, "")
		}
	}
	return c.do(&logpb.CatalogCommand{Body: &logpb.CatalogCommand_Together{Together: &logpb.Together{Commands: commands}}})
}

func (c *cluster) do(commands ...*logpb.CatalogCommand) error {
	v := c.Catalog.View()
	for _, r := range c.Apply(v.Index()+1, &logpb.CatalogEntry{Version: v.FSMVersion(), Now: now.UnixMilli(), Commands: commands}) {
		if err := catalog.Refused(r); err != nil {
			return err
		}
	}
	return nil
}

func mustCluster(t *testing.T) (*cluster, *Handler) {
	t.Helper()
	c := &cluster{Catalog: &catalog.Catalog{}}
	for _, commands := range [][]*logpb.CatalogCommand{
		{{Body: &logpb.CatalogCommand_RegisterNode{RegisterNode: &logpb.RegisterNode{Name: "n1", Incarnation: []byte("a"), OldestVersion: 1, NewestVersion: 3}}}},
		{{Body: &logpb.CatalogCommand_PutSetting{PutSetting: &logpb.PutSetting{Name: catalog.FSMVersion, Value: 3}}}},
		{{Body: &logpb.CatalogCommand_PutVhost{PutVhost: &logpb.PutVhost{Name: "/"}}}},
		{
			{Body: &logpb.CatalogCommand_PutAccessKey{PutAccessKey: &logpb.AccessKey{Vhost: "/", Name: "root", Primary: "key", Manage: true}}},
			{Body: &logpb.CatalogCommand_PutAccessKey{PutAccessKey: &logpb.AccessKey{Vhost: "/", Name: "low", Primary: "low", Listen: true}}},
		},
	} {
		if err := c.do(commands...); err != nil {
			t.Fatal(err)
		}
	}
	return c, New(Config{Broker: c, VHost: "/", Limits: entity.Limits{MessageKilobytes: 16384}, Logger: slog.New(slog.DiscardHandler)})
}

// ask sends a request as somebody.
func ask(t *testing.T, h http.Handler, method, path, body, rule, key string, headers ...string) (int, string) {
	t.Helper()
	r := httptest.NewRequest(method, "http://h:5300/"+path, strings.NewReader(body))
	if rule != "" {
		r.Header.Set("Authorization", sas.Sign("http://h:5300/"+path, rule, key, now.Add(time.Minute)))
	}
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	out, _ := io.ReadAll(w.Result().Body)
	if d := xml.NewDecoder(strings.NewReader(string(out))); strings.HasPrefix(string(out), "<") {
		for {
			if _, err := d.Token(); err == io.EOF {
				break
			} else if err != nil {
				t.Fatalf("%s: %v", out, err)
			}
		}
	}
	return w.Code, string(out)
}

func root(t *testing.T, h http.Handler, method, path, body string, headers ...string) (int, string) {
	t.Helper()
	return ask(t, h, method, path, body, "root", "key", headers...)
}

func entry(kind, inner string) string {
	return `<entry xmlns="` + atomSpace + `"><content type="application/xml"><` + kind + `Description xmlns="` + connectSpace + `" xmlns:i="` + instanceSpace + `">` + inner + `</` + kind + `Description></content></entry>`
}

func contains(t *testing.T, text string, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if !strings.Contains(text, part) {
			t.Errorf("%q is not in %s", part, text)
		}
	}
}

func TestQueue(t *testing.T) {
	c, h := mustCluster(t)
	path := "Orders/eu?api-version=2021-05"
	if status, _ := root(t, h, "GET", path, ""); status != 404 {
		t.Error(status)
	}
	status, text := root(t, h, "PUT", path, entry("Queue", `<LockDuration>PT0M45S</LockDuration><RequiresSession>true</RequiresSession><MaxDeliveryCount>3</MaxDeliveryCount><UserMetadata>a &amp; b</UserMetadata>`+
		`<AuthorizationRules><AuthorizationRule><Rights><AccessRights>Send</AccessRights></Rights><KeyName>own</KeyName><PrimaryKey>secret</PrimaryKey></AuthorizationRule></AuthorizationRules>`))
	if status != 201 {
		t.Fatal(status, text)
	}
	contains(t, text, `<title type="text">Orders/eu</title>`, "<id>https://h:5300/Orders/eu</id>", "<LockDuration>PT45S</LockDuration>", "<RequiresSession>true<", "<UserMetadata>a &amp; b<", "<MaxDeliveryCount>3<",
		"<DefaultMessageTimeToLive>P10675199DT2H48M5.4775807S<", "<EnableExpress>false<", "<AutoDeleteOnIdle>P10675199", "<Status>Active<", "<PrimaryKey>secret<", "d2p1:ActiveMessageCount>0<", "<MaxSizeInMegabytes>1024<")
	if strings.Contains(text, "ModifiedTime") {
		t.Error("an access key has times, with which programs would not find what they have written")
	}
	q, ok := c.Catalog.View().Queue("/", "Orders/eu")
	s := c.Catalog.View().Settings(q, catalog.Defaults{})
	if !ok || s.GetLock() != 45000 || s.GetDeliveryLimit() != 2 || !s.GetGroupRequired() || !s.GetDropExpired() || s.GetDeadLetterRoutingKey() != "Orders/eu/$deadletterqueue" || !s.GetClassic() {
		t.Error(s)
	}
	if _, ok := c.Catalog.View().Queue("/", "Orders/eu/$deadletterqueue"); !ok {
		t.Error("it has no dead letters")
	}
	if status, text := root(t, h, "PUT", "ORDERS/EU", entry("Queue", "")); status != 409 {
		t.Error(status, text)
	} else {
		contains(t, text, "<Code>409</Code>", "SubCode=40900")
	}
	c.counts = map[string]Counts{"Orders/eu": {Active: 3, Scheduled: 2, Bytes: 10}, "Orders/eu/$deadletterqueue": {Active: 1, Bytes: 5}, "Orders/eu/$Transfer/$deadletterqueue": {Active: 4, Bytes: 2}}
	if status, text := root(t, h, "GET", "orders/EU", ""); status != 200 {
		t.Error(status)
	} else {
		contains(t, text, "<title type=\"text\">Orders/eu<", "ActiveMessageCount>3<", "DeadLetterMessageCount>1<", "ScheduledMessageCount>2<", "TransferDeadLetterMessageCount>4<", "<SizeInBytes>17<", "<MessageCount>10<")
	}
	if status, text := root(t, h, "PUT", path, entry("Queue", "<RequiresSession>true</RequiresSession><LockDuration>PT1M</LockDuration><DeadLetteringOnMessageExpiration>true</DeadLetteringOnMessageExpiration>"), "If-Match", "*"); status != 200 {
		t.Error(status, text)
	}
	if s := c.Catalog.View().Settings(q, catalog.Defaults{}); s.GetLock() != 60000 || s.GetDropExpired() {
		t.Error(s)
	}
	if status, text := root(t, h, "PUT", path, entry("Queue", ""), "If-Match", "*"); status != 400 {
		t.Error(status)
	} else {
		contains(t, text, "SubCode=40000", "The value for the RequiresSession property of an existing Queue cannot be changed")
	}
	for body, want := range map[string]string{
		entry("Queue", "<LockDuration>1m</LockDuration>"):                      "LockDuration",
		entry("Queue", "<MaxDeliveryCount>x</MaxDeliveryCount>"):               "MaxDeliveryCount",
		entry("Queue", "<ForwardTo>gone</ForwardTo>"):                          "ForwardTo",
		entry("Subscription", ""):                                              "SubscriptionDescription",
		"<!DOCTYPE x><entry/>":                                                 "DTD",
		"<entry>":                                                              "well-formed",
		strings.Repeat("<a>", maxDepth+1) + strings.Repeat("</a>", maxDepth+1): "well-formed",
	} {
		if status, text := root(t, h, "PUT", "new", body); status != 400 || !strings.Contains(text, want) {
			t.Errorf("%s: %d %s", body, status, text)
		}
	}
	if status, _ := root(t, h, "PUT", "gone", entry("Queue", ""), "If-Match", "*"); status != 404 {
		t.Error(status)
	}
	if status, text := root(t, h, "PUT", "from", entry("Queue", "<ForwardTo>sb://h/orders/eu</ForwardTo>")); status != 201 {
		t.Error(status, text)
	} else {
		contains(t, text, "<ForwardTo>sb://h:5300/Orders/eu</ForwardTo>")
	}
	for given, want := range map[string]string{"https://other/orders/eu": "https://h:5300/Orders/eu", "orders/eu": "https://h:5300/Orders/eu", "SB://h/orders/eu": "sb://h:5300/Orders/eu"} {
		_, text := root(t, h, "PUT", "from", entry("Queue", "<ForwardDeadLetteredMessagesTo>"+given+"</ForwardDeadLetteredMessagesTo>"), "If-Match", "*")
		contains(t, text, "<ForwardDeadLetteredMessagesTo>"+want+"</ForwardDeadLetteredMessagesTo>")
	}
	if status, _ := root(t, h, "DELETE", path, ""); status != 200 {
		t.Error(status)
	}
	if status, _ := root(t, h, "DELETE", path, ""); status != 404 || c.Catalog.View().QueueCount() != 3 {
		t.Error(status, c)
	}
}

// What an entity cannot hand on goes to a queue that is a part of it; subscriptions use that of their topic.
func TestTransfers(t *testing.T) {
	c, h := mustCluster(t)
	mustPut(t, h, "Q", "Queue", "", "T", "Topic", "", "t/Subscriptions/s", "Subscription", "")
	for name, want := range map[string]string{"Q": "Q", "T/$topic": "T", "T/Subscriptions/s": "T"} {
		v := c.Catalog.View()
		q, ok := v.Queue("/", name)
		if !ok {
			t.Fatal(name)
		}
		if to, ok := q.SentRefused(v); !ok || to.Name != want+"/$Transfer/$deadletterqueue" {
			t.Error(name, to)
		}
	}
	if status, text := root(t, h, "PUT", "q", entry("Queue", "<LockDuration>PT2M</LockDuration>"), "If-Match", "*"); status != 200 {
		t.Error(text)
	}
	to, _ := c.Catalog.View().Queue("/", "Q/$Transfer/$deadletterqueue")
	if s := c.Catalog.View().Settings(to, catalog.Defaults{}); s.GetLock() != 120000 || s.GetDeliveryLimit() >= 0 {
		t.Error(s)
	}
	c.counts = map[string]Counts{"T/$Transfer/$deadletterqueue": {Active: 5}}
	for path, want := range map[string]string{"t": "5", "t/Subscriptions/s": "0"} {
		_, text := root(t, h, "GET", path, "")
		contains(t, text, "TransferDeadLetterMessageCount>"+want+"<")
	}
	for _, name := range []string{"q", "t"} {
		if status, text := root(t, h, "DELETE", name, ""); status != 200 {
			t.Error(text)
		}
	}
	if n := c.Catalog.View().QueueCount(); n != 0 {
		t.Errorf("%d queues are left", n)
	}
}

// Entities of an earlier build have no queue for what they cannot hand on: a change gives them one, and so does a new subscription its
// topic.
func TestTransfersOfEarlierBuild(t *testing.T) {
	c, h := mustCluster(t)
	earlier := func(names ...string) {
		t.Helper()
		for _, name := range names {
			gone := &logpb.DeleteQueue{Vhost: "/", Name: name + "/$Transfer/$deadletterqueue"}
			if err := c.do(&logpb.CatalogCommand{Body: &logpb.CatalogCommand_DeleteQueue{DeleteQueue: gone}}); err != nil {
				t.Fatal(err)
			}
		}
	}
	mustPut(t, h, "Q", "Queue", "", "T", "Topic", "", "U", "Topic", "", "u/Subscriptions/s", "Subscription", "", "V", "Topic", "")
	earlier("Q", "T", "U", "V")
	for _, x := range [][2]string{{"q", "Queue"}, {"t", "Topic"}, {"u/Subscriptions/s", "Subscription"}} {
		for _, metadata := range []string{"once", "again"} { // the second time it is there
			if status, text := root(t, h, "PUT", x[0], entry(x[1], "<UserMetadata>"+metadata+"</UserMetadata>"), "If-Match", "*"); status != 200 {
				t.Errorf("%s: %d %s", x[0], status, text)
			}
		}
	}
	mustPut(t, h, "v/Subscriptions/s", "Subscription", "")
	for _, name := range []string{"Q", "T", "U", "V"} {
		v := c.Catalog.View()
		q, ok := v.Queue("/", name+"/$Transfer/$deadletterqueue")
		if !ok {
			t.Errorf("%s has none", name)
		} else if s := v.Settings(q, catalog.Defaults{}); s.GetLock() != 60000 || s.GetDeliveryLimit() >= 0 {
			t.Errorf("%s: %v", name, s)
		}
		if status, text := root(t, h, "DELETE", name, ""); status != 200 {
			t.Error(text)
		}
	}
	if n := c.Catalog.View().QueueCount(); n != 0 {
		t.Errorf("%d queues are left", n)
	}
}

// A subscription has the name of its topic with the capitals of that, and rules, whatever the request has (AD-1, AD-2). Of an earlier
// build it may have others.
func TestCapitalsOfTopic(t *testing.T) {
	c, h := mustCluster(t)
	mustPut(t, h, "Topic", "Topic", "", "topic/Subscriptions/s", "Subscription", "")
	_, text := root(t, h, "GET", "TOPIC/subscriptions/S", "")
	contains(t, text, "<id>https://h:5300/Topic/Subscriptions/s</id>")
	earlier := &entity.Description{Path: entity.Path{Name: "topic", Subscription: "earlier"}, Subscription: entity.NewSubscription()}
	x := Definer{"/", c.View(t.Context()), h.Limits}
	_, describe, err := x.describe(earlier, false)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Change(t.Context(), "", x.queue("topic/Subscriptions/earlier", earlier.Arguments(entity.Destinations{}), "Topic", true), describe); err != nil {
		t.Fatal(err)
	}
	for _, of := range []entity.Path{{Name: "Topic", Subscription: "s"}, earlier.Path} {
		mustPut(t, h, "TOPIC/Subscriptions/"+of.Subscription+"/Rules/r", "Rule", "")
		if done, err := AddRule(t.Context(), c, "/", of, entity.NewRule("asked")); !done || err != nil {
			t.Error(of, done, err)
		}
	}
	if n := len(c.Catalog.View().BindingsFrom("/", "Topic")); n != 5 { // with the default one of the first
		t.Errorf("%d rules", n)
	}
}

func TestLists(t *testing.T) {
	_, h := mustCluster(t)
	for _, name := range []string{"a", "B", "c"} {
		if status, text := root(t, h, "PUT", name, entry("Queue", "")); status != 201 {
			t.Fatal(text)
		}
	}
	status, text := root(t, h, "GET", "$Resources/Queues?$skip=0&$top=2&api-version=2021-05", "")
	if status != 200 || strings.Count(text, "<entry>") != 2 {
		t.Error(status, text)
	}
	contains(t, text, `rel="next"`, "%24skip=2")
	if _, text := root(t, h, "GET", "$Resources/Queues?$skip=2&$top=2", ""); strings.Count(text, "<entry>") != 1 || strings.Contains(text, `rel="next"`) {
		t.Error(text)
	}
	if _, text := root(t, h, "GET", "$Resources/topics", ""); strings.Contains(text, "<entry>") {
		t.Error(text)
	}
	if status, _ := root(t, h, "GET", "queues?$skip=x", ""); status != 400 {
		t.Error(status)
	}
	_, text = root(t, h, "GET", "$namespaceinfo", "")
	contains(t, text, "<MessagingSKU>Standard<", "<Name>/<")
}

func TestWhoMayManage(t *testing.T) {
	c, h := mustCluster(t)
	root(t, h, "PUT", "q", entry("Queue", `<AuthorizationRules><AuthorizationRule><Rights><AccessRights>Manage</AccessRights></Rights><KeyName>own</KeyName><PrimaryKey>secret</PrimaryKey></AuthorizationRule></AuthorizationRules>`))
	for _, x := range []struct {
		method, path, rule, key, want string
		status                        int
	}{
		{"GET", "q", "", "", "MissingToken", 401},
		{"GET", "q", "root", "other", "Invalid authorization token signature", 401},
		{"GET", "q", "nobody", "key", "Invalid authorization token signature", 401},
		{"GET", "q", "low", "low", "Manage,EntityRead claims required for this operation.", 401},
		{"GET", "gone", "low", "low", "could not be found", 404},
		{"GET", "$Resources/Queues", "low", "low", "Manage,EntityRead claims", 401},
		{"PUT", "x", "low", "low", "Authorization failed for specified action: Manage,EntityWrite", 401},
		{"DELETE", "q", "low", "low", "Authorization failed for specified action: Manage,EntityDelete.", 401},
		{"GET", "t/Subscriptions/s", "low", "low", "401 SubCode=40100: Unauthorized : Unauthorized access for 'GetSubscription' operation", 401},
		{"GET", "q", "own", "secret", "<LockDuration>", 200},
		{"GET", "other", "own", "secret", "Invalid authorization token signature", 401},
		{"PATCH", "q", "root", "key", "not known", 405},
	} {
		if status, text := ask(t, h, x.method, x.path, "", x.rule, x.key); status != x.status || !strings.Contains(text, x.want) {
			t.Errorf("%s %s by %s: %d %s", x.method, x.path, x.rule, status, text)
		}
	}
	for key, want := range map[string]string{"key": "ExpiredToken: The token is expired. Expiration time: 20", "other": "Invalid authorization token signature"} {
		late := sas.Sign("https://h:5300/q", "root", key, time.Now().Add(-time.Hour))
		if status, text := ask(t, h, "GET", "q", "", "", "", "Authorization", late); status != 401 || !strings.Contains(text, want) {
			t.Errorf("late by %s: %d %s", key, status, text)
		}
	}
	h.Hosts = []string{"other"}
	if status, _ := root(t, h, "GET", "q", ""); status != 401 {
		t.Error(status)
	}
	if status, text := ask(t, h, "GET", "health", "", "", ""); status != 200 || text != `{"status":"healthy","message":"Service is healthy."}` {
		t.Error(status, text)
	}
	c.notReady = "starts"
	if status, text := ask(t, h, "GET", "health", "", "", ""); status != 503 || !strings.Contains(text, "unhealthy") {
		t.Error(status, text)
	}
}

// DS-11: who changes something is told of, and so is who is denied something, by the rule that is claimed.
func TestAudit(t *testing.T) {
	_, h := mustCluster(t)
	var told []string
	h.Audit = func(_ *http.Request, rule, action, path string, err error) {
		told = append(told, strings.Join([]string{rule, action, path, map[bool]string{false: "done", true: "not done"}[err != nil], map[bool]string{true: "denied"}[Denied(err)]}, " "))
	}
	root(t, h, "PUT", "q", entry("Queue", ""))
	root(t, h, "PUT", "q", entry("Queue", ""))
	root(t, h, "GET", "q", "")
	root(t, h, "GET", "gone", "")
	ask(t, h, "GET", "q", "", "low", "low")
	ask(t, h, "DELETE", "q", "", "low", "low")
	ask(t, h, "DELETE", "q", "", "nobody", "guess")
	ask(t, h, "GET", "q", "", "", "")
	want := []string{
		"root CreateOrUpdateEntity q done ", "root CreateOrUpdateEntity q not done ", "low GetEntity q not done denied", "low DeleteEntity q not done denied",
		"nobody DeleteEntity q not done denied", " GetEntity q not done denied",
	}
	if !slices.Equal(told, want) {
		t.Errorf("told is %q", told)
	}
}

func TestRuleDocuments(t *testing.T) {
	for _, inner := range []string{
		`<Filter i:type="SqlFilter"><SqlExpression>a = @x</SqlExpression><CompatibilityLevel>20</CompatibilityLevel><Parameters><KeyValueOfstringanyType><Key>@x</Key><Value xmlns:d6p1="` + schemaSpace + `" i:type="d6p1:int">7</Value></KeyValueOfstringanyType></Parameters></Filter><Action i:type="SqlRuleAction"><SqlExpression>SET b = 1</SqlExpression><CompatibilityLevel>20</CompatibilityLevel></Action>`,
		`<Filter i:type="CorrelationFilter"><Label>l</Label><Properties><KeyValueOfstringanyType><Key>p</Key><Value xmlns:d6p1="` + schemaSpace + `" i:type="d6p1:string">v</Value></KeyValueOfstringanyType></Properties></Filter><Action i:type="EmptyRuleAction"/>`,
		`<Filter i:type="TrueFilter"><SqlExpression>1=1</SqlExpression><CompatibilityLevel>20</CompatibilityLevel></Filter><Action i:type="EmptyRuleAction"/>`,
		`<Filter i:type="FalseFilter"><SqlExpression>1=0</SqlExpression><CompatibilityLevel>20</CompatibilityLevel></Filter><Action i:type="EmptyRuleAction"/>`,
	} {
		e, err := parse(strings.NewReader(entry("Rule", inner)))
		if err != nil {
			t.Fatal(err)
		}
		r, err := readRule("r", e.child("content").children[0])
		if err != nil {
			t.Fatal(inner, err)
		}
		d := &document{}
		d.rule(r, now)
		contains(t, d.String(), inner, "<Name>r</Name>")
	}
	for _, inner := range []string{`<Filter i:type="OtherFilter"/>`, `<Filter i:type="TrueFilter"/><Action i:type="Other"/>`, `<Filter i:type="SqlFilter"/>`,
		`<Filter i:type="SqlFilter"><SqlExpression>a = </SqlExpression></Filter>`, `<Filter i:type="SqlFilter"><SqlExpression>sys.Nothing = 1</SqlExpression></Filter>`,
		`<Filter i:type="TrueFilter"/><Action i:type="SqlRuleAction"><SqlExpression>SET sys.SequenceNumber = 1</SqlExpression></Action>`,
	} {
		e, _ := parse(strings.NewReader(entry("Rule", inner)))
		if _, err := readRule("r", e.child("content").children[0]); err == nil {
			t.Error(inner)
		}
	}
}
