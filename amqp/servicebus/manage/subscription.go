package manage

import (
	"context"
	"slices"
	"strings"

	"github.com/quorate/quorate/amqp/servicebus/entity"
	"github.com/quorate/quorate/proto/logpb"
)

// RulesOf lists the rules of a subscription by name. of has its capitals.
func RulesOf(v View, vhost string, of entity.Path) (list []*entity.Rule) {
	for _, b := range v.Rules(vhost, entity.Address{Path: of}.Object()) {
		if r, ok := ruleOf(b); ok {
			list = append(list, r)
		}
	}
	slices.SortFunc(list, func(a, b *entity.Rule) int { return strings.Compare(a.Name, b.Name) })
	return list
}

// AddRule gives a subscription a rule, which counts for all messages that come to the topic from then on. added false:
// it has one of that name.
func AddRule(ctx context.Context, b Broker, vhost string, of entity.Path, r *entity.Rule) (added bool, err error) {
	v := b.View(ctx)
	if named(v, vhost, of, r.Name) != nil {
		return false, nil
	}
	bind, err := bindingOf(v, vhost, of, r)
	if err == nil {
		err = fitRules(v, vhost, bind.GetSource(), r)
	}
	if err == nil {
		err = b.Change(ctx, "add rule "+ruleURL(of, r.Name), &logpb.CatalogCommand{Body: &logpb.CatalogCommand_Bind{Bind: bind}})
	}
	return err == nil, err
}

// RemoveRule is the inverse of AddRule. removed false: there is no such rule.
func RemoveRule(ctx context.Context, b Broker, vhost string, of entity.Path, name string) (removed bool, err error) {
	bind := named(b.View(ctx), vhost, of, name)
	if bind == nil {
		return false, nil
	}
	err = b.Change(ctx, "remove rule "+ruleURL(of, name), &logpb.CatalogCommand{Body: &logpb.CatalogCommand_Unbind{Unbind: bind}})
	return err == nil, err
}

// named finds the binding of a rule, whatever the case of its name; nil: there is none.
func named(v View, vhost string, of entity.Path, name string) *logpb.Bind {
	for _, b := range v.Rules(vhost, entity.Address{Path: of}.Object()) {
		if r, ok := ruleOf(b); ok && strings.EqualFold(r.Name, name) {
			return b
		}
	}
	return nil
}
