package manage

import (
	"fmt"

	"github.com/quorate/quorate/amqp/servicebus/entity"
	"github.com/quorate/quorate/proto/logpb"
)

// Bounds of topics, which are those of the service. Two clients at a time may exceed one by what each adds.
const (
	maxSubscriptions = 2000
	maxExpressions   = 2000    // filters in SQL; those that take all or nothing cost nothing
	maxCorrelations  = 100_000 // filters
)

// fitsSubscription refuses one subscription more than a topic may have.
func fitsSubscription(v View, vhost string, topic entity.Path) error {
	n := 0
	for _, row := range v.Descriptions(vhost) {
		if p := entity.ParseAddress(row.GetKey()).Path; p.Subscription != "" && p.Name == topic.Key() {
			n++
		}
	}
	if n >= maxSubscriptions {
		return &entity.Full{Text: fmt.Sprintf("The topic has %d subscriptions, and may have no more.", n)}
	}
	return nil
}

// fitRules refuses rules of which a topic would have more than it may. exchange is the topic's.
func fitRules(v View, vhost, exchange string, more ...*entity.Rule) error {
	all := v.RulesFrom(vhost, exchange)
	if len(all)+len(more) <= min(maxExpressions, maxCorrelations) {
		return nil
	}
	wanted, had := map[filterKind]int{}, map[filterKind]int{}
	for _, r := range more {
		wanted[kindOf(r)]++
	}
	for _, b := range all {
		if r, ok := ruleOf(b); ok {
			had[kindOf(r)]++
		}
	}
	for kind, most := range map[filterKind]int{expression: maxExpressions, correlation: maxCorrelations} {
		if n := wanted[kind]; n > 0 && n+had[kind] > most {
			return &entity.Full{Text: fmt.Sprintf("The topic may have %d %s filters.", most, kind)}
		}
	}
	return nil
}

// filterKind is a kind of filters that is bounded; empty: one that is not.
type filterKind string

const (
	expression  filterKind = "SQL"
	correlation filterKind = "correlation"
)

func kindOf(r *entity.Rule) filterKind {
	switch {
	case r.SQL != nil:
		return expression
	case r.Correlation != nil:
		return correlation
	}
	return ""
}

// rulesOf are the rules that commands add.
func rulesOf(commands []*logpb.CatalogCommand) (list []*entity.Rule) {
	for _, c := range commands {
		if r, ok := ruleOf(c.GetBind()); ok {
			list = append(list, r)
		}
	}
	return list
}
