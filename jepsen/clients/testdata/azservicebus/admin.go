package main

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"
	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus/admin"
)

// managers are clients of three nodes. The environment has the connection strings.
func managers() (made [3]*admin.Client) {
	for i, connection := range strings.Fields(os.Getenv("MANAGEMENT")) {
		made[i] = need(admin.NewClientFromConnectionString(connection, nil))
	}
	return made
}

// answered wants an error of a status, whose text contains another.
func answered(err error, status int, text string) {
	var e *azcore.ResponseError
	check(errors.As(err, &e) && e.StatusCode == status && strings.Contains(err.Error(), text), err, " not ", status, text)
}

// same wants two values to be equal.
func same(got, want any) {
	check(reflect.DeepEqual(got, want), fmt.Sprintf("%#v\nnot %#v", got, want))
}

// set returns a pointer to a value.
func set[T any](v T) *T { return &v }

// forever is the longest time there is.
const forever = "P10675199DT2H48M5.4775807S"

// queueDefaults are the properties of a queue that was created without any.
func queueDefaults() admin.QueueProperties {
	return admin.QueueProperties{
		LockDuration: set("PT1M"), MaxSizeInMegabytes: set(int32(1024)), RequiresDuplicateDetection: set(false), RequiresSession: set(false),
		DefaultMessageTimeToLive: set(forever), DeadLetteringOnMessageExpiration: set(false), DuplicateDetectionHistoryTimeWindow: set("PT10M"),
		MaxDeliveryCount: set(int32(10)), EnableBatchedOperations: set(true), Status: set(admin.EntityStatusActive), AutoDeleteOnIdle: set(forever),
		EnablePartitioning: set(false), MaxMessageSizeInKilobytes: set(int64(1024)),
	}
}

// queues creates queues at one node, and finds them at others.
func queues(r *run) {
	at, q := managers(), r.prefix+"Managed"
	same(need(at[0].CreateQueue(r.ctx, q, nil)).QueueProperties, queueDefaults())
	_, err := at[1].CreateQueue(r.ctx, strings.ToLower(q), nil)
	answered(err, http.StatusConflict, "SubCode=40900")
	got := need(at[1].GetQueue(r.ctx, q, nil))
	same(got.QueueProperties, queueDefaults())

	got.MaxDeliveryCount, got.LockDuration, got.UserMetadata, got.DefaultMessageTimeToLive = set(int32(5)), set("PT45S"), set("<about> it & 'more'"), set("P1DT2H")
	got.AuthorizationRules = []admin.AuthorizationRule{{AccessRights: []admin.AccessRight{admin.AccessRightSend}, KeyName: set("sends"), PrimaryKey: set("bm90IGEgc2VjcmV0IG9mIGFueW9uZSBidXQgYSB0ZXN0IQ=="), SecondaryKey: set("YW5kIGFub3RoZXIgb25lIHRoYXQgaXMgZGlmZmVyZW50ISE=")}}
	changed := need(at[1].UpdateQueue(r.ctx, q, got.QueueProperties, nil))
	again := need(at[2].GetQueue(r.ctx, q, nil))
	same(again.QueueProperties, changed.QueueProperties)
	check(*again.MaxDeliveryCount == 5 && *again.LockDuration == "PT45S" && *again.UserMetadata == "<about> it & 'more'" && *again.DefaultMessageTimeToLive == "P1DT2H", again)
	same(again.AuthorizationRules, got.AuthorizationRules)
	again.RequiresSession = set(true)
	_, err = at[2].UpdateQueue(r.ctx, q, again.QueueProperties, nil)
	answered(err, http.StatusBadRequest, "The value for the RequiresSession property of an existing Queue cannot be changed")
	_, err = at[2].UpdateQueue(r.ctx, q+"-nowhere", queueDefaults(), nil)
	answered(err, http.StatusNotFound, "")
	_, err = at[2].CreateQueue(r.ctx, q+"-wrong", &admin.CreateQueueOptions{Properties: &admin.QueueProperties{LockDuration: set("PT1H")}})
	answered(err, http.StatusBadRequest, "LockDuration")

	counts(r, at, q)
	listQueues(r, at)
	need(at[0].DeleteQueue(r.ctx, q, nil))
	check(need(at[1].GetQueue(r.ctx, q, nil)) == nil && need(at[2].GetQueueRuntimeProperties(r.ctx, q, nil)) == nil, "it is still there")
	_, err = at[1].DeleteQueue(r.ctx, q, nil)
	answered(err, http.StatusNotFound, "")
	gone := need(r.client.NewReceiverForQueue(q, nil))
	_, err = gone.ReceiveMessages(r.ctx, 1, nil)
	fails(err, azservicebus.CodeNotFound)
}

// counts looks for messages in what is told of a queue.
func counts(r *run, at [3]*admin.Client, q string) {
	s, from := need(r.client.NewSender(q, nil)), need(r.client.NewReceiverForQueue(q, nil))
	r.send(s, "a", "b", "c")
	need(0, from.DeadLetterMessage(r.ctx, r.receive(from, "a")[0], nil))
	need(s.ScheduleMessages(r.ctx, []*azservicebus.Message{message("d")}, time.Now().Add(time.Hour), nil))
	p := need(at[2].GetQueueRuntimeProperties(r.ctx, q, nil))
	for p.DeadLetterMessageCount == 0 { // it is on its way
		p = need(at[2].GetQueueRuntimeProperties(r.ctx, q, nil))
	}
	check(p.ActiveMessageCount == 2 && p.DeadLetterMessageCount == 1 && p.ScheduledMessageCount == 1 && p.TotalMessageCount == 4 && p.SizeInBytes > 0, p)
	check(time.Since(p.CreatedAt) < time.Hour && p.UpdatedAt.After(p.CreatedAt), p.CreatedAt, p.UpdatedAt)
	need(0, s.Close(r.ctx))
	need(0, from.Close(r.ctx))
}

// listQueues lists queues in pages of two.
func listQueues(r *run, at [3]*admin.Client) {
	want := map[string]int32{}
	for i := range 5 {
		name := fmt.Sprintf("%slisted-%d", r.prefix, i)
		want[name] = int32(i + 1)
		need(at[0].CreateQueue(r.ctx, name, &admin.CreateQueueOptions{Properties: &admin.QueueProperties{MaxDeliveryCount: set(want[name])}}))
	}
	found, shown := map[string]int32{}, map[string]bool{}
	for p := at[1].NewListQueuesPager(&admin.ListQueuesOptions{MaxPageSize: 2}); p.More(); {
		page := need(p.NextPage(r.ctx))
		check(len(page.Queues) <= 2, len(page.Queues))
		for _, q := range page.Queues {
			if want[q.QueueName] != 0 {
				found[q.QueueName] = *q.MaxDeliveryCount
			}
		}
	}
	same(found, want)
	for p := at[2].NewListQueuesRuntimePropertiesPager(nil); p.More(); {
		for _, q := range need(p.NextPage(r.ctx)).QueueRuntimeProperties {
			shown[q.QueueName] = true
		}
	}
	for name := range want {
		check(shown[name], name)
		need(at[2].DeleteQueue(r.ctx, name, nil))
	}
}

// topics creates topics.
func topics(r *run) {
	at, topic := managers(), r.prefix+"Topic"
	made := need(at[0].CreateTopic(r.ctx, topic, nil))
	same(made.TopicProperties, admin.TopicProperties{
		MaxSizeInMegabytes: set(int32(1024)), RequiresDuplicateDetection: set(false), DefaultMessageTimeToLive: set(forever),
		DuplicateDetectionHistoryTimeWindow: set("PT10M"), EnableBatchedOperations: set(true), Status: set(admin.EntityStatusActive),
		AutoDeleteOnIdle: set(forever), EnablePartitioning: set(false), SupportOrdering: made.SupportOrdering, MaxMessageSizeInKilobytes: set(int64(1024)),
	})
	_, err := at[1].CreateTopic(r.ctx, topic, nil)
	answered(err, http.StatusConflict, "SubCode=40900")
	_, err = at[1].CreateQueue(r.ctx, topic, nil)
	answered(err, http.StatusConflict, "")
	made.UserMetadata, made.DefaultMessageTimeToLive = set("about"), set("PT5M")
	same(need(at[1].UpdateTopic(r.ctx, topic, made.TopicProperties, nil)).TopicProperties, made.TopicProperties)
	got := need(at[2].GetTopic(r.ctx, topic, nil))
	same(got.TopicProperties, made.TopicProperties)
	got.EnablePartitioning = set(true)
	_, err = at[2].UpdateTopic(r.ctx, topic, got.TopicProperties, nil)
	answered(err, http.StatusBadRequest, "Partitioning cannot be changed for Topic.")
	_, err = at[2].UpdateTopic(r.ctx, topic+"-nowhere", made.TopicProperties, nil)
	answered(err, http.StatusNotFound, "")
	need(at[0].CreateSubscription(r.ctx, topic, "one", nil))
	p := need(at[1].GetTopicRuntimeProperties(r.ctx, topic, nil))
	check(p.SubscriptionCount == 1 && p.UpdatedAt.After(p.CreatedAt), p)
	listed := false
	for p := at[2].NewListTopicsPager(nil); p.More(); {
		for _, x := range need(p.NextPage(r.ctx)).Topics {
			listed = listed || x.TopicName == topic && *x.UserMetadata == "about"
		}
	}
	for p := at[2].NewListTopicsRuntimePropertiesPager(nil); p.More() && listed; {
		listed = slices.ContainsFunc(need(p.NextPage(r.ctx)).TopicRuntimeProperties, func(x admin.TopicRuntimePropertiesItem) bool {
			return x.TopicName == topic && x.SubscriptionCount == 1
		})
		if listed {
			break
		}
	}
	check(listed, "it is not listed")
	need(at[1].DeleteTopic(r.ctx, topic, nil))
	check(need(at[2].GetTopic(r.ctx, topic, nil)) == nil && need(at[0].GetTopicRuntimeProperties(r.ctx, topic, nil)) == nil, "it is still there")
	check(need(at[2].GetSubscription(r.ctx, topic, "one", nil)) == nil, "its subscription is still there")
	_, err = at[2].DeleteTopic(r.ctx, topic, nil)
	answered(err, http.StatusNotFound, "")
}

// subscriptions creates subscriptions.
func subscriptions(r *run) {
	at, topic, to := managers(), r.prefix+"subscribed", r.prefix+"forwarded"
	need(at[0].CreateTopic(r.ctx, topic, nil))
	need(at[0].CreateQueue(r.ctx, to, nil))
	plain := need(at[1].CreateSubscription(r.ctx, topic, "Plain", nil))
	same(plain.SubscriptionProperties, admin.SubscriptionProperties{
		LockDuration: set("PT1M"), RequiresSession: set(false), DefaultMessageTimeToLive: set(forever), DeadLetteringOnMessageExpiration: set(false),
		EnableDeadLetteringOnFilterEvaluationExceptions: plain.EnableDeadLetteringOnFilterEvaluationExceptions, MaxDeliveryCount: set(int32(10)),
		Status: set(admin.EntityStatusActive), AutoDeleteOnIdle: set(forever), EnableBatchedOperations: set(true),
	})
	_, err := at[2].CreateSubscription(r.ctx, topic, "plain", nil)
	answered(err, http.StatusConflict, "SubCode=40900")
	_, err = at[2].CreateSubscription(r.ctx, topic+"-nowhere", "plain", nil)
	answered(err, http.StatusNotFound, "")
	made := need(at[2].CreateSubscription(r.ctx, topic, "forwards", &admin.CreateSubscriptionOptions{Properties: &admin.SubscriptionProperties{
		LockDuration: set("PT10S"), ForwardTo: &to, MaxDeliveryCount: set(int32(3)), DefaultMessageTimeToLive: set("PT1H"),
		DefaultRule: &admin.RuleProperties{Name: "first", Filter: &admin.SQLFilter{Expression: "n = 7"}},
	}}))
	check(strings.HasSuffix(*made.ForwardTo, "/"+to) && *made.LockDuration == "PT10S", *made.ForwardTo, *made.LockDuration)
	first := need(at[0].GetRule(r.ctx, topic, "forwards", "first", nil))
	same(first.Filter, &admin.SQLFilter{Expression: "n = 7"})
	check(need(at[0].GetRule(r.ctx, topic, "forwards", "$Default", nil)) == nil, "there is another rule")

	plain.MaxDeliveryCount, plain.UserMetadata, plain.LockDuration = set(int32(7)), set("about"), set("PT2M")
	same(need(at[0].UpdateSubscription(r.ctx, topic, "Plain", plain.SubscriptionProperties, nil)).SubscriptionProperties, plain.SubscriptionProperties)
	got := need(at[1].GetSubscription(r.ctx, topic, "Plain", nil))
	same(got.SubscriptionProperties, plain.SubscriptionProperties)
	got.RequiresSession = set(true)
	_, err = at[1].UpdateSubscription(r.ctx, topic, "Plain", got.SubscriptionProperties, nil)
	answered(err, http.StatusBadRequest, "The value for the RequiresSession property of an existing Subscription cannot be changed")
	_, err = at[1].UpdateSubscription(r.ctx, topic, "nowhere", plain.SubscriptionProperties, nil)
	answered(err, http.StatusNotFound, "")
	found := map[string]int32{}
	for p := at[2].NewListSubscriptionsPager(topic, &admin.ListSubscriptionsOptions{MaxPageSize: 1}); p.More(); {
		for _, x := range need(p.NextPage(r.ctx)).Subscriptions {
			check(x.TopicName == topic, x.TopicName)
			found[x.SubscriptionName] = *x.MaxDeliveryCount
		}
	}
	same(found, map[string]int32{"Plain": 7, "forwards": 3})
	for p := at[2].NewListSubscriptionsRuntimePropertiesPager(topic, nil); p.More(); {
		for _, x := range need(p.NextPage(r.ctx)).SubscriptionRuntimeProperties {
			delete(found, x.SubscriptionName)
		}
	}
	check(len(found) == 0, found)
	need(at[2].DeleteSubscription(r.ctx, topic, "Plain", nil))
	check(need(at[0].GetSubscription(r.ctx, topic, "Plain", nil)) == nil && need(at[0].GetSubscriptionRuntimeProperties(r.ctx, topic, "Plain", nil)) == nil, "it is still there")
	_, err = at[0].DeleteSubscription(r.ctx, topic, "Plain", nil)
	answered(err, http.StatusNotFound, "")
	need(at[1].DeleteTopic(r.ctx, topic, nil))
	need(at[1].DeleteQueue(r.ctx, to, nil))
}

// rules creates rules with each kind of filter, and with an action.
func rules(r *run) {
	at, topic := managers(), r.prefix+"ruled"
	need(at[0].CreateTopic(r.ctx, topic, nil))
	need(at[0].CreateSubscription(r.ctx, topic, "s", nil))
	same(need(at[1].GetRule(r.ctx, topic, "s", "$Default", nil)).RuleProperties, admin.RuleProperties{Name: "$Default", Filter: &admin.TrueFilter{}})
	when := time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)
	values := map[string]any{"text": "te<xt", "integer": int64(101), "double": float64(102.5), "yes": true, "when": when}
	all := map[string]admin.RuleProperties{
		"no":   {Filter: &admin.FalseFilter{}},
		"sql":  {Filter: &admin.SQLFilter{Expression: "n > 1 AND text <> 'a'"}, Action: &admin.SQLAction{Expression: "SET a = 1"}},
		"with": {Filter: &admin.SQLFilter{Expression: "text = @text OR n = @integer", Parameters: values}, Action: &admin.SQLAction{Expression: "SET a = @text", Parameters: map[string]any{"text": "b"}}},
		"like": {Filter: &admin.CorrelationFilter{
			ContentType: set("ct"), CorrelationID: set("ci"), MessageID: set("mi"), ReplyTo: set("rt"), ReplyToSessionID: set("rs"),
			SessionID: set("si"), Subject: set("su"), To: set("to"), ApplicationProperties: values,
		}},
	}
	for name, p := range all {
		made := need(at[1].CreateRule(r.ctx, topic, "s", &admin.CreateRuleOptions{Name: &name, Filter: p.Filter, Action: p.Action}))
		p.Name = name
		all[name] = p
		same(made.RuleProperties, p)
		same(need(at[2].GetRule(r.ctx, topic, "s", name, nil)).RuleProperties, p)
	}
	name := "sql"
	_, err := at[2].CreateRule(r.ctx, topic, "s", &admin.CreateRuleOptions{Name: &name})
	answered(err, http.StatusConflict, "SubCode=40900")
	wrong := "wrong"
	_, err = at[2].CreateRule(r.ctx, topic, "s", &admin.CreateRuleOptions{Name: &wrong, Filter: &admin.SQLFilter{Expression: "n ="}})
	answered(err, http.StatusBadRequest, "")
	_, err = at[2].CreateRule(r.ctx, topic, "nowhere", &admin.CreateRuleOptions{Name: &wrong})
	answered(err, http.StatusNotFound, "")
	changed := admin.RuleProperties{Name: "sql", Filter: &admin.SQLFilter{Expression: "n = 2"}}
	same(need(at[0].UpdateRule(r.ctx, topic, "s", changed)).RuleProperties, changed)
	all["sql"] = changed
	_, err = at[0].UpdateRule(r.ctx, topic, "s", admin.RuleProperties{Name: wrong, Filter: &admin.TrueFilter{}})
	answered(err, http.StatusNotFound, "")
	all["$Default"] = admin.RuleProperties{Name: "$Default", Filter: &admin.TrueFilter{}}
	found := map[string]admin.RuleProperties{}
	for p := at[1].NewListRulesPager(topic, "s", &admin.ListRulesOptions{MaxPageSize: 2}); p.More(); {
		for _, x := range need(p.NextPage(r.ctx)).Rules {
			found[x.Name] = x
		}
	}
	check(maps.EqualFunc(found, all, func(a, b admin.RuleProperties) bool { return reflect.DeepEqual(a, b) }), found)
	need(at[2].DeleteRule(r.ctx, topic, "s", "$Default", nil))
	check(need(at[0].GetRule(r.ctx, topic, "s", "$Default", nil)) == nil, "it is still there")
	_, err = at[0].DeleteRule(r.ctx, topic, "s", "$Default", nil)
	answered(err, http.StatusNotFound, "")
	need(at[1].DeleteTopic(r.ctx, topic, nil))
}

// strangers may not manage.
func strangers(r *run) {
	connection := strings.Fields(os.Getenv("MANAGEMENT"))[0]
	q, right := r.prefix+"strange", managers()
	wrong := need(admin.NewClientFromConnectionString(strings.Replace(connection, "SharedAccessKey=", "SharedAccessKey=x", 1), nil))
	_, err := wrong.CreateQueue(r.ctx, q, nil)
	answered(err, http.StatusUnauthorized, "")
	sends := set("sends")
	key := "bm90IGEgc2VjcmV0IG9mIGFueW9uZSBidXQgYSB0ZXN0IQ=="
	need(right[1].CreateQueue(r.ctx, q, &admin.CreateQueueOptions{Properties: &admin.QueueProperties{AuthorizationRules: []admin.AuthorizationRule{
		{AccessRights: []admin.AccessRight{admin.AccessRightSend}, KeyName: sends, PrimaryKey: &key, SecondaryKey: &key},
	}}}))
	own := func(connection string) string {
		for field := range strings.SplitSeq(connection, ";") {
			switch name, _, _ := strings.Cut(field, "="); name {
			case "SharedAccessKeyName":
				connection = strings.Replace(connection, field, name+"="+*sends, 1)
			case "SharedAccessKey":
				connection = strings.Replace(connection, field, name+"="+key, 1)
			}
		}
		return connection
	}
	low := need(admin.NewClientFromConnectionString(own(connection), nil))
	_, err = low.UpdateQueue(r.ctx, q, queueDefaults(), nil)
	answered(err, http.StatusUnauthorized, "")
	_, err = low.DeleteQueue(r.ctx, q, nil)
	answered(err, http.StatusUnauthorized, "")
	// It may send, and do nothing else.
	client := need(azservicebus.NewClientFromConnectionString(own(os.Args[1]), nil))
	r.send(need(client.NewSender(q, nil)), "a")
	_, err = need(client.NewReceiverForQueue(q, nil)).ReceiveMessages(r.ctx, 1, nil)
	fails(err, azservicebus.CodeUnauthorizedAccess)
	need(0, client.Close(r.ctx))
	space := need(right[2].GetNamespaceProperties(r.ctx, nil))
	check(space.Name != "" && !space.CreatedTime.IsZero() && space.SKU != "", space)
	need(right[2].DeleteQueue(r.ctx, q, nil))
}
