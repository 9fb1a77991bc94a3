package session

import "testing"

func TestTallies(t *testing.T) {
	all := tallies{by: map[counted]*tally{}}
	a, b := &Connection{user: "u", vhost: "v"}, &Connection{user: "u", vhost: "w"}
	expect := func(when string, user, v, w tally) {
		t.Helper()
		for who, want := range map[counted]tally{{true, "u"}: user, {false, "v"}: v, {false, "w"}: w, {true, "v"}: {}} {
			if got := all.of(who); got != want {
				t.Errorf("%s: %+v has %+v, want %+v", when, who, got, want)
			}
		}
	}
	all.channel(b, 1) // before it counts
	all.channel(b, -1)
	all.enter(a)
	all.enter(b)
	all.channel(a, 1)
	all.channel(a, 1)
	all.channel(b, 1)
	expect("both are there", tally{2, 3}, tally{1, 0}, tally{1, 0})
	all.leave(a)
	all.leave(a)
	expect("one has left", tally{1, 1}, tally{}, tally{1, 0})
	all.channel(a, -1) // a channel that ends after its connection
	expect("its channels end", tally{1, 1}, tally{}, tally{1, 0})
	all.channel(b, -1)
	all.leave(b)
	expect("both have left", tally{}, tally{}, tally{})
	if len(all.by) > 0 {
		t.Errorf("still listed: %v", all.by)
	}
}
