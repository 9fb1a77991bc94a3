package manage

import (
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/quorate/quorate/amqp/servicebus/entity"
	"github.com/quorate/quorate/amqp/servicebus/sas"
	"github.com/quorate/quorate/proto/logpb"
)

// Counts are those of one queue.
type Counts struct {
	Active, Scheduled, Bytes uint64
	Forwarding               uint64    // on their way to where the queue forwards to
	Letters                  uint64    // dead ones, on their way to the queue of dead letters
	Accessed                 time.Time // when something was last done with it; zero: not known
	Used                     bool      // it has had a message, or somebody waits for one
}

// shown is an entity with what is shown beside its description.
type shown struct {
	*entity.Description
	created, updated time.Time
	own, dead        Counts
	transfers        Counts // what it could not hand on
	keys             []*logpb.AccessKey

	// Of a topic: its subscriptions, and their rules by filter.
	subscriptions, expressions, correlations int
}

// elements are the names of the properties of each kind, in the order of the service's schema. Names without a
// property are written by special.
var elements = map[string][]string{
	"Queue": {
		"LockDuration", "MaxSizeInMegabytes", "RequiresDuplicateDetection", "RequiresSession", "DefaultMessageTimeToLive",
		"DeadLetteringOnMessageExpiration", "DuplicateDetectionHistoryTimeWindow", "MaxDeliveryCount", "EnableBatchedOperations",
		"SizeInBytes", "MessageCount", "IsAnonymousAccessible", "AuthorizationRules", "Status", "ForwardTo", "UserMetadata", "CreatedAt",
		"UpdatedAt", "AccessedAt", "SupportOrdering", "CountDetails", "AutoDeleteOnIdle", "EnablePartitioning",
		"EntityAvailabilityStatus", "ForwardDeadLetteredMessagesTo", "EnableExpress", "MaxMessageSizeInKilobytes",
	},
	"Topic": {
		"DefaultMessageTimeToLive", "MaxSizeInMegabytes", "RequiresDuplicateDetection", "DuplicateDetectionHistoryTimeWindow",
		"EnableBatchedOperations", "SizeInBytes", "FilteringMessagesBeforePublishing", "IsAnonymousAccessible", "AuthorizationRules",
		"Status", "UserMetadata", "CreatedAt", "UpdatedAt", "AccessedAt", "SupportOrdering", "CountDetails", "SubscriptionCount",
		"AutoDeleteOnIdle", "EnablePartitioning", "EntityAvailabilityStatus", "EnableSubscriptionPartitioning", "EnableExpress",
		"MaxMessageSizeInKilobytes", "SqlFilterCount", "CorrelationFilterCount",
	},
	"Subscription": {
		"LockDuration", "RequiresSession", "DefaultMessageTimeToLive", "DeadLetteringOnMessageExpiration",
		"DeadLetteringOnFilterEvaluationExceptions", "MessageCount", "MaxDeliveryCount", "EnableBatchedOperations", "Status", "ForwardTo",
		"CreatedAt", "UpdatedAt", "AccessedAt", "UserMetadata", "CountDetails", "ForwardDeadLetteredMessagesTo", "AutoDeleteOnIdle",
		"EntityAvailabilityStatus",
	},
}

// timeText is an instant as the service writes it.
func timeText(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.9999999Z") }

// describe writes what an entry has of an entity.
func (d *document) describe(s *shown, base string) {
	d.in(s.Kind()+`Description xmlns="`+connectSpace+`" xmlns:i="`+instanceSpace+`"`, func() {
		for _, name := range elements[s.Kind()] {
			switch text, given := show(s.Description, name); {
			case given && name == "ForwardTo":
				d.leaf(name, destination(base, s.Delivery().ForwardScheme, text))
			case given && name == "ForwardDeadLetteredMessagesTo":
				d.leaf(name, destination(base, s.Delivery().ForwardDeadLetteredScheme, text))
			case given:
				d.leaf(name, text)
			default:
				d.special(s, name)
			}
		}
	})
}

// destination is the URL of an entity that another one forwards to, with the scheme by which it was named: programs compare
// it with what they have written.
func destination(base, scheme, path string) string {
	if _, rest, ok := strings.Cut(base, "://"); ok && scheme != "" {
		base = scheme + "://" + rest
	}
	return base + "/" + path
}

// special writes a property that nobody sets.
func (d *document) special(s *shown, name string) {
	number := func(n uint64) { d.leaf(name, strconv.FormatUint(n, 10)) }
	switch name {
	case "SizeInBytes":
		number(s.own.Bytes + s.dead.Bytes + s.transfers.Bytes)
	case "MessageCount":
		number(s.own.Active + s.own.Scheduled + s.dead.Active + s.transfers.Active)
	case "SubscriptionCount":
		number(uint64(s.subscriptions))
	case "SqlFilterCount":
		number(uint64(s.expressions))
	case "CorrelationFilterCount":
		number(uint64(s.correlations))
	case "IsAnonymousAccessible", "EnableSubscriptionPartitioning":
		d.leaf(name, "false")
	case "EntityAvailabilityStatus":
		d.leaf(name, "Available")
	case "CreatedAt":
		d.leaf(name, timeText(s.created))
	case "UpdatedAt":
		d.leaf(name, timeText(s.updated))
	case "AccessedAt":
		d.leaf(name, timeText(s.accessed()))
	case "AuthorizationRules":
		d.rules(s)
	case "CountDetails":
		d.in(`CountDetails xmlns:d2p1="`+countSpace+`"`, func() {
			for i, n := range []uint64{s.own.Active, s.dead.Active, s.own.Scheduled, s.own.Forwarding, s.transfers.Active} {
				d.leaf([...]string{"d2p1:ActiveMessageCount", "d2p1:DeadLetterMessageCount", "d2p1:ScheduledMessageCount", "d2p1:TransferMessageCount", "d2p1:TransferDeadLetterMessageCount"}[i], strconv.FormatUint(n, 10))
			}
		})
	}
}

// accessed is when somebody last did something with the entity; zero: nobody has, but for a subscription, which takes copies
// from the start.
func (s *shown) accessed() time.Time {
	switch {
	case s.Subscription == nil && !s.own.Used && !s.dead.Used:
		return time.Time{}
	case s.own.Accessed.After(s.updated):
		return s.own.Accessed
	}
	return s.updated
}

// rules writes the access keys of an entity, whose reader may manage it.
func (d *document) rules(s *shown) {
	d.in("AuthorizationRules", func() {
		for _, k := range s.keys {
			d.accessKey(`AuthorizationRule i:type="SharedAccessAuthorizationRule"`, k, true)
		}
	})
}

// accessKey writes a rule as an element, with its keys or without.
func (d *document) accessKey(element string, k *logpb.AccessKey, keys bool) {
	d.in(element, func() {
		d.leaf("ClaimType", "SharedAccessKey")
		d.leaf("ClaimValue", "None")
		d.in("Rights", func() {
			for i, has := range []bool{k.GetManage(), k.GetSend(), k.GetListen()} {
				if has {
					d.leaf("AccessRights", [...]string{"Manage", "Send", "Listen"}[i])
				}
			}
		})
		d.leaf("KeyName", k.GetName())
		if keys {
			d.leaf("PrimaryKey", k.GetPrimary())
			d.leaf("SecondaryKey", k.GetSecondary())
		}
	})
}

// RuleOf is an access key as package sas knows it.
func RuleOf(k *logpb.AccessKey) *sas.Rule {
	r := &sas.Rule{Name: k.GetName(), Primary: k.GetPrimary(), Secondary: k.GetSecondary()}
	for i, has := range []bool{k.GetSend(), k.GetListen(), k.GetManage()} {
		if has {
			r.Rights |= [...]sas.Rights{sas.Send, sas.Listen, sas.Manage}[i]
		}
	}
	return r
}

// entry writes one entry around its content. path is that of what it is about.
func (d *document) entry(base, path, title string, at time.Time, root bool, content func()) {
	name := "entry"
	if root {
		name += ` xmlns="` + atomSpace + `"`
	}
	d.in(name, func() {
		d.leaf("id", base+"/"+path)
		d.leaf(`title type="text"`, title)
		d.leaf("published", timeText(at))
		d.leaf("updated", timeText(at))
		d.in("author", func() { d.leaf("name", title) })
		d.WriteString(`<link rel="self"` + attribute("href", base+"/"+path) + `/>`)
		d.in(`content type="application/xml"`, content)
	})
}

// feed writes the beginning and the end of a list. next is the URL of the rest; empty: this is the end.
func (d *document) feed(base, path, title, next string, at time.Time, entries func()) {
	d.in(`feed xmlns="`+atomSpace+`"`, func() {
		d.leaf(`title type="text"`, title)
		d.leaf("id", base+"/"+path)
		d.leaf("updated", timeText(at))
		d.WriteString(`<link rel="self"` + attribute("href", base+"/"+path) + `/>`)
		if next != "" {
			d.WriteString(`<link rel="next"` + attribute("href", next) + `/>`)
		}
		entries()
	})
}

// answer sends a document.
func (d *document) answer(w http.ResponseWriter, status int, kind string) {
	w.Header().Set("Content-Type", kind+"; charset=utf-8")
	w.WriteHeader(status)
	_, _ = w.Write(d.Bytes())
}

const (
	entryType = "application/atom+xml;type=entry"
	feedType  = "application/atom+xml;type=feed"
)

// refusal is why a request is not done.
type refusal struct {
	status, sub int // sub: the service's finer code; 0: none
	text        string
}

func (e *refusal) Error() string { return e.text }

// Denied reports whether an error refuses a request for want of a right, or of a token.
func Denied(err error) bool {
	e := new(refusal)
	return errors.As(err, &e) && e.status == http.StatusUnauthorized
}

func refuse(status, sub int, format string, values ...any) error {
	return &refusal{status, sub, fmt.Sprintf(format, values...)}
}
