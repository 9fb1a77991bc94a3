package history

import (
	"bytes"
	"reflect"
	"strings"
	"testing"
	"time"
)

func TestFileKeepsEverything(t *testing.T) {
	h := New()
	a := h.Begin(Attempt{Message: h.NextMessage(), Publisher: "p", Epoch: 2, Queue: "q", TTL: time.Second})
	b := h.Begin(Attempt{Message: h.NextMessage(), Publisher: "p", Epoch: 2, Queue: "q"})
	h.End(a, OK)
	at := h.Deliver(Delivery{Key: a, Queue: "q", Consumer: "c", Epoch: 1, Death: &Death{Queue: "w", RoutingKeys: []string{"k"}}})
	h.Acked([]int{at})
	h.Settled([]int{at})
	h.Fault("kill", 2)()
	h.Skip("loss", "loss", "no namespaces")
	h.Did(Op{Kind: Renew, Client: "c 1", Key: a, On: h.Took(Op{Client: "c 1", Key: a, Group: "g", Again: true, Lock: time.Second}), Result: No})
	h.Did(Op{Kind: Schedule, Client: "p", Key: b, Due: time.Second, Result: OK})
	h.Lead("q", 1, 2)
	h.Lead("q", 1, 2) // seen again
	h.Lead("q", 3, 4)
	h.Sample(time.Millisecond)
	if len(h.Leaders) != 2 {
		t.Errorf("leaders: %+v", h.Leaders)
	}
	h.CountPublish()
	h.CountConfirm("q", time.Millisecond)
	h.CountDelivery(true)
	if want := (Counts{1, 1, 1, 1}); h.Past != want || len(h.Seconds) == 0 || h.Answers() != 2 || h.Answered("q") == 0 {
		t.Errorf("counted %+v, %+v", h.Past, h.Seconds)
	}
	h.Past = Counts{Published: 3, Confirmed: 2, Delivered: 1}
	h.Add(&History{Attempts: []Attempt{{Result: OK}, {}}, Deliveries: []Delivery{{}}})
	h.Stall = 20 * time.Millisecond
	if h.Missing() != 0 || h.Confirmed() != 1 || h.Received("q") != 1 {
		t.Errorf("missing %d, confirmed %d, received %d", h.Missing(), h.Confirmed(), h.Received("q"))
	}
	h.End(b, OK)
	if h.Missing() != 1 {
		t.Errorf("missing %d", h.Missing())
	}
	var file bytes.Buffer
	if err := h.Write(&file); err != nil {
		t.Fatal(err)
	}
	back, err := Read(&file)
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(back.Attempts, h.Attempts) || !reflect.DeepEqual(back.Deliveries, h.Deliveries) || !reflect.DeepEqual(back.Faults, h.Faults) ||
		!reflect.DeepEqual(back.Ops, h.Ops) || !reflect.DeepEqual(back.Leaders, h.Leaders) || !reflect.DeepEqual(back.Stalls, h.Stalls) || !reflect.DeepEqual(back.Seconds, h.Seconds) {
		t.Errorf("read back %+v %+v %+v", back.Attempts, back.Deliveries, back.Faults)
	}
	if want := (Counts{Published: 5, Confirmed: 3, Delivered: 2}); h.Past != want || back.Past != want {
		t.Errorf("past %+v, read back %+v", h.Past, back.Past)
	}
	if back.Stall != h.Stall {
		t.Errorf("stall %v, read back %v", h.Stall, back.Stall)
	}
	if back.LongestGap() != h.LongestGap() || h.LongestGap() <= 0 {
		t.Errorf("longest silence %v, read back %v", h.LongestGap(), back.LongestGap())
	}
}

func TestReadRefusesNonsense(t *testing.T) {
	for _, text := range []string{"{}", "x", `{"attempt":3}`} {
		if _, err := Read(strings.NewReader(text)); err == nil {
			t.Errorf("%q is read as a history", text)
		}
	}
}
