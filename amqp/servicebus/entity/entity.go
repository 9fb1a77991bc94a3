package entity

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strings"
)

// Status says what an entity takes and gives.
type Status string

// The statuses.
const (
	Active          Status = "Active"
	Disabled        Status = "Disabled"
	SendDisabled    Status = "SendDisabled"
	ReceiveDisabled Status = "ReceiveDisabled"
)

// Sends reports whether messages may be sent to an entity with this status.
func (s Status) Sends() bool { return s != Disabled && s != SendDisabled }

// Receives reports whether messages may be received.
func (s Status) Receives() bool { return s != Disabled && s != ReceiveDisabled }

// Delivery is what queues and subscriptions have in common.
type Delivery struct {
	LockDuration                     Duration
	RequiresSession                  bool
	MaxDeliveryCount                 int
	DeadLetteringOnMessageExpiration bool
	ForwardTo                        string `json:",omitempty"` // an entity's path
	ForwardDeadLetteredMessagesTo    string `json:",omitempty"`
	// Of the URLs by which those were named; empty: it was by a path. They are shown as they were named.
	ForwardScheme, ForwardDeadLetteredScheme string `json:",omitempty"`
}

// Store is what queues and topics have in common: they take messages from senders.
type Store struct {
	MaxSizeInMegabytes                  int64
	MaxMessageSizeInKilobytes           int64
	RequiresDuplicateDetection          bool
	DuplicateDetectionHistoryTimeWindow Duration
	SupportOrdering                     bool
	EnablePartitioning                  bool
	EnableExpress                       bool
}

// Common is what all three have.
type Common struct {
	DefaultMessageTimeToLive Duration
	AutoDeleteOnIdle         Duration
	EnableBatchedOperations  bool
	Status                   Status
	UserMetadata             string `json:",omitempty"`
}

// Queue describes a queue.
type Queue struct {
	Common
	Delivery
	Store
}

// Topic describes a topic.
type Topic struct {
	Common
	Store
	FilteringMessagesBeforePublishing bool `json:",omitempty"`
}

// Subscription describes a subscription of a topic.
type Subscription struct {
	Common
	Delivery
	DeadLetteringOnFilterEvaluationExceptions bool
}

// Defaults of the service.
const (
	defaultLock        = Minute
	defaultMegabytes   = 1024
	defaultKilobytes   = 1024
	defaultHistory     = 10 * Minute
	defaultMaxDelivery = 10
)

func newCommon() Common {
	return Common{DefaultMessageTimeToLive: Forever, AutoDeleteOnIdle: Forever, EnableBatchedOperations: true, Status: Active}
}

func newDelivery() Delivery {
	return Delivery{LockDuration: defaultLock, MaxDeliveryCount: defaultMaxDelivery}
}

func newStore() Store {
	return Store{
		MaxSizeInMegabytes: defaultMegabytes, MaxMessageSizeInKilobytes: defaultKilobytes,
		DuplicateDetectionHistoryTimeWindow: defaultHistory, SupportOrdering: true,
	}
}

// NewQueue is a queue of which nobody has said anything.
func NewQueue() *Queue { return &Queue{newCommon(), newDelivery(), newStore()} }

// NewTopic is a topic of which nobody has said anything.
func NewTopic() *Topic { return &Topic{Common: newCommon(), Store: newStore()} }

// NewSubscription is a subscription of which nobody has said anything.
func NewSubscription() *Subscription {
	return &Subscription{newCommon(), newDelivery(), true}
}

// Bounds of what a description says.
const (
	leastIdle      = 5 * Minute
	leastTTL       = Second
	leastLock      = 5 * Second
	maxLock        = 5 * Minute
	leastHistory   = 20 * Second
	maxHistory     = 7 * Day
	maxDeliveries  = 2000
	maxMegabytes   = 1 << 20
	maxMetadata    = 1024 // characters
	maxDescription = 8 << 10
)

// Limits are the broker's own.
type Limits struct {
	MessageKilobytes int64 // of the largest message
	UsualKilobytes   int64 // of that of an entity of which nobody says it; 0: the service's
}

// Complete gives an entity what nobody has said of it, and the broker decides.
func (l Limits) Complete(d *Description) {
	if s := d.Store(); s != nil && s.MaxMessageSizeInKilobytes == 0 {
		s.MaxMessageSizeInKilobytes = min(cmp.Or(l.UsualKilobytes, defaultKilobytes), l.MessageKilobytes)
	}
}

func (c *Common) check() error {
	switch {
	case c.DefaultMessageTimeToLive < leastTTL:
		return invalid("DefaultMessageTimeToLive", "it must be at least %s", leastTTL)
	case c.AutoDeleteOnIdle < leastIdle:
		return invalid("AutoDeleteOnIdle", "it must be at least %s", leastIdle)
	case len([]rune(c.UserMetadata)) > maxMetadata:
		return invalid("UserMetadata", "it must have at most %d characters", maxMetadata)
	}
	switch c.Status {
	case Active, Disabled, SendDisabled, ReceiveDisabled:
		return nil
	}
	return invalid("Status", "it must be Active, Disabled, SendDisabled or ReceiveDisabled")
}

func (d *Delivery) check() error {
	switch {
	case d.LockDuration < leastLock || d.LockDuration > maxLock:
		return invalid("LockDuration", "it must be from %s to %s", leastLock, maxLock)
	case d.MaxDeliveryCount < 1 || d.MaxDeliveryCount > maxDeliveries:
		return invalid("MaxDeliveryCount", "it must be from 1 to %d", maxDeliveries)
	case d.RequiresSession && d.ForwardTo != "":
		return invalid("ForwardTo", "an entity that requires sessions cannot forward")
	}
	return nil
}

func (s *Store) check(l Limits) error {
	switch {
	case s.MaxSizeInMegabytes < 1 || s.MaxSizeInMegabytes > maxMegabytes:
		return invalid("MaxSizeInMegabytes", "it must be from 1 to %d", maxMegabytes)
	case s.MaxMessageSizeInKilobytes < 1 || s.MaxMessageSizeInKilobytes > l.MessageKilobytes:
		return invalid("MaxMessageSizeInKilobytes", "it must be from 1 to %d", l.MessageKilobytes)
	case s.DuplicateDetectionHistoryTimeWindow < leastHistory || s.DuplicateDetectionHistoryTimeWindow > maxHistory:
		return invalid("DuplicateDetectionHistoryTimeWindow", "it must be from %s to %s", leastHistory, maxHistory)
	}
	return nil
}

func firstError(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// Check refuses what no queue can be.
func (q *Queue) Check(l Limits) error {
	return firstError(q.Common.check(), q.Delivery.check(), q.Store.check(l))
}

// Check refuses what no topic can be.
func (t *Topic) Check(l Limits) error { return firstError(t.Common.check(), t.Store.check(l)) }

// Check refuses what no subscription can be.
func (s *Subscription) Check() error { return firstError(s.Common.check(), s.Delivery.check()) }

// unchangeable says of a property what the service says.
func unchangeable(property, kind string) error {
	return invalid("", "The value for the %s property of an existing %s cannot be changed.", property, kind)
}

// CheckChange refuses what cannot be changed of a queue.
func (q *Queue) CheckChange(was *Queue) error {
	return firstError(q.Delivery.checkChange(&was.Delivery, "Queue"), q.Store.checkChange(&was.Store, "Queue"))
}

// CheckChange refuses what cannot be changed of a topic.
func (t *Topic) CheckChange(was *Topic) error { return t.Store.checkChange(&was.Store, "Topic") }

// CheckChange refuses what cannot be changed of a subscription.
func (s *Subscription) CheckChange(was *Subscription) error {
	return s.Delivery.checkChange(&was.Delivery, "Subscription")
}

func (d *Delivery) checkChange(was *Delivery, kind string) error {
	if d.RequiresSession != was.RequiresSession {
		return unchangeable("RequiresSession", kind)
	}
	return nil
}

func (s *Store) checkChange(was *Store, kind string) error {
	switch {
	case s.RequiresDuplicateDetection != was.RequiresDuplicateDetection:
		return unchangeable("RequiresDuplicateDetection", kind)
	case s.EnablePartitioning != was.EnablePartitioning:
		return invalid("", "Partitioning cannot be changed for %s.", kind)
	}
	return nil
}

// Description is what is kept of an entity. Exactly one of Queue, Topic and
// Subscription is not nil.
type Description struct {
	Path         Path
	Queue        *Queue        `json:",omitempty"`
	Topic        *Topic        `json:",omitempty"`
	Subscription *Subscription `json:",omitempty"`
}

// Common is what all kinds of entities have.
func (d *Description) Common() *Common {
	switch {
	case d.Queue != nil:
		return &d.Queue.Common
	case d.Topic != nil:
		return &d.Topic.Common
	}
	return &d.Subscription.Common
}

// Delivery is what queues and subscriptions have; nil: it is a topic.
func (d *Description) Delivery() *Delivery {
	switch {
	case d.Queue != nil:
		return &d.Queue.Delivery
	case d.Subscription != nil:
		return &d.Subscription.Delivery
	}
	return nil
}

// Lock is how long messages are locked that somebody receives; of a topic, of which one receives only what it could not hand on, it
// is the default.
func (d *Description) Lock() Duration {
	if y := d.Delivery(); y != nil {
		return y.LockDuration
	}
	return defaultLock
}

// Store is what queues and topics have; nil: it is a subscription.
func (d *Description) Store() *Store {
	switch {
	case d.Queue != nil:
		return &d.Queue.Store
	case d.Topic != nil:
		return &d.Topic.Store
	}
	return nil
}

// Kind is the word for it in texts.
func (d *Description) Kind() string {
	switch {
	case d.Queue != nil:
		return "Queue"
	case d.Topic != nil:
		return "Topic"
	}
	return "Subscription"
}

// Encode returns what is kept.
func (d *Description) Encode() ([]byte, error) {
	b, err := json.Marshal(d)
	if err == nil && len(b) > maxDescription {
		err = invalid("", "The description of %s has %d bytes, more than %d.", d.Path, len(b), maxDescription)
	}
	return b, err
}

// Decode reads what Encode has made. What is not said has the service's default.
func Decode(b []byte) (*Description, error) {
	var d struct {
		Path                       Path
		Queue, Topic, Subscription json.RawMessage
	}
	if err := json.Unmarshal(b, &d); err != nil {
		return nil, fmt.Errorf("read a description: %w", err)
	}
	out := &Description{Path: d.Path}
	var body json.RawMessage
	var into any
	switch {
	case d.Queue != nil:
		out.Queue = NewQueue()
		body, into = d.Queue, out.Queue
	case d.Topic != nil:
		out.Topic = NewTopic()
		body, into = d.Topic, out.Topic
	case d.Subscription != nil:
		out.Subscription = NewSubscription()
		body, into = d.Subscription, out.Subscription
	default:
		return nil, fmt.Errorf("read a description: it describes nothing")
	}
	if err := json.Unmarshal(body, into); err != nil {
		return nil, fmt.Errorf("read a description: %w", err)
	}
	return out, nil
}

// ForwardPath is the path that a forwarding property names, which may be a URL.
func ForwardPath(property string) Path {
	return ParseAddress(strings.TrimSpace(property)).Path
}
