package manage

import (
	"crypto/rand"
	"encoding/base64"

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
		k := &logpb.AccessKey{Vhost: vhost, Scope: scope}
		k.Name, _ = r.value("KeyName")
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
				return nil, true, &entity.Invalid{Field: "AuthorizationRules", Text: "the right " + right.text + " is not known"}
			}
		}
		if k.Name == "" || !k.Send && !k.Listen && !k.Manage {
			return nil, true, &entity.Invalid{Field: "AuthorizationRules", Text: "a rule has a name and at least one right"}
		}
		keys = append(keys, k)
	}
	return keys, true, nil
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
