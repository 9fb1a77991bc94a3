package servicebus

import (
	"context"

	"github.com/quorate/quorate/amqp/servicebus/entity"
	"github.com/quorate/quorate/amqp/servicebus/sas"
	"github.com/quorate/quorate/amqp/servicebus/topics"
	"github.com/quorate/quorate/amqp/v10/wire"
)

// ofRules refuses a request about rules to what has none.
func (r *request) ofRules() error {
	if r.entity.Subscription == nil || r.part != entity.Main {
		return r.side.refuse(wire.ConditionNotAllowed, "'%s' has no rules.", r.entity.Path)
	}
	return nil
}

// ruleName reads the name of a rule.
func (r *request) ruleName() (string, error) {
	v, ok := r.body.Get("rule-name")
	if !ok || !isText(v) {
		return "", r.malformed("rule-name")
	}
	return string(v.Bytes()), r.ofRules()
}

// mayChange refuses a change of the rules of a subscription that is disabled, or whose topic is.
func (r *request) mayChange() error {
	for _, p := range []entity.Path{r.entity.Path, {Name: r.entity.Path.Name}} {
		if d, ok := r.side.entity(p); ok && d.Common().Status == entity.Disabled {
			return r.side.disabled(p)
		}
	}
	return nil
}

// mapAt returns a map in the body; nil: there is none.
func (r *request) mapAt(name string) wire.MapBytes {
	for w := r.body.Walk(); w.NextPair(); {
		if string(w.Key.Bytes()) == name && w.Value.Type == wire.Map {
			return wire.MapBytes(w.Encoded)
		}
	}
	return nil
}

// addRule gives a subscription a rule.
func (r *request) addRule(ctx context.Context) error {
	name, err := r.ruleName()
	if err != nil {
		return err
	}
	description := r.mapAt("rule-description")
	if description == nil {
		return r.malformed("rule-description")
	}
	rule, err := topics.ReadRule(name, description)
	if err == nil {
		err = r.mayChange()
	}
	if err != nil {
		return err
	}
	access := r.side.tokens.giver(r.entity.Path, sas.Manage)
	done, err := r.side.dialect.Directory.AddRule(ctx, r.side.client.VHost, r.entity.Path, rule)
	r.audit(access, "add-rule", name, done, err)
	if err == nil && !done {
		err = r.side.refuse(conditionExists, "The rule '%s' of '%s' already exists.", name, r.entity.Path)
	}
	return err
}

// removeRule takes a rule from a subscription.
func (r *request) removeRule(ctx context.Context) error {
	name, err := r.ruleName()
	if err == nil {
		err = r.mayChange()
	}
	if err != nil {
		return err
	}
	access := r.side.tokens.giver(r.entity.Path, sas.Manage)
	done, err := r.side.dialect.Directory.RemoveRule(ctx, r.side.client.VHost, r.entity.Path, name)
	r.audit(access, "remove-rule", name, done, err)
	if err == nil && !done {
		err = r.side.refuse(wire.ConditionNotFound, textNotFound, r.side.host, r.entity.Path.String()+"/Rules/"+name)
	}
	return err
}

// audit tells of a rule that was to change, by an access rule. done false: nothing has changed, unless err is not nil.
func (r *request) audit(access, action, rule string, done bool, err error) {
	if tell := r.side.dialect.Audit; tell != nil && (done || err != nil) {
		tell(r.side.client, access, action, r.entity.Path.String()+"/Rules/"+rule, err)
	}
}

// listRules shows a part of the rules of a subscription.
func (r *request) listRules(context.Context) error {
	if err := r.ofRules(); err != nil {
		return err
	}
	skip, _ := r.integer("skip")
	top, limited := r.integer("top")
	if skip < 0 || limited && top < 0 {
		return r.malformed("skip or top")
	}
	all, created := r.side.dialect.Directory.Rules(r.side.client.VHost, r.entity.Path)
	all = all[min(int64(len(all)), skip):]
	list, n := wire.StartList(nil), 0
	for _, rule := range all {
		if limited && int64(n) == top || len(list) > maxAnswers {
			break
		}
		entry := newFields()
		entry.raw("rule-description", topics.AppendRule(nil, rule, created.UnixMilli()))
		list = append(list, entry.end()...)
		n++
	}
	if n == 0 {
		r.done(204, "There are no rules.", nil)
		return nil
	}
	answer := newFields()
	answer.raw("rules", wire.EndList(list, 0, n))
	r.answer = answer.end()
	return nil
}
