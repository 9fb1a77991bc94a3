package manage

import (
	"crypto/rand"
	"encoding/base64"
	"net/http"
	"net/url"
	"strings"

	"github.com/quorate/quorate/amqp/servicebus/entity"
	"github.com/quorate/quorate/proto/logpb"
)

// NewKey makes a key that nobody knows.
func NewKey() string {
	var raw [32]byte
	_, _ = rand.Read(raw[:]) // it does not fail
	return base64.StdEncoding.EncodeToString(raw[:])
}

// readKeys reads the access keys that an element gives an entity. given is false if it says nothing of them.
func readKeys(vhost, scope string, e *element) (keys []*logpb.AccessKey, given bool, err error) {
	rules := e.child("AuthorizationRules")
	if rules == nil {
		return nil, false, nil
	}
	for _, r := range rules.children {
		k, err := readKey(vhost, scope, "", r)
		if err != nil {
			return nil, true, err
		}
		keys = append(keys, k)
	}
	return keys, true, nil
}

// readKey reads one access key. name is what it is called if the element does not say; keys that it does not say are made.
func readKey(vhost, scope, name string, r *element) (*logpb.AccessKey, error) {
	k := &logpb.AccessKey{Vhost: vhost, Scope: scope}
	if k.Name, _ = r.value("KeyName"); k.Name == "" {
		k.Name = name
	}
	if k.Primary, _ = r.value("PrimaryKey"); k.Primary == "" {
		k.Primary = NewKey()
	}
	if k.Secondary, _ = r.value("SecondaryKey"); k.Secondary == "" {
		k.Secondary = NewKey()
	}
	for _, right := range r.child("Rights").all() {
		switch right.text {
		case "Send":
			k.Send = true
		case "Listen":
			k.Listen = true
		case "Manage":
			k.Manage = true
		default:
			return nil, &entity.Invalid{Field: "AuthorizationRules", Text: "the right " + right.text + " is not known"}
		}
	}
	if k.Name == "" || !k.Send && !k.Listen && !k.Manage {
		return nil, &entity.Invalid{Field: "AuthorizationRules", Text: "a rule has a name and at least one right"}
	}
	return k, nil
}

// RootRule is the rule that every namespace has.
const RootRule = "RootManageSharedAccessKey"

// policies is the path of the rules of the namespace, which the service has no requests of this kind for.
const policies = "$AuthorizationRules"

// policyOperation says what a request asks for about the rules of the namespace.
func (c *call) policyOperation() (o operation, ok bool) {
	name, one := "", false
	if !strings.EqualFold(c.path, policies) {
		if n := len(policies) + 1; len(c.path) <= n || !strings.EqualFold(c.path[:n], policies+"/") {
			return o, false
		}
		name, one = c.path[len(policies)+1:], true
	}
	switch {
	case c.r.Method == http.MethodGet && !one:
		return operation{name: "EnumerateAuthorizationRules", claim: "EntityRead", do: (*call).listPolicies}, true
	case c.r.Method == http.MethodGet:
		return operation{name: "GetAuthorizationRule", claim: "EntityRead", do: func(c *call) (int, error) { return c.getPolicy(http.StatusOK, name) }}, true
	case c.r.Method == http.MethodPut && one:
		return operation{name: "CreateOrUpdateAuthorizationRule", changes: true, claim: "EntityWrite", do: func(c *call) (int, error) { return c.putPolicy(name) }}, true
	case c.r.Method == http.MethodDelete && one:
		return operation{name: "DeleteAuthorizationRule", changes: true, claim: "EntityDelete", do: func(c *call) (int, error) { return c.deletePolicy(name) }}, true
	}
	return o, false
}

// listPolicies lists the rules of the namespace, without their keys.
func (c *call) listPolicies() (int, error) {
	d := &document{}
	d.feed(c.base, c.path, "AuthorizationRules", "", c.Broker.Now(), func() {
		for _, k := range c.view.AccessKeys(c.vhost, "") {
			d.policy(c.base, k, false)
		}
	})
	d.answer(c, http.StatusOK, feedType)
	return http.StatusOK, nil
}

// policy writes the entry of a rule of the namespace: alone, with its keys.
func (d *document) policy(base string, k *logpb.AccessKey, alone bool) {
	d.entry(base, policies+"/"+url.PathEscape(k.GetName()), k.GetName(), unknownTime, alone, func() {
		d.accessKey(`AuthorizationRule xmlns="`+connectSpace+`" xmlns:i="`+instanceSpace+`" i:type="SharedAccessAuthorizationRule"`, k, alone)
	})
}

func (c *call) getPolicy(status int, name string) (int, error) {
	k, ok := c.view.AccessKey(c.vhost, "", name)
	if !ok {
		return 0, c.missing(entity.Path{Name: policies + "/" + name})
	}
	d := &document{}
	d.policy(c.base, k, true)
	d.answer(c, status, entryType)
	return status, nil
}

// putPolicy makes a rule of the namespace, or changes it. Keys that are not given stay.
func (c *call) putPolicy(name string) (int, error) {
	e, err := c.body()
	if err != nil {
		return 0, err
	}
	k, err := readKey(c.vhost, "", name, e)
	switch {
	case err != nil:
		return 0, err
	case k.Name != name:
		return 0, &entity.Invalid{Field: "KeyName", Text: "the path names another rule"}
	case name == RootRule && !k.Manage:
		return 0, refuse(http.StatusBadRequest, 40000, "The rule %s has the right Manage.", RootRule)
	}
	was, had := c.view.AccessKey(c.vhost, "", name)
	if _, given := e.value("PrimaryKey"); had && !given {
		k.Primary = was.GetPrimary()
	}
	if _, given := e.value("SecondaryKey"); had && !given {
		k.Secondary = was.GetSecondary()
	}
	if err := c.propose("change the rule "+name, keyChanges(nil, []*logpb.AccessKey{k})); err != nil {
		return 0, err
	}
	c.view = c.Broker.View(c.r.Context())
	return c.getPolicy(map[bool]int{false: http.StatusCreated, true: http.StatusOK}[had], name)
}

// deletePolicy deletes a rule of the namespace. The root rule stays, as it would be made anew.
func (c *call) deletePolicy(name string) (int, error) {
	k, ok := c.view.AccessKey(c.vhost, "", name)
	switch {
	case !ok:
		return 0, c.missing(entity.Path{Name: policies + "/" + name})
	case name == RootRule:
		return 0, refuse(http.StatusBadRequest, 40000, "The rule %s cannot be deleted.", RootRule)
	}
	if err := c.propose("delete the rule "+name, keyChanges([]*logpb.AccessKey{k}, nil)); err != nil {
		return 0, err
	}
	c.WriteHeader(http.StatusOK)
	return http.StatusOK, nil
}

// all returns the children; none if e is nil.
func (e *element) all() []*element {
	if e == nil {
		return nil
	}
	return e.children
}

// keyChanges are the commands that make keys out of those that are there.
func keyChanges(have, want []*logpb.AccessKey) (list []*logpb.CatalogCommand) {
	wanted := map[string]bool{}
	for _, k := range want {
		wanted[k.GetName()] = true
		list = append(list, &logpb.CatalogCommand{Body: &logpb.CatalogCommand_PutAccessKey{PutAccessKey: k}})
	}
	for _, k := range have {
		if !wanted[k.GetName()] {
			list = append(list, &logpb.CatalogCommand{Body: &logpb.CatalogCommand_DeleteAccessKey{DeleteAccessKey: &logpb.AccessKey{Vhost: k.GetVhost(), Scope: k.GetScope(), Name: k.GetName()}}})
		}
	}
	return list
}
