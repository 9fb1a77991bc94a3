package catalog

import (
	"fmt"

	"github.com/quorate/quorate/fsm/route"
)

// rights are what users may do in one vhost.
//
// Invariant: each permission is of a user that is there, says that it is of this
// vhost, and stands under its user, or its user and exchange.
//
// A vhost, and not the user, owns them, so that deleting a vhost takes them
// along. A snapshot holds them in lists of all vhosts; patterns are compiled
// again by Restore.
type rights struct {
	permissions route.Map[string, *Permission] // by user
	// topics: of exchanges that need not be there: they stay when an exchange
	// is deleted, and count for the next one of its name
	topics route.Map[topicPlace, *TopicPermission]
}

// permission finds the permission of a user.
func (r *rights) permission(user string) (*Permission, bool) { return r.permissions.Get(user) }

// topic is a topic permission; nil: there is none.
func (r *rights) topic(at topicPlace) *TopicPermission { return r.topics.At(at) }

// anyTopics reports whether there are topic permissions.
func (r *rights) anyTopics() bool { return r.topics.Len() > 0 }

// topicsOf lists the topic permissions of a user, in no particular order. It
// walks over all topic permissions of the vhost.
func (r *rights) topicsOf(user string) (of []topicPlace) {
	for at := range r.topics.All() {
		if at.user == user {
			of = append(of, at)
		}
	}
	return of
}

// of reports whether a user has any of them.
func (r *rights) of(user string) bool {
	_, ok := r.permission(user)
	return ok || len(r.topicsOf(user)) > 0
}

// list returns all of them, in no particular order.
func (r *rights) list() (permissions []*Permission, topics []*TopicPermission) {
	for p := range r.permissions.Values() {
		permissions = append(permissions, p)
	}
	for p := range r.topics.Values() {
		topics = append(topics, p)
	}
	return permissions, topics
}

// put and putTopic add a permission, or replace that of the same place.
func (r *rights) put(p *Permission) { r.permissions = r.permissions.With(p.User, p) }

func (r *rights) putTopic(p *TopicPermission) {
	r.topics = r.topics.With(topicPlace{p.User, p.Exchange}, p)
}

// remove removes the permission of a user, and removeTopic a topic permission.
func (r *rights) remove(user string)        { r.permissions = r.permissions.Without(user) }
func (r *rights) removeTopic(at topicPlace) { r.topics = r.topics.Without(at) }

// forget removes all that a user has. A user who has none is fine.
func (r *rights) forget(user string) {
	r.remove(user)
	for _, at := range r.topicsOf(user) {
		r.removeTopic(at)
	}
}

// check gets the name of the vhost.
func (r *rights) check(vhost string, all *users) error {
	for user, p := range r.permissions.All() {
		if _, ok := all.User(user); !ok || p.User != user || p.VHost != vhost {
			return fmt.Errorf("permission of %q in %q stands under %q in %q", p.User, p.VHost, user, vhost)
		}
	}
	for at, p := range r.topics.All() {
		if _, ok := all.User(at.user); !ok || p.User != at.user || p.Exchange != at.exchange || p.VHost != vhost {
			return fmt.Errorf("topic permission of %q at %q in %q stands under %v in %q", p.User, p.Exchange, p.VHost, at, vhost)
		}
	}
	return nil
}
