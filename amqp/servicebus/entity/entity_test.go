package entity

import (
	"errors"
	"math"
	"reflect"
	"strings"
	"testing"

	"github.com/quorate/quorate/fsm"
)

func TestDurations(t *testing.T) {
	for text, want := range map[string]Duration{
		"P10675199DT2H48M5.4775807S": Forever, "PT1M": Minute, "PT45S": 45 * Second, "P7D": 7 * Day, "PT0S": 0,
		"P1DT2H3M4.5S": Day + 2*Hour + 3*Minute + 4*Second + 500*Millisecond, "PT0.0000001S": Tick,
	} {
		got, err := ParseDuration(text)
		if err != nil || got != want || got.String() != text {
			t.Errorf("%s: %v %s, %v", text, int64(got), got, err)
		}
	}
	for text, want := range map[string]Duration{"PT90M": 90 * Minute, "P1Y": 365 * Day, "P1M": 30 * Day, "P2W": 14 * Day, "PT1.23456789S": 12345678} {
		if got, err := ParseDuration(text); err != nil || got != want {
			t.Errorf("%s: %d, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "P", "PT", "P1", "1M", "-PT1M", "PT1M1H", "PT1.5M", "P1DT", "PT1H2", "PT.5S", "PT1.S", "P10675199DT2H48M5.4775808S", "P99999999999999999999D", "PTT1M", "PT1D"} {
		if d, err := ParseDuration(text); err == nil {
			t.Errorf("%q is read as %s", text, d)
		}
	}
	if ms := []int64{Duration(0).Milliseconds(), Tick.Milliseconds(), Millisecond.Milliseconds(), (Millisecond + 1).Milliseconds()}; !reflect.DeepEqual(ms, []int64{0, 1, 1, 2}) {
		t.Error(ms)
	}
	if Forever.Milliseconds() != math.MaxInt64/10_000+1 || Forever.Std() != math.MaxInt64 || Minute.Std().String() != "1m0s" {
		t.Error(Forever.Milliseconds(), Forever.Std())
	}
}

func TestAddresses(t *testing.T) {
	for _, c := range []struct{ address, want string }{
		{"Q", "Q"},
		{"/a/b/", "a/b"},
		{"sb://host:5672/Q", "Q"},
		{"Q/$DeadLetterQueue", "Q/$deadletterqueue"},
		{"Q/$TRANSFER/$deadletterqueue", "Q/$Transfer/$deadletterqueue"},
		{"T/subscriptions/S", "T/Subscriptions/S"},
		{"T/SUBSCRIPTIONS/S/%24management/", "T/Subscriptions/S/$management"},
		{"T/Subscriptions/S/$DeadLetterQueue", "T/Subscriptions/S/$deadletterqueue"},
		{"a/b/Subscriptions/S", "a/b/Subscriptions/S"},
	} {
		if got := ParseAddress(c.address).String(); got != c.want {
			t.Errorf("%s is read as %s", c.address, got)
		}
	}
	a := ParseAddress("Top/Subscriptions/Sub/$management")
	if a.Path != (Path{"Top", "Sub"}) || a.Part != Management || a.Key() != "top/subscriptions/sub" || a.Store() != "Top/$topic" {
		t.Errorf("%+v", a)
	}
	for name, fine := range map[string]bool{"a": true, "a-b_c.d/E": true, "/a": false, "a/": false, "a b": false, "": false, "a//b": false, "ü": false, strings.Repeat("a", 261): false} {
		if err := CheckPath(Path{Name: name}); (err == nil) != fine {
			t.Errorf("%q: %v", name, err)
		}
	}
	if CheckPath(Path{"t", "a/b"}) == nil || CheckPath(Path{"t", strings.Repeat("s", 51)}) == nil || CheckRuleName(DefaultRule) != nil || CheckRuleName("a/b") == nil {
		t.Error("names of subscriptions or rules")
	}
	long := ParseAddress(strings.Repeat("n", 260) + "/$deadletterqueue").Object()
	other := ParseAddress(strings.Repeat("n", 260)).Object()
	if len(long) != 255 || len(other) != 255 || long == other {
		t.Error(long, other)
	}
}

func TestDescriptionsComeBack(t *testing.T) {
	q, top, s := NewQueue(), NewTopic(), NewSubscription()
	q.RequiresSession, q.LockDuration, q.UserMetadata = true, 45*Second, "x"
	top.Status, s.MaxDeliveryCount = SendDisabled, 3
	for _, d := range []*Description{{Path: Path{"Q", ""}, Queue: q}, {Path: Path{"T", ""}, Topic: top}, {Path: Path{"T", "S"}, Subscription: s}} {
		b, err := d.Encode()
		if err != nil {
			t.Fatal(err)
		}
		if back, err := Decode(b); err != nil || !reflect.DeepEqual(d, back) {
			t.Errorf("%s: %+v, %v", b, back, err)
		}
	}
	if _, err := Decode([]byte(`{"Path":{"Name":"x"}}`)); err == nil {
		t.Error("nothing is described")
	}
	if d, err := Decode([]byte(`{"Path":{"Name":"x"},"Queue":{}}`)); err != nil || !reflect.DeepEqual(d.Queue, NewQueue()) {
		t.Errorf("%+v, %v", d, err)
	}
	q.UserMetadata = strings.Repeat("x", maxDescription)
	if _, err := (&Description{Queue: q}).Encode(); err == nil {
		t.Error("no bound")
	}
}

func TestWhatIsRefused(t *testing.T) {
	limits := Limits{MessageKilobytes: 16384}
	for field, change := range map[string]func(*Queue){
		"LockDuration":                        func(q *Queue) { q.LockDuration = maxLock + 1 },
		"DefaultMessageTimeToLive":            func(q *Queue) { q.DefaultMessageTimeToLive = 0 },
		"AutoDeleteOnIdle":                    func(q *Queue) { q.AutoDeleteOnIdle = leastIdle - 1 },
		"UserMetadata":                        func(q *Queue) { q.UserMetadata = strings.Repeat("ä", maxMetadata+1) },
		"Status":                              func(q *Queue) { q.Status = "Restoring" },
		"MaxDeliveryCount":                    func(q *Queue) { q.MaxDeliveryCount = 0 },
		"ForwardTo":                           func(q *Queue) { q.RequiresSession, q.ForwardTo = true, "x" },
		"MaxSizeInMegabytes":                  func(q *Queue) { q.MaxSizeInMegabytes = 0 },
		"MaxMessageSizeInKilobytes":           func(q *Queue) { q.MaxMessageSizeInKilobytes = 16385 },
		"DuplicateDetectionHistoryTimeWindow": func(q *Queue) { q.DuplicateDetectionHistoryTimeWindow = Second },
	} {
		q := NewQueue()
		change(q)
		var refusal *Invalid
		if err := q.Check(limits); !errors.As(err, &refusal) || refusal.Field != field {
			t.Errorf("%s: %v", field, err)
		}
	}
	if err := firstError(NewQueue().Check(limits), NewTopic().Check(limits), NewSubscription().Check()); err != nil {
		t.Error(err)
	}
	q := NewQueue()
	q.RequiresSession = true
	if err := q.CheckChange(NewQueue()); err == nil || !strings.Contains(err.Error(), "The value for the RequiresSession property of an existing Queue cannot be changed") {
		t.Error(err)
	}
	top := NewTopic()
	top.EnablePartitioning = true
	if err := top.CheckChange(NewTopic()); err == nil || !strings.Contains(err.Error(), "Partitioning cannot be changed for Topic.") {
		t.Error(err)
	}
}

// arguments is the table as text.
func arguments(d *Description, to Destinations) (list []string) {
	for _, f := range d.Arguments(to).GetFields() {
		value := string(f.GetValue().GetStr())
		if f.GetValue().GetTag() != 'S' {
			value = Duration(f.GetValue().GetInt()).Std().String()
		}
		list = append(list, f.GetName()+"="+value)
	}
	return list
}

func fieldNames(table *fsm.Table) (list []string) {
	for _, f := range table.GetFields() {
		list = append(list, f.GetName())
	}
	return list
}

func TestArguments(t *testing.T) {
	q := NewQueue()
	d := &Description{Path: Path{Name: "Q"}, Queue: q}
	plain := strings.Join(arguments(d, Destinations{}), " ")
	for _, want := range []string{
		"x-queue-type=classic", "x-max-length-bytes=1m47.3741824s", "x-overflow=reject-publish", "x-lock-duration=6ms", "x-count-lock-expiry=100ns",
		"x-delivery-limit=900ns", "x-dead-letter-exchange= ", "x-dead-letter-routing-key=Q/$deadletterqueue", "x-dead-letter-strategy=at-least-once", "x-dead-letter-expired=0s",
	} {
		if !strings.Contains(plain+" ", want) {
			t.Errorf("%s is not in %s", want, plain)
		}
	}
	for _, none := range []string{"x-message-ttl", "x-auto-delete", "x-dedup", "x-group", "x-forward", "x-refuse"} {
		if strings.Contains(plain, none) {
			t.Errorf("%s is in %s", none, plain)
		}
	}
	q.DefaultMessageTimeToLive, q.AutoDeleteOnIdle, q.RequiresDuplicateDetection, q.DeadLetteringOnMessageExpiration = Minute, Hour, true, true
	full := strings.Join(arguments(d, Destinations{}), " ")
	for _, want := range []string{"x-message-ttl=6ms", "x-auto-delete-on-idle=360ms", "x-dedup-window=60ms"} {
		if !strings.Contains(full, want) {
			t.Errorf("%s is not in %s", want, full)
		}
	}
	if strings.Contains(full, "x-dead-letter-expired") {
		t.Error(full)
	}
	for status, refuses := range map[Status]bool{Active: false, ReceiveDisabled: false, SendDisabled: true, Disabled: true} {
		q.Status = status
		top := NewTopic()
		top.Status = status
		for _, list := range [][]string{arguments(d, Destinations{}), fieldNames((&Description{Topic: top}).StoreArguments(Destinations{}))} {
			if all := strings.Join(list, " "); strings.Contains(all, "x-refuse-publishes") != refuses {
				t.Errorf("%s: %s", status, all)
			}
		}
	}
	q.RequiresSession = true
	if sessions := strings.Join(arguments(d, Destinations{}), " "); !strings.Contains(sessions, "x-message-groups=100ns x-group-required=100ns x-group-expiry=group") {
		t.Error(sessions)
	}
	q.RequiresSession = false
	if on := strings.Join(arguments(d, Destinations{Messages: "B"}), " "); !strings.Contains(on, "x-forward-to-exchange= x-forward-to-routing-key=B x-forward-refused=dead-letter") || strings.Contains(on, "on-idle") {
		t.Error(on)
	}
	if got := d.DeadLetterArguments(Destinations{DeadLetters: "C"}); len(got.GetFields()) != 5 || string(got.GetFields()[4].GetValue().GetStr()) != "C" {
		t.Error(got)
	}
	if got := strings.Join(arguments(d, Destinations{Transfers: "R"}), " "); !strings.Contains(got, "x-sent-refused-queue=R") {
		t.Error(got)
	}
	top := &Description{Path: Path{Name: "T"}, Topic: NewTopic()}
	if got := strings.Join(fieldNames(top.StoreArguments(Destinations{Transfers: "R"})), " "); !strings.Contains(got, "x-sent-refused-queue") {
		t.Error(got)
	}
	q.LockDuration = 2 * Minute
	for lock, of := range map[int64]*Description{120_000: d, 60_000: top} {
		if got := of.TransferArguments().GetFields(); len(got) != 3 || got[1].GetName() != "x-lock-duration" || got[1].GetValue().GetInt() != lock {
			t.Error(got)
		}
	}
	if got := top.StoreArguments(Destinations{}).GetFields(); string(got[len(got)-2].GetValue().GetStr()) != "T" || got[len(got)-1].GetName() != "x-forward-copies" || got[len(got)-1].GetValue().GetInt() != 1 {
		t.Error(got)
	}
}

func TestRulesComeBack(t *testing.T) {
	r := &Rule{Name: "r", Correlation: &CorrelationFilter{Label: "l", Properties: []Property{{"p", Value{Int, "1"}}}}, Action: &Expression{Text: "SET a = 1"}}
	b, err := EncodeRule(r)
	if err != nil || r.Check() != nil {
		t.Fatal(err, r.Check())
	}
	if back, err := DecodeRule(b); err != nil || !reflect.DeepEqual(r, back) {
		t.Errorf("%s: %+v, %v", b, back, err)
	}
	r.True = true
	if r.Check() == nil || (&Rule{Name: "r"}).Check() == nil || (&Rule{Name: "r", SQL: &Expression{}}).Check() == nil || NewRule(DefaultRule).Check() != nil {
		t.Error("a rule has one filter")
	}
}
