package catalog

import (
	"strings"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/pattern"
	"github.com/quorate/quorate/proto/logpb"
)

// TopicPermission restricts the routing keys of a user at one topic exchange.
// Without one, permissions of the vhost alone decide. At exchanges of other
// types it means nothing.
//
// It never changes. An empty pattern permits only the empty routing key.
type TopicPermission struct {
	User, VHost, Exchange string
	// Write is the pattern for routing keys of publishes, Read the one for
	// those of bindings. {username} and {vhost} in them stand for the user's
	// and the vhost's name.
	Write, Read string

	// row: what a snapshot holds; the other fields are derived from it
	row *logpb.PutTopicPermission
	// write and read: Write and Read with the names filled in
	write, read names
}

// topicPlace tells the topic permissions of a vhost apart.
type topicPlace struct{ user, exchange string }

// newTopicPermission makes the record of a row. Names are quoted, so that a
// user cannot be given a name that widens the pattern.
func newTopicPermission(row *logpb.PutTopicPermission) *TopicPermission {
	fill := strings.NewReplacer("{username}", pattern.Quote(row.GetUser()), "{vhost}", pattern.Quote(row.GetVhost()))
	return &TopicPermission{
		User: row.GetUser(), VHost: row.GetVhost(), Exchange: row.GetExchange(),
		Write: row.GetWrite(), Read: row.GetRead(), row: row,
		write: newNames(fill.Replace(row.GetWrite()), dialectOwn), read: newNames(fill.Replace(row.GetRead()), dialectOwn),
	}
}

// Check refuses a routing key that the user may not write, or read, at the
// exchange. Requires: verb is Write or Read; Configure is taken for Write.
func (p *TopicPermission) Check(verb Verb, key string) error {
	allowed := &p.write
	if verb == Read {
		allowed = &p.read
	}
	if allowed.match(key) {
		return nil
	}
	return refuse(fsm.AccessRefused, "%s access to topic '%s' in %s refused for user '%s'",
		verb, key, resource(kindExchange, p.VHost, p.Exchange), p.User)
}
