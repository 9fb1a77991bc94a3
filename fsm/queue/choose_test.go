package queue

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

func chooser(selector string) *logpb.Command {
	return &logpb.Command{Kind: logpb.Command_CONSUME, Consume: &logpb.Consume{Consumer: 1, Credit: true, Selector: selector}}
}

func credit(count, credit uint32, drain bool) *logpb.Command {
	return &logpb.Command{Kind: logpb.Command_CREDIT, Credit: &logpb.Credit{Consumer: 1, DeliveryCount: count, Credit: credit, Drain: drain}}
}

func choice1(number, searched uint64, messages ...uint64) *logpb.Command {
	return &logpb.Command{Kind: logpb.Command_CHOOSE, Choose: &logpb.Choose{
		Session: taker.Proto(), Consumer: 1, Number: number, Searched: searched, Messages: messages,
	}}
}

// handed lists the numbers of the messages that the last command has handed out.
func (d *driver) handed() (all []uint64) {
	for i := range d.eff.Deliveries {
		all = append(all, d.eff.Deliveries[i].Ref.Index)
	}
	return all
}

// mustRestore replaces the machine by its snapshot.
func (d *driver) mustRestore(t testing.TB) {
	t.Helper()
	var b bytes.Buffer
	before := d.m.Hash()
	if _, err := d.m.Snapshot().WriteTo(&b); err != nil {
		t.Fatal(err)
	}
	if err := d.m.Restore(&b); err != nil || d.m.Hash() != before {
		t.Fatalf("restored: %v", err)
	}
}

// A consumer with a selector is handed what is named for it, once, as far as it is ready, has not expired and there is
// credit; nothing else, and others take the rest. All of that survives a snapshot.
func TestChoose(t *testing.T) {
	for _, restored := range []bool{false, true} {
		t.Run(fmt.Sprint("restored ", restored), func(t *testing.T) { testChoose(t, restored) })
	}
}

func testChoose(t *testing.T, restored bool) {
	d := newDriver(&logpb.QueueConfig{DeliveryLimit: 20})
	d.meta.Version = 3
	step := func(want fsm.Code, s fsm.SessionID, c *logpb.Command, handed ...uint64) {
		t.Helper()
		d.mustAnswer(t, want, s, c)
		if got := d.handed(); fmt.Sprint(got) != fmt.Sprint(handed) {
			t.Errorf("%v handed out, want %v", got, handed)
		}
		if restored {
			choosers := d.eff.Choosers
			d.mustRestore(t)
			if all := Choosers(d.m); (len(all) > 0) != choosers {
				t.Errorf("%d choosers, told %v", len(all), choosers)
			}
		}
	}
	publish := func(priority uint32, ttl uint64) uint64 {
		t.Helper()
		step(fsm.OK, publisher, &logpb.Command{Kind: logpb.Command_ENQUEUE, Enqueue: &logpb.Enqueue{Size: 9, PriorityPlusOne: priority, TtlPlusOne: ttl}})
		return d.meta.Index
	}
	a, b, c, e := publish(0, 0), publish(9, 0), publish(0, 50), publish(0, 0) // numbers 1 to 4
	step(fsm.Invalid, taker, &logpb.Command{Kind: logpb.Command_CONSUME, Consume: &logpb.Consume{Consumer: 1, Selector: "x"}})
	step(fsm.OK, taker, chooser("x"))
	step(fsm.OK, fsm.SessionID{}, choice1(1, 0, 1, 2)) // without credit
	step(fsm.OK, taker, credit(0, 2, false))
	step(fsm.Rejected, fsm.SessionID{}, choice1(1, 0, 1, 2))
	step(fsm.Rejected, fsm.SessionID{}, choice1(3, 0, 1, 2))
	step(fsm.Invalid, fsm.SessionID{}, choice1(2, 0, 2, 1))
	step(fsm.Invalid, fsm.SessionID{}, choice1(2, 0, make([]uint64, chosenAtOnce+1)...))
	other := choice1(1, 0, 1)
	other.Choose.Consumer = 2
	step(fsm.NotFound, fsm.SessionID{}, other)
	step(fsm.OK, fsm.SessionID{}, choice1(2, 0, 2, 2, 4, 7, 9), b, e)
	if all := Choosers(d.m); len(all) != 0 || d.eff.Choosers {
		t.Errorf("without credit there are %v", all)
	}
	step(fsm.OK, fsm.SessionID{}, choice1(3, 0, 1)) // its credit is used up
	step(fsm.OK, taker, credit(2, 10, false))
	if all := Choosers(d.m); len(all) != 1 || all[0].Number != 4 || all[0].Credit != 10 || all[0].Selector != "x" || all[0].Drains {
		t.Errorf("choosers: %+v", all)
	}
	d.meta.Now += 60
	step(fsm.OK, fsm.SessionID{}, choice1(4, 0, 1, 3), a) // 3 has expired
	_ = c
	// What comes back can be chosen again, and a consumer without selector takes what is left.
	before := d.m.messages.cameBack
	step(fsm.OK, taker, &logpb.Command{Kind: logpb.Command_SETTLE, Settle: &logpb.Settle{Consumer: 1, Outcome: logpb.Settle_REQUEUE, Ranges: []uint64{1, 2}}})
	if after := d.m.messages.cameBack; after != before+2 && !restored {
		t.Errorf("%d have come back, want 2", after-before)
	}
	step(fsm.OK, fsm.SessionID{}, choice1(5, 0, 4), e)
	step(fsm.OK, publisher, &logpb.Command{Kind: logpb.Command_CONSUME, Consume: &logpb.Consume{Consumer: 5}}, b)
	step(fsm.OK, fsm.SessionID{}, choice1(6, 0, 2))
	// A drain ends once what was ready then was searched.
	step(fsm.OK, taker, credit(4, 10, true))
	if all := Choosers(d.m); len(all) != 1 || !all[0].Drains {
		t.Errorf("draining: %+v", all)
	}
	began := d.meta.Index
	step(fsm.OK, fsm.SessionID{}, choice1(7, began-1))
	step(fsm.OK, taker, credit(4, 10, true))
	if all := Choosers(d.m); len(all) != 1 || !all[0].Drains {
		t.Errorf("searched too early: %+v", all)
	}
	step(fsm.OK, fsm.SessionID{}, choice1(8, began))
	step(fsm.OK, taker, credit(4, 10, true))
	if all := Choosers(d.m); len(all) != 0 {
		t.Errorf("drained: %+v", all)
	}
	// One whose session has ended, or that is cancelled, is handed nothing.
	step(fsm.OK, taker, credit(14, 10, false))
	step(fsm.OK, taker, &logpb.Command{Kind: logpb.Command_CANCEL, Cancel: &logpb.Cancel{Consumer: 1}})
	step(fsm.NotFound, fsm.SessionID{}, choice1(9, 0, 5))
}

// Nobody is to choose while nothing would be handed out, and who takes only what lives long enough says so.
func TestChoosers(t *testing.T) {
	d := newDriver(&logpb.QueueConfig{DeliveryLimit: 20})
	d.meta.Version = 3
	c := chooser("x")
	c.Consume.MinTtl = 700
	d.mustAnswer(t, fsm.OK, taker, c)
	d.mustAnswer(t, fsm.OK, taker, credit(0, 2, false))
	if all := Choosers(d.m); len(all) != 1 || all[0].Least != 700 {
		t.Errorf("%+v", all)
	}
	d.mustAnswer(t, fsm.OK, publisher, &logpb.Command{Kind: logpb.Command_ENQUEUE, Enqueue: &logpb.Enqueue{Size: 9, TtlPlusOne: 501}})
	d.mustAnswer(t, fsm.OK, fsm.SessionID{}, choice1(1, 0, 1))
	if len(d.handed()) != 0 {
		t.Error("it is handed what does not live for long")
	}
	d.mustAnswer(t, fsm.OK, fsm.SessionID{}, &logpb.Command{Kind: logpb.Command_CONFIGURE, Configure: &logpb.Configure{Config: &logpb.QueueConfig{Forward: true, Revision: 2}}})
	if all := Choosers(d.m); len(all) != 0 {
		t.Errorf("of a queue that forwards: %+v", all)
	}
}

// Before version 3 there are no selectors.
func TestChooseVersion(t *testing.T) {
	d := newDriver(&logpb.QueueConfig{DeliveryLimit: 20})
	d.meta.Version = 2
	d.mustAnswer(t, fsm.Invalid, taker, chooser("x"))
	d.mustAnswer(t, fsm.Invalid, fsm.SessionID{}, choice1(1, 0))
}

// Consumers with selectors are known by their ages until they are cancelled, with credit or without.
func TestSelective(t *testing.T) {
	d := newDriver(&logpb.QueueConfig{})
	d.meta.Version = 3
	d.mustAnswer(t, fsm.OK, taker, chooser("a = 1"))
	other := fsm.SessionID{Node: 7, Boot: 1, Num: 1}
	d.mustAnswer(t, fsm.OK, other, chooser(""))
	if ages := Selective(d.m); len(ages) != 1 || len(Choosers(d.m)) != 0 {
		t.Errorf("%v", ages)
	}
	d.mustAnswer(t, fsm.OK, taker, credit(0, 1, false))
	for _, c := range Choosers(d.m) {
		if _, ok := Selective(d.m)[c.Age]; !ok {
			t.Errorf("%v is not among %v", c, Selective(d.m))
		}
	}
	d.mustAnswer(t, fsm.OK, taker, &logpb.Command{Kind: logpb.Command_CANCEL, Cancel: &logpb.Cancel{Consumer: 1}})
	if ages := Selective(d.m); len(ages) != 0 {
		t.Errorf("%v after the end", ages)
	}
}
