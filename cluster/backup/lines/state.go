package lines

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/quorate/quorate/cluster/tables"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/queue"
	"github.com/quorate/quorate/proto/logpb"
)

// text is a string of any bytes: in JSON it is a string or, if it is not UTF-8, an
// object with its bytes.
type text string

type rawText struct {
	Base64 []byte `json:"base64"`
}

// MarshalJSON implements json.Marshaler.
func (t text) MarshalJSON() ([]byte, error) {
	if utf8.ValidString(string(t)) {
		return tables.Append(nil, string(t)), nil
	}
	return json.Marshal(rawText{[]byte(t)})
}

// UnmarshalJSON implements json.Unmarshaler.
func (t *text) UnmarshalJSON(b []byte) error {
	var raw rawText
	if len(b) > 0 && b[0] == '{' {
		err := json.Unmarshal(b, &raw)
		*t = text(raw.Base64)
		return err
	}
	return json.Unmarshal(b, (*string)(t))
}

// when is an instant, ms since the epoch; 0: none. In JSON it is text with ms, or the
// number if its year has more than four digits. Both can be read.
type when int64

const whenLayout = "2006-01-02T15:04:05.000Z"

// MarshalJSON implements json.Marshaler.
func (w when) MarshalJSON() ([]byte, error) {
	at := time.UnixMilli(int64(w)).UTC()
	if y := at.Year(); y < 0 || y > 9999 {
		return json.Marshal(int64(w))
	}
	return json.Marshal(at.Format(whenLayout))
}

// UnmarshalJSON implements json.Unmarshaler.
func (w *when) UnmarshalJSON(b []byte) error {
	if len(b) > 0 && b[0] != '"' {
		return json.Unmarshal(b, (*int64)(w))
	}
	var at time.Time
	err := json.Unmarshal(b, &at)
	*w = when(at.UnixMilli())
	return err
}

// state is what a queue knows of a message besides its content.
type state struct {
	Place         string  `json:"place"`
	Priority      uint32  `json:"priority"`
	Acquired      uint32  `json:"acquired_count,omitempty"`
	Failed        uint32  `json:"delivery_count,omitempty"`
	ExpiresAt     when    `json:"expires_at,omitempty"`
	DueAt         when    `json:"due_at,omitempty"`
	ScheduleID    text    `json:"schedule_id,omitempty"`
	ScheduledFor  when    `json:"scheduled_for,omitempty"`
	TTL           *uint64 `json:"ttl_ms,omitempty"`         // from due_at on
	TTLCeiling    *uint64 `json:"ttl_ceiling_ms,omitempty"` // likewise
	HasExpiration bool    `json:"has_expiration,omitempty"`
	GroupID       text    `json:"group_id,omitempty"`
	MessageID     text    `json:"message_id,omitempty"`     // as the record of ends has it
	CorrelationID text    `json:"correlation_id,omitempty"` // likewise
	UniqueKey     []byte  `json:"unique_key_base64,omitempty"`
	Hops          uint32  `json:"hops,omitempty"`
	Forwarded     bool    `json:"forwarded,omitempty"`
	Reason        string  `json:"reason,omitempty"` // why it dies
	Deaths        []death `json:"deaths,omitempty"`
	// What receivers have added, as AMQP 1.0 encodes it.
	Annotations []annotation `json:"annotations,omitempty"`
}

type annotation struct {
	Key   []byte `json:"key_base64"`
	Value []byte `json:"value_base64"`
}

type death struct {
	Reason             string `json:"reason"`
	Queue              text   `json:"queue"`
	Count              uint64 `json:"count"`
	Time               when   `json:"time"`
	Exchange           text   `json:"exchange"`
	RoutingKeys        []text `json:"routing_keys"`
	OriginalExpiration text   `json:"original_expiration,omitempty"`
	First              bool   `json:"first,omitempty"`
	LastExchange       text   `json:"last_exchange,omitempty"`
	LastTime           when   `json:"last_time,omitempty"`
	Failed             uint32 `json:"failed,omitempty"`
}

// places are the names of where a message can be.
var places = []struct {
	place queue.Place
	name  string
}{
	{queue.Ready, "ready"}, {queue.Returned, "returned"}, {queue.CheckedOut, "unacked"}, {queue.Scheduled, "scheduled"},
	{queue.Delayed, "delayed"}, {queue.Deferred, "deferred"}, {queue.Parked, "parked"}, {queue.Outbox, "dead_letter"}, {queue.Waiting, "dead_letter_waiting"},
}

func reasonOf(r logpb.Death_Reason) string {
	if r == logpb.Death_NONE {
		return ""
	}
	return strings.ToLower(r.String())
}

func parseReason(s string) (logpb.Death_Reason, error) {
	r, known := logpb.Death_Reason_value[strings.ToUpper(s)]
	if s != "" && !known {
		return 0, fmt.Errorf("%q is not a reason for a death", s)
	}
	return logpb.Death_Reason(r), nil
}

// decodedTTL is the inverse of encodedTTL.
func decodedTTL(n uint64) *uint64 {
	if n == 0 {
		return nil
	}
	return new(n - 1)
}

func encodedTTL(n *uint64) uint64 {
	if n == nil {
		return 0
	}
	return *n + 1
}

// stateOf returns what a line shows of a record.
func stateOf(r *logpb.MessageState) *state {
	if r == nil {
		return nil
	}
	s := &state{
		Priority: r.Priority, Acquired: r.Acquired, Failed: r.Failed, ExpiresAt: when(r.ExpireAt), DueAt: when(r.DueAt),
		ScheduleID: text(r.ScheduleId), ScheduledFor: when(r.ScheduledFor), TTL: decodedTTL(r.TtlPlusOne), TTLCeiling: decodedTTL(r.TtlCeilingPlusOne),
		HasExpiration: r.HasExpiration, GroupID: text(r.GroupId), MessageID: text(r.MessageId), CorrelationID: text(r.CorrelationId),
		Hops: r.Hops, Forwarded: r.Forwarded, Reason: reasonOf(r.Reason), UniqueKey: r.UniqueKey,
	}
	for _, p := range places {
		if p.place == queue.Place(r.Place) {
			s.Place = p.name
		}
	}
	for _, d := range r.Deaths {
		x := death{
			reasonOf(d.Reason), text(d.Queue), d.Count, when(d.Time), text(d.Exchange), []text{}, text(d.OriginalExpiration), d.First, text(d.LastExchange), when(d.LastTime), d.Failed,
		}
		for _, k := range d.RoutingKeys {
			x.RoutingKeys = append(x.RoutingKeys, text(k))
		}
		s.Deaths = append(s.Deaths, x)
	}
	for _, a := range r.Annotations {
		s.Annotations = append(s.Annotations, annotation{a.Key, a.Value})
	}
	return s
}

// record is the inverse of stateOf.
func (s *state) record(p Properties) (*logpb.MessageState, error) {
	at := slices.IndexFunc(places, func(p struct {
		place queue.Place
		name  string
	}) bool {
		return p.name == s.Place
	})
	if at < 0 {
		return nil, fmt.Errorf("%q is not a place of a message", s.Place)
	}
	reason, err := parseReason(s.Reason)
	if err != nil {
		return nil, err
	}
	r := &logpb.MessageState{
		Place: uint32(places[at].place), Priority: s.Priority, Acquired: s.Acquired, Failed: s.Failed, ExpireAt: int64(s.ExpiresAt), DueAt: int64(s.DueAt),
		ScheduleId: string(s.ScheduleID), ScheduledFor: int64(s.ScheduledFor), TtlPlusOne: encodedTTL(s.TTL), TtlCeilingPlusOne: encodedTTL(s.TTLCeiling),
		HasExpiration: s.HasExpiration, GroupId: string(s.GroupID), MessageId: string(s.MessageID), CorrelationId: string(s.CorrelationID),
		Hops: s.Hops, Forwarded: s.Forwarded, Reason: reason, UniqueKey: s.UniqueKey,
	}
	for i := range s.Deaths {
		d := &s.Deaths[i]
		why, err := parseReason(d.Reason)
		if err != nil {
			return nil, err
		}
		x := &logpb.Death{
			Reason: why, Queue: string(d.Queue), Count: d.Count, Time: int64(d.Time), Exchange: string(d.Exchange),
			OriginalExpiration: string(d.OriginalExpiration), First: d.First, LastExchange: string(d.LastExchange), LastTime: int64(d.LastTime),
			Failed: d.Failed,
		}
		for _, k := range d.RoutingKeys {
			x.RoutingKeys = append(x.RoutingKeys, string(k))
		}
		r.Deaths = append(r.Deaths, x)
	}
	if r.Annotations, err = readAnnotations(p, s.Annotations); err != nil {
		return nil, err
	}
	return r, nil
}

// readAnnotations returns what receivers have added, of which each has to be a pair of a map.
func readAnnotations(p Properties, list []annotation) (all []*logpb.Annotation, err error) {
	size := 0
	for _, a := range list {
		size += len(a.Key) + len(a.Value)
		all = append(all, &logpb.Annotation{Key: a.Key, Value: a.Value})
		alone, err := fsm.AppendBareHead(nil, "", "", fsm.BareHeader{Priority: -1, TTL: -1}, fsm.AnnotationMap(all[len(all)-1:]), nil)
		if err == nil {
			err = p.Check(append(alone, emptyBody...))
		}
		if err != nil {
			return nil, fmt.Errorf("an annotation: %w", err)
		}
	}
	if len(all) > fsm.MaxAnnotations || size > fsm.MaxAnnotationBytes {
		return nil, fmt.Errorf("more than %d annotations, or %d bytes of them", fsm.MaxAnnotations, fsm.MaxAnnotationBytes)
	}
	return all, nil
}

// emptyBody is the section amqp-value with null.
const emptyBody = "\x00\x53\x77\x40"
