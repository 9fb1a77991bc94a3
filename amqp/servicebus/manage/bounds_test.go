package manage

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/quorate/quorate/amqp/servicebus/entity"
	"github.com/quorate/quorate/proto/logpb"
)

// crowd is a cluster whose topic T has many subscriptions, and rules.
type crowd struct {
	*cluster
	subscriptions int
	rules         []*logpb.Bind
}

type crowded struct {
	View
	of *crowd
}

func (c *crowd) View(ctx context.Context) View { return crowded{c.cluster.View(ctx), c} }

func (v crowded) Descriptions(vhost string) []*logpb.Describe {
	all := v.View.Descriptions(vhost)
	for i := range v.of.subscriptions {
		all = append(all, &logpb.Describe{Key: fmt.Sprint("t/subscriptions/many", i)}, &logpb.Describe{Key: fmt.Sprint("other/subscriptions/many", i)})
	}
	return all
}

func (v crowded) RulesFrom(vhost, exchange string) []*logpb.Bind {
	all := v.View.RulesFrom(vhost, exchange)
	if exchange == "T" {
		all = append(all, v.of.rules...)
	}
	return all
}

// have gives the topic so many rules of each kind.
func (c *crowd) have(t *testing.T, expressions, correlations int) {
	t.Helper()
	c.rules = nil
	for n, r := range map[int]*entity.Rule{
		expressions: {Name: "s", SQL: &entity.Expression{Text: "a = 1"}}, correlations: {Name: "c", Correlation: &entity.CorrelationFilter{Label: "l"}},
	} {
		bind, err := bindingOf(c.View(t.Context()), "/", entity.Path{Name: "T", Subscription: "many"}, r)
		if err != nil {
			t.Fatal(err)
		}
		for range n {
			c.rules = append(c.rules, bind)
		}
	}
}

// TP-8: a topic has so many subscriptions and filters and no more, whoever adds them; what is there may change.
func TestTopicIsFull(t *testing.T) {
	inner, h := mustCluster(t)
	c := &crowd{cluster: inner}
	h.Broker = c
	mustPut(t, h, "T", "Topic", "", "T/Subscriptions/s", "Subscription", "", "U", "Topic", "")
	c.subscriptions = maxSubscriptions - 2
	mustPut(t, h, "T/Subscriptions/last", "Subscription", "")
	status, text := root(t, h, "PUT", "T/Subscriptions/more", entry("Subscription", ""))
	if status != 403 {
		t.Error(status, text)
	}
	contains(t, text, "SubCode=40301", "2000 subscriptions")
	mustPut(t, h, "U/Subscriptions/s", "Subscription", "")
	if status, text := root(t, h, "PUT", "T/Subscriptions/s", entry("Subscription", "<UserMetadata>m</UserMetadata>"), "If-Match", "*"); status != 200 {
		t.Error(status, text)
	}

	sql := `<Filter i:type="SqlFilter"><SqlExpression>a = 1</SqlExpression></Filter>`
	label := `<Filter i:type="CorrelationFilter"><Label>l</Label></Filter>`
	s := entity.Path{Name: "T", Subscription: "s"}
	full := new(entity.Full)
	for _, x := range []struct {
		expressions, correlations int
		filter                    string
		rule                      *entity.Rule
	}{
		{maxExpressions, 0, sql, &entity.Rule{Name: "x", SQL: &entity.Expression{Text: "a = 1"}}},
		{10, maxCorrelations, label, &entity.Rule{Name: "x", Correlation: &entity.CorrelationFilter{Label: "l"}}},
	} {
		c.have(t, x.expressions, x.correlations)
		if status, text := root(t, h, "PUT", "T/Subscriptions/s/Rules/r", entry("Rule", x.filter)); status != 403 {
			t.Error(status, text)
		}
		if status, text := root(t, h, "PUT", "T/Subscriptions/s/Rules/$Default", entry("Rule", x.filter), "If-Match", "*"); status != 403 {
			t.Error(status, text)
		}
		if done, err := AddRule(t.Context(), c, "/", s, x.rule); done || !errors.As(err, &full) {
			t.Error(done, err)
		}
		f := &File{Entities: []*entity.Description{{Path: s, Subscription: entity.NewSubscription()}}, Rules: map[string][]*entity.Rule{s.Key(): {x.rule}}}
		if _, err := f.Import(t.Context(), c, "/", h.Limits, false); !errors.As(err, &full) {
			t.Error(err)
		}
		if done, err := AddRule(t.Context(), c, "/", s, entity.NewRule("all")); !done || err != nil {
			t.Error(done, err)
		}
		if done, err := RemoveRule(t.Context(), c, "/", s, "all"); !done || err != nil {
			t.Error(done, err)
		}
		c.have(t, max(0, x.expressions-1), max(0, x.correlations-1))
		if status, text := root(t, h, "PUT", "T/Subscriptions/s/Rules/last", entry("Rule", x.filter)); status != 201 {
			t.Error(status, text)
		}
		c.have(t, x.expressions, x.correlations)
		if status, text := root(t, h, "PUT", "T/Subscriptions/s/Rules/last", entry("Rule", x.filter), "If-Match", "*"); status != 200 {
			t.Error(status, text)
		}
		root(t, h, "DELETE", "T/Subscriptions/s/Rules/last", "")
	}
}
