package catalog

import (
	"cmp"
	"regexp"
	"slices"
	"strings"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// TopicPermission restricts the routing keys of a user at one topic exchange.
// Without one, permissions of the vhost alone decide. At exchanges of other
// types it means nothing.
type TopicPermission struct {
	User, VHost, Exchange string
	// Write is the pattern for routing keys of publishes, Read the one for
	// those of bindings. {username} and {vhost} in them stand for the user's
	// and the vhost's name.
	Write, Read string

	row         *logpb.PutTopicPermission
	write, read pattern
}

// topicPlace tells the topic permissions of a vhost apart.
type topicPlace struct{ user, exchange string }

func newTopicPermission(row *logpb.PutTopicPermission) *TopicPermission {
	names := strings.NewReplacer("{username}", regexp.QuoteMeta(row.GetUser()), "{vhost}", regexp.QuoteMeta(row.GetVhost()))
	return &TopicPermission{
		User: row.GetUser(), VHost: row.GetVhost(), Exchange: row.GetExchange(),
		Write: row.GetWrite(), Read: row.GetRead(), row: row,
		write: newPattern(names.Replace(row.GetWrite())), read: newPattern(names.Replace(row.GetRead())),
	}
}

// Check refuses a routing key that the user may not write, or read, at the
// exchange.
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

// TopicRule returns the topic permission that counts for a user at an
// exchange: nil if there is none, or if the exchange is not a topic exchange.
func (v *View) TopicRule(user, vhost, exchange string) *TopicPermission {
	vh := v.vhosts.At(vhost)
	if vh == nil || vh.topics.Len() == 0 {
		return nil
	}
	if x := vh.exchanges.At(exchange); x == nil || x.Type != Topic {
		return nil
	}
	return vh.topics.At(topicPlace{user, exchange})
}

// TopicPermissions returns all topic permissions by user, vhost and exchange.
func (v *View) TopicPermissions() []*TopicPermission {
	var list []*TopicPermission
	for vh := range v.vhosts.Values() {
		for p := range vh.topics.Values() {
			list = append(list, p)
		}
	}
	slices.SortFunc(list, func(a, b *TopicPermission) int {
		return cmp.Or(cmp.Compare(a.User, b.User), cmp.Compare(a.VHost, b.VHost), cmp.Compare(a.Exchange, b.Exchange))
	})
	return list
}

// putTopicPermission creates or replaces a topic permission. The exchange
// need not be there.
func (d *draft) putTopicPermission(m *logpb.PutTopicPermission) (*logpb.CatalogResult, error) {
	if _, ok := d.User(m.GetUser()); !ok {
		return nil, refuse(fsm.NotFoundKind, "no user '%s'", m.GetUser())
	}
	if _, ok := d.VHost(m.GetVhost()); !ok {
		return nil, refuse(fsm.NotFoundKind, "no vhost '%s'", m.GetVhost())
	}
	if err := checkName(kindExchange, m.GetExchange()); err != nil {
		return nil, err
	}
	if err := checkPatterns(m.GetWrite(), m.GetRead()); err != nil {
		return nil, err
	}
	at := topicPlace{m.GetUser(), m.GetExchange()}
	if p := d.vhosts.At(m.GetVhost()).topics.At(at); p != nil && sameRow(p.row, m) {
		return &logpb.CatalogResult{}, nil
	}
	vh := d.open(m.GetVhost())
	vh.topics = vh.topics.With(at, newTopicPermission(m))
	return &logpb.CatalogResult{Changed: true}, nil
}

// deleteTopicPermission removes one topic permission of a user in a vhost, or
// all of them.
func (d *draft) deleteTopicPermission(m *logpb.DeleteTopicPermission) (*logpb.CatalogResult, error) {
	if m.GetAll() {
		return &logpb.CatalogResult{Changed: d.forgetTopics(m.GetUser(), m.GetVhost())}, nil
	}
	at := topicPlace{m.GetUser(), m.GetExchange()}
	if vh := d.vhosts.At(m.GetVhost()); vh == nil || vh.topics.At(at) == nil {
		return &logpb.CatalogResult{}, nil
	}
	vh := d.open(m.GetVhost())
	vh.topics = vh.topics.Without(at)
	return &logpb.CatalogResult{Changed: true}, nil
}

// forgetTopics removes a user's topic permissions in a vhost and reports
// whether there were any.
func (d *draft) forgetTopics(user, vhost string) (any bool) {
	vh := d.vhosts.At(vhost)
	if vh == nil {
		return false
	}
	for at := range vh.topics.All() {
		if at.user == user {
			mine := d.open(vhost)
			mine.topics = mine.topics.Without(at)
			any = true
		}
	}
	return any
}
