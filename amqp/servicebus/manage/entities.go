package manage

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/quorate/quorate/amqp/servicebus/entity"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// load finds an entity with its description; nil: there is none.
func (c *call) load(p entity.Path) (*shown, error) {
	row, ok := c.view.Described(c.vhost, p.Key())
	if !ok {
		return nil, nil
	}
	return c.shown(row)
}

func (c *call) shown(row *logpb.Describe) (*shown, error) {
	d, err := entity.Decode(row.GetText())
	if err != nil {
		return nil, fmt.Errorf("%s in vhost %s: %w", row.GetKey(), c.vhost, err)
	}
	return &shown{
		Description: d, created: time.UnixMilli(row.GetCreated()), updated: time.UnixMilli(row.GetUpdated()),
		keys: c.view.AccessKeys(c.vhost, row.GetKey()),
	}, nil
}

// messages is the queue that holds the messages of an entity, dead that of its dead letters, and transfers that for what it could not
// hand on, which a subscription has in its topic; empty: it has none.
func messages(d *entity.Description) (own, dead, transfers string) {
	if d.Subscription == nil {
		transfers = d.Path.Transfers().Object()
	}
	if d.Topic != nil {
		return d.Path.Store(), "", transfers
	}
	return entity.Address{Path: d.Path}.Object(), entity.Address{Path: d.Path, Part: entity.DeadLetters}.Object(), transfers
}

// count fills in what the queues of entities hold.
func (c *call) count(list ...*shown) {
	var names []string
	for _, s := range list {
		own, dead, transfers := messages(s.Description)
		names = append(names, own, dead, transfers)
	}
	counts := c.settled(slices.DeleteFunc(names, func(name string) bool { return name == "" }))
	for _, s := range list {
		own, dead, transfers := messages(s.Description)
		s.own, s.dead, s.transfers = counts[own], counts[dead], counts[transfers]
		if s.Topic != nil {
			s.own.Active = 0 // what is on its way to the subscriptions
		} else {
			s.dead.Active += s.own.Letters
		}
	}
}

// How long the counts of entities wait for their dead letters to be in one queue: one that is on its way may be in two.
const (
	letterWait  = 20 * time.Millisecond
	letterWaits = 10
)

// settled counts what is in queues, if possible when none of their dead letters is on its way. Those that do not get on
// wait in one place.
func (c *call) settled(names []string) (counts map[string]Counts) {
	for range letterWaits {
		counts = c.Broker.Counts(c.r.Context(), c.vhost, names)
		moving := false
		for _, x := range counts {
			moving = moving || x.Letters > 0
		}
		if !moving {
			break
		}
		select {
		case <-time.After(letterWait):
		case <-c.r.Context().Done():
			return counts
		}
	}
	return counts
}

// subscribed counts the subscriptions of topics, and their filters.
func (c *call) subscribed(list ...*shown) {
	of := map[string]*shown{}
	for _, s := range list {
		of[s.Path.Key()] = s
	}
	for _, row := range c.view.Descriptions(c.vhost) {
		p := entity.ParseAddress(row.GetKey()).Path
		s := of[p.Name]
		if p.Subscription == "" || s == nil {
			continue
		}
		s.subscriptions++
		for _, b := range c.view.Rules(c.vhost, row.GetName()) {
			switch r, ok := ruleOf(b); {
			case ok && r.Correlation != nil:
				s.correlations++
			case ok: // true and false are expressions, too
				s.expressions++
			}
		}
	}
}

// existing is load for an entity that is to be there.
func (c *call) existing(p entity.Path) (*shown, error) {
	s, err := c.load(p)
	if err == nil && s == nil {
		err = c.missing(p)
	}
	return s, err
}

func (c *call) get(p entity.Path) (int, error) {
	s, err := c.existing(p)
	if err != nil {
		return 0, err
	}
	return c.answerEntity(http.StatusOK, s), nil
}

func (c *call) answerEntity(status int, s *shown) int {
	c.count(s)
	if s.Topic != nil {
		c.subscribed(s)
	}
	d := &document{}
	d.entity(s, c.base, true)
	d.answer(c, status, entryType)
	return status
}

// entity writes the entry of an entity.
func (d *document) entity(s *shown, base string, root bool) {
	title := s.Path.Name
	if s.Path.Subscription != "" {
		title = s.Path.Subscription
	}
	d.entry(base, s.Path.String(), title, s.created, root, func() { d.describe(s, base) })
}

// page is the part of a list that a request asks for.
type page struct{ skip, top int }

// Sizes of pages. Clients take a page that is shorter than what they have asked for to be the last one.
const (
	defaultTop = 100
	maxTop     = 1000
)

func (c *call) page() (p page, err error) {
	p.top = defaultTop
	for name, to := range map[string]*int{"$skip": &p.skip, "$top": &p.top} {
		if text := c.r.URL.Query().Get(name); text != "" {
			if *to, err = strconv.Atoi(text); err != nil || *to < 0 {
				return p, refuse(http.StatusBadRequest, 40000, "%s is not a number.", name)
			}
		}
	}
	if p.top < 1 || p.top > maxTop {
		return p, refuse(http.StatusBadRequest, 40000, "$top is from 1 to %d.", maxTop)
	}
	return p, nil
}

// cut returns the page of a list, and the URL of the next one; empty: there is none.
func cut[T any](c *call, p page, all []T) (part []T, next string) {
	from := min(p.skip, len(all))
	to := min(from+p.top, len(all))
	if to < len(all) {
		q := c.r.URL.Query()
		q.Set("$skip", strconv.Itoa(to))
		q.Set("$top", strconv.Itoa(p.top))
		next = c.base + "/" + c.path + "?" + q.Encode()
	}
	return all[from:to], next
}

// list answers with all entities of a kind, subscriptions with those of a topic.
func (c *call) list(kind, topic string) (int, error) {
	p, err := c.page()
	if err != nil {
		return 0, err
	}
	prefix := entity.Key(topic) + "/"
	if topic != "" {
		if s, err := c.load(entity.Path{Name: topic}); err != nil || s == nil || s.Topic == nil {
			return 0, c.missing(entity.Path{Name: topic})
		}
	}
	var all []*shown
	for _, row := range c.view.Descriptions(c.vhost) {
		if topic != "" && !strings.HasPrefix(row.GetKey(), prefix) {
			continue
		}
		s, err := c.shown(row)
		if err != nil {
			return 0, err
		}
		if s.Kind() == kind && (topic == "" || strings.EqualFold(s.Path.Name, topic)) {
			all = append(all, s)
		}
	}
	part, next := cut(c, p, all)
	c.count(part...)
	if kind == "Topic" {
		c.subscribed(part...)
	}
	d := &document{}
	d.feed(c.base, c.path, kind+"s", next, c.Broker.Now(), func() {
		for _, s := range part {
			d.entity(s, c.base, false)
		}
	})
	d.answer(c, http.StatusOK, feedType)
	return http.StatusOK, nil
}

// unknownTime stands for when a namespace was made, which nobody keeps: the same at all nodes, at all times.
var unknownTime = time.Unix(0, 0)

// namespace answers with what the vhost is called.
func (c *call) namespace() (int, error) {
	d := &document{}
	d.entry(c.base, "$namespaceinfo", c.vhost, unknownTime, true, func() {
		d.in(`NamespaceInfo xmlns="`+connectSpace+`" xmlns:i="`+instanceSpace+`"`, func() {
			d.leaf("CreatedTime", timeText(unknownTime))
			d.leaf("MessagingSKU", "Standard")
			d.leaf("ModifiedTime", timeText(unknownTime))
			d.leaf("Name", c.vhost)
			d.leaf("NamespaceType", "Messaging")
		})
	})
	d.answer(c, http.StatusOK, entryType)
	return http.StatusOK, nil
}

// partitions is how many times the size a partitioned entity has.
const partitions = 16

// body reads what a request says of an object: the element in the content of its entry.
func (c *call) body() (*element, error) {
	root, err := parse(c.r.Body)
	if err != nil {
		return nil, err
	}
	content := root.child("content")
	if content == nil || len(content.children) != 1 {
		return nil, &entity.Invalid{Text: "The body is not an entry with one description."}
	}
	return content.children[0], nil
}

// put creates an entity, or with If-Match changes it.
func (c *call) put(p entity.Path) (int, error) {
	e, err := c.body()
	if err != nil {
		return 0, err
	}
	if err := entity.CheckPath(p); err != nil {
		return 0, err
	}
	had, err := c.load(p)
	if err != nil {
		return 0, err
	}
	match := c.r.Header.Get("If-Match")
	update := match != ""
	switch {
	case update && match != "*":
		return 0, refuse(http.StatusPreconditionFailed, 41200, "Entities have no ETag: If-Match is * or missing.")
	case update && had == nil:
		return 0, c.missing(p)
	case !update && had != nil:
		return 0, c.conflict(p)
	case update:
		p = had.Path // with the capitals that it was created with
	}
	d, err := newDescription(p, e)
	if err != nil {
		return 0, err
	}
	c.Limits.Complete(d)
	if err := c.mayForward(d); err != nil {
		return 0, err
	}
	if s := d.Store(); s != nil && s.EnablePartitioning && !update {
		s.MaxSizeInMegabytes *= partitions
	}
	var commands []*logpb.CatalogCommand
	var rule *entity.Rule
	if given := e.child("DefaultRuleDescription"); d.Subscription != nil {
		if rule = entity.NewRule(entity.DefaultRule); given != nil {
			name, _ := given.value("Name")
			if name == "" {
				name = entity.DefaultRule
			}
			if rule, err = readRule(name, given); err != nil {
				return 0, err
			}
		}
	}
	x := Definer{c.vhost, c.view, c.Limits}
	if update {
		commands, err = x.Change(d, had.Description)
	} else {
		commands, err = x.Create(d, rule)
	}
	if err != nil {
		return 0, err
	}
	keys, given, err := readKeys(c.vhost, p.Key(), e)
	if err != nil {
		return 0, err
	}
	if given && d.Subscription == nil {
		commands = append(commands, keyChanges(c.view.AccessKeys(c.vhost, p.Key()), keys)...)
	}
	return c.change(p, commands, update)
}

func (c *call) conflict(p entity.Path) error {
	return refuse(http.StatusConflict, 40900, "Conflict. The entity '%s' already exists.", p)
}

// change makes a change, and answers with what has become of the entity.
func (c *call) change(p entity.Path, commands []*logpb.CatalogCommand, update bool) (int, error) {
	if err := c.propose("change "+p.String(), commands); err != nil {
		if !update {
			c.view = c.Broker.View(c.r.Context())
			if _, there := c.view.Described(c.vhost, p.Key()); there {
				return 0, c.conflict(p) // another client was faster
			}
		}
		return 0, err
	}
	c.view = c.Broker.View(c.r.Context())
	s, err := c.existing(p) // it may have been deleted since
	switch {
	case err != nil:
		return 0, err
	case update:
		return c.answerEntity(http.StatusOK, s), nil
	}
	return c.answerEntity(http.StatusCreated, s), nil
}

func (c *call) propose(what string, commands []*logpb.CatalogCommand) error {
	ctx, cancel := context.WithTimeout(c.r.Context(), changeWait)
	defer cancel()
	return c.Broker.Change(ctx, what, commands...)
}

func (c *call) delete(p entity.Path) (int, error) {
	s, err := c.existing(p)
	if err != nil {
		return 0, err
	}
	if err := c.propose("delete "+p.String(), []*logpb.CatalogCommand{Deletion(c.vhost, s.Description)}); err != nil {
		return 0, err
	}
	c.WriteHeader(http.StatusOK)
	return http.StatusOK, nil
}

// ruleURL is the path of a rule.
func ruleURL(of entity.Path, name string) string {
	return of.String() + "/Rules/" + url.PathEscape(name)
}

// rules lists the rules of a subscription; an error if there is no such subscription.
func (c *call) rules(of entity.Path) (*shown, []*entity.Rule, []*logpb.Bind, error) {
	s, err := c.load(of)
	if err == nil && (s == nil || s.Subscription == nil) {
		err = c.missing(of)
	}
	if err != nil {
		return nil, nil, nil, err
	}
	var list []*entity.Rule
	var binds []*logpb.Bind
	for _, b := range c.view.Rules(c.vhost, entity.Address{Path: s.Path}.Object()) {
		if r, ok := ruleOf(b); ok {
			list, binds = append(list, r), append(binds, b)
		}
	}
	return s, list, binds, nil
}

// findRule finds a rule by its name, whatever the case of that.
func (c *call) findRule(of entity.Path, name string) (s *shown, r *entity.Rule, b *logpb.Bind, err error) {
	s, list, binds, err := c.rules(of)
	for i := range list {
		if strings.EqualFold(list[i].Name, name) {
			return s, list[i], binds[i], nil
		}
	}
	return s, nil, nil, err
}

func (c *call) missingRule(of entity.Path, name string) error {
	return c.missing(entity.Path{Name: ruleURL(of, name)})
}

func (c *call) listRules(of entity.Path) (int, error) {
	p, err := c.page()
	if err != nil {
		return 0, err
	}
	s, all, _, err := c.rules(of)
	if err != nil {
		return 0, err
	}
	part, next := cut(c, p, all)
	d := &document{}
	d.feed(c.base, c.path, "Rules", next, c.Broker.Now(), func() {
		for _, r := range part {
			d.entry(c.base, ruleURL(s.Path, r.Name), r.Name, s.created, false, func() { d.rule(r, s.created) })
		}
	})
	d.answer(c, http.StatusOK, feedType)
	return http.StatusOK, nil
}

func (c *call) answerRule(status int, s *shown, r *entity.Rule) int {
	d := &document{}
	d.entry(c.base, ruleURL(s.Path, r.Name), r.Name, s.created, true, func() { d.rule(r, s.created) })
	d.answer(c, status, entryType)
	return status
}

func (c *call) getRule(of entity.Path, name string) (int, error) {
	s, r, _, err := c.findRule(of, name)
	switch {
	case err != nil:
		return 0, err
	case r == nil:
		return 0, c.missingRule(of, name)
	}
	return c.answerRule(http.StatusOK, s, r), nil
}

func (c *call) putRule(of entity.Path, name string) (int, error) {
	e, err := c.body()
	if err != nil {
		return 0, err
	}
	r, err := readRule(name, e)
	if err != nil {
		return 0, err
	}
	s, had, was, err := c.findRule(of, name)
	match := c.r.Header.Get("If-Match")
	update := match != ""
	switch {
	case update && match != "*":
		return 0, refuse(http.StatusPreconditionFailed, 41200, "Entities have no ETag: If-Match is * or missing.")
	case err != nil:
		return 0, err
	case update && had == nil:
		return 0, c.missingRule(of, name)
	case !update && had != nil:
		return 0, c.conflict(entity.Path{Name: ruleURL(of, name)})
	}
	status, commands := http.StatusCreated, []*logpb.CatalogCommand(nil)
	if update {
		status = http.StatusOK
		r.Name = had.Name
		commands = append(commands, &logpb.CatalogCommand{Body: &logpb.CatalogCommand_Unbind{Unbind: was}})
	}
	bind, err := bindingOf(c.view, c.vhost, s.Path, r)
	if err != nil {
		return 0, err
	}
	if !update || kindOf(had) != kindOf(r) {
		if err := fitRules(c.view, c.vhost, bind.GetSource(), r); err != nil {
			return 0, err
		}
	}
	commands = append(commands, &logpb.CatalogCommand{Body: &logpb.CatalogCommand_Bind{Bind: bind}})
	if err := c.propose("change rule "+ruleURL(of, name), commands); err != nil {
		return 0, err
	}
	return c.answerRule(status, s, r), nil
}

func (c *call) deleteRule(of entity.Path, name string) (int, error) {
	_, r, b, err := c.findRule(of, name)
	switch {
	case err != nil:
		return 0, err
	case r == nil:
		return 0, c.missingRule(of, name)
	}
	if err := c.propose("delete rule "+ruleURL(of, name), []*logpb.CatalogCommand{{Body: &logpb.CatalogCommand_Unbind{Unbind: b}}}); err != nil {
		return 0, err
	}
	c.WriteHeader(http.StatusOK)
	return http.StatusOK, nil
}

// programArgument is the argument of a rule's binding, of which the exchange knows what it means.
const programArgument = "x-filter-program"

func ruleOf(b *logpb.Bind) (*entity.Rule, bool) {
	for _, f := range b.GetArguments().GetFields() {
		if f.GetName() == programArgument {
			r, err := entity.DecodeRule(f.GetValue().GetStr())
			return r, err == nil
		}
	}
	return nil, false
}

// exchangeOf is the exchange of the topic of a subscription, which earlier builds have created with the capitals of that request.
func exchangeOf(v View, vhost string, of entity.Path) string {
	topic := entity.Path{Name: of.Name}
	if row, ok := v.Described(vhost, topic.Key()); ok {
		return row.GetName()
	}
	return entity.Address{Path: topic}.Object()
}

// bindingOf is the binding of a subscription's queue to its topic by which a rule is kept.
func bindingOf(v View, vhost string, of entity.Path, r *entity.Rule) (*logpb.Bind, error) {
	if err := r.Check(); err != nil {
		return nil, err
	}
	program, err := entity.EncodeRule(r)
	if err != nil {
		return nil, err
	}
	return &logpb.Bind{
		Vhost: vhost, Source: exchangeOf(v, vhost, of), Destination: entity.Address{Path: of}.Object(), RoutingKey: r.Name,
		Arguments: &fsm.Table{Fields: []*logpb.Field{{Name: programArgument, Value: &logpb.Value{Tag: 'S', Str: program}}}},
	}, nil
}
