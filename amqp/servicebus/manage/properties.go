package manage

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/quorate/quorate/amqp/servicebus/entity"
)

// property is one of the properties of entities that their authors set. of returns
// where it is in a description; nil: that kind of entities has none of this name.
type property struct {
	name string
	of   func(*entity.Description) any
}

var properties = []property{
	{"LockDuration", inDelivery(func(d *entity.Delivery) any { return &d.LockDuration })},
	{"RequiresSession", inDelivery(func(d *entity.Delivery) any { return &d.RequiresSession })},
	{"DeadLetteringOnMessageExpiration", inDelivery(func(d *entity.Delivery) any { return &d.DeadLetteringOnMessageExpiration })},
	{"MaxDeliveryCount", inDelivery(func(d *entity.Delivery) any { return &d.MaxDeliveryCount })},
	{"MaxSizeInMegabytes", inStore(func(s *entity.Store) any { return &s.MaxSizeInMegabytes })},
	{"MaxMessageSizeInKilobytes", inStore(func(s *entity.Store) any { return &s.MaxMessageSizeInKilobytes })},
	{"RequiresDuplicateDetection", inStore(func(s *entity.Store) any { return &s.RequiresDuplicateDetection })},
	{"DuplicateDetectionHistoryTimeWindow", inStore(func(s *entity.Store) any { return &s.DuplicateDetectionHistoryTimeWindow })},
	{"SupportOrdering", inStore(func(s *entity.Store) any { return &s.SupportOrdering })},
	{"EnablePartitioning", inStore(func(s *entity.Store) any { return &s.EnablePartitioning })},
	{"EnableExpress", inStore(func(s *entity.Store) any { return &s.EnableExpress })},
	{"DefaultMessageTimeToLive", func(d *entity.Description) any { return &d.Common().DefaultMessageTimeToLive }},
	{"AutoDeleteOnIdle", func(d *entity.Description) any { return &d.Common().AutoDeleteOnIdle }},
	{"EnableBatchedOperations", func(d *entity.Description) any { return &d.Common().EnableBatchedOperations }},
	{"Status", func(d *entity.Description) any { return &d.Common().Status }},
	{"UserMetadata", func(d *entity.Description) any { return &d.Common().UserMetadata }},
	{"ForwardTo", inDelivery(func(d *entity.Delivery) any { return &d.ForwardTo })},
	{"ForwardDeadLetteredMessagesTo", inDelivery(func(d *entity.Delivery) any { return &d.ForwardDeadLetteredMessagesTo })},
	{"FilteringMessagesBeforePublishing", func(d *entity.Description) any {
		if d.Topic == nil {
			return nil
		}
		return &d.Topic.FilteringMessagesBeforePublishing
	}},
	{"DeadLetteringOnFilterEvaluationExceptions", func(d *entity.Description) any {
		if d.Subscription == nil {
			return nil
		}
		return &d.Subscription.DeadLetteringOnFilterEvaluationExceptions
	}},
}

func inDelivery(of func(*entity.Delivery) any) func(*entity.Description) any {
	return func(d *entity.Description) any {
		if x := d.Delivery(); x != nil {
			return of(x)
		}
		return nil
	}
}

func inStore(of func(*entity.Store) any) func(*entity.Description) any {
	return func(d *entity.Description) any {
		if x := d.Store(); x != nil {
			return of(x)
		}
		return nil
	}
}

// read takes up what an element says of an entity; of the rest nothing changes.
func read(e *element, d *entity.Description) error {
	for _, p := range properties {
		to := p.of(d)
		text, given := e.value(p.name)
		if to == nil || !given {
			continue
		}
		if err := set(to, text); err != nil {
			return &entity.Invalid{Field: p.name, Text: err.Error()}
		}
	}
	return nil
}

var errNumber = errors.New("it is not a number")

func set(to any, text string) (err error) {
	switch x := to.(type) {
	case *bool:
		switch text {
		case "true", "1", "True":
			*x = true
		case "false", "0", "False":
			*x = false
		default:
			return errors.New("it is neither true nor false")
		}
	case *int:
		if *x, err = strconv.Atoi(text); err != nil {
			return errNumber
		}
	case *int64:
		if *x, err = strconv.ParseInt(text, 10, 64); err != nil {
			return errNumber
		}
	case *entity.Duration:
		*x, err = entity.ParseDuration(text)
		return err
	case *entity.Status:
		*x = entity.Status(text)
	case *string:
		*x = text
	}
	return nil
}

// show is a property as text; given is false if the entity has none.
func show(d *entity.Description, name string) (text string, given bool) {
	for _, p := range properties {
		if p.name != name {
			continue
		}
		switch x := p.of(d).(type) {
		case nil:
			return "", false
		case *string:
			return *x, *x != ""
		case *bool:
			return strconv.FormatBool(*x), true
		case *int:
			return strconv.Itoa(*x), true
		case *int64:
			return strconv.FormatInt(*x, 10), true
		case fmt.Stringer:
			return x.String(), true
		case *entity.Status:
			return string(*x), true
		}
	}
	return "", false
}

// newDescription is an entity at a path of which an element says what it is, without what Complete gives it.
func newDescription(p entity.Path, e *element) (*entity.Description, error) {
	d := &entity.Description{Path: p}
	switch {
	case e.name == "SubscriptionDescription" && p.Subscription != "":
		d.Subscription = entity.NewSubscription()
	case p.Subscription != "":
	case e.name == "QueueDescription":
		d.Queue = entity.NewQueue()
	case e.name == "TopicDescription":
		d.Topic = entity.NewTopic()
	}
	if d.Queue == nil && d.Topic == nil && d.Subscription == nil {
		return nil, &entity.Invalid{Text: fmt.Sprintf("%s is not what can be at %s", e.name, p)}
	}
	leaveSize(d)
	if err := read(e, d); err != nil {
		return nil, err
	}
	resolve(d)
	return d, nil
}

// resolve makes paths of the URLs that name the destinations of an entity.
func resolve(d *entity.Description) {
	if x := d.Delivery(); x != nil {
		x.ForwardTo, x.ForwardScheme = forward(x.ForwardTo)
		x.ForwardDeadLetteredMessagesTo, x.ForwardDeadLetteredScheme = forward(x.ForwardDeadLetteredMessagesTo)
	}
}

// leaveSize leaves to the broker what is not said of the size of messages.
func leaveSize(d *entity.Description) {
	if s := d.Store(); s != nil {
		s.MaxMessageSizeInKilobytes = 0
	}
}

// forward is the path of the entity that a property names, and the scheme of the URL that it is; empty: it is none.
func forward(property string) (path, scheme string) {
	if property = strings.TrimSpace(property); property == "" {
		return "", ""
	}
	if before, _, ok := strings.Cut(property, "://"); ok {
		scheme = strings.ToLower(before)
	}
	return entity.ForwardPath(property).String(), scheme
}

func check(d *entity.Description, l entity.Limits) error {
	switch {
	case d.Queue != nil:
		return d.Queue.Check(l)
	case d.Topic != nil:
		return d.Topic.Check(l)
	}
	return d.Subscription.Check()
}

// checkChange refuses what cannot become of an entity.
func checkChange(d, was *entity.Description) error {
	switch {
	case d.Kind() != was.Kind():
		return &entity.Invalid{Text: fmt.Sprintf("%s is a %s.", was.Path, was.Kind())}
	case d.Queue != nil:
		return d.Queue.CheckChange(was.Queue)
	case d.Topic != nil:
		return d.Topic.CheckChange(was.Topic)
	}
	return d.Subscription.CheckChange(was.Subscription)
}
